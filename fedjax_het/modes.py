"""JAX's options that a run heeds: x64, strict promotion, disabled jit, the search for NaNs and infinities.

Parameters, data and draws are float32 and int32 whatever `jax_enable_x64` says, so that it changes no bit of
a run: functions that compute with arrays enter `in_float32`, in which JAX's default types have 32 bits. A
model that names float64 computes in float64 there.
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
  """Context, or decorator, in which JAX's default types have 32 bits, also where `jax_enable_x64` is on.

  A dtype of 64 bits that is asked for by name is then still given, as a model with `dtype=jnp.float64` does.
  Without `jax_enable_x64` the context changes nothing. It holds for the thread that enters it.
  """
  if jax.dtypes.canonicalize_dtype(np.float64) == np.float32:
    yield
    return
  with jax.enable_x64(False), explicit_x64_dtypes(ExplicitX64Mode.ALLOW):
    yield


def without_jit() -> bool:
  """Whether `jax_disable_jit` is on, and programs are to run as plain Python, operation by operation."""
  return bool(jax.config.jax_disable_jit)  # type: ignore[attr-defined]


def searching() -> bool:
  """Whether `jax_debug_nans` or `jax_debug_infs` looks for values that are not finite."""
  return bool(jax.config.jax_debug_nans or jax.config.jax_debug_infs)  # type: ignore[attr-defined]


@contextlib.contextmanager
def not_searching() -> Iterator[None]:
  """Context in which results may be NaN or infinite on purpose, whatever `jax_debug_nans` says."""
  if not searching():
    yield
    return
  with jax.debug_nans(False), jax.debug_infs(False):
    yield


def check_sound(program: str, results: Any) -> None:
  """Raises `FloatingPointError` for a NaN where `jax_debug_nans` is on, and for an infinity likewise.

  Args:
    program: what computed the results, in words.
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
          "With JAX_DISABLE_JIT=1 beside it JAX says which operation made it."
        )


def promoting(transformation: optax.GradientTransformation) -> optax.GradientTransformation:
  """The same optax transformation, which promotes dtypes where `jax_numpy_dtype_promotion` is "strict" too.

  optax multiplies floats by counts of steps, which strict promotion refuses.
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
