"""FedCVAE and FedCGAN: the losses by hand, and that the averaged generators learn."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special, stats
from small_parts import federation, float64, one_client, walk

import fedjax_het as fh
from fedjax_het.clients.generative import fedcgan, fedcvae
from fedjax_het.errors import SettingError
from fedjax_het.models.layers.basic import Perceptron, network
from fedjax_het.models.zoo.generative import cgan_mlp, cvae_conv, cvae_mlp, variational, with_label

Y = jnp.array([0, 1, 1, 0])
X = jax.random.uniform(jax.random.key(4), (4, 3))
Z = jax.random.normal(jax.random.key(5), (5, 3))
WEIGHT = jnp.array([1.0, 1.0, 1.0, 0.0])


def swish_net(params, h):
  names = sorted(params)
  for name in names:
    h = h @ np.asarray(params[name]["kernel"], float) + np.asarray(params[name]["bias"], float)
    h = h if name == names[-1] else h * special.expit(h)
  return h


@pytest.mark.slow
def test_the_evidence_bound_by_hand():
  model = cvae_mlp((3,), 2, latent=2, hidden=4, beta=None)
  params, key = model.init(jax.random.key(0)), jax.random.key(1)
  found = model.losses["autoencoder"](params, X, Y, WEIGHT, key)
  own = params["autoencoder"]
  mean, raw = np.split(swish_net(own["encoder"], np.asarray(X, float)), 2, axis=1)
  deviation = np.log1p(np.exp(raw)) + 1e-6
  z = mean + deviation * np.asarray(jax.random.normal(key, (4, 2)), float)
  output = special.expit(swish_net(own["decoder"], np.concatenate([z, np.eye(2)[np.asarray(Y)]], 1)))
  squares = ((np.asarray(X, float) - output) ** 2)[:3]
  likeliest = optimize.minimize_scalar(
    lambda v: -stats.norm(scale=np.sqrt(v)).logpdf(np.sqrt(squares)).mean(),
    bounds=(1e-3, 1),
    method="bounded",
  )
  divergence = -0.5 * (1 + np.log(deviation**2) - mean**2 - deviation**2).sum(1)
  assert likeliest.x == pytest.approx(squares.mean(), rel=1e-3)
  assert found == pytest.approx(likeliest.fun + divergence[:3].mean() / 3, rel=1e-5)
  fixed = cvae_mlp((3,), 2, latent=2, hidden=4, beta=None, variance=0.5).losses["autoencoder"]
  wanted = squares.mean() + 0.5 * np.log(np.pi) + divergence[:3].mean() / 3
  assert fixed(params, X, Y, WEIGHT, key) == pytest.approx(wanted, rel=1e-5)
  for settings, beta in (({}, 1.0), ({"beta": 0.3}, 0.3), ({"beta": 0.0}, 0.0)):
    weighed = cvae_mlp((3,), 2, latent=2, hidden=4, **settings).losses["autoencoder"]
    wanted = squares.mean() + beta * divergence[:3].mean()
    assert weighed(params, X, Y, WEIGHT, key) == pytest.approx(wanted, rel=1e-5)


def test_an_encoder_that_sees_the_label_by_hand():
  """q(z | x, y): C more inputs of a perceptron, C more channels of an image; by default neither."""
  model = cvae_mlp((3,), 2, latent=2, hidden=4, conditional=True)
  params, key = model.init(jax.random.key(0)), jax.random.key(1)
  own, one_hot = params["autoencoder"], np.eye(2)[np.asarray(Y)]
  seen = np.concatenate([np.asarray(X, float), one_hot], 1)
  mean, raw = np.split(swish_net(own["encoder"], seen), 2, axis=1)
  deviation = np.log1p(np.exp(raw)) + 1e-6
  z = mean + deviation * np.asarray(jax.random.normal(key, (4, 2)), float)
  output = special.expit(swish_net(own["decoder"], np.concatenate([z, one_hot], 1)))
  divergence = -0.5 * (1 + np.log(deviation**2) - mean**2 - deviation**2).sum(1)
  wanted = (((np.asarray(X, float) - output) ** 2).mean(1) + divergence)[:3].mean()
  assert model.losses["autoencoder"](params, X, Y, WEIGHT, key) == pytest.approx(wanted, rel=1e-5)
  for conditional, channels in ((False, 3), (True, 5)):
    image = cvae_conv((16, 16, 3), 2, latent=2, width=8, conditional=conditional)
    kernel = jax.eval_shape(image.init, key)["autoencoder"]["encoder"]["conv1"]["kernel"]
    assert kernel.shape == (4, 4, channels, 8)
  pixels = with_label(jnp.zeros((2, 2, 2, 1)), jnp.array([1, 0]), 2)
  np.testing.assert_array_equal(pixels[0, ..., 1:], np.tile([0.0, 1.0], (2, 2, 1)))
  np.testing.assert_array_equal(pixels[1, ..., 1:], np.tile([1.0, 0.0], (2, 2, 1)))


@pytest.mark.parametrize(
  "settings, says",
  [
    ({"variance": 0.5}, r"variance = 0.5: has no effect beside beta = 1.0. Set beta=None"),
    ({"beta": -1.0}, "beta = -1.0: out of range"),
    ({"beta": np.inf}, "beta = inf: out of range"),
    ({"beta": None, "variance": 0.0}, "variance = 0.0: out of range"),
    ({"beta": None, "variance": np.inf}, "variance = inf: out of range"),
  ],
)
def test_weights_of_the_divergence_that_cannot_be(settings, says):
  with pytest.raises(SettingError, match=says):
    cvae_mlp((3,), 2, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("variance, low, high", [(None, 0.05, 0.15), (0.5, 0.0, 0.02)])
def test_examples_of_a_class_differ_where_the_variance_is_the_likeliest(variance, low, high):
  """A class of points 0.1 to either side of its mean: they differ as far; at a variance of ½ not at all."""
  rng = np.random.default_rng(0)
  y = np.repeat([0, 1], 128)
  x = np.float32(0.3 + 0.3 * y[:, None] + 0.1 * np.sign(rng.normal(size=(256, 1))) * np.ones((1, 4)))
  data = fh.federate(x, y, [np.arange(256)], jax.random.key(0), num_classes=2, test_fraction=0.0)
  generator = cvae_mlp((4,), 2, latent=2, hidden=32, beta=None, variance=variance)
  client = fedcvae(generator, lr=3e-3, lr_decay=1.0, epochs=100, batch_size=64)
  share = client.init_broadcast(jax.random.key(0))
  upload = jax.jit(client.update)(jax.random.key(1), share, (), data.clients(0), fh.Context())[0]
  examples = generator.generate(upload.params, jax.random.key(2), jnp.repeat(jnp.arange(2), 200))
  spread = np.asarray(examples).reshape(2, 200, 4).std(axis=1)
  assert (spread >= low).all() and (spread < high).all()


def test_the_divergence_is_that_of_the_normal_distributions():
  """Against quadrature: a decoder that ignores z leaves of the loss nothing else that depends on m and s."""
  decoder = (lambda key: {}, lambda params, given: jnp.zeros((len(given), 3)))

  def loss(mean, deviation):
    raw = np.log(np.expm1(deviation))  # what softplus makes the deviation of
    encoder = (lambda key: {}, lambda params, x: jnp.tile(jnp.array([mean, raw], jnp.float32), (len(x), 1)))
    model = variational(encoder, decoder, (3,), 2, latent=1, name="one latent dimension", beta=None)
    return model.losses["autoencoder"](model.init(jax.random.key(0)), X, Y, WEIGHT, jax.random.key(1))

  z, q = np.linspace(-20, 20, 20001), stats.norm()
  for mean, deviation in ((0.7, 0.4), (-1.0, 1.5)):
    p = stats.norm(mean, deviation)
    integral = np.trapezoid(p.pdf(z) * (p.logpdf(z) - q.logpdf(z)), z)
    assert loss(mean, deviation) - loss(0.0, 1.0) == pytest.approx(integral / 3, rel=1e-3)


def test_the_adversaries_losses_by_hand():
  model = cgan_mlp((3,), 2, latent=2, hidden=4)
  params, key = model.init(jax.random.key(0)), jax.random.key(1)

  def fake(key, labels):
    z = np.asarray(jax.random.uniform(key, (4, 2), minval=-1.0, maxval=1.0), float)
    return np.tanh(swish_net(params["generator"], np.concatenate([z, np.eye(2)[labels]], 1)))

  def judged(x, y, real):
    logits = swish_net(params["discriminator"], x)
    sign = 1 if real else -1
    classes = logits[:, 1:] - special.logsumexp(logits[:, 1:], axis=1, keepdims=True)
    return (np.log1p(np.exp(-sign * logits[:, 0])) - classes[np.arange(4), y])[:3].mean()

  real = judged(2 * np.asarray(X, float) - 1, np.asarray(Y), True)
  found = model.losses["discriminator"](params, X, Y, WEIGHT, key)
  label_key, noise_key = jax.random.split(key)
  labels = np.asarray(jax.random.randint(label_key, (4,), 0, 2))
  assert found == pytest.approx(real + judged(fake(noise_key, labels), labels, False), rel=1e-5)
  found = model.losses["generator"](params, X, Y, WEIGHT, key)
  assert found == pytest.approx(judged(fake(key, np.asarray(Y)), np.asarray(Y), True), rel=1e-5)


@pytest.mark.slow
def test_a_client_moves_the_generator_for_its_own_classes_only():
  """Rows of the first kernel that other classes' labels pick: no gradient, and no update but decay."""
  model = cgan_mlp((3,), 4, latent=2, hidden=4)
  params = model.init(jax.random.key(0))
  data = fh.federate(np.tile(X, (5, 1)), np.full(20, 2), [np.arange(20)], jax.random.key(0), num_classes=4,
                     test_fraction=0.0)  # fmt: skip
  gradient = jax.grad(model.losses["generator"])(params, X, jnp.full(4, 2), WEIGHT, jax.random.key(1))
  first = min(gradient["generator"])
  rows = np.asarray(gradient["generator"][first]["kernel"])[2:]
  assert np.flatnonzero(np.abs(rows).sum(1)).tolist() == [2]
  of_fakes = jax.grad(model.losses["discriminator"])(params, X, Y, WEIGHT, jax.random.key(1))["generator"]
  assert all(not leaf.any() for leaf in jax.tree.leaves(of_fakes))
  client = fedcgan(model, batch_size=4, weight_decay=0.0)
  upload = client.update(jax.random.key(1), fh.Message(params), (), data.clients(0), fh.Context())[0]
  moved = upload.params["generator"][first]["kernel"] != params["generator"][first]["kernel"]
  assert np.flatnonzero(moved.any(axis=1)).tolist() == [0, 1, 4]


@pytest.mark.slow
def test_local_steps_are_adams_by_hand():
  """Round 3 of FedCGAN: each part by its own loss and moments, the generator after the discriminator moved.

  g <- ∇ + w θ;  m <- β₁ m + (1 - β₁) g;  v <- β₂ v + (1 - β₂) g²;  θ <- θ - γ d³ m̂ / (√v̂ + 1e-8).
  """
  b1, b2, decay, lr, lr_decay = 0.6, 0.9, 0.3, 0.02, 0.8
  model, data = cgan_mlp((4,), 3, latent=2, hidden=4), federation([7])
  client = fedcgan(
    model, lr=lr, lr_decay=lr_decay, b1=b1, b2=b2, weight_decay=decay, epochs=2, batch_size=4
  )  # fmt: skip
  share, key = client.init_broadcast(jax.random.key(0)), jax.random.key(1)
  upload, _, info = jax.jit(client.update)(key, share, (), one_client(data, 0), fh.Context(round=3))

  @jax.jit
  def slope(part, params, x, y, weight, key):
    return jax.value_and_grad(lambda p: jax.lax.switch(part, losses, p, x, y, weight, key))(params)

  names, losses = list(model.losses), list(model.losses.values())
  params = float64(share.params)
  first, second = (jax.tree.map(np.zeros_like, params) for _ in range(2))
  total = []
  for s, (x, y, step_key) in enumerate(walk(key, data, 0, 4, 2), 1):
    rows = np.arange(4) < len(y)  # a batch has four rows, of which some are empty
    x, y = np.resize(x, (4, 4)).astype(np.float32), np.resize(y, 4)
    total.append(0.0)
    for i, part in enumerate(names):
      single = jax.tree.map(np.float32, params)
      loss, gradient = slope(i, single, x, y, np.float32(rows), jax.random.fold_in(step_key, i))
      g = jax.tree.map(lambda g, p: g + decay * p, float64(gradient[part]), params[part])
      first[part] = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, first[part], g)
      second[part] = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g * g, second[part], g)
      params[part] = jax.tree.map(
        lambda p, m, v: p - lr * lr_decay**3 * m / (1 - b1**s) / (np.sqrt(v / (1 - b2**s)) + 1e-8),
        params[part], first[part], second[part],
      )  # fmt: skip
      total[-1] += loss
  assert info.steps == len(total) == 4 and info.loss == pytest.approx(np.mean(total), rel=1e-5)
  chex.assert_trees_all_close(upload.params, params, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_cap_on_local_steps():
  """Five of the ten steps of two passes; as many as there are where the cap is larger."""
  data = fh.federate(np.zeros((20, 3), np.float32), np.arange(20) % 2, [np.arange(20)], jax.random.key(0),
                     num_classes=2, test_fraction=0.0)  # fmt: skip
  for cap, taken in ((5, 5), (50, 10), (None, 10)):
    client = fedcvae(cvae_mlp((3,), 2, latent=2, hidden=4), epochs=2, batch_size=4, steps=cap)
    share = client.init_broadcast(jax.random.key(0))
    info = client.update(jax.random.key(1), share, (), data.clients(0), fh.Context())[2]
    assert info.steps == taken


def test_a_classifier_generates_nothing():
  with pytest.raises(SettingError, match=r"generates nothing\. Use one of cvae_mlp"):
    fedcvae(fh.models.two_nn((3,), 2))


@pytest.mark.slow
@pytest.mark.parametrize("factory", [cvae_mlp, cgan_mlp])
def test_examples_have_their_shape_and_range(factory):
  model = factory((4, 3, 1), 5, hidden=8)
  examples = model.generate(model.init(jax.random.key(0)), jax.random.key(1), jnp.arange(5))
  assert examples.shape == (5, 4, 3, 1) and (examples >= 0).all() and (examples <= 1).all()


def test_a_perceptron_is_its_layers():
  init, apply = network(Perceptron((4, 2), jax.nn.swish), (3,))
  params = init(jax.random.key(0))
  np.testing.assert_allclose(apply(params, X), swish_net(params, np.asarray(X, float)), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("part, model", [(fedcvae, cvae_mlp), (fedcgan, cgan_mlp)])
def test_two_clients_with_a_class_each_teach_both(part, model):
  """Squares in the corners: each client has one; the averaged generator draws both where they belong."""
  rng = np.random.default_rng(0)
  y = np.repeat([0, 1], 60)
  x = 0.1 * rng.random((120, 16)).astype(np.float32)
  x[:60, :4] += 0.8
  x[60:, 12:] += 0.8
  parts = [np.arange(60), np.arange(60, 120)]
  data = fh.federate(x, y, parts, jax.random.key(0), num_classes=2)
  generator = model((16,), 2, latent=4, hidden=32)
  client = part(generator, lr=3e-3, lr_decay=1.0, epochs=2, batch_size=16)
  result = fh.run(fh.federated(client), data, rounds=40, cohort_size=2, key=jax.random.key(1))
  assert result.metrics["global"]["top1"]["mean"] > 0.95
  examples = generator.generate(
    result.state.broadcast.params, jax.random.key(2), jnp.repeat(jnp.arange(2), 50)
  )
  bright = np.asarray(examples).reshape(2, 50, 4, 4).mean((1, 3))
  assert bright[0, 0] > bright[0, 3] + 0.4 and bright[1, 3] > bright[1, 0] + 0.4
