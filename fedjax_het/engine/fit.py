"""Whether clients' labels are those that the model tells apart; asked before anything is compiled."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.data.container import FederatedData
from fedjax_het.data.labels import check_labels
from fedjax_het.federated import Algorithm


def check_fit(
  make_algorithm: Callable[..., Algorithm], data: Sequence[FederatedData], settings: Mapping[str, Any]
) -> None:
  """Raises `SettingError`, naming label, row and remedy, where a label has no logit of its own.

  A model with C > 1 logits tells the classes 0 to C - 1 apart, a single logit the classes 0 and 1.

  Args:
    make_algorithm: (**settings) -> algorithm.
    data: data sets alike in shape; their labels are looked at wherever a client has them.
    settings: name -> number.
  """
  for each in data:
    check_labels(np.asarray(each.y), len(each.x), 2, np.arange(0))  # shape and type; the classes come later

  def logits(key, data, settings):
    client = make_algorithm(**settings).client
    return client.apply(client.globalize(client.share(key)), data.clients(0).take(jnp.arange(1))[0])

  count = jax.eval_shape(logits, jax.random.key(0), data[0], dict(settings)).shape[-1]
  because = f", which the model's {count} logits stand for" if count > 1 else ", which one logit tells apart"
  for each in data:
    rows = np.concatenate([part.rows() for part in (each.train, each.valid, each.test)])
    check_labels(np.asarray(each.y), len(each.x), max(count, 2), rows, because)
