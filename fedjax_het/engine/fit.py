"""Whether a model takes the clients' examples and tells their labels apart; asked before any compile."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.data.container import FederatedData
from fedjax_het.data.labels import check_classes, check_labels
from fedjax_het.engine.state import init_client
from fedjax_het.errors import SettingError
from fedjax_het.parts import Algorithm, Context


def check_fit(
  make_algorithm: Callable[..., Algorithm],
  data: Sequence[FederatedData],
  cohort_size: int,
  settings: Mapping[str, Any],
) -> None:
  """Raises `SettingError`, naming label, row and remedy, where a label has no logit of its own; and, quoting
  the model's own error, where it cannot be applied to an example.

  A model with C > 1 logits tells the classes 0 to C - 1 apart, a single logit the classes 0 and 1.

  Args:
    make_algorithm: (**settings) -> algorithm.
    data: data sets alike in shape; their labels are looked at wherever a client has them.
    cohort_size: S.
    settings: name -> number.
  """
  used = [np.concatenate([part.rows() for part in (each.train, each.valid, each.test)]) for each in data]
  for each, rows in zip(data, used):
    check_labels(np.asanyarray(each.y), len(each.x), rows)

  def logits(key, data, settings):
    client = make_algorithm(**settings).client
    own, broadcast = data.clients(0), client.share(key)
    context = Context(jnp.int32(0), jnp.int32(0), cohort_size, data.num_clients)
    state, (x, _) = init_client(client, key, broadcast, own, context), own.take(jnp.arange(1))
    shown = client.shown("personalize", own)
    params = client.personalize(broadcast, state, shown, context, jnp.float32(client.lambdas[0]))
    try:
      return client.apply(params, x)
    except Exception as error:
      first = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
      raise SettingError(
        "model", x.shape[1:], f"it cannot be applied to an example of this shape, {x.dtype}: {first}",
        "Make the model for the examples' shape, or reshape x.",
      ) from error  # fmt: skip

  count = jax.eval_shape(logits, jax.random.key(0), data[0], dict(settings)).shape[-1]
  because = f", which the model's {count} logits stand for" if count > 1 else ", which one logit tells apart"
  for each, rows in zip(data, used):
    y = np.asarray(each.y)
    needed = max(each.num_classes, int(y[rows].max(initial=0)) + 1)
    check_classes(y, max(count, 2), rows, because, f"give the model num_classes={needed}")
