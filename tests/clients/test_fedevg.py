"""FedEvg against its equations."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from scipy import special
from scipy.spatial.distance import pdist
from small_parts import federation, float64, walk

import fedjax_het as fh
from fedjax_het.clients.energies import log_weight, of_class, signals
from fedjax_het.clients.fedevg import contrast, labels_of, nearest
from fedjax_het.experiment.traffic import traffic
from fedjax_het.langevin import langevin_step
from fedjax_het.models import energy_mlp
from fedjax_het.models.layers.basic import spectral_norm
from fedjax_het.server.sgld import sgld
from fedjax_het.studies.downstream import downstream, within_class_distance

MODEL = energy_mlp((4,), 3, hidden=8)
LABELS = labels_of(3, 2)
Z = jax.random.normal(jax.random.key(5), (4, 4))


def some(count=4, scale=3.0):
  """Clients' parameters, weights and a synthetic set."""
  keys = jax.random.split(jax.random.key(0), count)
  stacked = jax.tree.map(lambda leaf: scale * leaf, jax.vmap(MODEL.init)(keys))
  w = np.random.default_rng(0).dirichlet(np.ones(count)).astype(np.float32)
  x = jax.random.normal(jax.random.key(1), (len(LABELS), 4))
  return stacked, w, x


def aggregate(stacked, w, message, energy, clip=None):
  uploads = jax.vmap(lambda params: signals(MODEL, params, message, LABELS, None, energy, clip=clip))(stacked)
  return jax.tree.map(lambda leaf: jnp.tensordot(w, leaf, 1), uploads), uploads


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0.0, 40.0])
def test_raw_energies_give_the_gradient_of_the_mixture(offset):
  """Equation 4.13 by the server's division, against autodiff of equation 4.11."""
  stacked, w, x = some()
  message = fh.Message(x, jnp.full(len(LABELS), offset))
  total, _ = aggregate(stacked, w, message, "raw")

  def mixture(x):
    values = jax.vmap(lambda params: of_class(MODEL.apply(params, x), LABELS))(stacked)
    return -jax.scipy.special.logsumexp(values, b=w[:, None], axis=0).sum()

  np.testing.assert_allclose(total.params / total.extra[:, None], jax.grad(mixture)(x), rtol=1e-5, atol=1e-5)
  server = sgld(rounds=7, step_size=2.0, last_step_size=0.5, noise=0.0, bounded=False)
  after, step = server.update(jax.random.key(0), jnp.int32(3), message, total)
  beta = 0.5 + 1.5 * 0.5 * (1 + np.cos(np.pi * 3 / 7))
  np.testing.assert_allclose(after.params, x - beta * jax.grad(mixture)(x), rtol=1e-4, atol=1e-5)
  values = np.asarray(jax.vmap(lambda params: of_class(MODEL.apply(params, x), LABELS))(stacked), np.float64)
  np.testing.assert_allclose(after.extra, np.log((w[:, None] * np.exp(values)).sum(0)), rtol=1e-5, atol=1e-5)
  assert step == 4


def test_weights_of_large_energies_stay_finite():
  value = jnp.array([-200.0, 0.0, 200.0])
  found = log_weight(MODEL, None, fh.Message((), jnp.zeros(3)), value, None, "raw")
  np.testing.assert_array_equal(found, [-60.0, 0.0, 60.0])
  assert np.isfinite(np.exp(np.asarray(found, np.float32))).all()


@pytest.mark.slow
def test_signed_weights_are_three():
  stacked, w, x = some()
  dead = jax.tree.map(jnp.zeros_like, MODEL.init(jax.random.key(0)))  # energy 0 everywhere
  stacked = jax.tree.map(lambda many, one: jnp.concatenate([many, one[None]]), stacked, dead)
  _, uploads = aggregate(stacked, np.append(w, 0.0), fh.Message(x, jnp.zeros(len(LABELS))), "signed")
  assert set(np.unique(uploads.extra)) == set(np.float32([1 / np.e, 1, np.e]))
  np.testing.assert_array_equal(uploads.extra[-1], 1.0)


@pytest.mark.slow
def test_gradients_are_clipped_before_they_are_weighted():
  stacked, w, x = some(scale=30.0)
  message = fh.Message(x, jnp.zeros(len(LABELS)))
  _, free = aggregate(stacked, w, message, "signed")
  _, clipped = aggregate(stacked, w, message, "signed", clip=0.1)
  gradient = free.params / free.extra[..., None]
  assert np.abs(gradient).max() > 0.1
  np.testing.assert_allclose(
    clipped.params, np.clip(gradient, -0.1, 0.1) * free.extra[..., None], rtol=1e-5, atol=1e-7
  )


def test_spectral_norm_is_the_largest_singular_value():
  for seed in range(5):
    kernel = jax.random.normal(jax.random.key(seed), (40, 7)) * jnp.array([3.0, 1, 1, 1, 1, 1, 1])
    assert spectral_norm(kernel) == pytest.approx(np.linalg.norm(kernel, 2), rel=1e-4)
    u, _, vt = np.linalg.svd(np.asarray(kernel))
    np.testing.assert_allclose(jax.grad(spectral_norm)(kernel), np.outer(u[:, 0], vt[0]), atol=2e-2)


@pytest.mark.slow
def test_a_local_step_by_hand():
  """One batch of all examples, one step of the chains, Adam's first step: -lr·sign(gradient)."""
  client = fh.fedevg(MODEL, per_class=2, chain_noise=0.0, weight_decay=0.0, clip=0.5, bounded=False, lr=1e-2,
                     lr_decay=1.0, batch_size=64)  # fmt: skip
  data = federation([9, 5])
  own = data.clients(jnp.int32(0))
  key = jax.random.key(3)
  model_key, _ = jax.random.split(key)
  params = MODEL.init(model_key)
  x_tilde = jax.random.normal(jax.random.key(1), (6, 4))
  message = fh.Message(x_tilde, jnp.zeros(6))
  upload, _, info = jax.jit(client.update)(key, message, (), own, fh.Context())
  x, y = own.take(jnp.arange(9))
  ascent = jax.jit(jax.grad(lambda x: of_class(MODEL.apply(params, x), LABELS).sum()))(x_tilde)
  chain = x_tilde + jnp.clip(ascent, -0.5, 0.5)

  def ce(params, x, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(MODEL.apply(params, x)), y[:, None], 1).mean()

  def objective(params):
    contrast = (
      -of_class(MODEL.apply(params, x), y).mean() + of_class(MODEL.apply(params, chain), LABELS).mean()
    )
    return contrast + ce(params, x, y) + 0.1 * ce(params, x_tilde, LABELS)

  loss, gradient = jax.jit(jax.value_and_grad(objective))(params)
  assert info.loss == pytest.approx(float(loss), rel=1e-5) and info.steps == 1
  stepped = jax.tree.map(lambda p, g: p - 1e-2 * g / (jnp.abs(g) + 1e-8), params, gradient)
  expected = jax.jit(lambda p: signals(MODEL, p, message, LABELS, own, "signed", clip=0.5))(stepped)
  chex.assert_trees_all_close(upload, expected, rtol=1e-3, atol=1e-4)


def energies_of(params, x, y):
  """E(x, y) and ∇_x E by NumPy, of `MODEL`: Swish and a last kernel over its largest singular value."""
  kernels, biases = zip(*((layer["kernel"], layer["bias"]) for _, layer in sorted(params.items())))
  last = kernels[-1] / np.linalg.norm(kernels[-1], 2)
  hidden, slopes = x, []
  for kernel, bias in zip(kernels[:-1], biases[:-1]):
    h = hidden @ kernel + bias
    gate = special.expit(h)
    hidden = h * gate
    slopes.append(gate * (1.0 + h * (1.0 - gate)))
  back = last.T[y]
  for kernel, slope in zip(reversed(kernels[:-1]), reversed(slopes)):
    back = (back * slope) @ kernel.T
  return -(hidden @ last + biases[-1])[np.arange(len(y)), y], -back


@pytest.mark.parametrize("bounded", [False, True])
def test_a_step_of_langevin_dynamics(bounded):
  x, gradient = 3.0 * Z[:2], Z[2:4]
  found = langevin_step(jax.random.key(6), x, gradient, 0.7, 0.2, bounded)
  noise = np.asarray(jax.random.normal(jax.random.key(6), x.shape))
  wanted = np.asarray(x) - 0.7 * np.asarray(gradient) + 0.2 * noise
  np.testing.assert_allclose(found, np.clip(wanted, 0, 1) if bounded else wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bounded", [False, True])
def test_the_server_takes_a_step_with_noise(bounded):
  x, gradient, weight = Z[:2], Z[2:4], jnp.array([0.5, 2.0])
  server = sgld(rounds=4, step_size=2.0, last_step_size=0.5, noise=0.3, bounded=bounded)
  aggregate = fh.Message(gradient * weight[:, None], weight)
  assert server.init(fh.Message(x)) == 0
  after, _ = server.update(jax.random.key(6), jnp.int32(1), fh.Message(x), aggregate)
  beta = 0.5 + 1.5 * 0.5 * (1 + np.cos(np.pi / 4))
  noise = np.asarray(jax.random.normal(jax.random.key(6), x.shape))
  wanted = np.asarray(x) - beta * np.asarray(gradient) + 0.3 * noise
  np.testing.assert_allclose(after.params, np.clip(wanted, 0, 1) if bounded else wanted, rtol=1e-5, atol=1e-6)
  assert after.extra == ()


def test_the_contrast_is_the_gradient_of_the_likelihood():
  """Equation 4.4 over a finite space: the contrast over the model's own samples, against log p's gradient."""
  energy = np.array([0.3, -1.0, 2.0, 0.1])
  p = np.exp(-energy) / np.exp(-energy).sum()
  seen, ones = jnp.array([1, 3, 0]), jnp.array([1.0, 1.0, 0.0])

  def expected(energy):  # the samples' distribution held, as the chains are
    each = jnp.stack([contrast(-energy[seen], ones, -energy[s][None]) for s in range(4)])
    return (p * each).sum()

  wanted = np.array([0, 0.5, 0, 0.5]) - p  # of -mean log p(seen), by energy
  np.testing.assert_allclose(jax.grad(expected)(jnp.asarray(energy)), wanted, atol=1e-6)
  assert expected(jnp.asarray(energy)) == pytest.approx((wanted * energy).sum(), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("clip, bounded", [(None, False), (0.3, True)])
def test_chains_walk_with_noise_and_stay_where_they_are(clip, bounded):
  """R = 3 steps a local step, three local steps whose slots overlap: the losses by NumPy from the same keys.

  A learning rate of almost nothing keeps the classifier, so that a loss shows where the chains are.
  """
  rate, noise = 0.7, 0.4
  client = fh.fedevg(
    MODEL, per_class=2, chain_steps=3, chain_step_size=rate, chain_noise=noise, lam=0.0, clip=clip,
    bounded=bounded, lr=1e-12, weight_decay=0.0, batch_size=4, persistent=True,
  )  # fmt: skip
  data = federation([9, 5])
  key = jax.random.key(3)
  stacked, _, x_tilde = some()
  params = jax.tree.map(lambda leaf: leaf[0], stacked)
  own = float64(params)
  _, _, info = jax.jit(client.update)(
    key, fh.Message(x_tilde), params, data.clients(jnp.int32(0)), fh.Context()
  )
  chains, labels, losses, again = np.asarray(x_tilde, float), np.asarray(LABELS), [], 0
  touched = np.zeros(6, bool)
  for x, y, step_key in walk(jax.random.split(key)[1], data, 0, 4, 1):
    slot_key, chain_key = jax.random.split(step_key)
    chosen = np.asarray(jax.random.permutation(slot_key, 6))[:4]
    again += touched[chosen].sum()
    touched[chosen] = True
    position = chains[chosen]
    for r in range(3):
      _, gradient = energies_of(own, position, labels[chosen])
      gradient = gradient if clip is None else np.clip(gradient, -clip, clip)
      drawn = np.asarray(jax.random.normal(jax.random.fold_in(chain_key, r), (4, 4)), float)
      position = position - rate * gradient + noise * drawn
      position = np.clip(position, 0, 1) if bounded else position
    chains[chosen] = position
    logits = np.asarray(MODEL.apply(params, jnp.asarray(x, jnp.float32)), float)
    entropy = (special.logsumexp(logits, axis=1) - logits[np.arange(len(y)), y]).mean()
    energy_of_chains = energies_of(own, position, labels[chosen])[0].mean()
    losses.append(energies_of(own, x, y)[0].mean() - energy_of_chains + entropy)
  assert len(losses) == 3 and again >= 4
  assert info.loss == pytest.approx(np.mean(losses), rel=2e-4)


def test_signed_energies_need_nothing_beside_the_examples():
  """What summary.json counts: M·D numbers down, M(D + 1) up; raw energies are relative to M more."""
  for energy, extra in (("signed", 0), ("raw", 6)):
    client = fh.fedevg(MODEL, per_class=2, energy=energy, batch_size=4, bounded=False)
    algorithm, data = fh.federated(client, server=sgld(5, bounded=False)), federation([9, 5])
    assert traffic(algorithm, data, 10) == {"up": 10 * 4 * 6 * 5, "down": 10 * 4 * (6 * 4 + extra)}


@pytest.mark.slow
def test_training_lowers_the_energy_of_real_data_against_samples():
  data = federation([60, 60])
  client = fh.fedevg(MODEL, per_class=2, epochs=40, batch_size=16, lr=1e-2, bounded=False, persistent=True)
  engine = fh.Engine(fh.federated(client, server=sgld(5, bounded=False)), data, 2)
  state = engine.init(jax.random.key(0))
  params = lambda state: jax.tree.map(lambda leaf: leaf[0], state.clients)  # noqa: E731
  x, y = data.clients(jnp.int32(0)).take(jnp.arange(60))
  noise = jax.random.normal(jax.random.key(9), (300, 4)) * 4.0
  gap = lambda state: float(  # noqa: E731
    of_class(MODEL.apply(params(state), x), y).mean()
    - of_class(MODEL.apply(params(state), noise), jnp.arange(300) % 3).mean()
  )
  before = gap(state)
  state, _ = engine.advance(state, 1)
  assert gap(state) > before + 1.0


def test_nearest_is_the_nearest():
  x = jax.random.normal(jax.random.key(0), (20, 4))
  synthetic = jax.random.normal(jax.random.key(1), (6, 4))
  distances = ((np.asarray(x)[:, None] - np.asarray(synthetic)) ** 2).sum(-1)
  expected = -distances.reshape(20, 3, 2).min(2)
  np.testing.assert_allclose(nearest(synthetic, LABELS, 3, x), expected, rtol=1e-5, atol=1e-5)


def test_a_downstream_classifier_converges_and_distances_are_scipys():
  rng = np.random.default_rng(0)
  y = jnp.asarray(np.arange(30) % 3)
  x = jnp.asarray(np.eye(4)[np.asarray(y)] * 3 + 0.1 * rng.normal(size=(30, 4)), jnp.float32)
  params, loss = jax.jit(lambda key: downstream(key, MODEL, x, y, lr=1e-2))(jax.random.key(0))
  assert loss < 0.01 and (MODEL.apply(params, x).argmax(1) == y).all()
  found = within_class_distance(x, y, 4)
  for c in range(3):
    assert found[c] == pytest.approx(pdist(np.asarray(x)[np.asarray(y) == c]).mean(), rel=1e-4)
  assert np.isnan(found[3])


def test_bad_settings_are_named():
  with pytest.raises(fh.SettingError, match="energy"):
    fh.fedevg(MODEL, energy="row")
  with pytest.raises(fh.SettingError, match="does not say its shape, or has fewer than two logits"):
    fh.fedevg(fh.Model(MODEL.init, MODEL.apply))
  with pytest.raises(fh.SettingError, match="does not say its shape"):
    fh.fedevg(MODEL._replace(shape={"text": (4,), "mask": (4,)}))
  with pytest.raises(fh.SettingError, match="step_size"):
    sgld(10, step_size=0.0)
  for settings in ({"clip": np.inf}, {"energy": "even", "upload_norm": np.inf}):
    with pytest.raises(fh.SettingError, match=f"{[*settings][-1]} = inf: out of range"):
      fh.fedevg(MODEL, **settings)
  with pytest.raises(fh.SettingError, match=r"cap = 0: .* must be above 0.0 and at most 60.0"):
    fh.fedevg(MODEL, energy="raw", cap=0)
  with pytest.raises(fh.SettingError, match=r"chain_noise = 5\.0: has no effect without chains"):
    fh.fedevg(MODEL, chain_steps=0, chain_noise=5.0)
  fh.fedevg(MODEL, chain_steps=0)


class Dropped(nn.Module):
  rate: float

  @nn.compact
  def __call__(self, x, train):
    return nn.Dense(3)(nn.Dropout(self.rate, deterministic=not train)(x))


def test_the_energy_is_a_function_of_x_alone():
  small = {"shape": (8, 8, 3), "num_classes": 3, "width": 8}
  for model in (fh.models.leaf_cnn(**small), fh.models.from_flax(Dropped(0.0), (4,), 3)):
    assert model.train is not None
    fh.fedevg(model, per_class=1)
  for model in (fh.models.leaf_cnn(norm="batch", **small), fh.models.from_flax(Dropped(0.5), (4,), 3)):
    with pytest.raises(fh.SettingError, match="Use group normalisation, and no dropout"):
      fh.fedevg(model, per_class=1)


@pytest.mark.parametrize("least, largest", [(-0.2, 1.0), (0.0, 1.2)])
def test_examples_beyond_what_is_bounded_are_an_error(least, largest):
  """Of either end that is bounded; bytes are looked at as they are read."""
  x = np.linspace(least, largest, 24 * 4, dtype=np.float32).reshape(24, 4)

  def engine(x, server, **settings):
    data = fh.federate(x, np.arange(24) % 3, np.split(np.arange(24), 2), jax.random.key(0), num_classes=3)
    fh.Engine(fh.federated(fh.fedevg(MODEL, per_class=2, **settings), server=server), data, 2)

  free, reach = sgld(5, bounded=False), rf"and the clients' reach from {least:g} to {largest:g}"
  for server, settings, name in (
    (free, {}, "bounded"),
    (sgld(5), {"bounded": False}, "server's bounded"),
    (fh.server.particles(5, pixels="sigmoid"), {"bounded": False}, "server's pixels"),
  ):
    with pytest.raises(fh.SettingError, match=f"^{name} = .*{reach}"):
      engine(x, server, **settings)
  engine(x, free, bounded=False)
  engine(np.clip(x, 0.0, 1.0), sgld(5))
  table = np.arange(96, dtype=np.uint8).reshape(24, 4)
  with pytest.raises(fh.SettingError, match="from 0 to 95"):
    engine(table, sgld(5))
  with pytest.raises(fh.SettingError, match=r"^model = 'cvae_mlp'.*Scale them"):
    client = fh.fedcvae(fh.models.make("cvae_mlp", (4,), 3), per_class=2)
    data = fh.federate(x, np.arange(24) % 3, np.split(np.arange(24), 2), jax.random.key(0), num_classes=3)
    fh.Engine(fh.federated(client), data, 2)
