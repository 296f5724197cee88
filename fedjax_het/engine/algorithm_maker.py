"""Checks the function that makes an algorithm from settings: its arguments, and what it returns."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.errors import SettingError, listed
from fedjax_het.parts import Algorithm

REMEDY = "Give a function of the settings that returns fh.federated(client, mixing, server)."
AS_VALUE = "Give a number, or for run and Engine a tree of arrays of numbers."


def maker(
  algorithm: Algorithm | Callable[..., Algorithm], settings: Mapping[str, Any] | None
) -> Callable[..., Algorithm]:
  """Returns (**settings) -> algorithm.

  Args:
    algorithm: an algorithm, or, together with `settings`, a function (**settings) -> algorithm.
    settings: name -> number; None with an algorithm.

  Raises:
    SettingError: an algorithm is given together with settings, or a function without; a setting is not a
      number; or the function does not accept the settings.
  """
  if settings is None:
    if not isinstance(algorithm, Algorithm):
      raise SettingError(
        "algorithm", getattr(algorithm, "__name__", type(algorithm).__name__), "is not an algorithm",
        "Give fh.federated(client, mixing, server), or settings={...} for a function that makes it of them.",
      )  # fmt: skip
    return lambda: algorithm
  if not isinstance(settings, Mapping):
    raise SettingError("settings", settings, "not names with values", 'Give a dict: settings={"lr": 0.1}.')
  if isinstance(algorithm, Algorithm):
    raise SettingError(
      "settings", dict(settings), "were given together with an algorithm that is made already",
      "Give the function that makes it from them, or leave settings out.",
    )  # fmt: skip
  for name, value in settings.items():
    check_value("settings", name, value)
  return checked("algorithm", algorithm, settings)


def checked(role: str, make: Any, settings: Mapping[str, Any]) -> Callable[..., Algorithm]:
  """Returns `make`, which is checked to accept these settings; each call of it checks what it returns.

  Args:
    role: name of the function in errors.
    make: (**settings) -> algorithm.
    settings: name -> value.

  Raises:
    SettingError: `make` is not a function, or does not accept a setting; from a call, it returns something
      other than an algorithm.
  """
  if isinstance(make, Algorithm | type) or not callable(make):
    given = "an algorithm" if isinstance(make, Algorithm) else make
    raise SettingError(role, given, "not a function that makes an algorithm", REMEDY)
  try:
    inspect.signature(make).bind(**dict.fromkeys(settings))
  except TypeError as error:
    problem = f"{role} cannot be called with these ({error})"
    raise SettingError("settings", [*settings], problem, REMEDY) from None
  except ValueError:  # a function without a signature
    pass

  def of(**values: Any) -> Algorithm:
    made = make(**values)
    if not isinstance(made, Algorithm):
      raise SettingError(role, type(made).__name__, "is what the function returns, not an algorithm", REMEDY)
    return made

  return of


def check_value(section: str, name: Any, value: Any) -> None:
  """Raises `SettingError` unless a setting has a name, and is a number or a tree of arrays of numbers."""
  if not isinstance(name, str):
    raise SettingError(section, name, "not the name of a setting", f'Give words: {{"lr": {0.1}}}.')
  leaves = jax.tree.leaves(value)
  if not leaves or not all(map(_is_numbers, leaves)):
    raise SettingError(f"{section}.{name}", value, "not a number", AS_VALUE)


def grid_as_lists(grid: Any) -> dict[str, list[Any]]:
  """Returns a sweep's grid as name -> list of numbers; None is an empty grid.

  Raises:
    SettingError: the grid is not a mapping of names to lists of numbers.
  """
  grid = {} if grid is None else grid
  if not isinstance(grid, Mapping):
    raise SettingError("grid", grid, "not names with values", 'Give a dict: {"lr": [0.01, 0.1]}.')
  found = {}
  for name, values in grid.items():
    check_value("sweep", name, 0.0)
    found[name] = listed(f"sweep.{name}", values, "numbers")
    for value in found[name]:
      if not _is_numbers(value) or np.ndim(value):
        raise SettingError(f"sweep.{name}", value, "not a number", "Sweep numbers only.")
    found[name] = [value.item() if hasattr(value, "item") else value for value in found[name]]
  return found


def _is_numbers(leaf: Any) -> bool:
  """Returns whether a leaf is a real number or array that a device holds: at most 64 bits, |int| < 2^31."""
  if isinstance(leaf, bool | jax.core.Tracer):
    return not isinstance(leaf, bool)
  try:
    values = np.asarray(leaf)
  except Exception:  # a foreign object, or a key
    return False
  kind, whole = values.dtype.kind, values.dtype.kind in "iu"
  real = (kind in "biuf" and values.dtype.isnative and values.itemsize <= 8) or jnp.issubdtype(
    values.dtype, jnp.floating
  )
  return bool(real and not (whole and values.size and np.abs(values.astype(float)).max() >= 2**31))


@contextlib.contextmanager
def traced(settings: Any) -> Iterator[None]:
  """Context manager for tracing a program that takes settings as values; explains JAX's tracer errors.

  Args:
    settings: name -> number, or arrays of numbers.

  Raises:
    SettingError: the traced function branches on a setting, or uses it in a shape such as a batch size.
  """
  try:
    yield
  except SettingError:
    raise
  except Exception as error:
    of_jax = isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError)
    of_tracer = of_jax or "Tracer" in str(error)
    if not settings or not of_tracer:
      raise
    whole = [name for name, value in settings.items() if _is_whole(value)]
    names = ", ".join(whole or settings)
    raise SettingError(
      names, "a value of the program", "changes the program itself: a shape or a decision depends on it",
      "Start a run of its own for each value.",
    ) from error  # fmt: skip


def _is_whole(value: Any) -> bool:
  return all(jnp.issubdtype(jnp.result_type(leaf), jnp.integer) for leaf in jax.tree.leaves(value))
