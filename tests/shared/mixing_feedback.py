"""What the tests of mixing parts share: a made-up round's feedback, and the coefficients that follow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.parts import Feedback, Message

SIZES = np.array([3, 10, 1, 40, 7])
LOSSES = np.array([0.5, 2.0, 0.1, 1.3, 0.9])


def feedback(losses=LOSSES, sizes=SIZES, cohort=None, updates=None, called=None):
  """A round's feedback; `called` counts calls for the losses."""
  cohort = np.arange(len(sizes)) if cohort is None else cohort
  updates = np.random.default_rng(0).normal(size=(len(sizes), 6)) if updates is None else updates
  base = {"w": jnp.ones((2, 2)), "b": jnp.zeros(2)}
  uploads = {
    "w": 1.0 + jnp.asarray(updates[:, :4], jnp.float32).reshape(-1, 2, 2),
    "b": jnp.asarray(updates[:, 4:], jnp.float32),
  }

  def thunk():
    if called is not None:
      called.append(1)
    return jnp.asarray(losses, jnp.float32)

  return Feedback(
    jnp.asarray(cohort, jnp.int32), jnp.asarray(sizes, jnp.int32), jnp.int32(0), thunk,
    lambda: Message(uploads), Message(base),
  )  # fmt: skip


def first(part, given=None, num=None):
  """Coefficients of the first round."""
  given = feedback() if given is None else given
  state = part.init(jnp.ones(num or given.sizes.shape[0], jnp.int32))
  return jax.jit(lambda state: part.update(state, given)[0])(state)


def normalised(weights):
  return weights / weights.sum()


def on_simplex(p):
  p = np.asarray(p, np.float64)
  assert np.isfinite(p).all() and (p >= 0).all()
  assert p.sum() == pytest.approx(1.0, abs=1e-6)
