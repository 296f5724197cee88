"""What runs leave on other numbers of devices, and after a stop."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.engine.engine import Engine


def ends(algorithm, data, cohort_size: int, ways):
  """(broadcast, the aggregation's state) of a run on so many devices, in stretches of these lengths, each.

  Between two stretches the state goes through the host, as through a file.

  Args:
    algorithm: the parts.
    data: the clients' data.
    cohort_size: S.
    ways: (number of devices, lengths of the stretches) of each run.
  """
  found = []
  for devices, lengths in ways:
    engine = Engine(algorithm, data, cohort_size, devices=devices)
    state = engine.init(jax.random.key(5))
    for length in lengths:
      state, _ = engine.advance(state, length)
      raw = jax.tree.map(np.array, state._replace(key=jax.random.key_data(state.key)))
      state = engine.from_saved(raw._replace(key=jax.random.wrap_key_data(jnp.asarray(raw.key))))
    found.append(jax.tree.map(np.asarray, (state.broadcast, state.aggregation)))
  return found
