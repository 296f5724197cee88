"""Server steps against Reddi et al., algorithm 2, in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_het as fh

LR, B1, B2, TAU = 0.3, 0.9, 0.99, 1e-3


def reddi(name, averages, start):
  """The paper's loop: Δ is the average update, x <- x + η m / (√v + τ)."""
  x, m, v = start.copy(), np.zeros_like(start), np.full_like(start, TAU**2)
  b1 = 0.0 if name == "adagrad" else B1
  for average in averages:
    delta = average - x
    m = b1 * m + (1 - b1) * delta
    v = {
      "adagrad": v + delta**2,
      "yogi": v - (1 - B2) * delta**2 * np.sign(v - delta**2),
      "adam": B2 * v + (1 - B2) * delta**2,
    }[name]
    x = x + LR * m / (np.sqrt(v) + TAU)
  return x


@pytest.mark.parametrize("name", ["adam", "yogi", "adagrad"])
def test_state_persists_as_in_the_paper(name):
  settings = {"lr": LR, "tau": TAU} | ({} if name == "adagrad" else {"b1": B1, "b2": B2})
  server = getattr(fh.server, name)(**settings)
  rng = np.random.default_rng(0)
  start, averages = rng.normal(size=7), rng.normal(size=(12, 7))
  broadcast = fh.Message({"w": jnp.asarray(start, jnp.float32)}, jnp.float32(0.0))
  state = server.init(broadcast)
  step = jax.jit(server.update)
  for average in averages:
    aggregate = fh.Message({"w": jnp.asarray(average, jnp.float32)}, jnp.float32(5.0))
    broadcast, state = step(jax.random.key(0), state, broadcast, aggregate)
  np.testing.assert_allclose(broadcast.params["w"], reddi(name, averages, start), rtol=2e-5, atol=1e-5)
  assert broadcast.extra == 5.0


@pytest.mark.parametrize("name", ["adam", "yogi", "adagrad", "sgd"])
def test_no_update_leaves_the_model(name):
  server = getattr(fh.server, name)()
  broadcast = fh.Message({"w": jnp.arange(3.0)})
  moved, _ = server.update(jax.random.key(0), server.init(broadcast), broadcast, broadcast)
  np.testing.assert_array_equal(moved.params["w"], broadcast.params["w"])


@pytest.mark.parametrize(
  "settings", [{"lr": 0.0}, {"lr": np.inf}, {"b1": 1.0}, {"b2": -0.1}, {"tau": 0.0}, {"tau": np.inf}]
)
def test_settings_are_checked(settings):
  with pytest.raises(fh.SettingError, match=f"server's {next(iter(settings))}"):
    fh.server.adam(**settings)
