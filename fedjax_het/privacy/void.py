"""Compositions in which a private aggregation would promise what it does not keep; they are refused."""

from collections.abc import Sequence

import jax

from fedjax_het.errors import SettingError
from fedjax_het.parts import Algorithm, Upload


def check_private(parts: Algorithm, uploads: Sequence[Upload] = ()) -> None:
  """Raises `SettingError` where other parts void the guarantee of a part that has a `Mechanism`.

  What an upload may consist of is checked by `Needs.covers`, as beside other aggregations.

  Args:
    parts: the parts, each adapted to the others.
    uploads: the upload transforms that the client part has inside.
  """
  own = parts.aggregation.mechanism
  if own is None and parts.server.mechanism is None:
    return
  by = parts.aggregation.name if own is not None else parts.server.name

  def refuse(role: str, name: str, problem: str, remedy: str) -> None:
    problem = f"{problem}, which voids the privacy that {by} promises"
    raise SettingError(role, name, problem, remedy)

  mixing, server, client = parts.mixing, parts.server, parts.client
  if not mixing.even and mixing.population is not None:
    refuse("mixing", mixing.name, "counts clients by their numbers of examples", "Use uniform.")
  if not mixing.even:
    refuse("mixing", mixing.name, "counts clients by what they tell of themselves", "Use uniform.")
  if mixing.scale is not None:
    refuse("mixing", mixing.name, "scales updates by what it sees of all of them", "Use uniform.")
  for transform in uploads:
    if jax.tree.leaves(transform.shared):
      refuse("uploads", transform.name, "has clients send numbers of their updates without noise",
             "Use a fixed one, and the aggregation's own quantile.")  # fmt: skip
  if parts.attack.forge is not None:
    refuse("attack", parts.attack.name, "forges uploads from those of others",
           "Use one of rows, such as label_flip.")  # fmt: skip
  if client.first_pass is not None:
    refuse("algorithm", client.name, "has clients send values without noise before they train",
           "Use a method without a first pass, such as fedavg.")  # fmt: skip
  for role in Algorithm._fields:
    part = getattr(parts, role)
    for release in part.needs.releases:
      hidden = "without noise" if release.epsilon is None else "with noise for one example alone"
      refuse("algorithm" if role == "client" else role, part.name, f"is made of the clients' {release.what}, "
             f"{hidden}", "Use a method that is not, such as fedavg.")  # fmt: skip
  if own is None:
    if parts.aggregation.combine is not None:
      refuse("aggregation", parts.aggregation.name, "is no mean of the uploads, for which its noise is made",
             "Leave the aggregation out.")  # fmt: skip
    return
  if server.takes_feedback:
    refuse("server", server.name, "looks at single uploads", "Use one of the aggregate, such as sgd.")
  if server.send is not None:
    refuse("server", server.name, "sends each client a message of its own", "Use one such as sgd.")
