"""The server of interacting particles, and FedEvg's weights, against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special
from scipy.spatial.distance import pdist
from small_parts import federation, float64, one_client

import fedjax_het as fh
from fedjax_het.clients.energies import ENERGIES, mean_logit, signals
from fedjax_het.clients.fedevg import labels_of
from fedjax_het.methods import CLIENTS, bare
from fedjax_het.models import energy_mlp
from fedjax_het.server import particles, sgld
from fedjax_het.server.particles import CHANNELS, SPACES, Particles, collapsed, features, repulsion

MODEL = energy_mlp((4,), 3, hidden=8)
LABELS = labels_of(3, 4)
KEY = jax.random.key(6)


def repelled(z, labels):
  """(1/n) Σ_j ∇_{z_j} k(z_j, z_i) by differences of the kernel, float64, a bandwidth an example."""
  found = np.zeros_like(z)
  for i in range(len(z)):
    others = [j for j in np.flatnonzero(labels == labels[i]) if j != i]
    if not others:
      continue
    n = len(others) + 1
    width = np.median([((z[j] - z[i]) ** 2).sum() for j in others]) / np.log(n)
    for j in others:
      for d, step in enumerate(1e-5 * np.eye(z.shape[1])):
        ahead, behind = (np.exp(-((z[j] + s - z[i]) ** 2).sum() / width) for s in (step, -step))
        found[i, d] += (ahead - behind) / 2e-5 / n
  return found


def stepped(x, total, state, rounds=4, shape=(4,), **settings):
  """A step of `particles` beside FedEvg around a model of `shape`."""
  private = {"energy": "even", "upload_norm": 1.0} if settings.get("signal_noise") else {}
  client = fh.fedevg(energy_mlp(shape, 3, hidden=8), per_class=len(x) // 3, **private)
  server = fh.federated(client, fh.mixing.uniform(), particles(rounds, **settings)).server
  first = server.init(fh.Message(x))
  np.testing.assert_array_equal(first.labels, labels_of(3, len(x) // 3))
  assert first.step == 0
  return server.update(KEY, first._replace(step=jnp.int32(1), **state), fh.Message(x), total)


def some(shape=(4,), per_class=4):
  """A synthetic set, Σ w e ∇E and Σ w e, and their quotient G."""
  keys = jax.random.split(jax.random.key(2), 3)
  x = jax.random.uniform(keys[0], (3 * per_class, *shape))
  gradient = jax.random.normal(keys[1], x.shape)
  weight = jnp.exp(jax.random.normal(keys[2], (len(x),)))
  weighted = gradient * weight.reshape(-1, *[1] * len(shape))
  return x, fh.Message(weighted, weight), np.asarray(gradient, float)


@pytest.mark.slow
@pytest.mark.parametrize("labels", [np.arange(9) % 3, np.array([0, 0, 1, 1, 1, 1, 1, 2, 1])])
def test_repulsion_is_the_kernel_s_gradient(labels):
  """Classes in any order, of two to six examples, and one of a single one, which nothing repels."""
  z = np.random.default_rng(0).normal(size=(9, 5))
  found = repulsion(jnp.asarray(z, jnp.float32), jnp.asarray(labels))
  np.testing.assert_allclose(found, repelled(z, labels), rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(repulsion(jnp.asarray(z + 7.0), jnp.asarray(labels)), found, atol=1e-4)


def test_repulsion_in_narrow_classes_far_apart():
  rng, labels = np.random.default_rng(0), np.arange(30) % 3
  z = (10.0 * rng.normal(size=(3, 64))[labels] + 1e-3 * rng.normal(size=(30, 64))).astype(np.float32)
  wanted = repelled(z.astype(np.float64), labels)
  np.testing.assert_allclose(
    repulsion(jnp.asarray(z), jnp.asarray(labels)), wanted, rtol=1e-2, atol=1e-3 * np.abs(wanted).max()
  )


def test_copies_stay_finite_and_together():
  assert not np.any(repulsion(jnp.ones((6, 2)), jnp.zeros(6, int)))


@pytest.mark.slow
@pytest.mark.parametrize("pixels", ["bounded", "free", "sigmoid"])
def test_a_step_by_hand(pixels):
  x, total, gradient = some()
  own = np.asarray(x, float)
  settings = dict(step_size=2.0, last_step_size=0.5, temperature=0.3, heat=0.2,
                  last_heat=0.1, noise=0.05, pixels=pixels)  # fmt: skip
  latent = np.asarray(special.logit(np.clip(own, 0.05, 0.95)) if pixels == "sigmoid" else own)
  state = {"latent": jnp.asarray(latent, jnp.float32)} if pixels == "sigmoid" else {}
  after, state = stepped(x, total, state, **settings)
  fall = 0.5 * (1 + np.cos(np.pi / 4))
  beta, heat = 0.5 + 1.5 * fall, 0.1 + 0.1 * fall
  noise = np.asarray(jax.random.normal(KEY, x.shape), float)
  force = 0.3 * repelled(own, np.asarray(LABELS)) - gradient
  slope = special.expit(latent) * (1 - special.expit(latent)) if pixels == "sigmoid" else 1.0
  moved = latent + beta * slope * force + np.sqrt(0.05**2 + 2 * beta * heat) * noise
  drawn = {"bounded": lambda x: np.clip(x, 0, 1), "free": lambda x: x, "sigmoid": special.expit}[pixels]
  np.testing.assert_allclose(after.params, drawn(moved), rtol=1e-4, atol=1e-4)
  assert after.extra == () and state.step == 2
  if pixels == "sigmoid":
    np.testing.assert_allclose(state.latent, moved, rtol=1e-4, atol=1e-4)
  else:
    assert state.latent == ()


def test_a_sigmoid_s_numbers_begin_as_what_is_first_sent():
  client = fh.fedevg(MODEL, per_class=1, start_scale=3.0)
  server = fh.federated(client, server=particles(4, temperature=0, pixels="sigmoid")).server
  first = client.init_broadcast(KEY)
  np.testing.assert_array_equal(server.init(first).latent, first.params)
  np.testing.assert_allclose(first.params, 3.0 * jax.random.normal(KEY, (3, 4)), rtol=1e-6)


def test_without_repulsion_it_is_sgld():
  x, total, _ = some()
  total, before = total._replace(extra=total.extra), fh.Message(x, jnp.arange(12.0))
  plain, _ = sgld(4, step_size=1.0, noise=0.3).update(KEY, jnp.int32(1), before, total)
  client = fh.fedevg(MODEL, per_class=4, energy="raw")
  server = fh.federated(client, server=particles(4, step_size=1.0, temperature=0, noise=0.3)).server
  after, _ = server.update(KEY, Particles(jnp.int32(1), LABELS), before, total)
  np.testing.assert_allclose(after.params, plain.params, rtol=1e-5, atol=1e-6)
  np.testing.assert_array_equal(after.extra, plain.extra)
  np.testing.assert_allclose(after.extra, np.arange(12) + np.log(np.asarray(total.extra)), rtol=1e-5)


def test_gradients_of_a_given_size():
  x, total, gradient = some()
  after, _ = stepped(x, total, {}, rms=0.02, step_size=1.0, last_step_size=1.0, temperature=0, noise=0,
                     pixels="free")  # fmt: skip
  moved = np.asarray(x, float) - np.asarray(after.params, float)
  np.testing.assert_allclose(moved, 0.02 * gradient / np.sqrt((gradient**2).mean()), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_noise_of_the_sum_and_uploads_of_bounded_length():
  x, total, gradient = some()
  weight, own = (
    np.asarray(total.extra, float)[:, None],
    dict(step_size=1.0, temperature=0, noise=0, pixels="free"),
  )
  after, _ = stepped(x, total, {}, signal_noise=0.4, last_step_size=1.0, **own)
  noise = np.asarray(jax.random.normal(jax.random.fold_in(KEY, 1), x.shape), float)
  np.testing.assert_allclose(
    after.params, np.asarray(x) - gradient - 0.4 * noise / weight, rtol=1e-4, atol=1e-4
  )
  params, message = MODEL.init(KEY), fh.Message(x)
  free = signals(MODEL, params, message, LABELS, None, "even").params
  length = np.sqrt((np.asarray(free, float) ** 2).sum())
  for norm in (0.5 * length, 2.0 * length):
    upload = signals(MODEL, params, message, LABELS, None, "even", upload_norm=norm)
    np.testing.assert_allclose(upload.params, free * min(1.0, norm / length), rtol=1e-5)
    np.testing.assert_array_equal(upload.extra, 1.0)
  with pytest.raises(
    fh.SettingError, match=r"upload_norm = 1\.0: .* signed weights e would still depend on the data"
  ):
    fh.fedevg(MODEL, upload_norm=1.0)


def test_copies_are_drawn_afresh():
  """But for one of a class, while less than half the rounds are done."""
  x, total, _ = some()
  close = x.at[5:8].set(x[4] + 0.01 * x[5:8])  # the second class
  far = {
    label: np.sqrt((pdist(own) ** 2).mean() / 4) for label, own in enumerate(np.split(np.asarray(close), 3))
  }
  assert far[1] < 0.05 < min(far[0], far[2])
  wanted = np.isin(np.arange(12), [5, 6, 7])
  for least, expected in ((0.05, wanted), (1.001 * far[1], wanted), (0.999 * far[1], 0 * wanted)):
    np.testing.assert_array_equal(collapsed(close, LABELS, least), expected)
  np.testing.assert_array_equal(collapsed(close[4:6], LABELS[:2] + jnp.arange(2), 9.0), [False, False])
  total = total._replace(params=0.0 * total.params)
  still = dict(temperature=0, noise=0, pixels="free", renew_below=0.05)
  fresh = jax.random.normal(jax.random.fold_in(KEY, 2), x.shape)
  for rounds, mask in ((4, wanted), (2, 0 * wanted)):
    after, _ = stepped(close, total, {}, rounds=rounds, **still)
    np.testing.assert_allclose(after.params, np.where(mask[:, None], fresh, close), rtol=1e-6)
  after, _ = stepped(close, total, {}, **(still | {"renew_below": 0.0}))
  np.testing.assert_array_equal(after.params, close)


@pytest.mark.slow
def test_repulsion_between_features_is_pulled_back():
  """Means of blocks by hand, whose Jacobian gives every pixel of a block a quarter; convolutions by NumPy."""
  shape = (4, 6, 2)
  x, total, gradient = some(shape, per_class=3)
  own = np.asarray(x, float)
  blocks = own.reshape(9, 2, 2, 3, 2, 2).mean((2, 4)).reshape(9, -1)
  np.testing.assert_allclose(features("blocks", shape, 0)(x), blocks, rtol=1e-5)
  force = repelled(blocks, np.arange(9) // 3).reshape(9, 2, 3, 2) / 4
  force = force.repeat(2, axis=1).repeat(2, axis=2)
  moving = dict(noise=0, pixels="free", step_size=1.0, last_step_size=1.0, temperature=0.4)
  after, _ = stepped(x, total, {}, shape=shape, space="blocks", **moving)
  np.testing.assert_allclose(after.params, own + 0.4 * force - gradient, rtol=1e-4, atol=1e-4)
  kernel = np.asarray(jax.random.normal(jax.random.key(3), (3, 3, 2, CHANNELS)), float) / np.sqrt(18)
  padded, found = np.pad(own, ((0, 0), (1, 1), (1, 1), (0, 0))), np.zeros((9, 4, 6, CHANNELS))
  for row in range(4):
    for column in range(6):
      window = padded[:, row : row + 3, column : column + 3]
      found[:, row, column] = np.tensordot(window, kernel, 3)
  found = found * special.expit(found)
  found = found.reshape(9, 2, 2, 3, 2, CHANNELS).mean((2, 4)).reshape(9, -1)
  np.testing.assert_allclose(features("convolutions", shape, 3)(x), found, rtol=1e-4, atol=1e-5)


def test_repulsion_between_features_of_the_caller_s():
  """z = A x, whose Jacobian is A."""
  x, total, gradient = some()
  a = np.random.default_rng(1).normal(size=(4, 3))
  force = repelled(np.asarray(x, float) @ a, np.asarray(LABELS)) @ a.T
  own = dict(space=lambda x: x @ jnp.asarray(a, jnp.float32), noise=0, pixels="free", step_size=1.0,
             last_step_size=1.0, temperature=2.0)  # fmt: skip
  after, _ = stepped(x, total, {}, **own)
  np.testing.assert_allclose(after.params, np.asarray(x) + 2.0 * force - gradient, rtol=1e-4, atol=1e-4)
  with pytest.raises(fh.SettingError, match=r"makes \(2,\) of two examples, which is no vector an example"):
    stepped(x, total, {}, space=lambda x: x.sum(1))


@pytest.mark.parametrize("cap", [pytest.param(None, marks=pytest.mark.slow), 0.5])
@pytest.mark.parametrize(
  "energy", [pytest.param(own, marks=[] if own == "signed" else pytest.mark.slow) for own in ENERGIES]
)
def test_weights(energy, cap):
  """exp of the logit, its sign, or what it is above; cut where that is asked for."""
  cap = 6.5 if cap and energy == "centred" else cap
  if cap and energy in ("signed", "even"):
    with pytest.raises(fh.SettingError, match=r"cap = 0\.5: does not apply to .* weights"):
      fh.fedevg(MODEL, energy=energy, cap=cap)
    return
  params = jax.tree.map(lambda leaf: 4.0 * leaf, MODEL.init(jax.random.key(0)))
  data, x = federation([9, 5]), jax.random.normal(jax.random.key(1), (12, 4))
  own, before = one_client(data, 1), jnp.linspace(-2.0, 2.0, 12)
  upload = jax.jit(lambda p: signals(MODEL, p, fh.Message(x, before), LABELS, own, energy, cap))(params)
  f = np.asarray(MODEL.apply(params, x), float)[np.arange(12), np.asarray(LABELS)]
  real, y = map(np.asarray, own.take(jnp.arange(5)))
  mean = np.asarray(MODEL.apply(params, real), float)[np.arange(5), y].mean()
  assert mean_logit(MODEL, params, own) == pytest.approx(mean, rel=1e-5)
  v = {"signed": np.sign(f), "raw": f - float64(before), "centred": f - mean, "absolute": f, "even": 0 * f}[
    energy
  ]
  if cap:
    assert 0 < (np.abs(v) > cap).sum() < 12
    v = np.clip(v, -cap, cap)
  np.testing.assert_allclose(upload.extra, np.exp(v), rtol=1e-5)
  gradient = jax.jit(jax.grad(lambda x: -MODEL.apply(params, x)[jnp.arange(12), LABELS].sum()))(x)
  np.testing.assert_allclose(upload.params, np.exp(v)[:, None] * np.asarray(gradient), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
  "settings, message",
  [
    (dict(temperature=-0.1), "server's temperature = -0.1: out of range"),
    (dict(step_size=0.5, last_step_size=0.6), "server's last_step_size = 0.6: above step_size = 0.5"),
    (dict(heat=-1.0), "server's heat = -1.0: out of range"),
    (dict(rms=0.0), "server's rms = 0.0"),
    (dict(rms=np.inf), "server's rms = inf"),
    (dict(step_size=np.inf), "server's step_size = inf"),
    (dict(space="pixel"), "server's space = 'pixel': unknown. Did you mean 'pixels'"),
    (dict(pixels="bound"), "server's pixels = 'bound': unknown. Did you mean 'bounded'"),
    (dict(space="blocks"), r"server's space = 'blocks': needs images .* shape \(4,\)"),
  ],
)
def test_bad_settings_are_named(settings, message):
  with pytest.raises(fh.SettingError, match=message):
    fh.federated(fh.fedevg(MODEL), server=particles(5, **settings))


@pytest.mark.parametrize("space", SPACES)
def test_a_configuration_can_name_every_space(space):
  """Which is first tried around a small model."""
  fh.federated(bare(CLIENTS["fedevg"]), server=particles(5, space=space))


def test_what_it_does_not_go_with():
  lonely = particles(5)
  with pytest.raises(fh.SettingError, match="asks the client part for the examples' labels"):
    lonely.init(fh.Message(jnp.zeros((3, 4))))
  with pytest.raises(fh.SettingError, match=r"temperature = 0\.3: has no effect on classes of one example"):
    fh.federated(fh.fedevg(MODEL, per_class=1), server=lonely)
  with pytest.raises(fh.SettingError, match=r"renew_below = 0\.1: has no effect on classes of one example"):
    fh.federated(fh.fedevg(MODEL, per_class=1), server=particles(5, temperature=0.0, renew_below=0.1))
  nameless = fh.fedevg(MODEL)._replace(studies=fh.Studies())
  with pytest.raises(fh.SettingError, match="keeps examples of a class apart, and fedevg synthesises none"):
    fh.federated(nameless, server=lonely)
  with pytest.raises(fh.SettingError, match=r"rounds = 5: .*rounds = 6\. Use particles\(rounds=6\)"):
    lonely.needs.check_rounds(6)
  with pytest.raises(fh.SettingError, match="cap = 61"):
    fh.fedevg(MODEL, energy="raw", cap=61)
