"""Baselines with features, states of their own or several models, against plain NumPy; FedAvg without them.

The oracles walk through the same mini-batches in float64 with gradients written by hand for softmax
regression. Methods that read features are held against losses that are written again, apart from the
library's.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from one_round import BATCH, CLIENT, LOCAL, LR, add, close, like, one_round, sgd
from small_parts import (
  CLASSES,
  SIZES,
  federation,
  float64,
  linear,
  linear_loss_and_gradient,
  mlp,
  one_client,
  rows_of,
  walk,
)

import fedjax_het as fh
from fedjax_het.clients.fedbabu import fedbabu
from fedjax_het.clients.fedbn import fedbn
from fedjax_het.clients.fedcm import fedcm, mofedsam
from fedjax_het.clients.feddyn import feddyn, fedspeed
from fedjax_het.clients.fedem import fedem, responsibilities
from fedjax_het.clients.fedproto import Personal, Prototypes, fedproto
from fedjax_het.clients.fedrod import fedrod
from fedjax_het.clients.finetuned import finetuned
from fedjax_het.clients.ifca import ifca
from fedjax_het.clients.label_skew import fedlc, fedntd, fedrs, not_true_divergence
from fedjax_het.clients.local_only import local_only
from fedjax_het.clients.moon import contrast, moon
from fedjax_het.clients.per_fedavg import per_fedavg
from fedjax_het.errors import SettingError


def test_moon_s_term_by_hand():
  z, near, far = np.random.default_rng(0).normal(size=(3, 6, 5))
  cos = lambda a, b: (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)  # noqa: E731
  up, down = np.exp(cos(z, near) / 0.5), np.exp(cos(z, far) / 0.5)
  found = contrast(*(jnp.asarray(own, jnp.float32) for own in (z, near, far)), 0.5)
  np.testing.assert_allclose(found, -np.log(up / (up + down)), rtol=1e-5)
  zero = jax.grad(lambda own: contrast(own, jnp.ones((1, 5)), jnp.ones((1, 5)), 0.5).sum())(jnp.zeros((1, 5)))
  assert np.isfinite(zero).all()


def test_fedntd_s_term_by_hand():
  rng = np.random.default_rng(0)
  logits, teacher, y = rng.normal(size=(6, 4)), rng.normal(size=(6, 4)), rng.integers(0, 4, 6)
  wanted = []
  for f, t, label in zip(logits, teacher, y):
    f, t = np.delete(f, label) / 2, np.delete(t, label) / 2
    p, q = np.exp(t) / np.exp(t).sum(), np.exp(f) / np.exp(f).sum()
    wanted.append(4 * (p * np.log(p / q)).sum())
  found = not_true_divergence(
    *(jnp.asarray(own, jnp.float32) for own in (logits, teacher)), jnp.asarray(y), 2.0
  )
  np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.slow
def test_fedrod_moves_the_shared_model_by_the_balanced_softmax_alone(ragged):
  plain = fh.fedavg(mlp(), **LOCAL, calibration="logit_adjustment")
  own = one_round(fedrod(mlp(), **LOCAL), ragged)
  chex.assert_trees_all_close(own[2].params, one_round(plain, ragged)[2].params, rtol=1e-5, atol=1e-6)
  params = own[0].params  # of the first batch: the head's gradient is (p - y) z
  (x, y, _), *_ = walk(jax.random.key(0), ragged, CLIENT, BATCH, 1)
  z = np.tanh(x @ float64(params["fc1"]["kernel"]) + float64(params["fc1"]["bias"]))
  once = one_round(fedrod(mlp(), **LOCAL | dict(steps=1)), ragged)
  head = float64(params["fc2"])
  f = 2 * (z @ head["kernel"] + head["bias"])  # generic and own head start alike
  slope = (np.exp(f) / np.exp(f).sum(1, keepdims=True) - np.eye(CLASSES)[y]) / len(y)
  np.testing.assert_allclose(once[3].kernel, head["kernel"] - LR * z.T @ slope, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_fedproto_s_prototypes_and_term_by_hand(ragged):
  part = fedproto(mlp(), lam=0.7, **LOCAL)
  first = part.init_broadcast(jax.random.key(0))
  assert first.params == () and not first.pooled.known.any()
  known = fh.Message((), pooled=Prototypes(like(first.pooled.mean), jnp.array([1.0, 0.0, 1.0])))
  _, state, upload, after, _ = one_round(part, ragged, known)
  x, y = rows_of(ragged, CLIENT)
  z = np.tanh(x @ float64(after["fc1"]["kernel"]) + float64(after["fc1"]["bias"]))
  for c in range(CLASSES):
    if (y == c).any():
      np.testing.assert_allclose(upload.pooled.values.mean[c], z[y == c].mean(0), rtol=1e-4, atol=1e-5)
  np.testing.assert_array_equal(upload.pooled.weights, np.bincount(y, minlength=CLASSES))

  def loss(params, x, y):
    z = jnp.tanh(x @ params["fc1"]["kernel"] + params["fc1"]["bias"])
    f = z @ params["fc2"]["kernel"] + params["fc2"]["bias"]
    away = ((z - known.pooled.mean[y]) ** 2).sum(1) / 5 * jnp.array([1.0, 0.0, 1.0])[y]
    return (jax.nn.logsumexp(f, axis=1) - f[jnp.arange(len(y)), y] + 0.7 * away).mean()

  params = state
  for x, y, _ in walk(jax.random.key(0), ragged, CLIENT, BATCH, 2):
    slope = jax.grad(loss)(params, jnp.asarray(x, jnp.float32), jnp.asarray(y))
    params = add(params, slope, -LR)
  chex.assert_trees_all_close(after, params, rtol=1e-4, atol=1e-5)


def test_fedproto_predicts_the_nearest_known_prototype():
  part = fedproto(mlp(), **LOCAL)
  params = mlp().init(jax.random.key(0))
  x = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
  z = np.tanh(x @ params["fc1"]["kernel"] + params["fc1"]["bias"])
  means = np.stack([z[0], z[1], z[2]])
  seen = part.apply(Personal(params, Prototypes(jnp.asarray(means), jnp.array([1.0, 0.0, 1.0]))), x)
  away = ((z[:, None] - means) ** 2).sum(-1)
  away[:, 1] = np.inf
  np.testing.assert_array_equal(seen.argmax(1), away.argmin(1))


@pytest.mark.slow
def test_ifca_trains_the_model_that_fits_and_leaves_the_others(ragged):
  part, plain = ifca(linear(), models=3, **LOCAL), fh.fedavg(linear(), **LOCAL)
  first = part.init_broadcast(jax.random.key(0))
  models = [float64(jax.tree.map(lambda leaf, m=m: leaf[m], first.pooled[0])) for m in range(3)]
  best = int(np.argmin([linear_loss_and_gradient(own, *rows_of(ragged, CLIENT))[0] for own in models]))
  _, _, upload, _, info = one_round(part, ragged, first)
  wanted = one_round(plain, ragged, fh.Message(jax.tree.map(lambda leaf: leaf[best], first.pooled[0])))[2]
  chex.assert_trees_all_equal(jax.tree.map(lambda leaf: leaf[best], upload.pooled.values[0]), wanted.params)
  np.testing.assert_array_equal(upload.pooled.weights, SIZES[CLIENT] * np.eye(3)[best])
  assert [float(info.figures[f"share_{m}"]) for m in range(3)] == [float(m == best) for m in range(3)]


@pytest.mark.slow
def test_fedem_by_hand(ragged):
  part = fedem(linear(), models=2, **LOCAL)
  first = part.init_broadcast(jax.random.key(0))
  pi = np.array([0.3, 0.7])
  models = [float64(jax.tree.map(lambda leaf, m=m: leaf[m], first.params)) for m in range(2)]

  def q(x, y):
    losses = np.array(
      [[linear_loss_and_gradient(own, x[[s]], y[[s]])[0] for s in range(len(y))] for own in models]
    )
    own = pi[:, None] * np.exp(-losses)
    return own / own.sum(0)

  x, y = rows_of(ragged, CLIENT)
  found = responsibilities(
    linear(), first.params, jnp.asarray(pi, jnp.float32), x.astype(np.float32), jnp.asarray(y)
  )
  np.testing.assert_allclose(found, q(x, y), rtol=1e-4)
  _, _, upload, after, _ = one_round(part, ragged, first, jnp.asarray(pi, jnp.float32))
  np.testing.assert_allclose(after, q(x, y).mean(1), rtol=1e-4)
  trained = [*models]
  for x, y, _ in walk(jax.random.key(0), ragged, CLIENT, BATCH, 2):
    shares = q(x, y)
    for m in range(2):
      rows = [linear_loss_and_gradient(trained[m], x[[s]], y[[s]])[1] for s in range(len(y))]
      slope = jax.tree.map(
        lambda *g, m=m, own=shares: sum(a * b for a, b in zip(own[m], g)) / len(own[m]), *rows
      )
      trained[m] = add(trained[m], slope, -LR)
  close(upload.params, jax.tree.map(lambda *leaves: np.stack(leaves), *trained), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_fedbn_keeps_the_layers_that_have_a_scale(ragged):
  class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train):
      h = nn.Dense(5, name="a")(x)
      h = nn.BatchNorm(use_running_average=not train, name="anything")(h)
      return nn.Dense(3, name="b")(nn.relu(h))

  model = fh.models.from_flax(Net(), (4,), 3, head=("b",))
  part = fedbn(model, **LOCAL)
  _, state, upload, after, _ = one_round(part, ragged)
  assert {*upload.params} == {"a", "b"} and upload.stats == () and {*state.params} == {"anything"}
  assert not np.allclose(after.params["anything"]["scale"], state.params["anything"]["scale"])
  assert not np.allclose(after.stats["anything"]["mean"], state.stats["anything"]["mean"])
  plain = one_round(fh.fedavg(model, **LOCAL), ragged)[2]
  chex.assert_trees_all_equal(upload.params, {name: plain.params[name] for name in "ab"})
  assert part.global_model is None and fedbn(mlp()).global_model is not None


@pytest.mark.slow
def test_fedbabu_trains_the_body_under_the_first_head(ragged):
  part = fedbabu(linear(), head="fc/bias", **LOCAL)
  _, state, upload, after, _ = one_round(part, ragged)
  chex.assert_trees_all_equal(after, state)
  frozen = lambda g, w: {"fc": {"kernel": g["fc"]["kernel"], "bias": 0 * g["fc"]["bias"]}}  # noqa: E731
  whole = {"fc": {**part.init_broadcast(jax.random.key(0)).params["fc"], **state["fc"]}}
  close(upload.params["fc"]["kernel"], sgd(whole, ragged, frozen)[0]["fc"]["kernel"])


def test_fine_tuning_is_local_training_of_the_judged_model(ragged):
  own = dict(LOCAL, epochs=3)
  plain = fh.fedavg(linear(), **LOCAL)
  part = finetuned(plain, **own)
  first = plain.init_broadcast(jax.random.key(0))
  data, context = one_client(ragged, CLIENT), fh.Context(CLIENT, 7, 3, 12)
  found = part.personalize(first, (), data, context, 0.0)
  key = jax.random.fold_in(jax.random.fold_in(jax.random.key(1_000_033), CLIENT), 7)
  wanted = fh.fedavg(linear(), **own).update(key, first, (), data, context)[0].params
  chex.assert_trees_all_equal(found, wanted)
  assert part.name == "fedavg_ft" and part.needs.sees_data == ("personalize",)
  with pytest.raises(SettingError, match="which fedrod does not evaluate"):
    finetuned(fedrod(mlp()))
  with pytest.raises(SettingError, match=r"warmup = 10.0: goes by the rounds of a run"):
    finetuned(plain, warmup=10.0)
  remarks = [*finetuned(fh.fedavg(linear(), b1=0.5), b1=0.5, b2=0.5).needs.remarks(ragged)]
  assert [own.partition(":")[0] for own in remarks] == ["b1 = 0.5", "b2 = 0.5"]


def test_fine_tuning_of_no_epochs_has_no_layers(ragged):
  remarks = fedbabu(mlp(), finetune_epochs=0, finetune_layers="body", b1=0.5).needs.remarks(ragged)
  assert [own.partition(":")[0] for own in remarks] == ["b1 = 0.5", "finetune_layers = body"]
  assert not [*fedbabu(mlp()).needs.remarks(ragged)]


@pytest.mark.slow
def test_local_sends_nothing(ragged):
  _, _, upload, after, _ = one_round(local_only(linear(), **LOCAL), ragged)
  assert jax.tree.leaves(upload) == []
  first = linear().init(jax.random.key(0))
  chex.assert_trees_all_equal(
    after, one_round(fh.fedavg(linear(), **LOCAL), ragged, fh.Message(first))[2].params
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  "off",
  [
    lambda m: feddyn(m, alpha=0.0, **LOCAL), lambda m: fedspeed(m, lam=0.0, rho=0.0, **LOCAL),
    lambda m: fedcm(m, alpha=1.0, **LOCAL), lambda m: mofedsam(m, alpha=1.0, rho=0.0, **LOCAL),
    lambda m: moon(m, mu=0.0, **LOCAL), lambda m: fedntd(m, beta=0.0, **LOCAL),
    lambda m: fedrs(m, alpha=1.0, **LOCAL), lambda m: per_fedavg(m, alpha=0.0, **LOCAL),
    lambda m: fedbn(m, **LOCAL),
  ],
)  # fmt: skip
@pytest.mark.slow
def test_without_its_term_it_is_fedavg_bit_for_bit(off, ragged):
  part = off(mlp())
  upload = one_round(part, ragged)[2]
  wanted = one_round(fh.fedavg(mlp(), **LOCAL), ragged)[2]
  chex.assert_trees_all_equal(upload.params, wanted.params)
  assert jax.tree.leaves(upload) and len(jax.tree.leaves(upload)) == len(jax.tree.leaves(wanted))


@pytest.mark.slow
@pytest.mark.slow
def test_one_model_of_ifca_or_fedem_is_fedavg(ragged):
  def course(part):
    run = fh.run(fh.federated(part), ragged, rounds=3, cohort_size=5, key=jax.random.key(0))
    return run.state.broadcast

  first = fh.fedavg(mlp(), **LOCAL)
  split = lambda key: jax.random.split(key, 1)[0]  # noqa: E731
  same = first._replace(init_broadcast=lambda key: first.init_broadcast(split(key)))
  wanted = course(same).params
  lone = lambda tree: jax.tree.map(lambda leaf: leaf[0], tree)  # noqa: E731
  chex.assert_trees_all_close(
    lone(course(ifca(mlp(), models=1, **LOCAL)).pooled[0]), wanted, rtol=1e-5, atol=1e-6
  )
  chex.assert_trees_all_close(
    lone(course(fedem(mlp(), models=1, **LOCAL)).params), wanted, rtol=1e-5, atol=1e-6
  )


@pytest.mark.slow
@pytest.mark.slow
def test_ifca_recovers_planted_clusters():
  """Of clients whose labels are turned by one: after a few rounds each group has a model of its own."""
  data = federation((20,) * 10)
  turned = np.zeros(len(data.y), bool)
  for i in range(5, 10):
    for part in (data.train, data.test):
      turned[int(part.start[i]) : int(part.start[i] + part.size[i])] = True
  data = data.__class__(**{**vars(data), "y": jnp.where(turned, (data.y + 1) % CLASSES, data.y)})
  part = ifca(mlp(), models=2, **LOCAL)
  run = fh.run(fh.federated(part), data, rounds=12, cohort_size=10, key=jax.random.key(3))
  sent = run.state.broadcast
  chosen = []
  for i in range(10):
    own = part.personalize(sent, (), one_client(data, i), fh.Context(i), 0.0)
    same = [np.array_equal(own["fc1"]["kernel"], sent.pooled[0]["fc1"]["kernel"][m]) for m in range(2)]
    chosen.append(int(np.argmax(same)))
  assert len({*chosen[:5]}) == 1 and len({*chosen[5:]}) == 1 and chosen[0] != chosen[5]


@pytest.mark.parametrize(
  "call, words",
  [
    (lambda: mofedsam(mlp(), sam_radius=0.2), "sam_radius = 0.2: mofedsam sets the radius"),
    (lambda: fedcm(mlp(), optimizer="adam"), "optimizer = 'adam'.*fedcm reads the mean gradient"),
    (lambda: fedntd(mlp(), mixup=0.2), "mixup = 0.2: mixes labels, and fedntd reads"),
    (lambda: fedntd(mlp()._replace(num_classes=2)), "'fedntd': distils over .* of two classes one alone"),
    (lambda: fedlc(mlp(), calibration="fedrs"), "calibration = 'fedrs': fedlc calibrates"),
    (lambda: fedrs(mlp(), alpha=1.0, calibration="fedlc"), "calibration = 'fedlc': fedrs calibrates"),
    (lambda: fedlc(mlp(), calibration_strength=0.3), "calibration_strength = 0.3: fedlc sets how strongly"),
    (lambda: per_fedavg(mlp(), sam_radius=0.1), "sam_radius = 0.1: changes the gradient that per_fedavg"),
    (lambda: fh.federated(feddyn(mlp()), fh.mixing.afl()), "mixing = 'afl': feddyn brings a mixing part"),
    (lambda: fh.federated(local_only(mlp()), server=fh.server.adam()), "'adam': local brings a server"),
    (lambda: fh.federated(fh.fedavg(mlp(), optimizer="adam"), fh.mixing.fednova()), "how the steps add up"),
  ],
)  # fmt: skip
def test_what_cannot_be_is_refused(call, words):
  with pytest.raises(SettingError, match=words):
    call()


@pytest.mark.parametrize(
  ("make", "changed"),
  [
    (lambda **own: moon(mlp(), mu=0.0, **own), {"temperature": 0.1}),
    (lambda **own: fedntd(mlp(), beta=0.0, **own), {"tau": 2.0}),
    (lambda **own: per_fedavg(mlp(), **own), {"delta": 0.1}),
    (lambda **own: per_fedavg(mlp(), alpha=0.0, **own), {"hessian": "difference", "delta": 0.1}),
    (lambda **own: fh.mimelite(mlp(), **own), {"momentum": 0.5}),
    (lambda **own: fh.server.avgm(momentum=0.0, **own), {"nesterov": True}),
  ],
)
def test_settings_without_effect_are_remarked_on(make, changed):
  found = [*make(**changed).needs.remarks(None)]
  assert len(found) == len(changed) and all("no effect beside" in text for text in found)
  assert not [*make().needs.remarks(None)]
  (name, value), *_ = changed.items()
  if isinstance(value, float):  # a value of a sweep is not known
    assert len([*make(**{**changed, name: jnp.float32(value)}).needs.remarks(None)]) == len(changed) - 1
