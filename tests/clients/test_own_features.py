"""Methods whose clients read features their own way, against losses that are written again in float64."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import with_every
from flax import linen as nn
from float64_steps import KEY, by_hand, cross_entropy, features, near, read
from one_round import BATCH, CLIENT, LOCAL, like, one_round
from small_parts import (
  CLASSES,
  SIZES,
  float64,
  mlp,
  one_client,
  rows_of,
  walk,
)

import fedjax_het as fh
from fedjax_het.clients.discrepancy import adaptive, mmd
from fedjax_het.clients.fedala import Own as FedalaState
from fedjax_het.clients.fedala import fedala
from fedjax_het.clients.fedcp import fedcp
from fedjax_het.clients.feddbe import Center, feddbe
from fedjax_het.clients.fedphp import fedphp
from fedjax_het.clients.fedsmoo import fedsmoo
from fedjax_het.clients.gpfl import gpfl, lengths
from fedjax_het.clients.knn_per import knn_per
from fedjax_het.clients.mime import mime
from fedjax_het.clients.sgd import Local
from fedjax_het.engine.engine import Engine
from fedjax_het.errors import SettingError
from fedjax_het.models.features import with_shift

# FedDBE


@pytest.mark.slow
def test_feddbe_by_hand(ragged):
  kappa, mu = 3.0, 0.3
  part = feddbe(mlp(), kappa=kappa, momentum_mean=mu, **LOCAL)
  first = part.init_broadcast(KEY)

  def plain(params, x, y, key, m):
    z = features(params, x)
    return cross_entropy(read(params["fc2"], z), y), (1 - mu) * m + mu * z.mean(0)

  data, context = one_client(ragged, CLIENT), fh.Context(CLIENT, 0, 3, 12)
  found = jax.jit(part.first_pass)(KEY, first, jnp.zeros(5), data, context)
  near(found.values.mean, by_hand(plain, first.params, ragged, np.zeros(5))[1])
  assert found.weights == SIZES[CLIENT] and found.values.known == 1.0 and first.pooled.known == 0.0
  center, b = like(jnp.zeros(5), 0.5), like(jnp.zeros(5), 0.3, 1)
  later = first._replace(pooled=Center(center, jnp.float32(1.0)))
  assert part.first_pass(KEY, later, b, data, context).weights == 0.0

  def loss(own, x, y, key, m):
    params, b = own
    z = features(params, x)
    m = (1 - mu) * m + mu * z.mean(0)
    pull = 0.5 * kappa * ((m - np.asarray(center, np.float64)) ** 2).mean()
    return cross_entropy(read(params["fc2"], z + b), y) + pull, jax.lax.stop_gradient(m)

  _, _, upload, after, _ = one_round(part, ragged, later, b)
  (params, own), _ = by_hand(loss, (first.params, b), ragged, np.zeros(5))
  near(upload.params, params)
  near(after, own)
  x, _ = rows_of(ragged, CLIENT)
  judged = part.apply(part.personalize(later, b, None, context, 0.0), x.astype(np.float32))
  near(judged, read(float64(first.params)["fc2"], np.asarray(features(float64(first.params), x)) + b))
  chex.assert_trees_all_equal(part.global_model(later), first.params)


@pytest.mark.slow
def test_feddbe_without_its_parts_is_fedavg_bit_for_bit(ragged):
  wanted = one_round(fh.fedavg(mlp(), **LOCAL), ragged)[2]
  plain = feddbe(mlp(), kappa=0.0, own_vector=False, **LOCAL)
  chex.assert_trees_all_equal(one_round(plain, ragged)[2], wanted)
  assert plain.first_pass is None
  nameless = feddbe(mlp()._replace(num_classes=0), own_vector=False, **LOCAL)  # whose logits are counted
  named = feddbe(mlp(), own_vector=False, **LOCAL)
  chex.assert_trees_all_equal(one_round(nameless, ragged)[2], one_round(named, ragged)[2])
  _, b, _, after, _ = one_round(feddbe(mlp(), kappa=0.0, **LOCAL), ragged)
  assert not b.any() and after.all()


@pytest.mark.slow
def test_the_mean_of_feddbe_is_found_once_and_running_statistics_are_the_model_s(ragged):
  part = feddbe(fh.models.two_nn((4,), CLASSES, hidden=4), kappa=1.0, momentum_mean=0.5, **LOCAL)
  engine = Engine(fh.federated(part), ragged, 5, devices=1)
  state, _ = engine.advance(engine.init(jax.random.key(1)), 1)
  one = jax.tree.map(np.array, state.broadcast)
  two = engine.advance(state, 1)[0].broadcast
  assert one.pooled.known == 1.0 and one.pooled.mean.any()
  chex.assert_trees_all_equal(one.pooled, two.pooled)


def test_a_model_without_a_bias_is_refused_by_feddbe():
  params = mlp().init(KEY)
  params["fc2"].pop("bias")
  with pytest.raises(SettingError, match="has a last layer fc2 without a bias"):
    with_shift(mlp())(params, jnp.zeros(5))


# FedPHP


def test_discrepancies_by_hand():
  rng = np.random.default_rng(0)
  a, b, weight = rng.normal(size=(6, 3)), rng.normal(size=(6, 3)), np.array([1.0, 1, 1, 1, 0, 0])

  def kernel(u, v, widths):
    return sum(np.exp(-((u - v) ** 2).sum() / s) for s in widths)

  def total(a, b, widths):
    rows = range(len(a))
    return np.mean([
      kernel(a[i], a[j], widths) + kernel(b[i], b[j], widths) - 2 * kernel(a[i], b[j], widths)
      for i in rows for j in rows
    ])  # fmt: skip

  both = np.concatenate([a[:4], b[:4]])
  middle = sum(((u - v) ** 2).sum() for u in both for v in both) / (8 * 7)
  given = [jnp.asarray(own, jnp.float32) for own in (a, b, weight)]
  np.testing.assert_allclose(mmd(*given, (2.0, 5.0)), total(a[:4], b[:4], (2.0, 5.0)), rtol=1e-5)
  widths = [middle * 2.0**i for i in range(-2, 3)]
  np.testing.assert_allclose(adaptive(*given), total(a[:4], b[:4], widths), rtol=1e-5)
  assert not jax.grad(lambda own: adaptive(own, own, given[2]))(jnp.zeros((6, 3))).any()


@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["kd", "mmd"])
def test_fedphp_by_hand(transfer, ragged):
  lam, tau = 0.4, 2.0
  part = fedphp(mlp(), rounds=10, mu=0.8, lam=lam, tau=tau, transfer=transfer, **LOCAL)
  first = part.init_broadcast(KEY)
  state = part.init(KEY, first, None, None)
  chex.assert_trees_all_equal(state.private, first.params)
  state = state._replace(private=like(first.params, 1.0, 4), times=jnp.int32(2))
  private = float64(state.private)

  def loss(params, x, y, key, _):
    z, old = features(params, x), features(private, x)
    f = read(params["fc2"], z)
    if transfer == "kd":
      taught = -(jax.nn.softmax(read(private["fc2"], old) / tau) * jax.nn.log_softmax(f)).sum(1).mean()
    else:
      both = jax.lax.stop_gradient(jnp.concatenate([z, old]))
      square = lambda a, b: ((a[:, None] - b) ** 2).sum(-1)  # noqa: E731
      count = len(both)
      middle = square(both, both).sum() / max(count * (count - 1), 1) + 1e-8
      mean = lambda a, b: sum(jnp.exp(-square(a, b) / middle / 2.0**i).mean() for i in range(-2, 3))  # noqa: E731
      taught = mean(z, z) + mean(old, old) - 2 * mean(z, old)
    return (1 - lam) * cross_entropy(f, y) + lam * taught, None

  _, _, upload, after, _ = one_round(part, ragged, first, state)
  wanted, _ = by_hand(loss, first.params, ragged)
  near(upload.params, wanted)
  keep = 0.8 * 2 / (10 * 3 / 12)  # twice of the 2.5 times that it takes part
  near(after.private, jax.tree.map(lambda q, w: keep * q + (1 - keep) * w, private, wanted))
  assert after.times == 3
  later = part.update(KEY, first, state._replace(times=jnp.int32(9)), one_client(ragged, CLIENT),
                      fh.Context(CLIENT, 0, 3, 12))[1]  # fmt: skip
  near(later.private, jax.tree.map(lambda q, w: 0.8 * q + 0.2 * w, private, wanted))
  chex.assert_trees_all_equal(part.personalize(first, state, None, None, 0.0), state.private)


@pytest.mark.slow
def test_fedphp_that_teaches_nothing_shares_fedavg_s_model_and_first_inherits_all(ragged):
  _, _, upload, after, _ = one_round(fedphp(mlp(), lam=0.0, **LOCAL), ragged)
  chex.assert_trees_all_equal(upload, one_round(fh.fedavg(mlp(), **LOCAL), ragged)[2])
  chex.assert_trees_all_equal(after.private, upload.params)


# GPFL and FedCP


def normalised(layer, rows):
  centered = rows - rows.mean(-1, keepdims=True)
  deviation = jnp.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
  return centered / deviation * layer.scale + layer.offset


def valve(own, z, k):
  gamma, beta = (normalised(one, jnp.maximum(k @ one.kernel + one.bias, 0)) for one in own)
  return jnp.maximum(z * (1 + gamma) + beta, 0)


@pytest.mark.slow
def test_gpfl_by_hand(ragged):
  lam, mu = 0.3, 0.2
  part = gpfl(mlp(), lam=lam, mu=mu, **LOCAL)
  data, context = one_client(ragged, CLIENT), fh.Context(CLIENT, 0, 3, 12)
  first = part.init_broadcast(KEY)
  first = first._replace(params=first.params._replace(valve=like(first.params.valve, 0.7)))
  state = part.init(KEY, first, data, context)
  x, y = rows_of(ragged, CLIENT)
  np.testing.assert_allclose(state.shares, np.bincount(y, minlength=CLASSES) / len(y), rtol=1e-6)
  chex.assert_trees_all_equal({**state.head, **first.params.body}, mlp().init(KEY))
  state = state._replace(head=like(state.head, 0.5, 3))
  old, shares = (np.asarray(own, np.float64) for own in (first.params.embeddings, state.shares))

  def loss(own, x, y, key, _):
    (body, embeddings, valves), head = own
    z = features(body, x)
    generic = valve(valves, z, old.mean(0))
    cosines = (
      generic
      @ embeddings.T
      / (jnp.linalg.norm(generic, axis=1)[:, None] * jnp.linalg.norm(embeddings, axis=1))
    )
    away = jnp.sqrt(((generic - jnp.asarray(old)[y]) ** 2).sum(1)).mean()
    decay = sum((leaf**2).sum() for leaf in jax.tree.leaves((embeddings, valves)))
    own = cross_entropy(read(head["fc2"], valve(valves, z, shares @ old)), y)
    return own + cross_entropy(cosines, y) + lam * away + 0.5 * mu * decay, None

  _, _, upload, after, _ = one_round(part, ragged, first, state)
  (shared, head), _ = by_hand(loss, (first.params, state.head), ragged)
  near(upload.params, shared)
  near(after.head, head)
  chex.assert_trees_all_equal(after.shares, state.shares)
  judged = part.apply(part.personalize(first, state, None, context, 0.0), x.astype(np.float32))
  sent = float64(first.params)
  z = valve(sent.valve, features(sent.body, x), shares @ old)
  near(judged, np.asarray(read(float64(state.head)["fc2"], z)))
  assert part.global_model is None and part.needs.sees_data == ("init",)


def test_a_length_of_0_has_no_gradient():
  np.testing.assert_allclose(lengths(jnp.array([[3.0, 4.0], [0.0, 0.0]])), [5.0, 0.0], atol=1e-5)
  assert not jax.grad(lambda rows: lengths(rows).sum())(jnp.zeros((2, 3))).any()


def test_gpfl_draws_its_layers_as_dense_ones_are(ragged):
  first = gpfl(mlp(), **LOCAL).init_broadcast(KEY).params
  for layer in first.valve:
    assert (layer.scale == 1).all() and not layer.offset.any()
    assert 0.2 < np.abs(layer.kernel).max() <= 5**-0.5 and np.abs(layer.bias).max() <= 5**-0.5
  assert not np.allclose(first.valve.gamma.kernel, first.valve.beta.kernel)
  assert 0.5 < first.embeddings.std() < 1.5


@pytest.mark.slow
def test_fedcp_by_hand(ragged):
  lam = 0.6
  part = fedcp(mlp(), lam=lam, **LOCAL)
  first = part.init_broadcast(KEY)
  first = first._replace(params=first.params._replace(policy=like(first.params.policy, 0.7)))
  state = part.init(KEY, first, None, None)
  chex.assert_trees_all_equal(state, {"fc2": first.params.model["fc2"]})
  state = like(state, 0.5, 3)
  received, own_head = float64(first.params.model), float64(state)
  v = own_head["fc2"]["kernel"].sum(1)
  v = v / np.linalg.norm(v)

  def outputs(policy, own, z, noise):
    rows = jnp.maximum(normalised(policy, (z * v) @ policy.kernel + policy.bias), 0)
    ours, theirs = jnp.exp(rows[:, :5] + noise), jnp.exp(rows[:, 5:])
    r = ours / (ours + theirs)
    return read(own, r * z) + read(received["fc2"], (1 - r) * z)

  def loss(own, x, y, noise, _):
    body, policy, head = own
    z, old = features(body, x), features(received, x)
    square = lambda a, b: ((a[:, None] - b) ** 2).sum(-1)  # noqa: E731
    mean = lambda a, b: sum(jnp.exp(-square(a, b) / 2 / s).mean() for s in (10, 15, 20, 50))  # noqa: E731
    apart = mean(z, z) + mean(old, old) - 2 * mean(z, old)
    return cross_entropy(outputs(policy, head["fc2"], z, noise[: len(y)]), y) + lam * apart, None

  _, _, upload, after, _ = one_round(part, ragged, first, state)
  noise = lambda key: np.asarray(jax.random.logistic(jax.random.fold_in(key, 2), (BATCH, 5)))  # noqa: E731
  start = {"fc1": received["fc1"]}, first.params.policy, state
  (body, policy, head), _ = by_hand(loss, start, ragged, noise=noise)
  near(after, head)
  near(upload.params.policy, policy)
  near(upload.params.model["fc1"], body["fc1"])
  near(upload.params.model["fc2"], jax.tree.map(lambda a, b: (a + b) / 2, head["fc2"], received["fc2"]))
  x, _ = rows_of(ragged, CLIENT)
  judged = part.apply(part.personalize(first, state, None, None, 0.0), x.astype(np.float32))
  near(judged, np.asarray(outputs(float64(first.params.policy), own_head["fc2"], features(received, x), 0.0)))
  assert part.global_model is None


@pytest.mark.slow
def test_fedcp_without_discrepancy_takes_no_second_pass(ragged):
  off, on = (fedcp(mlp(), lam=lam, **LOCAL | dict(steps=1)) for lam in (0.0, 1e-7))
  chex.assert_trees_all_close(one_round(off, ragged)[2], one_round(on, ragged)[2], rtol=1e-5, atol=1e-6)


class Net(nn.Module):
  """Normalises the examples, so that the statistics depend on these alone, and what it makes of them."""

  @nn.compact
  def __call__(self, x, train):
    h = nn.BatchNorm(not train, momentum=0.9, name="norm")(x)
    h = nn.BatchNorm(not train, momentum=0.9, name="inner")(nn.Dense(5, name="hidden")(h))
    return nn.Dense(CLASSES, name="out")(nn.relu(h))


@pytest.mark.slow
@pytest.mark.parametrize(
  "method", with_every([fedala, feddbe, fedphp, gpfl, fedcp, knn_per, mime, fedsmoo], fedala, gpfl, mime)
)
def test_running_statistics_are_those_of_local_training(method, ragged):
  """Once for each batch, whatever else a step asks the model for; and a client's own model uses them."""
  part = method(fh.models.from_flax(Net(), (4,), CLASSES, head=("out",)), **LOCAL)
  data, context = one_client(ragged, CLIENT), fh.Context(CLIENT, 0, 3, 12)
  first = part.init_broadcast(KEY)
  inner = jax.tree.map(jnp.abs, like(first.stats["inner"]))
  first = first._replace(stats=first.stats | {"inner": inner})
  state = part.init(KEY, first, data, context)
  if isinstance(state, FedalaState):
    state = state._replace(head=like(state.head))
  upload = one_round(part, ragged, first, state)[2]
  mean, var = (float64(first.stats["norm"])[name] for name in ("mean", "var"))
  for x, _, _ in walk(KEY, ragged, CLIENT, BATCH, LOCAL["epochs"]):
    mean, var = 0.9 * mean + 0.1 * x.mean(0), 0.9 * var + 0.1 * x.var(0)
  near(upload.stats["norm"], {"mean": mean, "var": var})
  judged = jax.jit(part.personalize)(first, state, data, context, 0.0)
  other = jax.jit(part.personalize)(
    first._replace(stats=part.init_broadcast(KEY).stats), state, data, context, 0.0
  )
  x = data.take(jnp.arange(5))[0]
  found = part.apply(judged, x)
  assert np.isfinite(found).all()
  assert method is fedphp or not np.allclose(found, part.apply(other, x))  # whose own model is the kept one


def test_fedphp_counts_the_rounds_of_the_run():
  fedphp(mlp(), rounds=7).needs.check_rounds(7)
  with pytest.raises(SettingError, match=r"fedphp's rounds = 7: .* the run has rounds = 8"):
    fedphp(mlp(), rounds=7).needs.check_rounds(8)


def test_fedphp_rounds_whole_statistics_and_tells_what_has_no_effect(ragged):
  model = mlp()._replace(stats={"n": jnp.int32(0)})
  part = fedphp(model, rounds=4, mu=0.8, lam=0.0)
  first = part.init_broadcast(KEY)
  state = part.init(KEY, first, None, None)._replace(times=jnp.int32(9))
  local = Local(first.params, (), jnp.float32(0.0), jnp.int32(1), {"n": jnp.int32(3)})
  after = part.training.finish(first, state, None, fh.Context(0, 0, 3, 12), local)[1]
  count = model.split(after.private).stats["n"]
  assert count.dtype == jnp.int32 and count == 1  # 0.6
  for given, said in (
    (dict(transfer="mmd", tau=2.0), ["tau = 2.0: no effect beside transfer = mmd."]),
    (dict(lam=0.0, transfer="mmd"), ["transfer = mmd: no effect beside lam = 0."]), (dict(tau=2.0), []),
  ):  # fmt: skip
    assert [*fedphp(mlp(), **given).needs.remarks(ragged)] == said


def test_methods_of_classes_refuse_other_labels():
  regression = fh.models.make("two_nn", (4,), 1, fh.tasks.regression(), hidden=4)
  for method in (gpfl, knn_per, fedphp):
    with pytest.raises(SettingError, match="the labels of regression have none"):
      method(regression)
  with pytest.raises(SettingError, match=r"mixup = 0.2: mixes labels, and gpfl reads"):
    gpfl(mlp(), mixup=0.2)
