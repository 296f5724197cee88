"""Several processes that run one program: what they must agree on."""

import jax
import numpy as np


def agreed(*numbers: float) -> tuple[float, ...]:
  """The largest of all processes' numbers, for what a clock or a signal decided in each by itself.

  Every process must call it at the same point. With one process the numbers are as they are.
  """
  if jax.process_count() == 1:
    return numbers
  from jax.experimental import multihost_utils

  everybody = multihost_utils.process_allgather(np.asarray(numbers, np.float32))
  return tuple(float(number) for number in np.max(everybody, axis=0))


def of_the_first(text: str) -> str:
  """The first process's text, in every process, which must all call it at the same point."""
  if jax.process_count() == 1:
    return text
  from jax.experimental import multihost_utils

  own = np.frombuffer(text.encode(), np.uint8)
  length = int(multihost_utils.broadcast_one_to_all(np.int32(len(own))))
  sent = own if writes() else np.zeros(length, np.uint8)
  return np.asarray(multihost_utils.broadcast_one_to_all(sent)).astype(np.uint8).tobytes().decode()


def writes() -> bool:
  """Whether this process writes the run's files; one does."""
  return jax.process_index() == 0
