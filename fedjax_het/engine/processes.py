"""Agreement between several processes that run one program."""

import jax
import numpy as np


def agreed(*numbers: float) -> tuple[float, ...]:
  """Returns the elementwise maximum of all processes' numbers, for decisions by clocks or signals.

  Every process must call it at the same point. With one process the numbers are returned unchanged.
  """
  if jax.process_count() == 1:
    return numbers
  from jax.experimental import multihost_utils

  everybody = multihost_utils.process_allgather(np.asarray(numbers, np.float32))
  return tuple(float(number) for number in np.max(everybody, axis=0))


def of_the_first(text: str) -> str:
  """Returns the first process's text in every process; all must call it at the same point."""
  if jax.process_count() == 1:
    return text
  from jax.experimental import multihost_utils

  own = np.frombuffer(text.encode(), np.uint8)
  length = int(multihost_utils.broadcast_one_to_all(np.int32(len(own))))
  sent = own if writes() else np.zeros(length, np.uint8)
  return np.asarray(multihost_utils.broadcast_one_to_all(sent)).astype(np.uint8).tobytes().decode()


def writes() -> bool:
  """Returns whether this process writes the run's files; exactly one does."""
  return jax.process_index() == 0
