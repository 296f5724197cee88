"""Runs that became NaN or infinite: where it began, and what is still known of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.engine.evaluate import Evaluation
from fedjax_het.engine.lambda_selection import Evaluations
from fedjax_het.engine.round import RoundInfo
from fedjax_het.errors import NonFiniteLoss

PyTree = Any
Seen = TypeVar("Seen", Evaluation, Evaluations)


class Divergence(NamedTuple):
  """The first thing of a run that was not finite: a training loss, or else what the server sends next.

  Attributes:
    round: the loss's round, from 1; of what the server sends, the rounds by which it was noticed.
    client: the loss's client's number, or None.
    loss: "nan", "inf" or "-inf", or None.
  """

  round: int
  client: int | None = None
  loss: str | None = None

  def __str__(self) -> str:
    """As a sentence without its end."""
    if self.client is None:
      return (
        f"What the server sends became NaN or infinite by round {self.round}, though no training loss did: "
        "an upload, a mixing coefficient or the server's step was"
      )
    return f"The training loss became {self.loss} in round {self.round} at client {self.client}"


def divergence(first_round: int, infos: RoundInfo, sound: bool) -> Divergence | None:
  """Where a run stops being finite, if it does, in rounds that follow `first_round` others.

  Args:
    first_round: rounds done before.
    infos: one run's, NumPy arrays [T, S].
    sound: whether what its server sends after them is finite: no later loss would tell.
  """
  bad = np.argwhere(~np.isfinite(infos.clients.loss))
  if not len(bad):
    return None if sound else Divergence(int(first_round + len(infos.cohort)))
  at, slot = bad[0]
  loss = infos.clients.loss[at, slot]
  return Divergence(int(first_round + at + 1), int(infos.cohort[at, slot]), str(loss))


def finite(broadcast: PyTree) -> jax.Array:
  """Whether what the server sends is finite, a boolean; for compiled programs."""
  return jnp.array([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(broadcast)]).all()


def finite_here(broadcast: PyTree) -> bool:
  """The same by NumPy, which compiles nothing: a model of many arrays would be as many small programs."""
  return all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(broadcast))


def check_finite(found: Divergence | None) -> None:
  """Raises `NonFiniteLoss` for a divergence of a single run."""
  if found:
    remedy = "Lower the learning rate" + (", or look at that client's data" if found.loss else "s")
    raise NonFiniteLoss(f"{found}. {remedy}.")


def check_any_left(names: Sequence[str], found: Sequence[Divergence | None]) -> None:
  """Raises `NonFiniteLoss` naming member, round and client of each divergence where no member is without."""
  if all(found):
    where = "; ".join(f"{name}: {own}" for name, own in zip(names, found))
    raise NonFiniteLoss(f"Every member has diverged. {where}. Lower the learning rates.")


def unknown(evaluations: Seen) -> Seen:
  """NaN for every metric: a diverged model's top-1 would be that of whichever class stands first."""
  return jax.tree.map(lambda values: np.full_like(values, np.nan), evaluations)
