"""Checks settings that come by name against the signature of the factory that takes them."""

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_het.errors.kinds import SettingError
from fedjax_het.errors.names import check_choice


def check_transformation(setting: str, name: str, made: optax.GradientTransformation) -> None:
  """Raises `SettingError` for one that asks for more than a gradient, its state and the parameters."""
  if not isinstance(made, optax.GradientTransformationExtraArgs):
    return
  try:
    jax.eval_shape(lambda own: made.update(own, made.init(own), own), {"w": jnp.zeros(1)})
  except Exception as error:  # others: it wants a model's own parameters, which are not at hand
    if isinstance(error, TypeError) and "keyword-only" in str(error):
      remedy = "Take one that does with a gradient, its state and the parameters."
      raise SettingError(setting, name, f"its {error}", remedy) from error


def check_given(section: str, settings: Mapping[str, Any], given: Mapping[str, str]) -> None:
  """Raises `SettingError` for a field of a section that is not set there but comes from elsewhere."""
  for field, origin in given.items():
    if field in settings:
      raise SettingError(f"{section}.{field}", settings[field], f"comes from {origin}", "Leave it out.")


def check_settings(
  kind: str, factory: Callable[..., Any], settings: Mapping[str, Any], not_settable: Iterable[str] = ()
) -> None:
  """Checks settings that came by name against a factory's signature: names, and what is no number or flag.

  Args:
    kind: what the settings are called in the error.
    factory: what is to be called with them.
    settings: name -> value.
    not_settable: parameters that the factory's caller gives.

  Raises:
    SettingError: an unknown setting, naming the nearest; or a value of another type than the parameter's.
  """
  known = inspect.signature(factory).parameters
  check_parameters(
    kind, {name: own for name, own in known.items() if name not in set(not_settable)}, settings
  )


def check_parameters(
  kind: str, parameters: Mapping[str, inspect.Parameter], settings: Mapping[str, Any]
) -> None:
  """The same for the parameters that may be set, by name."""
  for name, value in settings.items():
    check_choice(kind, name, parameters or ["(it has none)"])
    if isinstance(value, jax.Array):  # a value of a program, which without jit is a concrete array
      continue
    wanted = parameters[name].annotation
    kinds = set(typing.get_args(wanted) or (wanted,))
    if not all(isinstance(k, type) for k in kinds) or inspect.Parameter.empty in kinds:
      continue
    plain = kinds & {int, float, bool, str, type(None)}
    exact = plain | ({int} if float in kinds else set())  # True is no number here
    if plain and type(value) not in exact and not isinstance(value, tuple(kinds - plain)):
      names = " or ".join(sorted("None" if k is type(None) else k.__name__ for k in plain))
      raise SettingError(name, value, "of the wrong type", f"It must be {names}.")
