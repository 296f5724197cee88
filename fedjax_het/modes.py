"""Handling of JAX's options: x64, strict promotion, disabled jit, and the search for NaNs and infinities.

Parameters, data and draws are float32 and int32 whatever `jax_enable_x64` says, so that this option changes
no bit of a run: functions that compute with arrays enter `in_float32`, within which JAX's default types have
32 bits. A model that names float64 still computes in float64 there.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import optax
from jax._src.config import ExplicitX64Mode, explicit_x64_dtypes


@contextlib.contextmanager
def in_float32() -> Iterator[None]:
  """Context manager and decorator within which JAX's default types have 32 bits despite `jax_enable_x64`.

  A 64-bit dtype that is named explicitly, such as `dtype=jnp.float64` of a model, is still used. Without
  `jax_enable_x64` the context changes nothing. It applies to the current thread only.
  """
  if jax.dtypes.canonicalize_dtype(np.float64) == np.float32:
    yield
    return
  with jax.enable_x64(False), explicit_x64_dtypes(ExplicitX64Mode.ALLOW):
    yield


def without_jit() -> bool:
  """Returns whether `jax_disable_jit` is on, so that programs run as plain Python, operation by operation."""
  return bool(jax.config.jax_disable_jit)  # type: ignore[attr-defined]


def searching() -> bool:
  """Returns whether `jax_debug_nans` or `jax_debug_infs` is on."""
  return bool(jax.config.jax_debug_nans or jax.config.jax_debug_infs)  # type: ignore[attr-defined]


@contextlib.contextmanager
def not_searching() -> Iterator[None]:
  """Context manager within which results may be NaN or infinite despite `jax_debug_nans`."""
  if not searching():
    yield
    return
  with jax.debug_nans(False), jax.debug_infs(False):
    yield


def check_sound(program: str, results: Any) -> None:
  """Raises `FloatingPointError` for a NaN or infinity if JAX's debugging option for it is on.

  Args:
    program: the name of the program that computed the results, for the error.
    results: a tree of arrays of this process.
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
  """Makes an optax transformation work with `jax_numpy_dtype_promotion` set to "strict".

  optax multiplies floats by integer step counts, which strict promotion refuses.
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
