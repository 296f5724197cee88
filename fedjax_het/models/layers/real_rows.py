"""Context variable that tells layers with batch statistics which rows of a training batch are not padding."""

import contextlib
import contextvars
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from fedjax_het.errors import SettingError

_REAL: contextvars.ContextVar[jax.Array | None] = contextvars.ContextVar("real", default=None)


@contextlib.contextmanager
def only(real: jax.Array) -> Iterator[None]:
  """Context manager within which batch statistics count only the rows with real > 0, [B]."""
  token = _REAL.set(real)
  try:
    yield
  finally:
    _REAL.reset(token)


def real_rows(x: jax.Array | jax.ShapeDtypeStruct) -> jax.Array | None:
  """Returns a boolean mask of x's real rows that broadcasts with x, or None if all rows are real.

  If an example has several rows in x, they must be consecutive.

  Raises:
    SettingError: the number of rows is not a multiple of the batch size.
  """
  real = _REAL.get()
  if real is None:
    return None
  if x.shape[0] % real.shape[0]:
    raise SettingError(
      "module", x.shape, f"normalises over an axis that is not the batch axis of {real.shape[0]} examples",
      "Keep the batch axis first.",
    )  # fmt: skip
  rows = jnp.repeat(real > 0, x.shape[0] // real.shape[0])
  return rows.reshape(-1, *[1] * (x.ndim - 1))
