"""Mixing coefficients that do not depend on the clients' losses (McMahan 2017; remark 3.1 with r = 0)."""

from typing import Any

import jax
import jax.numpy as jnp

from fedjax_het.errors import SettingError
from fedjax_het.parts import Feedback, Mixing
from fedjax_het.settings import checked


def shares_of_examples(feedback: Feedback) -> jax.Array:
  """Computes n_i / n over the clients whose uploads arrive, float32 [S]; 0 for absent ones."""
  sizes = feedback.sizes.astype(jnp.float32)
  sizes = sizes if feedback.present is None else jnp.where(feedback.present, sizes, 0.0)
  return sizes / jnp.maximum(sizes.sum(), 1.0)


@checked
def static() -> Mixing:
  """Static mixing p_i = n_i / Σ_j n_j over the cohort: every training example has equal weight."""

  def update(state, feedback):
    sizes = feedback.sizes.astype(jnp.float32)
    return sizes / sizes.sum(), state

  def population(sizes):
    return sizes * (1.0 / sizes.sum().astype(jnp.float32))

  return Mixing(lambda sizes: (), update, "static", takes_absent=True, population=population)


@checked
def uniform() -> Mixing:
  """Uniform mixing p_i = 1 / S: every client of the cohort has equal weight."""

  def update(state, feedback):
    cohort_size = feedback.sizes.shape[0]
    return jnp.full((cohort_size,), 1.0 / cohort_size), state

  def population(sizes):
    return jnp.full(sizes.shape, 1.0 / len(sizes), jnp.float32)

  return Mixing(lambda sizes: (), update, "uniform", even=True, takes_absent=True, population=population)


def check_mixing(mixing: Any) -> None:
  """Raises `SettingError` for what is no `Mixing`, as a factory is that was not called."""
  if not isinstance(mixing, Mixing):
    name = getattr(mixing, "__name__", type(mixing).__name__)
    raise SettingError("mixing", name, "is not a Mixing", "Give one, such as fh.mixing.static().")


def observed(mixing: Mixing) -> Mixing:
  """Returns a mixing part that also requests the clients' losses F_i, so that the rounds' infos hold them."""

  check_mixing(mixing)

  def update(state, feedback):
    feedback.losses()
    return mixing.update(state, feedback)

  return mixing._replace(update=update)
