"""Local training as the settings describe it: each option against float64 arithmetic by hand, and off."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import algorithm, cases, with_every
from small_parts import (
  SIZES,
  federation,
  float64,
  linear,
  linear_logits,
  linear_loss_and_gradient,
  mlp,
  one_client,
  rows_of,
  softmax,
  walk,
)

import fedjax_het as fh
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.errors import SettingError

KEY, ROUND, CLIENT, BATCH = jax.random.key(3), 4, 2, 4
DATA = federation(SIZES)
LOCAL = {"lr": 0.2, "lr_decay": 0.9, "batch_size": BATCH, "epochs": 2}


HERE = fh.Context(CLIENT, ROUND, 3, 12)


def trained(make=fh.fedavg, context=HERE, data=DATA, **settings):
  """(start, upload's params, state, info) of one client's local training."""
  part = make(linear(), **{**LOCAL, **settings})
  broadcast = part.init_broadcast(jax.random.key(0))
  state = part.init(jax.random.key(1), broadcast, None, context)
  upload, state, info = jax.jit(part.update)(KEY, broadcast, state, one_client(data, CLIENT), context)
  return broadcast, upload, state, info


def by_hand(params, step, lr=0.2 * 0.9**ROUND, batches=None, gradient_at=linear_loss_and_gradient):
  """θ after `step` (number from 1, θ, ∇, lr) -> θ over the client's mini-batches, in float64."""
  params = float64(params)
  for number, (x, y, _) in enumerate(batches or walk(KEY, DATA, CLIENT, BATCH, 2), 1):
    params = step(number, params, gradient_at(params, x, y)[1], lr)
  return params


def with_decay(params, gradient, decay):
  return jax.tree.map(lambda p, g: g + decay * p, params, gradient)


def moments(b1, b2, eps, decay, decoupled):
  """Adam's step by hand, with decay in the gradient or beside it."""
  kept = {}

  def step(t, params, gradient, lr):
    g = gradient if decoupled else with_decay(params, gradient, decay)
    zeros = jax.tree.map(np.zeros_like, params)
    m, v = kept.get("m", zeros), kept.get("v", zeros)
    kept["m"] = m = jax.tree.map(lambda a, b: b1 * a + (1 - b1) * b, m, g)
    kept["v"] = v = jax.tree.map(lambda a, b: b2 * a + (1 - b2) * b * b, v, g)
    move = jax.tree.map(lambda a, b: (a / (1 - b1**t)) / (np.sqrt(b / (1 - b2**t)) + eps), m, v)
    if decoupled:
      move = with_decay(params, move, decay)
    return jax.tree.map(lambda p, u: p - lr * u, params, move)

  return step


def nesterov(momentum, decay):
  kept = {}

  def step(t, params, gradient, lr):
    g = with_decay(params, gradient, decay)
    kept["m"] = m = jax.tree.map(
      lambda a, b: momentum * a + b, kept.get("m", jax.tree.map(np.zeros_like, g)), g
    )
    return jax.tree.map(lambda p, a, b: p - lr * (momentum * a + b), params, m, g)

  return step


@pytest.mark.parametrize(
  ("settings", "step"),
  [
    ({"optimizer": "nesterov", "momentum": 0.8, "weight_decay": 0.03}, nesterov(0.8, 0.03)),
    (
      {"optimizer": "adam", "b1": 0.7, "b2": 0.95, "eps": 1e-3, "weight_decay": 0.03},
      moments(0.7, 0.95, 1e-3, 0.03, False),
    ),
    (
      {"optimizer": "adamw", "b1": 0.7, "b2": 0.95, "eps": 1e-3, "weight_decay": 0.3},
      moments(0.7, 0.95, 1e-3, 0.3, True),
    ),
  ],
  ids=["nesterov", "adam", "adamw"],
)
def test_optimizers_by_hand(settings, step):
  broadcast, upload, _, _ = trained(**settings)
  chex.assert_trees_all_close(float64(upload.params), by_hand(broadcast.params, step), rtol=2e-5, atol=2e-6)


def plain(t, params, gradient, lr):
  return jax.tree.map(lambda p, g: p - lr * g, params, gradient)


PLAIN = {"momentum": 0.0, "weight_decay": 0.0}


def norm(tree):
  return np.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(tree)))


@pytest.mark.parametrize("bound", [0.05, 1e6])
def test_a_gradient_is_scaled_to_the_largest_norm_over_all_parameters(bound):
  """After FedProx's term, before weight decay."""
  mu, decay = 0.5, 0.1
  broadcast, upload, _, _ = trained(fh.fedprox, mu=mu, clip_norm=bound, momentum=0.0, weight_decay=decay)
  center, over = float64(broadcast.params), []

  def step(t, params, gradient, lr):
    near = jax.tree.map(lambda g, p, c: g + mu * (p - c), gradient, params, center)
    over.append(norm(near) > bound)
    near = jax.tree.map(lambda g: g * min(1.0, bound / norm(near)), near)
    return plain(t, params, with_decay(params, near, decay), lr)

  chex.assert_trees_all_close(float64(upload.params), by_hand(broadcast.params, step), rtol=2e-5, atol=2e-6)
  assert all(over) if bound < 1 else not any(over)


@pytest.mark.parametrize("steps", [1, 3, 5, 23])
def test_so_many_steps_for_every_client(steps):
  """Below, at and above an epoch; a client goes on with further epochs, as the epochs of more passes do."""
  broadcast, upload, _, info = trained(steps=steps, **PLAIN)
  assert info.steps == steps
  batches = list(itertools.islice(walk(KEY, DATA, CLIENT, BATCH, 23), steps))
  chex.assert_trees_all_close(
    float64(upload.params), by_hand(broadcast.params, plain, batches=batches), rtol=5e-5, atol=5e-6
  )


def test_as_many_steps_as_the_epochs_have_are_the_epochs():
  x, _ = rows_of(DATA, CLIENT)
  count = 2 * -(-len(x) // BATCH)
  chex.assert_trees_all_close(trained(steps=count)[1], trained()[1], rtol=1e-6, atol=1e-7)


def test_epochs_are_drawn_evenly_for_each_client_and_round():
  recipe = recipe_of(linear(), {"epochs": 5, "min_epochs": 2, "batch_size": BATCH})
  view = one_client(DATA, CLIENT)
  each = -(-int(view.length) // BATCH)

  def count(key):
    return recipe.for_each_batch(key, view, lambda carry, batch: carry + 1, jnp.int32(0))

  keys = jax.random.split(jax.random.key(8), 2000)
  found = np.asarray(jax.lax.map(jax.jit(count), keys))
  epochs, times = np.unique(found / each, return_counts=True)
  assert epochs.tolist() == [2, 3, 4, 5] and recipe.steps(view) == 5 * each
  assert ((times - 500) ** 2 / 500).sum() < 16.3  # χ² with three degrees of freedom, 0.1 %


def test_the_rate_of_each_round():
  settings = {"lr": 0.5, "lr_decay": 0.9, "warmup": 3, "schedule_rounds": 10}
  for schedule, factor in (
    ("constant", lambda u: 1.0), ("linear", lambda u: max(1 - u, 0.0)),
    ("cosine", lambda u: (1 + np.cos(np.pi * min(u, 1.0))) / 2),
  ):  # fmt: skip
    recipe = recipe_of(linear(), {**settings, "schedule": schedule})
    for t in (0, 1, 2, 3, 7, 10, 11):
      expected = 0.5 * 0.9**t * factor(t / 10) * min(1.0, (t + 1) / 3)
      assert float(recipe.rate(t)) == pytest.approx(expected, rel=1e-5, abs=1e-7)
      assert float(jax.jit(recipe.rate)(jnp.int32(t))) == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_a_step_goes_by_the_rate_of_its_round():
  broadcast, upload, _, _ = trained(schedule="cosine", schedule_rounds=10, warmup=8, **PLAIN)
  lr = 0.2 * 0.9**ROUND * (1 + np.cos(0.4 * np.pi)) / 2 * 5 / 8
  chex.assert_trees_all_close(
    float64(upload.params), by_hand(broadcast.params, plain, lr), rtol=2e-5, atol=2e-6
  )


@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 1.0)])
def test_smoothed_labels_by_hand(weights):
  """As PyTorch's cross_entropy with label_smoothing, also with class weights."""
  share, rng = 0.3, np.random.default_rng(0)
  model = linear()
  task = fh.tasks.classification(weights)
  z, y = rng.normal(size=(7, 3)), np.array([0, 1, 2, 2, 1, 0, 0])
  given = np.ones(3) if weights is None else np.asarray(weights)
  log_p = np.log(softmax(z))
  expected = (1 - share) * -given[y] * log_p[np.arange(7), y] - share / 3 * (given * log_p).sum(1)
  smooth = recipe_of(model._replace(task=task), {"label_smoothing": share}).trained.task
  total, weight = smooth.losses(jnp.asarray(z, jnp.float32), jnp.asarray(y))
  np.testing.assert_allclose(total, expected, rtol=1e-5)
  assert weight is None if weights is None else np.allclose(weight, given[y])


def test_training_alone_sees_smoothed_labels():
  share = 0.4

  def gradient_at(params, x, y):
    residual = softmax(linear_logits(params, x))
    residual = (residual - (1 - share) * np.eye(3)[y] - share / 3) / len(x)
    return None, {"fc": {"kernel": x.T @ residual, "bias": residual.sum(0)}}

  broadcast, upload, _, _ = trained(label_smoothing=share, **PLAIN)
  expected = by_hand(broadcast.params, plain, gradient_at=gradient_at)
  chex.assert_trees_all_close(float64(upload.params), expected, rtol=2e-5, atol=2e-6)
  part = fh.fedavg(linear(), label_smoothing=share)
  view = one_client(DATA, CLIENT)
  x, y = rows_of(DATA, CLIENT)
  loss = part.loss(broadcast, (), view, fh.Context())
  assert float(loss) == pytest.approx(linear_loss_and_gradient(float64(broadcast.params), x, y)[0], rel=1e-5)


@pytest.mark.parametrize("adaptive", [False, True])
def test_sharpness_aware_steps_by_hand(adaptive):
  radius = 0.7
  losses = []

  def gradient_at(params, x, y):
    loss, g = linear_loss_and_gradient(params, x, y)
    losses.append(loss)
    scaled = jax.tree.map(lambda a, p: a * abs(p), g, params) if adaptive else g
    length = norm(scaled)
    if adaptive:
      scaled = jax.tree.map(lambda a, p: a * abs(p), scaled, params)
    higher = jax.tree.map(lambda p, a: p + radius * a / length, params, scaled)
    return loss, linear_loss_and_gradient(higher, x, y)[1]

  broadcast, upload, _, info = trained(sam_radius=radius, sam_adaptive=adaptive, **PLAIN)
  expected = by_hand(broadcast.params, plain, gradient_at=gradient_at)
  chex.assert_trees_all_close(float64(upload.params), expected, rtol=5e-5, atol=5e-6)
  assert float(info.loss) == pytest.approx(np.mean(losses), rel=1e-5)
  assert fh.fedavg(linear(), sam_radius=radius).update.training.gradients == 2


@pytest.mark.slow
@pytest.mark.parametrize(
  "settings",
  [
    {"schedule": "linear", "schedule_rounds": 20, "warmup": 9},
    {"steps": 5},
    {"min_epochs": 1, "epochs": 4},
    {"optimizer": "sgd"},
  ],
  ids=lambda own: next(iter(own)),
)
def test_scaffold_reads_the_mean_gradient_of_the_steps_as_done(settings):
  """c_i⁺ = Σ w_k g_k / Σ w_k by hand: the gradients along the path, weighted as momentum weights them."""
  momentum = 0.6
  settings = {"momentum": momentum, "weight_decay": 0.0, **settings}
  broadcast, upload, state, info = trained(fh.scaffold, HERE, **settings)
  recipe = recipe_of(linear(), {**LOCAL, **settings})
  lr, count = float(recipe.rate(ROUND)), int(info.steps)
  params, velocity, gradients = float64(broadcast.params), None, []
  for x, y, _ in itertools.islice(walk(KEY, DATA, CLIENT, BATCH, 12), count):
    g = linear_loss_and_gradient(params, x, y)[1]  # c_i = c = 0 in the first round
    gradients.append(g)
    velocity = g if velocity is None else jax.tree.map(lambda v, own: momentum * v + own, velocity, g)
    params = jax.tree.map(lambda p, v: p - lr * v, params, velocity)
  weights = [(1 - momentum**k) / (1 - momentum) for k in range(count, 0, -1)]
  mean = jax.tree.map(lambda *own: np.tensordot(weights, own, 1) / sum(weights), *gradients)
  chex.assert_trees_all_close(float64(upload.params), params, rtol=5e-5, atol=5e-6)
  chex.assert_trees_all_close(float64(state), mean, rtol=2e-4, atol=2e-5)


OFF = {
  "optimizer": "sgd", "steps": None, "min_epochs": None, "clip_norm": None, "schedule": "constant",
  "warmup": 0.0, "label_smoothing": 0.0, "sam_radius": 0.0,
}  # fmt: skip


def test_what_is_off_changes_no_bit():
  jax.tree.map(np.testing.assert_array_equal, trained(**OFF)[1:3], trained()[1:3])


def test_settings_without_effect_are_named():
  notes = {
    ("momentum", "optimizer = adamw"): {"optimizer": "adamw", "momentum": 0.5},
    ("eps", "optimizer = sgd"): {"eps": 1e-3},
    ("epochs", "steps = 7"): {"epochs": 3, "steps": 7},
    ("schedule_rounds", "schedule = constant"): {"schedule_rounds": 9},
    ("sam_adaptive", "sam_radius = 0"): {"sam_adaptive": True},
  }
  for (name, beside), settings in notes.items():
    (remark,) = fh.fedavg(linear(), **settings).needs.remarks(DATA)
    assert remark == f"{name} = {settings[name]}: no effect beside {beside}."
  assert not [*fh.fedavg(linear(), optimizer="adamw", weight_decay=0.1).needs.remarks(DATA)]
  for make in (fh.superfed, fh.ditto, fh.fedrep, fh.apfl, fh.pfedme):
    assert [*make(linear(), steps=3, epochs=2).needs.remarks(DATA)]


@pytest.mark.parametrize(
  ("settings", "says"),
  [
    ({"optimizer": "adamm"}, "optimizer = 'adamm'.*Did you mean 'adam'"),
    ({"schedule": "cosine"}, r"schedule_rounds = None: .*end\. Give .*schedule_rounds=100"),
    ({"min_epochs": 3, "epochs": 2}, "min_epochs = 3: above epochs = 2"),
    ({"optimizer": optax.adam, "b1": 0.5}, "b1 = 0.5: belongs to the optimisers"),
    ({"clip_norm": 0.0}, "clip_norm = 0.0"),
    ({"label_smoothing": 1.0}, "label_smoothing = 1.0"),
    ({"sam_radius": -1.0}, "sam_radius = -1.0"),
    ({"warmup": -1.0}, "warmup = -1.0"),
    ({"steps": 0}, "steps = 0"),
  ],
)
def test_what_cannot_be(settings, says):
  with pytest.raises(SettingError, match=says):
    fh.fedavg(linear(), **settings)


def test_labels_that_are_no_classes_are_not_smoothed():
  model = linear()._replace(task=fh.tasks.regression())
  with pytest.raises(SettingError, match=r"label_smoothing = 0\.1: .*regression"):
    fh.fedavg(model, label_smoothing=0.1)


@pytest.mark.parametrize("optimizer", ["nesterov", "adam", optax.adam])
def test_scaffold_goes_with_plain_sgd_alone(optimizer):
  with pytest.raises(SettingError, match=r"optimizer = .*SCAFFOLD reads the mean gradient"):
    fh.scaffold(linear(), optimizer=optimizer)


@pytest.mark.parametrize("make", [fh.ditto, fh.fedrep])
def test_steps_take_the_place_of_a_second_training_s_epochs_unless_they_are_set(make):
  own = {fh.ditto: "local_epochs", fh.fedrep: "body_epochs"}[make]
  view = one_client(DATA, CLIENT)
  epoch = -(-int(view.length) // BATCH)
  part = make(mlp(), batch_size=BATCH, steps=3)
  assert part.update.training.steps(view) == 6
  assert make(mlp(), batch_size=BATCH, steps=3, **{own: 2}).update.training.steps(view) == 3 + 2 * epoch


MANY = {
  "adamw": {"optimizer": "adamw", "clip_norm": 0.5, "warmup": 2.0},
  "steps": {"steps": 3, "schedule": "cosine", "schedule_rounds": 5, "label_smoothing": 0.1},
  "sam": {"sam_radius": 0.05, "sam_adaptive": True, "optimizer": "sgd", "min_epochs": 1},
}


@pytest.mark.slow
@pytest.mark.parametrize("settings", with_every(MANY, "adamw", "sam"))
@pytest.mark.parametrize(
  "name",
  with_every(["fedavg", "scaffold", "pfedme", "superfed_mm"], "scaffold", "superfed_mm"),
)
def test_every_method_trains_so(name, settings):
  """Other figures than plain training, finite, the same bits on one and on three devices."""
  own = {**MANY[settings]}
  if name == "scaffold":
    own.pop("optimizer", None)
  if "steps" in own:
    own["epochs"] = 10  # its default, which says nothing
  names = next(each for each in cases().values() if each[0] == name)
  run = lambda devices, **more: fh.run(  # noqa: E731
    algorithm(names, mlp(), rounds=2, **more), DATA, rounds=3, cohort_size=6, key=KEY, devices=devices
  )
  one, three, usual = run(1, **own), run(3, **own), run(1)
  jax.tree.map(np.testing.assert_array_equal, one.state.broadcast, three.state.broadcast)
  assert np.isfinite(one.infos.clients.loss).all()
  assert not np.array_equal(one.infos.clients.loss, usual.infos.clients.loss)
