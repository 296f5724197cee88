"""Models with running statistics and dropout through the methods, the server and the engine."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from parts import CLASSES, FEATURES, one_client, round_draws, walk

import fedjax_het as fh
from fedjax_het.clients import superfed as superfed_module
from fedjax_het.clients.superfed import Pair, lambda_of_stats, share_out
from fedjax_het.errors import SettingError

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
  """norm - dense - relu - dropout - dense; what is normalised first depends on the data alone."""

  rate: float = 0.0

  @nn.compact
  def __call__(self, x, train):
    h = nn.BatchNorm(not train, momentum=MOMENTUM, name="norm")(x)
    h = nn.Dropout(self.rate, deterministic=not train)(nn.relu(nn.Dense(5, name="hidden")(h)))
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


@pytest.mark.slow
@pytest.mark.parametrize("lam", [0.0, 0.3, 1.0])
def test_superfed_moves_the_ends_statistics_as_its_weights(uniform, monkeypatch, lam):
  """With one λ throughout: s(λ) moves as one model's would, each end by its share of every change."""
  monkeypatch.setattr(
    superfed_module, "draw_lambda", lambda key, params, _: jax.tree.map(lambda _: jnp.float32(lam), params)
  )
  net = model()
  client = fh.superfed(net, **LOCAL)
  broadcast = client.share(jax.random.key(0))
  broadcast = broadcast._replace(stats=jax.tree.map(lambda s: s + 0.5, broadcast.stats))
  own = client.init(jax.random.key(1), broadcast, None, fh.Context())
  upload, kept, _ = jax.jit(client.update)(
    jax.random.key(2), broadcast, own, one_client(uniform, 1), fh.Context()
  )
  for j, name in enumerate(("mean", "var")):
    start = np.float64(0.5 + j), np.float64(j)
    ends = [np.full(FEATURES, value) for value in start]
    for x, _, _ in walk(jax.random.key(2), uniform, 1, 4, 2):
      between = (1 - lam) * ends[0] + lam * ends[1]
      change = (1 - MOMENTUM) * ((x.mean(0), x.var(0))[j] - between)
      ends = [ends[0] + (1 - lam) * change, ends[1] + lam * change]
    np.testing.assert_allclose(upload.stats["norm"][name], ends[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(kept.stats["norm"][name], ends[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", [fh.fedavg, fh.scaffold, fh.apfl, fh.pfedme, fh.ditto, fh.superfed])
def test_the_first_broadcast_has_the_models_statistics(method):
  net = model()
  assert net.stats and method(net).share(jax.random.key(0)).stats is net.stats


def test_each_layer_s_statistics_have_its_lambda():
  lam = {
    "a": {"kernel": 0.1},
    "norm": {"scale": 0.2, "bias": 0.2},
    "b": {"norm": {"scale": 0.3}, "kernel": 0.4},
  }
  stats = {"norm": {"mean": 0}, "b": {"norm": {"var": 0}}, "bare": {"mean": 0}}
  assert lambda_of_stats(lam, stats) == {
    "norm": {"mean": 0.2},
    "b": {"norm": {"var": 0.3}},
    "bare": {"mean": 0.1},
  }
  assert share_out(Pair(1.0, 2.0), 0.5, 0.2) == Pair(1.4, 2.1)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_runs_map_resume_and_evaluate(method, ragged):
  """One device and four, whole and in chunks, within rounding; evaluated with the statistics, by λ."""
  algorithm = fh.federated(METHODS[method](model(0.5)))
  whole, chunked = fh.Engine(algorithm, ragged, 5, devices=1), fh.Engine(algorithm, ragged, 5, devices=4)
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
  net, broadcast = model(0.5), state.broadcast
  x, y = (np.asarray(leaf) for leaf in one_client(ragged, 2, "test").take(jnp.arange(ragged.test.size[2])))
  logits = net.apply(broadcast.params, x, broadcast.stats)
  assert evaluation.global_["top1"][2] == pytest.approx((logits.argmax(1) == y).mean())
  if method != "fedavg":
    lam = algorithm.client.lambdas[3]
    own = jax.tree.map(lambda leaf: leaf[2], state.clients)
    line = jax.tree.map(lambda f, l: (1 - lam) * f + lam * l, tuple(broadcast[::2]), tuple(own))
    logits = net.apply(line[0], x, line[1])
    loss = -np.asarray(jax.nn.log_softmax(logits))[np.arange(len(y)), y].mean()
    assert evaluation.personalized["loss"][2, 3] == pytest.approx(loss, rel=1e-4)


def test_dropout_is_on_in_training_alone(uniform):
  def losses(rate):
    client = METHODS["fedavg"](model(rate))
    broadcast = client.share(jax.random.key(0))
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
