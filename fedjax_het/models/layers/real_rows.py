"""Which rows of a batch are real, told to the layers that look across rows while a model trains."""

import contextlib
import contextvars
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from fedjax_het.errors import SettingError

_REAL: contextvars.ContextVar[jax.Array | None] = contextvars.ContextVar("real", default=None)


@contextlib.contextmanager
def only(real: jax.Array) -> Iterator[None]:
  """Within it, batch statistics are those of the rows with real > 0, [B]."""
  token = _REAL.set(real)
  try:
    yield
  finally:
    _REAL.reset(token)


def real_rows(x: jax.Array | jax.ShapeDtypeStruct) -> jax.Array | None:
  """Which of x's rows are real, bool to broadcast with x, or None where all are.

  An example's rows, where it has several, follow one another.

  Raises:
    SettingError: the rows are not those of the batch's examples.
  """
  real = _REAL.get()
  if real is None:
    return None
  if x.shape[0] % real.shape[0]:
    raise SettingError(
      "module", x.shape, f"normalises over an axis that is not that of a batch of {real.shape[0]} examples",
      "Keep the batch first.",
    )  # fmt: skip
  rows = jnp.repeat(real > 0, x.shape[0] // real.shape[0])
  return rows.reshape(-1, *[1] * (x.ndim - 1))
