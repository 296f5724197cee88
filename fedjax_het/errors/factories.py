"""Checks of what parts are made of: optax transformations, and fields that a section may not set."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fedjax_het.errors.kinds import SettingError


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


def check_given(section: str, settings: Mapping[str, Any], given: Mapping[str, str]) -> None:
  """Raises `SettingError` for a field of a section whose value comes from elsewhere."""
  for field, origin in given.items():
    if field in settings:
      raise SettingError(f"{section}.{field}", settings[field], f"comes from {origin}", "Leave it out.")
