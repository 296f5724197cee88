"""Checks settings that are not numbers: flags, lists, sections of a configuration, JAX keys, optimisers."""

from collections.abc import Iterable, Mapping, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het.errors.kinds import SettingError


def check_flag(setting: str, value: object) -> None:
  """Raises `SettingError` unless `value` is True or False; text such as "no" would count as True."""
  if not isinstance(value, bool):
    raise SettingError(setting, value, "neither True nor False", "Give one of them.")


def listed(setting: str, values: Any, what: str) -> list[Any]:
  """Returns the elements of a list, tuple, array, range or generator in order.

  Args:
    setting: name of the setting.
    values: its value.
    what: description of the elements, for the error.

  Raises:
    SettingError: `values` is not iterable, or is text, a set or a mapping.
  """
  plain = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping | Set)
  if not plain or (hasattr(values, "shape") and not values.shape):
    remedy = "Give a list of them."
    if isinstance(values, Mapping):
      remedy = f"Give a list of them: {setting}=[*values.values()], say."
    raise SettingError(setting, values, f"not a list of {what}", remedy)
  try:
    return [*values]
  except Exception as error:  # raised by a user's generator
    problem = f"cannot be listed ({type(error).__name__}: {error})"
    raise SettingError(setting, type(values).__name__, problem, f"Give a list of {what}.") from error


def check_section(section: str, value: object) -> None:
  """Raises `SettingError` unless `value` is a section of a configuration, which maps names to values."""
  if not hasattr(value, "items"):  # a ConfigDict is not a Mapping
    remedy = f"Give fields, such as \"--config.{section}={{'field': value}}\", or leave it out."
    raise SettingError(section, value, "not a section", remedy)


def check_given(section: str, settings: Mapping[str, Any], given: Mapping[str, str]) -> None:
  """Raises `SettingError` for a field of a section whose value comes from elsewhere."""
  for field, origin in given.items():
    if field in settings:
      raise SettingError(f"{section}.{field}", settings[field], f"comes from {origin}", "Leave it out.")


def check_same_rounds(setting: str, rounds: int | None, own: int, why: str, call: str) -> None:
  """Raises `SettingError` for a part that was made for another number of rounds than the run has.

  Args:
    setting: what the error calls the part's number of rounds, such as "fedkd's rounds".
    rounds: the part's number.
    own: the run's.
    why: what goes by it, such as "the step size falls over so many rounds".
    call: how the part is made, up to its rounds: "fedkd(..., ".
  """
  if own != rounds:
    problem = f"{why}, and the run has rounds = {own}"
    raise SettingError(setting, rounds, problem, f"Use {call}rounds={own}).")


def checked_counts(counts: Any) -> np.ndarray:
  """Returns the clients' examples of each class, float64 [K, C].

  Raises:
    SettingError: `counts` are not [K, C] numbers >= 0, have a client without examples, or are fractions.
  """
  remedy = "Give a row of counts a client, of which some are positive."
  try:
    found = np.asarray(counts, np.float64)
  except Exception:  # whatever a foreign object raises
    raise SettingError("counts", type(counts).__name__, "are not [K, C] numbers", remedy) from None
  if found.ndim != 2 or not ((found >= 0) & np.isfinite(found)).all() or not (found.sum(1) > 0).all():
    raise SettingError("counts", found.shape, "are not counts of every client's classes", remedy)
  if (found % 1 != 0).any() and np.allclose(found.sum(1), 1.0, atol=1e-3):
    raise SettingError("counts", found.shape, "are shares of 1, not counts", remedy)
  return found


def typed_keys(keys: Any) -> Any:
  """Converts keys of `jax.random.PRNGKey`, which are integers, to typed keys with the same draws.

  Args:
    keys: typed keys, or a JAX or NumPy array uint32 [2], or [n, 2] for several. The last axis is that of the
      generator in the option jax_default_prng_impl.

  Returns:
    Typed keys of shape () or [n]. Any other value is returned unchanged.
  """
  raw = isinstance(keys, jax.Array | np.ndarray) and keys.dtype == np.uint32
  size = jax.random.key_data(jax.random.key(0)).shape
  return jax.random.wrap_key_data(jnp.asarray(keys)) if raw and keys.shape[-1:] == size else keys


def check_key(key: Any) -> jax.Array:
  """Returns a key of `jax.random.key` or `jax.random.PRNGKey` as a typed key.

  Raises:
    SettingError: `key` is not a key, or several.
  """
  key = typed_keys(key)
  if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
    whole = isinstance(key, int) and not isinstance(key, bool) and 0 <= key < 2**32
    raise SettingError("key", key, "not a key", f"Use key=jax.random.key({key if whole else 0}).")
  if key.shape:
    raise SettingError("key", f"{key.shape} keys", "not one key", "Give one of them, such as key=keys[0].")
  return key


def check_run_key(key: Any) -> jax.Array:
  """Returns a typed key of the generator in jax_default_prng_impl, which states require; see `check_key`."""
  key = check_key(key)
  if jax.random.key_impl(key) != jax.random.key_impl(jax.random.key(0)):
    problem = f"a key of {jax.random.key_impl(key)}, and not of jax_default_prng_impl"
    raise SettingError("key", str(key), problem, "Use key=jax.random.key(0), or set that option of JAX's.")
  return key


def check_transformation(setting: str, name: str, made: optax.GradientTransformation) -> None:
  """Raises `SettingError` for an optax transformation that needs more than gradient, state and parameters."""
  if not isinstance(made, optax.GradientTransformationExtraArgs):
    return
  try:
    jax.eval_shape(lambda own: made.update(own, made.init(own), own), {"w": jnp.zeros(1)})
  except Exception as error:  # others: it wants a model's own parameters, which are not at hand
    if isinstance(error, TypeError) and "keyword-only" in str(error):
      remedy = "Take one that does with a gradient, its state and the parameters."
      raise SettingError(setting, name, f"its {error}", remedy) from error
