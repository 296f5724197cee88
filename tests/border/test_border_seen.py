"""What crosses the border: a client's number, data and state; even sums; a method without a global model."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_parts import (
  float64,
  linear,
  linear_logits,
  linear_loss_and_gradient,
  round_draws,
  rows_of,
  softmax,
)

import fedjax_het as fh
from fedjax_het.clients.objective import training_loss
from fedjax_het.errors import SettingError

COHORT, LR = 5, 0.2
MODEL = linear()


def engine_of(client, data, mixing=None, cohort_size=COHORT, **settings):
  return fh.Engine(fh.federated(client, mixing), data, cohort_size, **settings)


def idle(**changes) -> fh.ClientUpdate:
  """Sends back what it receives."""
  client = fh.ClientUpdate(
    init_broadcast=lambda key: fh.Message(MODEL.init(key)),
    init=lambda *_: (),
    update=lambda key, broadcast, state, data, context: (
      broadcast, state, fh.Info(jnp.float32(0.0), jnp.int32(1))
    ),
    loss=lambda *_: jnp.float32(0.0),
    personalize=lambda broadcast, *_: broadcast.params,
    apply=MODEL.apply,
    global_model=lambda broadcast: broadcast.params,
  )  # fmt: skip
  return client._replace(**changes)


def numbered() -> fh.ClientUpdate:
  """Everything that it does says where it stands."""

  def where(context):
    return (
      jnp.float32(1000.0) * context.client + 10.0 * context.round + context.cohort_size / context.num_clients
    )

  def update(key, broadcast, state, data, context):
    return broadcast, state, fh.Info(jnp.float32(0.0), jnp.int32(1), {"where": where(context)})

  return idle(
    init=lambda key, broadcast, data, context: where(context),
    update=update,
    loss=lambda broadcast, state, data, context: where(context),
    personalize=lambda broadcast, state, data, context, lam: {
      "fc": {"kernel": jnp.zeros((4, 3)), "bias": jnp.array([0.0, 1.0, 2.0]) * context.client}
    },
  )


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_client_knows_its_number_the_round_and_how_many_there_are(ragged, devices):
  engine = engine_of(numbered(), ragged, fh.mixing.qffl(), devices=devices)
  state = engine.init(jax.random.key(0))
  share = COHORT / ragged.num_clients
  np.testing.assert_allclose(state.clients, 1000.0 * np.arange(ragged.num_clients) + share)
  state, infos = engine.advance(state, 3)
  where = 1000.0 * infos.cohort + 10.0 * np.arange(3)[:, None] + share
  np.testing.assert_allclose(infos.clients.figures["where"], where)
  np.testing.assert_allclose(infos.losses, where)
  evaluation = engine.evaluate(state)
  for i in range(ragged.num_clients):
    _, y = rows_of(ragged, i, "test")
    p = softmax(np.array([[0.0, 1.0, 2.0]]) * i)[0]
    assert evaluation.personalized["loss"][i, 0] == pytest.approx(-np.log(p[y]).mean(), rel=1e-4)


def tuned(sees=("init", "personalize")) -> fh.ClientUpdate:
  """Keeps its examples' mean and largest label, and takes a step on all its examples when it is judged."""

  def init(key, broadcast, data, context):
    x, y = data.take(jnp.arange(data.limit))
    inside = jnp.arange(data.limit) < data.length
    return jnp.where(inside[:, None], x, 0.0).sum(0) / data.length, jnp.where(inside, y, -1).max()

  def gradient(params, data):
    return jax.grad(lambda p: training_loss(MODEL, p, data))(params)

  def personalize(broadcast, state, data, context, lam):
    return jax.tree.map(lambda p, g: p - LR * g, broadcast.params, gradient(broadcast.params, data))

  return idle(
    init=init,
    loss=lambda broadcast, state, data, context: state[0].sum() ** 2,
    personalize=personalize,
    needs=fh.Needs(sees_data=sees),
  )


def judge(data, **settings):
  """A run's first model and states, its infos and its evaluation."""
  engine = engine_of(tuned(), data, fh.mixing.qffl(), 2, **settings)
  first = engine.init(jax.random.key(1))
  kept = jax.tree.map(np.array, (first.broadcast.params, first.clients))
  shapes, _ = engine.compile()
  assert jax.tree.map(np.shape, shapes.clients) == jax.tree.map(np.shape, kept[1])
  state, infos = engine.advance(first, 2)
  return *kept, infos, engine.evaluate(state)


@pytest.fixture(scope="module")
def judged(ragged):
  return judge(ragged, devices=1)


@pytest.mark.slow
def test_a_first_state_and_a_loss_may_be_made_of_the_clients_data(ragged, judged):
  _, (means, largest), infos, _ = judged
  for i in range(ragged.num_clients):
    x, y = rows_of(ragged, i)
    np.testing.assert_allclose(means[i], x.mean(0), rtol=1e-5, atol=1e-6)
    assert largest[i] == y.max()
  np.testing.assert_allclose(infos.losses, (means.sum(1) ** 2)[infos.cohort], rtol=1e-5)


@pytest.mark.slow
def test_a_model_may_be_tuned_on_the_clients_training_examples_when_it_is_judged(ragged, judged):
  params, _, _, evaluation = judged
  params = float64(params)
  for i in range(ragged.num_clients):
    _, gradient = linear_loss_and_gradient(params, *rows_of(ragged, i))
    own = jax.tree.map(lambda p, g: p - LR * g, params, gradient)
    x, y = rows_of(ragged, i, "test")
    loss = -np.log(softmax(linear_logits(own, x))[np.arange(len(y)), y]).mean()
    assert evaluation.personalized["loss"][i, 0] == pytest.approx(loss, rel=1e-4)


@pytest.mark.slow
def test_examples_that_are_streamed_to_two_devices_show_the_same(ragged, judged):
  chex.assert_trees_all_equal(judge(ragged, devices=2, device_rows=140), judged)


@pytest.mark.slow
def test_a_sweep_shows_the_same(ragged, judged):
  swept = fh.sweep(
    lambda: fh.federated(tuned(), fh.mixing.qffl()), seeds=[1, 2], data=ragged, rounds=2, cohort_size=2
  )
  np.testing.assert_allclose(swept.state.clients[0][0], judged[1][0], rtol=1e-6)
  close = judged[3].personalized["loss"][:, 0]
  np.testing.assert_allclose(swept.history[2].personalized["loss"][0, :, 0], close, rtol=1e-4)


@pytest.mark.parametrize("function", ["init", "personalize"])
def test_data_that_were_not_asked_for_are_withheld(ragged, function):
  client = tuned(tuple({"init", "personalize"} - {function}))
  with pytest.raises(SettingError, match=rf'sees_data = .*{function} looks at data\.\w+.*Add "{function}"'):
    engine_of(client, ragged, devices=1)


@pytest.mark.slow
def test_sums_are_even_or_by_the_mixing_and_whole_numbers_stay_whole(ragged):
  """p is by size; what is sent as `even` is averaged by 1/S, whole numbers to the nearest."""

  def update(key, broadcast, state, data, context):
    number = jnp.int32(context.client)
    upload = fh.Message(
      broadcast.params, extra=(number, 1.0 * number), even=(number, 1.0 * number, jnp.full(2, 7, jnp.int8))
    )
    return upload, state, fh.Info(jnp.float32(0.0), jnp.int32(1))

  def init_broadcast(key):
    whole, real = jnp.int32(0), jnp.float32(0.0)
    return fh.Message(MODEL.init(key), (whole, real), even=(whole, real, jnp.zeros(2, jnp.int8)))

  engine = engine_of(idle(init_broadcast=init_broadcast, update=update), ragged, devices=1)
  state = engine.init(jax.random.key(3))
  cohort, _, _ = round_draws(state, ragged.num_clients, COHORT)
  state, _ = engine.advance(state, 1)
  sizes, numbers = np.asarray(ragged.train.size, float)[cohort], np.array(cohort, float)
  by_size, even = (sizes / sizes.sum()) @ numbers, numbers.mean()
  assert abs(by_size - even) > 0.3
  (whole, real), sent = state.broadcast.extra, state.broadcast.even
  assert (whole, sent[0]) == (round(by_size), round(even))
  np.testing.assert_allclose((real, sent[1]), (by_size, even), rtol=1e-5)
  assert sent[2].dtype == jnp.int8 and sent[2].tolist() == [7, 7]


def test_a_method_without_a_global_model_is_judged_by_its_clients_alone(ragged):
  """FedPer's shape: what travels is a body, and every client has a head of its own."""
  client = idle(
    init_broadcast=lambda key: fh.Message({"kernel": MODEL.init(key)["fc"]["kernel"]}),
    init=lambda key, broadcast, data, context: jax.random.normal(key, (3,)) + context.client,
    personalize=lambda broadcast, state, *_: {"fc": {**broadcast.params, "bias": state}},
    global_model=None,
  )
  result = fh.run(
    fh.federated(client), ragged, rounds=1, cohort_size=COHORT, key=jax.random.key(0), devices=1
  )
  assert set(result.metrics) == set(result.clients) == {"personalized"}
  assert result.evaluation.global_ == {}
  body, heads = float64(result.state.broadcast.params), np.asarray(result.state.clients, np.float64)
  for i in (0, 4):
    x, y = rows_of(ragged, i, "test")
    logits = linear_logits({"fc": {**body, "bias": heads[i]}}, x)
    assert result.clients["personalized"]["top1"][i] == pytest.approx((logits.argmax(1) == y).mean())


def test_uploads_are_there_for_who_asks(ragged):
  asked = []

  def mix(state, feedback, ask):
    if ask:
      asked.append(jax.tree.map(jnp.shape, feedback.uploads()))
    return jnp.full(COHORT, 1 / COHORT), state

  for ask in (False, True):
    mixing = fh.Mixing(lambda sizes: (), lambda state, feedback, ask=ask: mix(state, feedback, ask))
    engine_of(idle(), ragged, mixing, devices=1).compile()
  assert asked and asked[0].params["fc"]["kernel"] == (COHORT, 4, 3)
