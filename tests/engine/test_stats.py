"""Models with running statistics and dropout through the methods, the server and the engine."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import with_every
from flax import linen as nn
from small_parts import CLASSES, FEATURES, float64, mlp, one_client, round_draws, rows_of, walk

import fedjax_het as fh
from fedjax_het.clients.statistics import own_statistics
from fedjax_het.errors import SettingError
from fedjax_het.models import Model

MOMENTUM = 0.9
LOCAL = dict(lr=0.1, epochs=2, batch_size=4)
METHODS = {
  "fedavg": lambda model, **settings: fh.fedavg(model, **LOCAL, **settings),
  "superfed_mm": lambda model, **settings: fh.superfed(model, start_round=1, **LOCAL, **settings),
  "superfed_lm": lambda model, **settings: fh.superfed(
    model, start_round=1, granularity="layer", **LOCAL, **settings
  ),
}


class Net(nn.Module):
  """norm - dense - norm - relu - dropout - dense; what is normalised first depends on the data alone."""

  rate: float = 0.0

  @nn.compact
  def __call__(self, x, train):
    h = nn.BatchNorm(not train, momentum=MOMENTUM, name="norm")(x)
    h = nn.BatchNorm(not train, momentum=MOMENTUM, name="inner")(nn.Dense(5, name="hidden")(h))
    h = nn.Dropout(self.rate, deterministic=not train)(nn.relu(h))
    return nn.Dense(CLASSES, name="out")(h)


def model(rate=0.0):
  return fh.models.from_flax(Net(rate), (FEATURES,), CLASSES)


def stats_after(key, data, i, start):
  """The statistics of client i's rows after its local training, by hand."""
  mean, var = start
  for x, _, _ in walk(key, data, i, 4, 2):
    mean = MOMENTUM * mean + (1 - MOMENTUM) * x.mean(0)
    var = MOMENTUM * var + (1 - MOMENTUM) * x.var(0)
  return mean, var


@pytest.mark.slow
@pytest.mark.parametrize("server", [fh.server.sgd(), fh.server.adam(lr=0.1), fh.server.sgd(lr=0.5)])
def test_statistics_become_the_clients_average_whatever_the_server(ragged, server):
  """Of real rows alone (sizes are no multiples of B), without decay, and by no server's learning rate."""
  engine = fh.Engine(fh.federated(METHODS["fedavg"](model(), weight_decay=0.5), None, server), ragged, 5)
  state = engine.init(jax.random.key(3))
  cohort, keys, _ = round_draws(state, 12, 5)
  state, infos = engine.advance(state, 1)
  found = state.broadcast.stats["norm"]
  each = [stats_after(keys[i], ragged, i, (np.zeros(FEATURES), np.ones(FEATURES))) for i in cohort]
  for name, own in zip(("mean", "var"), zip(*each)):
    np.testing.assert_allclose(found[name], infos.coefficients[0] @ np.stack(own), rtol=1e-4, atol=1e-5)


def statistics_by_hand(params, data, i, batch_size):
  """Client i's own statistics of `Net` at these parameters: batch by batch in the order of its rows."""
  x = rows_of(data, i)[0]
  found, params = {"norm": [], "inner": []}, float64(params)
  for first in range(0, len(x), batch_size):
    batch = x[first : first + batch_size]
    spread = np.sqrt(batch.var(0) + 1e-5)
    h = (batch - batch.mean(0)) / spread * params["norm"]["scale"] + params["norm"]["bias"]
    h = h @ params["hidden"]["kernel"] + params["hidden"]["bias"]
    for name, values in (("norm", batch), ("inner", h)):
      found[name].append((len(batch), values.mean(0), values.var(0)))
  return {
    name: {part: sum(own[0] * own[j] for own in each) / len(x) for j, part in ((1, "mean"), (2, "var"))}
    for name, each in found.items()
  }


@pytest.mark.slow
@pytest.mark.parametrize("i", [0, 1, 2])  # of 40 examples, one, and seven
def test_own_statistics_are_those_of_the_clients_batches(ragged, i):
  net = model()
  params = net.init(jax.random.key(1))
  found = jax.jit(lambda data: own_statistics(net, params, net.stats, data, 4))(one_client(ragged, i))
  wanted = statistics_by_hand(params, ragged, i, 4)
  chex.assert_trees_all_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_statistics_that_training_leaves_alone_stay(ragged):
  """A frozen norm's, and a counter."""

  def train(params, stats, x, real, key):
    return x, {
      "frozen": stats["frozen"],
      "moved": 0.5 * stats["moved"] + 0.5 * x.max(),
      "count": stats["count"] + 1,
    }

  net = Model(lambda key: {}, lambda params, x, stats: x, train=train)
  stats = {"frozen": jnp.float32(7.0), "moved": jnp.float32(1e6), "count": jnp.int32(3)}
  found = own_statistics(net, {}, stats, one_client(ragged, 0), 40)
  assert found == {"frozen": 7.0, "moved": pytest.approx(rows_of(ragged, 0)[0].max()), "count": 3}


@pytest.mark.slow
@pytest.mark.parametrize("granularity", ["model", "layer"])
def test_superfed_uploads_the_statistics_of_the_federated_model(ragged, granularity):
  """From round L on; FedAvg's before. A client keeps no statistics."""
  net = model()
  client = fh.superfed(net, granularity=granularity, start_round=1, nu=0.0, mu=0.0, **LOCAL)
  broadcast = client.init_broadcast(jax.random.key(0))
  own = client.init(jax.random.key(1), broadcast, None, fh.Context())
  update = jax.jit(client.update)
  rows = one_client(ragged, 2)
  upload, kept, _ = update(jax.random.key(2), broadcast, own, rows, fh.Context(round=0))
  alone, *_ = jax.jit(fh.fedavg(net, **LOCAL).update)(jax.random.key(2), broadcast, (), rows, fh.Context())
  chex.assert_trees_all_close(upload.stats, alone.stats, rtol=1e-6)
  chex.assert_trees_all_equal_structs(own, kept, broadcast.params)
  upload, kept, _ = update(jax.random.key(2), broadcast, own, rows, fh.Context(round=1))
  chex.assert_trees_all_close(
    upload.stats, statistics_by_hand(upload.params, ragged, 2, 4), rtol=1e-4, atol=1e-5
  )


@pytest.mark.slow
@pytest.mark.parametrize("method", [fh.superfed, fh.apfl, fh.ditto, fh.pfedme])
def test_a_model_on_the_line_has_its_own_statistics(method, ragged):
  client = method(model(), **LOCAL)
  broadcast = client.init_broadcast(jax.random.key(0))
  state = client.init(jax.random.key(1), broadcast, None, fh.Context())
  kept = state.local if hasattr(state, "local") else state
  kept = jax.tree.map(lambda leaf: leaf + 0.3, model().split(kept).params)
  state = state._replace(local=kept) if hasattr(state, "local") else kept
  found = client.studies.line(broadcast, state, one_client(ragged, 2), fh.Context(), 0.3)
  between = jax.tree.map(lambda f, l: 0.7 * f + 0.3 * l, broadcast.params, kept)
  chex.assert_trees_all_close(found.params, between, rtol=1e-6)
  chex.assert_trees_all_close(found.stats, statistics_by_hand(between, ragged, 2, 4), rtol=1e-4, atol=1e-5)
  assert client.needs.sees_data == ("personalize",)
  assert method(mlp(), **LOCAL).needs.sees_data == ()


@pytest.mark.parametrize("method", [fh.fedavg, fh.scaffold, fh.apfl, fh.pfedme, fh.ditto, fh.superfed])
def test_the_first_broadcast_has_the_models_statistics(method):
  net = model()
  assert net.stats and method(net).init_broadcast(jax.random.key(0)).stats is net.stats


VISIT = {  # method -> settings, steps of the statistics that are sent, of those that are kept
  "fedavg": ({}, 2, None),
  "scaffold": ({}, 2, None),
  "fedper": (dict(head="out"), 2, None),
  "lg_fedavg": (dict(head="out"), None, 2),
  "fedrep": (dict(head="out", body_epochs=3), 3, None),
  "apfl": ({}, 2, 2),
  "ditto": (dict(local_epochs=3), 2, 3),
  "pfedme": (dict(inner_steps=3), 6, 6),
}


def moved(stats, x, steps):
  """The first norm's after so many steps on all of x at once, whatever the parameters are by then."""
  kept = MOMENTUM**steps
  wanted = {"mean": (1 - kept) * x.mean(0), "var": kept + (1 - kept) * x.var(0)}
  chex.assert_trees_all_close(dict(stats["norm"]), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", VISIT)
def test_statistics_move_with_the_model_that_is_sent_and_with_the_one_that_is_kept(ragged, name):
  """Twice: what is kept goes on from where it was."""
  settings, sent, kept = VISIT[name]
  client = getattr(fh, name)(model(), lr=0.1, epochs=2, batch_size=64, **settings)
  rows, x, context = one_client(ragged, 0), rows_of(ragged, 0)[0], fh.Context(cohort_size=1, num_clients=4)
  broadcast = client.init_broadcast(jax.random.key(0))
  state = client.init(jax.random.key(1), broadcast, None, context)
  update = jax.jit(client.update)
  for visit in (1, 2):
    upload, state, _ = update(jax.random.key(visit), broadcast, state, rows, context)
    own = model().split(client.personalize(broadcast, state, rows, context, None))
    if sent:
      moved(upload.stats, x, sent * visit if name == "pfedme" else sent)  # whose θ goes on from its last
    moved(own.stats, x, (kept or 0) * visit)


def test_pfedme_draws_anew_in_every_inner_step(ragged):
  """Here what is drawn becomes the statistic."""

  def train(params, stats, x, real, key):
    return x @ params, {"drawn": stats["drawn"] + jax.random.normal(key)}

  net = Model(
    lambda key: jnp.ones((FEATURES, CLASSES)), lambda params, x, stats: x @ params, train=train,
    stats={"drawn": jnp.float32(0.0)},
  )  # fmt: skip
  totals = [0.0]
  for steps in (1, 2, 3):
    client = fh.pfedme(net, inner_steps=steps, epochs=1, batch_size=64)
    broadcast = client.init_broadcast(jax.random.key(0))
    state = client.init(jax.random.key(1), broadcast, None, fh.Context())
    upload, *_ = client.update(jax.random.key(2), broadcast, state, one_client(ragged, 0), fh.Context())
    totals.append(float(upload.stats["drawn"]))
  assert len({round(own, 5) for own in np.diff(totals)}) == 3


def test_endpoints_of_all_layers_want_no_statistics():
  regions = fh.regions(np.eye(CLASSES) * 5, endpoints=2, clusters=2)
  with pytest.raises(SettingError, match=r"model = 'Net': has running statistics.*Use sosicfl"):
    fh.sosicfl_all(model(), regions)


@pytest.mark.slow
@pytest.mark.parametrize("method", with_every(METHODS, "fedavg", "superfed_mm"))
def test_runs_map_resume_and_evaluate(method, ragged):
  """One device and four, whole and in chunks, within rounding; evaluated with the statistics, by λ."""
  algorithm = fh.federated(METHODS[method](model(0.5)))
  whole, chunked = fh.Engine(algorithm, ragged, 5, devices=1), fh.Engine(algorithm, ragged, 5, devices=4)
  streamed = fh.Engine(algorithm, ragged, 2, devices=1, device_rows=140)
  state, infos = whole.advance(whole.init(jax.random.key(0)), 3)
  other = chunked.init(jax.random.key(0))
  for length in (1, 2):
    other, _ = chunked.advance(other, length)
  chex.assert_trees_all_close(
    *((own.broadcast, own.clients) for own in jax.device_get((state._replace(key=0), other._replace(key=0)))),
    rtol=1e-3, atol=1e-5,
  )  # fmt: skip
  assert np.isfinite(infos.clients.loss).all()
  evaluation = whole.evaluate(state)
  chex.assert_trees_all_close(streamed.evaluate(state), evaluation, rtol=1e-5, atol=1e-6)
  net, broadcast = model(0.5), state.broadcast
  x, y = (np.asarray(leaf) for leaf in one_client(ragged, 2, "test").take(jnp.arange(ragged.test.size[2])))
  logits = net.apply(broadcast.params, x, broadcast.stats)
  assert evaluation.global_["top1"][2] == pytest.approx((logits.argmax(1) == y).mean())
  if method != "fedavg":
    lam = algorithm.client.studies.lambdas[3]
    own = jax.tree.map(lambda leaf: leaf[2], state.clients)
    params = jax.tree.map(lambda f, l: (1 - lam) * f + lam * l, broadcast.params, own)
    stats = own_statistics(net, params, broadcast.stats, one_client(ragged, 2), LOCAL["batch_size"])
    loss = -np.asarray(jax.nn.log_softmax(net.apply(params, x, stats)))[np.arange(len(y)), y].mean()
    assert evaluation.personalized["loss"][2, 3] == pytest.approx(loss, rel=1e-4)


@pytest.mark.slow
def test_dropout_is_on_in_training_alone(uniform):
  def losses(rate):
    client = METHODS["fedavg"](model(rate))
    broadcast = client.init_broadcast(jax.random.key(0))
    _, _, info = jax.jit(client.update)(
      jax.random.key(2), broadcast, (), one_client(uniform, 1), fh.Context()
    )
    return info.loss, jax.jit(client.loss)(broadcast, (), one_client(uniform, 1), fh.Context())

  (trained, used), (dropped, also) = losses(0.0), losses(0.9)
  assert trained != dropped
  assert used == also


def test_energies_want_a_function_of_x():
  with pytest.raises(SettingError, match="running statistics or dropout"):
    fh.fedevg(model())
