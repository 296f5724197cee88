"""Checks settings that are numbers: their type, their range, and that float32 represents them."""

import math
import operator
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.errors.kinds import SettingError

# What to use instead of a schedule, by setting.
_INSTEAD = {
  "lr": "; lr_decay lowers it from round to round",
  "server's lr": ", or fh.server.optimizer(optax.sgd(schedule)), whose steps are the rounds",
}


def check_number(setting: str, value: object) -> None:
  """Raises `SettingError` unless `value` is a real number or scalar array; booleans are refused."""
  if callable(value):
    problem = "a function, and a setting does not follow a schedule"
    raise SettingError(setting, value, problem, f"Give a number{_INSTEAD.get(setting, '')}.")
  dtype: Any = getattr(value, "dtype", None)
  shape = getattr(value, "shape", ())
  is_scalar = dtype is not None and jnp.issubdtype(dtype, jnp.number) and not shape
  real = is_scalar and np.dtype(dtype).kind not in "cm"  # complex numbers and time differences
  if isinstance(value, bool) or not (real or isinstance(value, int | float)):
    raise SettingError(setting, value, "not a number", "Give a number.")
  if isinstance(value, int) and abs(value) >= 2**63:
    shown = f"a number of about {round(value.bit_length() * math.log10(2))} digits"
    raise SettingError(setting, shown, "is larger than any setting can be", "Give a smaller number.")


def check_range(
  setting: str,
  value: float,
  low: float | None = None,
  high: float | None = None,
  *,
  above: float | None = None,
  below: float | None = None,
  on_host: bool = False,
) -> None:
  """Raises `SettingError` unless low <= value <= high and above < value < below (each bound optional).

  The value must also be within these bounds as float32, in which programs compute, where it must not become 0
  or infinite.

  Args:
    setting: the setting's name, as the user writes it.
    value: its value. A traced value, of a setting that varies within one program, passes, as its values were
      checked before.
    low: the smallest allowed value.
    high: the largest allowed value.
    above: the value must be larger.
    below: the value must be smaller.
    on_host: whether only Python computes with the value, in float64; it may then be infinite.
  """
  if isinstance(value, jax.core.Tracer):
    return
  check_number(setting, value)
  bounds = []
  if above is not None:
    bounds.append((value > above, f"above {above}"))
  if below is not None:
    bounds.append((value < below, f"below {below}"))
  if low is not None:
    bounds.append((value >= low, f"at least {low}"))
  if high is not None:
    bounds.append((value <= high, f"at most {high}"))
  if not all(ok for ok, _ in bounds):
    wanted = " and ".join(text for _, text in bounds)
    raise SettingError(setting, value, "out of range", f"It must be {wanted}.")
  if not on_host:
    _check_float32(setting, value, above, below)


def _check_float32(setting: str, value: float, above: float | None, below: float | None) -> None:
  """Raises `SettingError` for a number that rounds to 0, infinity or an excluded bound in float32."""
  if isinstance(value, int) and abs(value) >= 2**31:
    raise SettingError(setting, value, "is larger than an int32", f"Write {float(value)!r}.")
  limits = np.finfo(np.float32)
  least, largest = float(limits.tiny), float(limits.max)
  if 0 < abs(value) < least:
    remedy = "" if above == 0.0 else "Use 0.0, or "
    remedy += f"{'use' if remedy else 'Use'} a magnitude of {least:.3g} or more."
    raise SettingError(setting, value, "vanishes in float32, which runs compute in", remedy)
  if abs(value) > largest:
    remedy = f"Use a magnitude of {largest:.3g} or less."
    raise SettingError(setting, value, "overflows float32, which runs compute in", remedy)
  for bound in (above, below):
    if bound is not None and np.float32(value) == np.float32(bound):
      problem = f"is {bound} in float32, which runs compute in"
      raise SettingError(setting, value, problem, f"Use a number that is further from {bound}.")


def check_pixels(setting: str, value: object, least: float, largest: float, remedy: str) -> None:
  """Raises `SettingError` unless `least` and `largest` are in [0, 1], up to rounding."""
  if not (least >= -1e-5 and largest <= 1.0 + 1e-5):
    problem = f"is of examples in [0, 1], and the clients' reach from {least:.6g} to {largest:.6g}"
    raise SettingError(setting, value, problem, remedy)


def check_whole(setting: str, value: float, low: float | None = None, high: float | None = 2**31 - 1) -> None:
  """Raises `SettingError` unless `value` is an integer and low <= value <= high (each bound optional).

  By default `high` is the largest int32, the dtype of counters and shapes. The float 2.0 is refused, as
  numbers of steps or clients are shapes or bounds of loops.
  """
  if isinstance(value, float) and math.isinf(value):
    raise SettingError(setting, value, "must be a whole number", "Give one.")
  check_range(setting, value, low, high, on_host=True)
  if isinstance(value, jax.core.Tracer):
    return
  try:
    operator.index(cast(int, value))
  except TypeError:
    remedy = f"Write {int(value)}." if value % 1 == 0 else "Round it."
    raise SettingError(setting, value, "must be a whole number", remedy) from None


def check_seed(setting: str, value: int) -> None:
  """Raises `SettingError` unless `value` is an integer in [0, 2^32), as JAX takes seeds modulo 2^32."""
  if isinstance(value, jax.Array) and not value.shape and jnp.issubdtype(value.dtype, jnp.number):
    value = value.item()  # JAX compares its own numbers in 32 bits
  check_whole(setting, value, 0, 2**32 - 1)


def is_one(setting: float | jax.Array) -> bool:
  """Returns whether a setting is the constant 1."""
  return not isinstance(setting, jax.Array) and setting == 1


def is_zero(setting: float | jax.Array) -> bool:
  """Returns whether a setting is the constant 0, whose term can be left out of the program."""
  return not isinstance(setting, jax.Array) and setting == 0
