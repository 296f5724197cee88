"""FedEvg's starts of chains, its marginal energy and the place of its synthetic examples, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from small_parts import federation, float64, linear, walk

import fedjax_het as fh
from fedjax_het.clients.fedevg import START, labels_of

MODEL, LABELS = linear(), np.asarray(labels_of(3, 2))
RATE, NOISE, LAM, STEPS = 0.3, 0.2, 0.5, 2
USUAL = ("persistent", "joint", "received")


def losses(settings, key, params, x_tilde, data):
  """The losses of one epoch with fixed parameters, from the same keys, in float64."""
  start, density, shown = settings
  kernel, bias = (float64(params)["fc"][name] for name in ("kernel", "bias"))
  logits = lambda x: x @ kernel + bias  # noqa: E731
  score = {
    "joint": lambda x, y: logits(x)[np.arange(len(y)), y],
    "marginal": lambda x, y: special.logsumexp(logits(x), axis=1),
  }[density]
  slope = {
    "joint": lambda x, y: kernel.T[y],
    "marginal": lambda x, y: special.softmax(logits(x), axis=1) @ kernel.T,
  }[density]

  def entropy(x, y):
    return (special.logsumexp(logits(x), axis=1) - logits(x)[np.arange(len(y)), y]).mean()

  slots, found = np.asarray(x_tilde, float), []
  for x, y, step_key in walk(jax.random.split(key)[1], data, 0, 4, 1):
    slot_key, chain_key = jax.random.split(step_key)
    chosen = np.asarray(jax.random.permutation(slot_key, 6))[:4]
    noise_key, labels = jax.random.fold_in(chain_key, START), LABELS[chosen]
    began = slots[chosen]
    if start == "data":
      began, labels = x, y
    elif start != "persistent":
      began = np.asarray(getattr(jax.random, start)(noise_key, (4, 4)), float)
    chain = began
    for r in range(STEPS):
      drawn = np.asarray(jax.random.normal(jax.random.fold_in(chain_key, r), (4, 4)), float)[: len(chain)]
      chain = chain + RATE * slope(chain, labels) + NOISE * drawn
    examples = {"received": np.asarray(x_tilde, float)[chosen], "start": began, "end": chain}[shown]
    found.append(
      score(chain, labels).mean()
      - score(x, y).mean()
      + entropy(x, y)
      + LAM * entropy(examples, LABELS[chosen])
    )
    if start == "persistent":
      slots[chosen] = chain
  return found


@pytest.mark.parametrize(
  "settings",
  [
    ("data", "marginal", "received"),
    pytest.param(USUAL, marks=pytest.mark.slow),
    pytest.param(("persistent", "joint", "start"), marks=pytest.mark.slow),
    pytest.param(("persistent", "marginal", "end"), marks=pytest.mark.slow),
    pytest.param(("data", "joint", "received"), marks=pytest.mark.slow),
    pytest.param(("normal", "joint", "received"), marks=pytest.mark.slow),
    pytest.param(("uniform", "marginal", "received"), marks=pytest.mark.slow),
  ],
)
def test_the_losses_of_three_steps_by_numpy(settings):
  """The last batch has one example of four: a chain that starts at padding counts nowhere."""
  start, density, shown = settings
  client = fh.fedevg(
    MODEL, per_class=2, chain_steps=STEPS, chain_step_size=RATE, chain_noise=NOISE, chain_start=start,
    density=density, shown=shown, lam=LAM, clip=None, bounded=False, lr=1e-12, weight_decay=0.0, batch_size=4,
    persistent=True,
  )  # fmt: skip
  data, key = federation([9, 5]), jax.random.key(3)
  params = MODEL.init(jax.random.key(2))
  x_tilde = jax.random.normal(jax.random.key(1), (6, 4))
  _, _, info = jax.jit(client.update)(
    key, fh.Message(x_tilde), params, data.clients(jnp.int32(0)), fh.Context()
  )
  wanted = losses(settings, key, params, x_tilde, data)
  assert len(wanted) == info.steps == 3
  assert info.loss == pytest.approx(np.mean(wanted), rel=1e-4)
  others = {np.round(np.mean(losses(own, key, params, x_tilde, data)), 4) for own in (USUAL, settings)}
  assert len(others) == 2 or settings == USUAL


@pytest.mark.parametrize(
  "settings, says",
  [
    ({"chain_start": "dat"}, "chain_start = 'dat': unknown. Did you mean 'data'"),
    ({"density": "margin"}, "density = 'margin': unknown. Did you mean 'marginal'"),
    ({"shown": "begin"}, "shown = 'begin': unknown"),
    ({"shown": "end", "chain_start": "data"}, "shown = 'end': chains that start at data forget"),
    ({"shown": "end", "lam": 0.0}, "shown = 'end': has no effect with lam = 0"),
    ({"chain_start": "normal", "chain_steps": 0}, "chain_start = 'normal': has no effect without chains"),
  ],
)
def test_chains_that_cannot_be(settings, says):
  with pytest.raises(fh.SettingError, match=says):
    fh.fedevg(MODEL, **settings)
