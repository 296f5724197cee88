"""JAX's options that a run respects: x64, strict promotion, disabled jit, the search for NaNs and infinities.

Parameters, data and random draws are float32 and int32 whatever `jax_enable_x64` is, so that this option
changes no bit of a run: functions that compute with arrays enter `in_float32`, in which JAX's default types
have 32 bits. A model with an explicit float64 dtype still computes in float64.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import optax


@contextlib.contextmanager
def in_float32() -> Iterator[None]:
  """Context manager and decorator in which JAX's default types have 32 bits even if `jax_enable_x64` is on.

  An explicit 64-bit dtype, such as a model's `dtype=jnp.float64`, is still respected. Without
  `jax_enable_x64` the context changes nothing. It holds for the thread that enters it.
  """
  if jax.dtypes.canonicalize_dtype(np.float64) == np.float32:
    yield
    return
  with jax.enable_x64(False), explicit_64_bits():
    yield


def explicit_64_bits() -> contextlib.AbstractContextManager[None]:
  """Returns a context for one thread that respects explicit 64-bit dtypes without `jax_enable_x64`.

  JAX's public option `jax_explicit_x64_dtypes` holds for all threads, so this uses the private context.
  """
  from jax._src.config import ExplicitX64Mode, explicit_x64_dtypes

  return explicit_x64_dtypes(ExplicitX64Mode.ALLOW)


def without_jit() -> bool:
  """Returns whether `jax_disable_jit` is on, so that programs run as plain Python, operation by operation."""
  return bool(jax.config.jax_disable_jit)  # type: ignore[attr-defined]


def searching() -> bool:
  """Returns whether `jax_debug_nans` or `jax_debug_infs` is on."""
  return bool(jax.config.jax_debug_nans or jax.config.jax_debug_infs)  # type: ignore[attr-defined]


@contextlib.contextmanager
def not_searching() -> Iterator[None]:
  """Context manager that switches `jax_debug_nans` and `jax_debug_infs` off."""
  if not searching():
    yield
    return
  with jax.debug_nans(False), jax.debug_infs(False):
    yield


def check_sound(program: str, results: Any) -> None:
  """Raises `FloatingPointError` for a NaN if `jax_debug_nans` is on, or an infinity if `jax_debug_infs` is.

  Args:
    program: description of the program that computed the results.
    results: a tree of arrays; those that this process does not hold completely are skipped.
  """
  wanted: dict[str, Callable[..., Any]] = {}
  if jax.config.jax_debug_nans:  # type: ignore[attr-defined]
    wanted["nan"] = np.isnan
  if jax.config.jax_debug_infs:  # type: ignore[attr-defined]
    wanted["inf"] = np.isinf
  for path, leaf in jax.tree.leaves_with_path(results) if wanted else ():
    if not jax.numpy.issubdtype(leaf.dtype, jax.numpy.inexact) or not leaf.is_fully_addressable:
      continue
    for kind, found in wanted.items():
      if found(np.asarray(leaf, np.float64)).any():
        where = jax.tree_util.keystr(path)
        raise FloatingPointError(
          f"invalid value ({kind}) encountered in {program}, in its result {where}. "
          "With JAX_DISABLE_JIT=1 as well, JAX names the operation that made it."
        )


def promoting(transformation: optax.GradientTransformation) -> optax.GradientTransformation:
  """Returns an optax transformation that works with `jax_numpy_dtype_promotion="strict"`.

  It uses standard promotion inside, as optax multiplies floats by integer step counts.
  """

  def promotes(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def promoted(*args: Any, **extra: Any) -> Any:
      with jax.numpy_dtype_promotion("standard"):
        return function(*args, **extra)

    return promoted

  own = promotes(transformation.init), promotes(transformation.update)
  if isinstance(transformation, optax.GradientTransformationExtraArgs):
    return optax.GradientTransformationExtraArgs(*own)
  return optax.GradientTransformation(*own)
