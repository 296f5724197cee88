"""What few methods need of a round, each by a throw-away part beside the same arithmetic in NumPy."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import with_every
from small_parts import (
  CLASSES,
  FEATURES,
  SIZES,
  federation,
  float64,
  linear,
  linear_loss_and_gradient,
  round_draws,
  rows_of,
  walk,
)
from wide_parts import addressed, middle, mime, prototypes

import fedjax_het as fh
from fedjax_het.clients.sgd import fedavg
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.data.clients import label_counts
from fedjax_het.engine.engine import Engine
from fedjax_het.engine.trained import trained
from fedjax_het.experiment.build import build
from fedjax_het.methods import LABEL_COUNTS, METHODS, Method
from fedjax_het.parts import Pooled

LR, BATCH, COHORT, ROUNDS = 0.1, 4, 4, 3
PLAIN = dict(lr=LR, momentum=0.0, weight_decay=0.0, epochs=1, batch_size=BATCH)
DATA = {"ragged": SIZES, "uniform": [8] * 6}
ALGORITHMS = {
  "own sums": lambda num: fh.federated(prototypes(linear(), LR, 1, BATCH)),
  "first pass": lambda num: fh.federated(mime(linear(), LR)),
  "uploads": lambda num: fh.federated(fedavg(linear(), **PLAIN), server=middle()),
  "addressed": lambda num: fh.federated(fedavg(linear(), **PLAIN), server=addressed(num)),
  "all": lambda num: fh.federated(mime(linear(), LR), server=addressed(num)),
}


@functools.cache
def data_of(kind):
  return federation(DATA[kind])


def engine_of(name, kind, **where) -> Engine:
  return Engine(ALGORITHMS[name](len(DATA[kind])), data_of(kind), COHORT, **where)


def close(found, expected, rtol=2e-5, atol=2e-6):
  chex.assert_trees_all_close(found, expected, rtol=rtol, atol=atol)


def rounds_of(name, kind):
  """Runs the engine round by round: yields (state before, state after, cohort, client keys, p)."""
  engine = engine_of(name, kind, devices=2)
  state = engine.init(jax.random.key(3))
  for _ in range(ROUNDS):
    before = jax.tree.map(jnp.copy, state)
    state, _ = engine.advance(state, 1)
    cohort, keys, _ = round_draws(before, len(DATA[kind]), COHORT)
    sizes = np.asarray(DATA[kind], np.float64)[cohort]
    yield before, state, cohort, keys, sizes / sizes.sum()


def mixed(p, trees):
  return jax.tree.map(lambda *leaves: sum(q * leaf for q, leaf in zip(p, leaves)), *trees)


def sgd(params, key, data, i):
  """Plain local SGD on softmax regression, one epoch."""
  for x, y, _ in walk(key, data, i, BATCH, 1):
    _, gradient = linear_loss_and_gradient(params, x, y)
    params = jax.tree.map(lambda p, g: p - LR * g, params, gradient)
  return params


kinds = pytest.mark.parametrize("kind", DATA)


@pytest.mark.slow
@kinds
def test_own_sums_keep_what_nobody_sent(kind):
  """A class's mean over the cohort's examples of it; the last one where no client of the cohort has any."""
  data, params = data_of(kind), None
  for before, after, cohort, keys, p in rounds_of("own sums", kind):
    if params is None:
      params, known = float64(before.broadcast.params), float64(before.broadcast.pooled["class"])
    x, y = map(np.concatenate, zip(*(rows_of(data, i) for i in cohort)))
    for c in range(CLASSES):
      known[c] = x[y == c].mean(0) if (y == c).any() else known[c]
    params = mixed(p, [sgd(params, keys[i], data, i) for i in cohort])
    close(float64(after.broadcast.params), params)
    close(float64(after.broadcast.pooled), {"class": known, "all": {"mean": x.mean(0)}})
  assert np.isfinite(known).all()


@pytest.mark.slow
@kinds
def test_a_first_pass_is_received_by_the_whole_cohort(kind):
  data, params = data_of(kind), None
  for before, after, cohort, _, p in rounds_of("first pass", kind):
    params = float64(before.broadcast.params) if params is None else params
    gradients = {i: linear_loss_and_gradient(params, *rows_of(data, i))[1] for i in cohort}
    control, uploads = mixed(p, gradients.values()), []
    for i in cohort:
      own = params
      for _ in range(3):
        _, gradient = linear_loss_and_gradient(own, *rows_of(data, i))
        step = jax.tree.map(lambda g, c, first: g + 0.5 * (c - first), gradient, control, gradients[i])
        own = jax.tree.map(lambda q, g: q - LR * g, own, step)
      uploads.append(own)
    params = mixed(p, uploads)
    close(float64(after.broadcast), fh.Message(params, pooled=control))


@pytest.mark.parametrize("kind", ["uniform", pytest.param("ragged", marks=pytest.mark.slow)])
def test_a_server_sees_the_uploads_that_it_asks_for(kind):
  data, params, heard = data_of(kind), None, np.zeros(32)
  for before, after, cohort, keys, _ in rounds_of("uploads", kind):
    params = float64(before.broadcast.params) if params is None else params
    uploads = [sgd(params, keys[i], data, i) for i in cohort]
    params = jax.tree.map(lambda *leaves: np.median(np.stack(leaves), axis=0), *uploads)
    heard[cohort] += np.asarray(DATA[kind])[cohort]
    close(float64(after.broadcast.params), params)
    np.testing.assert_array_equal(after.server, heard)


def half(average, own):
  return jax.tree.map(lambda a, b: 0.5 * (a + b), average, own)


@pytest.mark.slow
@kinds
def test_each_client_trains_and_is_judged_on_what_it_is_sent(kind):
  """In training, in an evaluation of all clients, and where a trained model predicts."""
  data, num, average = data_of(kind), len(DATA[kind]), None
  for before, after, cohort, keys, p in rounds_of("addressed", kind):
    if average is None:
      average = float64(before.broadcast.params)
      own = {i: jax.tree.map(lambda leaf: leaf * (1 + i / 8), average) for i in range(num)}
    uploads = {i: sgd(half(average, own[i]), keys[i], data, i) for i in cohort}
    own, average = own | uploads, mixed(p, uploads.values())
    close(float64(after.broadcast.params), average)
    close(float64(after.server), jax.tree.map(lambda *leaves: np.stack(leaves), *own.values()))
  engine = engine_of("addressed", kind, devices=2)
  state = jax.device_put(after, engine.shardings(after))
  found, models = engine.evaluate(state), trained(ALGORITHMS["addressed"](num), data, state, COHORT, 0)
  for i in range(num):
    mine, (x, y) = half(average, own[i]), rows_of(data, i, "test")
    loss, _ = linear_loss_and_gradient(mine, x, y)
    np.testing.assert_allclose(found.personalized["loss"][i], [loss], rtol=2e-5)
    loss, _ = linear_loss_and_gradient(average, x, y)
    np.testing.assert_allclose(found.global_["loss"][i], loss, rtol=2e-5)
    close(float64(models.model_of(i)), mine)


@pytest.mark.slow
@pytest.mark.parametrize("kind", with_every(DATA, "ragged"))
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_bits_are_the_same_on_any_number_of_devices_and_in_any_chunks(name, kind):
  def left(devices, lengths, **where):
    engine = engine_of(name, kind, devices=devices, **where)
    state = engine.init(jax.random.key(3))
    for length in lengths:
      state, _ = engine.advance(state, length)
    return jax.tree.map(np.asarray, (state._replace(key=()), engine.evaluate(state)))

  one = left(1, [3])
  for devices, lengths in ((2, [3]), (4, [1, 2])):
    chex.assert_trees_all_equal(one, left(devices, lengths))
  rows = 2 * 6 * max(DATA[kind])
  chex.assert_trees_all_equal(one, left(2, [3], device_rows=rows))


def wrong(client=None, server=None):
  client = prototypes(linear()) if client is None else client
  Engine(fh.federated(client, server=server), data_of("uniform"), COHORT)


def with_pooled(pooled):
  def update(key, broadcast, own, data, context):
    return fh.Message(broadcast.params, pooled=pooled), own, fh.Info(jnp.float32(0), jnp.int32(1))

  return prototypes(linear())._replace(update=update)


class Refused(Exception):
  """The program was traced although a part returns what cannot be."""


def traced(client):
  """Traces one round."""
  engine = Engine(fh.federated(client), data_of("uniform"), COHORT, devices=1)
  engine.compile()
  raise Refused


ALL = {"mean": jnp.zeros(FEATURES)}
CLASS = jnp.zeros((CLASSES, FEATURES))
WRONG = {
  "an array": (jnp.zeros(FEATURES), "is what it returns for Message.pooled"),
  "no pair": ({"class": CLASS, "all": ALL}, "is what it returns for Message.pooled"),
  "another shape": (Pooled({"class": CLASS[1:], "all": ALL}, jnp.float32(1)), "the form of pooled values"),
  "no prefix": (Pooled({"class": CLASS, "all": ALL}, {"other": jnp.float32(1)}), "no prefix"),
  "another axis": (Pooled({"class": CLASS, "all": ALL}, jnp.ones(FEATURES - 1)), "no leading part"),
  "whole numbers": (Pooled({"class": CLASS, "all": ALL}, jnp.int32(1)), "are no floats"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_pooled_is_refused_before_anything_is_compiled(name):
  pooled, problem = WRONG[name]
  with pytest.raises(fh.SettingError, match=problem):
    traced(with_pooled(pooled))


def test_a_message_of_another_form_is_refused():
  server = addressed(6)
  server = server._replace(send=lambda state, broadcast, i: broadcast._replace(params=state))
  with pytest.raises(fh.SettingError, match=r"server's send.*the form of a client's message"):
    wrong(fedavg(linear(), **PLAIN), server)


def test_a_mixing_that_scales_updates_has_one_broadcast():
  with pytest.raises(fh.SettingError, match="sends each client its own"):
    fh.federated(fedavg(linear()), fh.mixing.fedmgda(), addressed(6))


def balanced(counts) -> fh.Mixing:
  """p_i ∝ the number of classes that client i has; a part that is made of label counts, int [K, C]."""
  kinds = (jnp.asarray(counts) > 0).sum(1).astype(jnp.float32)

  def update(state, feedback):
    own = kinds[feedback.cohort]
    return own / own.sum(), state

  return fh.Mixing(lambda sizes: (), update, "balanced")


def by_counts(counts, lr: float = 1.0) -> fh.ServerUpdate:
  """A server that knows the label counts, too: θ <- θ + lr C/K (average - θ)."""
  step = lr * counts.shape[1] / counts.shape[0]

  def update(key, state, broadcast, aggregate):
    move = lambda base, mean: base + step * (mean - base)  # noqa: E731
    return aggregate._replace(params=jax.tree.map(move, broadcast.params, aggregate.params)), state

  return fh.ServerUpdate(lambda broadcast: (), update, "by_counts")


def test_mixings_and_servers_are_made_of_label_counts(monkeypatch):
  """By their line in the table alone, as client parts are; and not where labels are no classes."""
  parts = {"mixing": balanced, "server": by_counts}
  for section, factory in parts.items():
    entry = Method(factory.__name__, factory, "", "", prepares=LABEL_COUNTS)
    monkeypatch.setitem(METHODS[section], entry.name, entry)
  config = get_config("algorithm=fedavg").to_dict()
  config |= {"mixing": {"name": "balanced"}, "server": {"name": "by_counts", "lr": 0.5}}
  built = build(plan(config))
  counts, data = label_counts(built.data), built.data
  np.testing.assert_array_equal(built.prepared["counts"], counts)
  assert "prepared_digest" in built.digests and built.algorithm.server.name == "by_counts"
  cohort = jnp.arange(3, dtype=jnp.int32)
  given = fh.Feedback(cohort, jnp.asarray(data.train.size)[:3], jnp.int32(0), None, None, fh.Message(()))
  kinds = (counts[:3] > 0).sum(1)
  np.testing.assert_allclose(built.algorithm.mixing.update((), given)[0], kinds / kinds.sum(), rtol=1e-6)
  one = fh.Message({"w": jnp.float32(1)})
  moved, _ = built.algorithm.server.update(None, (), one, fh.Message({"w": jnp.float32(2)}))
  assert moved.params["w"] == pytest.approx(1 + 0.5 * 10 / len(counts))
