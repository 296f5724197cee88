"""The personalisation baselines against plain NumPy: two rounds of one client, then what they reduce to."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import with_every
from flax import nnx
from small_parts import float64, linear, linear_loss_and_gradient, mlp, one_client, walk

import fedjax_het as fh
from fedjax_het.clients.gradient_weights import times_counted
from fedjax_het.clients.heads import joined, layers_of_head, parting
from fedjax_het.clients.sgd import LATER
from fedjax_het.errors import SettingError

LR, BATCH, CLIENT, DECAY = 0.1, 4, 5, 0.8
LOCAL = dict(lr=LR, lr_decay=DECAY, batch_size=BATCH, weight_decay=0.01)
plus = lambda a, b, by=1.0: jax.tree.map(lambda u, v: u + by * v, a, b)  # noqa: E731


class Sgd:
  """m <- momentum m + g + 0.01 θ;  θ <- θ - lr m."""

  def __init__(self, params, lr, momentum):
    self.params, self.lr, self.momentum = params, lr, momentum
    self.buffer = jax.tree.map(np.zeros_like, params)

  def step(self, gradient):
    gradient = plus(gradient, self.params, 0.01)
    self.buffer = plus(gradient, self.buffer, self.momentum)
    self.params = plus(self.params, self.buffer, -self.lr)


def at(params, x, y):
  """The gradient of softmax regression."""
  return linear_loss_and_gradient(params, x, y)[1]


def batches(key, data, epochs, later=False):
  return [
    (x, y) for x, y, _ in walk(jax.random.fold_in(key, LATER) if later else key, data, CLIENT, BATCH, epochs)
  ]


def two_rounds(client, data, check):
  """Calls check(key, round, received, state, upload, new state) with float64 trees, of rounds 0 and 3."""
  broadcast = client.init_broadcast(jax.random.key(0))
  state = client.init(jax.random.key(1), broadcast, None, fh.Context(CLIENT))
  update = jax.jit(client.update)
  for round in (0, 3):
    key, context = jax.random.key(round), fh.Context(CLIENT, round, 3, 12)
    upload, after, info = update(key, broadcast, state, one_client(data, CLIENT), context)
    found = check(key, LR * DECAY**round, *map(float64, (broadcast, state, upload, after)))
    chex.assert_trees_all_close(*found, rtol=2e-4, atol=2e-6)
    broadcast, state = upload, after  # as if it were alone
    assert info.loss > 0
  return info


@pytest.mark.parametrize("momentum", [0.0, pytest.param(0.9, marks=pytest.mark.slow)])
def test_scaffold_by_hand(ragged, momentum):
  def check(key, lr, received, own, upload, after):
    sgd, seen, x0 = Sgd(received.params, lr, momentum), [], received.params
    for x, y in batches(key, ragged, 2):
      gradient = plus(plus(at(sgd.params, x, y), own, -1.0), received.even)
      seen.append(plus(gradient, sgd.params, 0.01))
      sgd.step(gradient)
    # The mean of what was stepped along, each counted as often as momentum repeats it.
    counts = [sum(momentum**k for k in range(len(seen) - j)) for j in range(len(seen))]
    mean = jax.tree.map(lambda *g: sum(c * own for c, own in zip(counts, g)) / sum(counts), *seen)
    chex.assert_trees_all_close(plus(x0, mean, -lr * sum(counts)), sgd.params)
    new = plus(plus(own, received.even, -1.0), mean)
    even = plus(received.even, plus(new, own, -1.0), 3 / 12)
    return (upload, after), (fh.Message(sgd.params, even=even), new)

  two_rounds(fh.scaffold(linear(), epochs=2, momentum=momentum, **LOCAL), ragged, check)


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.9, 0.999, 0.9999, 0.999999])
def test_how_often_scaffold_s_gradients_count(momentum):
  """Σ_{j<n} (n - j) β^j, also of clients of unequal sizes, and of a β that is traced."""
  steps = np.array([0, 1, 2, 3, 10, 100, 1000, 4321, 20_000])
  powers = np.float64(np.float32(momentum)) ** np.arange(steps.max())
  wanted = [(np.arange(n, 0, -1) * powers[:n]).sum() for n in steps]
  found = jax.jit(jax.vmap(times_counted, (0, None)))(jnp.asarray(steps), momentum)
  np.testing.assert_allclose(found, wanted, rtol=1e-5)
  np.testing.assert_allclose([times_counted(jnp.asarray(n), momentum) for n in steps], wanted, rtol=1e-5)


def test_scaffold_keeps_its_control_variates_where_no_step_is_left(ragged):
  client, key = fh.scaffold(linear(), epochs=1, **LOCAL | {"lr_decay": 0.5}), jax.random.key(0)
  broadcast, context = client.init_broadcast(key), fh.Context(CLIENT, 200, 3, 12)
  own = jax.tree.map(jnp.ones_like, client.init(key, broadcast, None, context))
  upload, after, _ = jax.jit(client.update)(key, broadcast, own, one_client(ragged, CLIENT), context)
  chex.assert_trees_all_equal(after, own)
  chex.assert_trees_all_equal(upload.even, broadcast.even)


@pytest.mark.parametrize("method", [fh.fedper, pytest.param(fh.lg_fedavg, marks=pytest.mark.slow)])
def test_a_shared_part_by_hand(ragged, method):
  """The head is the bias."""
  order = 1 if method is fh.fedper else -1

  def check(key, lr, received, own, upload, after):
    sgd = Sgd(joined(received.params, own.params), lr, 0.9)
    for x, y in batches(key, ragged, 2):
      sgd.step(at(sgd.params, x, y))
    trained = [{"fc": {"kernel": sgd.params["fc"]["kernel"]}}, {"fc": {"bias": sgd.params["fc"]["bias"]}}]
    return (upload.params, after.params), tuple(trained[::order])

  client = method(linear(), epochs=2, **LOCAL)
  two_rounds(client, ragged, check)
  assert client.global_model is None


def test_fedrep_by_hand(ragged):
  def check(key, lr, received, own, upload, after):
    head, body = Sgd(own, lr, 0.9), Sgd(received.params, lr, 0.9)
    for x, y in batches(key, ragged, 2):
      head.step({"fc": {"bias": at(joined(received.params, head.params), x, y)["fc"]["bias"]}})
    for x, y in batches(key, ragged, 1, later=True):
      body.step({"fc": {"kernel": at(joined(body.params, head.params), x, y)["fc"]["kernel"]}})
    return (upload.params, after), (body.params, head.params)

  info = two_rounds(fh.fedrep(linear(), epochs=2, body_epochs=1, **LOCAL), ragged, check)
  assert info.steps == 3  # of a batch a pass


@pytest.mark.parametrize("adaptive", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_apfl_by_hand(ragged, adaptive):
  def check(key, lr, received, own, upload, after):
    w, v, alpha = Sgd(received.params, lr, 0.9), Sgd(own.local, lr, 0.9), own.alpha
    for x, y in batches(key, ragged, 3):
      mixed = jax.tree.map(lambda a, b, t=alpha: t * a + (1 - t) * b, v.params, w.params)
      gradient, apart = at(mixed, x, y), plus(v.params, w.params, -1.0)
      w.step(at(w.params, x, y))
      v.step(jax.tree.map(lambda g, t=alpha: t * g, gradient))
      if adaptive:
        along = sum(jax.tree.leaves(jax.tree.map(lambda d, g: np.sum(d * g), apart, gradient)))
        alpha = np.clip(alpha - lr * along, 0.0, 1.0)
    return (upload.params, after), (w.params, own._replace(local=v.params, alpha=alpha))

  info = two_rounds(fh.apfl(linear(), alpha=0.4, adaptive=adaptive, epochs=3, **LOCAL), ragged, check)
  assert (info.figures != ()) == adaptive and info.steps == 3
  assert not adaptive or (0 < info.figures["alpha"] < 1 and abs(info.figures["alpha"] - 0.4) > 1e-4)


def test_pfedme_by_hand(ragged):
  def check(key, lr, received, own, upload, after):
    w, theta = received.params, own
    for x, y in batches(key, ragged, 2):
      sgd = Sgd(theta, lr, 0.9)
      for _ in range(3):
        sgd.step(plus(at(sgd.params, x, y), plus(sgd.params, w, -1.0), 2.0))
      theta = sgd.params
      w = plus(w, plus(w, theta, -1.0), -3 * lr * 2.0)
    return (upload.params, after), (w, theta)

  client = fh.pfedme(linear(), lam=2.0, inner_steps=3, outer_lr=3 * LR, epochs=2, **LOCAL)
  assert two_rounds(client, ragged, check).steps == 2 * 3


def test_ditto_by_hand(ragged):
  def check(key, lr, received, own, upload, after):
    w, v = Sgd(received.params, lr, 0.9), Sgd(own, lr, 0.9)
    for x, y in batches(key, ragged, 2):
      w.step(at(w.params, x, y))
    for x, y in batches(key, ragged, 1, later=True):
      v.step(plus(at(v.params, x, y), plus(v.params, received.params, -1.0), 0.7))
    return (upload.params, after), (w.params, v.params)

  two_rounds(fh.ditto(linear(), lam=0.7, epochs=2, local_epochs=1, **LOCAL), ragged, check)


# What they reduce to.


REDUCED = {
  "apfl, α = 0": lambda m, **local: fh.apfl(m, alpha=0.0, **local),
  "ditto": lambda m, **local: fh.ditto(m, local_epochs=1, **local),
  "scaffold, round 0": lambda m, **local: fh.scaffold(m, **local),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REDUCED)
def test_the_federated_model_is_fedavg_s(name, ragged):
  rounds = 1 if name.startswith("scaffold") else 3
  local = dict(epochs=2, batch_size=BATCH, lr=LR)
  found = []
  for client in (REDUCED[name](mlp(), **local), fh.fedavg(mlp(), **local)):
    engine = fh.Engine(fh.federated(client), ragged, 5, devices=2)
    state, infos = engine.advance(engine.init(jax.random.key(0)), rounds)
    found.append((state.broadcast.params, infos.cohort, engine.evaluate(state)))
  chex.assert_trees_all_close(*(own[:2] for own in found), rtol=1e-5, atol=1e-6)
  if name.startswith("apfl"):
    chex.assert_trees_all_close(*(own[2] for own in found), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
  "method", with_every(["fedper", "lg_fedavg", "fedrep", "apfl", "pfedme", "ditto"], "fedper", "apfl")
)
def test_mixing_sees_the_loss_of_what_a_client_would_use(method, ragged):
  settings = {"fedrep": dict(body_epochs=1), "ditto": dict(local_epochs=1)}.get(method, {})
  client = getattr(fh, method)(mlp(), epochs=1, batch_size=BATCH, lr=LR, **settings)
  engine = fh.Engine(fh.federated(client, fh.mixing.qffl()), ragged, ragged.num_clients, devices=1)
  state, _ = engine.advance(engine.init(jax.random.key(0)), 3)
  before = engine.evaluate(state, "train").personalized["loss"][:, 0]
  _, infos = engine.advance(state, 1)
  np.testing.assert_allclose(infos.losses[0], before[infos.cohort[0]], rtol=1e-4)


@pytest.mark.slow
def test_local_parts_start_alike_and_stay_at_home(ragged):
  for method, kept in ((fh.fedper, {"fc2"}), (fh.lg_fedavg, {"fc1"})):
    engine = fh.Engine(fh.federated(method(mlp(), epochs=1, batch_size=BATCH, lr=LR)), ragged, 5, devices=1)
    state = engine.init(jax.random.key(0))
    assert set(state.clients.params) == kept and set(state.broadcast.params) == {"fc1", "fc2"} - kept
    first = jax.tree.map(np.array, state.clients)
    assert all((leaf == leaf[0]).all() for leaf in jax.tree.leaves(first))
    state, infos = engine.advance(state, 1)
    one, other = (jax.tree.leaves(own)[0] for own in (first, state.clients))
    moved = {i for i in range(12) if not np.array_equal(one[i], other[i])}
    assert moved == set(infos.cohort[0].tolist())


# Heads.


def test_heads_are_named_by_their_layers():
  model = fh.models.two_nn((3,), 2, hidden=4)
  params = model.init(jax.random.key(0))
  assert set(parting(model, "")(params).head) == {"fc3"}
  assert set(parting(model, "fc2,fc3")(params).head) == {"fc2", "fc3"}
  assert set(parting(model, lambda path: path[-1] == "bias")(params).head["fc1"]) == {"bias"}
  chex.assert_trees_all_equal(joined(*parting(model, "fc1")(params)), params)


class Listed(nnx.Module):
  """Layers in a list, whose parameters' paths have whole numbers in them."""

  def __init__(self, rngs):
    self.layers = nnx.List([nnx.Linear(3, 4, rngs=rngs), nnx.relu, nnx.Linear(4, 2, rngs=rngs)])

  def __call__(self, x):
    for layer in self.layers:
      x = layer(x)
    return x


def test_layers_of_a_list_are_named_by_their_numbers():
  model = fh.models.from_flax(lambda rngs: Listed(rngs), (3,), 2, head=("layers/2",))
  params = model.init(jax.random.key(0))
  own = parting(model, "")(params)
  assert set(own.head["layers"]) == {2} and set(own.body["layers"]) == {0}
  chex.assert_trees_all_equal(joined(*own), params)
  assert set(parting(model, lambda path: path == ("layers", "0", "bias"))(params).head["layers"]) == {0}
  assert len(layers_of_head(model)(params)) == 2
  with pytest.raises(SettingError, match=r"no layer 'layers/1'.*Known: layers/0, layers/2"):
    parting(model, "layers/1")(params)
  for method in (fh.fedper, fh.fedrep, fh.lg_fedavg):
    method(model).init_broadcast(jax.random.key(0))


def test_the_authors_heads_of_three_layers_are_counted_by_hand():
  """SuPerFed's TwoCNN at 28 x 28 x 3: 722,800 parameters without biases, 669,200 in its dense layers."""
  model = fh.models.make("two_cnn", (28, 28, 3), 10, dense=200, layers=2, bias=False)
  body = 5 * 5 * 3 * 32 + 5 * 5 * 32 * 64
  dense = 7 * 7 * 64 * 200, 200 * 200, 200 * 10
  key = jax.random.key(0)
  assert fh.models.count_parameters(jax.eval_shape(model.init, key)) == body + sum(dense) == 722_800
  for layers in (1, 2, 3):
    head = ",".join(f"fc{i}" for i in range(1, 4)[-layers:])
    top = sum(dense[-layers:])
    for method, sent in (
      (fh.lg_fedavg, top), (fh.fedper, 722_800 - top), (fh.fedrep, 722_800 - top),
    ):  # fmt: skip
      client = method(model, head=head)
      upload = jax.eval_shape(client.init_broadcast, key).params
      kept = jax.eval_shape(lambda key, client=client: client.init(key, None, None, fh.Context(CLIENT)), key)
      assert fh.models.count_parameters(upload) == sent
      assert fh.models.count_parameters(kept) == 722_800 - sent
  assert parting(model, "")(jax.eval_shape(model.init, key)).head.keys() == {"fc3"}


@pytest.mark.parametrize(
  ("model", "head", "message"),
  [
    (
      fh.models.two_nn((3,), 2),
      "fc4",
      r"head = 'fc4': two_nn has no layer 'fc4'\. Did you mean 'fc3'\? Known: fc1, fc2, fc3",
    ),
    (fh.models.two_nn((3,), 2), "fc2, FC3", r"no layer 'FC3'\. Did you mean 'fc3'\?"),
    (fh.models.two_nn((3,), 2), "fc1,fc2,fc3", "has nothing beside its head"),
    (fh.models.logistic_regression((3,)), "", r"has no head then\. Name some of its layers: fc1"),
    (fh.Model(lambda key: {"a": {"b": jnp.ones(2)}}, lambda p, x: x), "", "has no head"),
    (fh.models.two_nn((3,), 2), "fc", "has no layer 'fc'"),
  ],
)
def test_heads_that_cannot_be(model, head, message):
  with pytest.raises(SettingError, match=message):
    fh.fedper(model, head=head).init_broadcast(jax.random.key(0))


@pytest.mark.parametrize(
  ("method", "settings"),
  [
    ("apfl", dict(alpha=1.1)), ("pfedme", dict(lam=0.0)), ("pfedme", dict(lam=300.0)),
    ("pfedme", dict(outer_lr=1.0, lam=2.5)),
    ("pfedme", dict(inner_steps=0)), ("ditto", dict(lam=-1.0)), ("ditto", dict(local_epochs=0)),
    ("fedrep", dict(body_epochs=0.5)), ("scaffold", dict(momentum=1.0)), ("fedper", dict(lr=0.0)),
  ],
)  # fmt: skip
def test_settings_out_of_range(method, settings):
  with pytest.raises(SettingError, match=next(iter(settings))):
    getattr(fh, method)(mlp(), **settings)
