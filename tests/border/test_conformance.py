"""What every method promises, for every method and condition of the tables, and for parts of awkward shapes.

What costs is compiling, so a method's promises share its programs: a run on eight devices, two clients at a
time, whose program takes other data and states, too; one client's update and one server's step, for a plain
loop over clients; and the operations of one update, for an eager one.
"""

import copy
import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import (
  EPOCHS,
  EVERYBODY,
  OF_IMAGES,
  ROUNDS,
  algorithm,
  beside,
  cases,
  conditions,
  maker,
  slow_or_by_hand,
)
from event_queue import queued_rounds
from plain_loop import context_of, plain_rounds
from small_parts import (
  SIZES,
  federation,
  gram,
  mlp,
  one_client,
  scaffold,
  sgld,
  simplex,
  synthesis,
)

from fedjax_het import aggregation, server, uploads
from fedjax_het.clients.ditto import ditto
from fedjax_het.clients.fedevg import fedevg
from fedjax_het.clients.sgd import fedavg
from fedjax_het.engine.data_store import Resident
from fedjax_het.engine.engine import Engine
from fedjax_het.engine.placement import place, replicated
from fedjax_het.engine.state import State
from fedjax_het.federated import federated
from fedjax_het.methods import CLIENTS, METHODS
from fedjax_het.models import GENERATORS
from fedjax_het.parts import in_one_go

COHORT = 9  # of 12 clients: two each on four of eight devices, one on a fifth
LOCAL = dict(lr=0.1, lr_decay=0.9, epochs=EPOCHS)
# Conditions, each beside a method whose clients have states and send another field than their model.
CONDITIONS = {f"{section}: {name}": (section, name) for section, name in conditions()}


def conditioned(condition: tuple[str, str], model, batch_size: int):
  make, values = maker(beside(condition), model, condition=condition, batch_size=batch_size)
  return make(**values)


CASES = {  # (model, batch size) -> algorithm
  **{
    name: functools.partial(lambda names, m, b: algorithm(names, m, batch_size=b), names)
    for name, names in cases().items()
  },
  "fedevg, persistent": lambda m, b: federated(
    fedevg(
      m, per_class=1, energy="raw", persistent=True, lam=0.0, epochs=EPOCHS, batch_size=b, bounded=False
    ),
    server=server.sgld(ROUNDS, step_size=1.0, bounded=False),
  ),
  "part: control variate": lambda m, b: federated(scaffold(m, batch_size=b)),
  "aggregation: median": lambda m, b: federated(scaffold(m, batch_size=b), aggregation=aggregation.median()),
  "uploads: 4 bits": lambda m, b: federated(scaffold(m, batch_size=b), uploads=[uploads.quantize(4)]),
  "uploads: error feedback": lambda m, b: federated(
    ditto(m, **LOCAL, batch_size=b), uploads=[uploads.clip(9.0), uploads.top_k(0.9), uploads.quantize()]
  ),
  "part: Gram mixing": lambda m, b: federated(fedavg(m, **LOCAL, batch_size=b), gram()),
  "part: synthetic data": lambda m, b: federated(synthesis(m, batch_size=b), server=sgld()),
  "part: endpoints": lambda m, b: federated(simplex(m, batch_size=b)),
  **{name: functools.partial(conditioned, one) for name, one in CONDITIONS.items() if one not in OF_IMAGES},
}
BATCH = 6  # as many as FedEvg's synthetic examples, which a step takes no more of than real ones
OWN_LOSS = (
  "moon",
  "fedrod",
  "fedlc",
  "fedphp",
  "gpfl",
  "fedcp",
  "fml",
  "fedkd",
  "fedgen",
  "fd",
)  # more, or another one, than cross entropy
GENERATIVE = [name for name, method in CLIENTS.items() if method.models is GENERATORS]
OTHERS = [name for name, (section, _) in CONDITIONS.items() if section != "uploads"]
EVALUATED = sorted(
  {*CASES} - {*METHODS["mixing"], *METHODS["server"], *OTHERS}
)  # their client part is their own
ONE_OF_A_KIND = {"fedavg"}


def marked(methods):
  """The methods, of which only one of a kind is not slow."""
  return [
    pytest.param(name, marks=[] if name in ONE_OF_A_KIND else slow_or_by_hand(name)) for name in methods
  ]


every_client = pytest.mark.parametrize("run", marked(EVALUATED), indirect=True)


def classifier():
  """A perceptron that gives all classes 0, whatever its parameters, where an example is (about) 0."""
  model = mlp()
  return model._replace(
    apply=lambda params, x: model.apply(params, x) * (jnp.abs(x) > 0.25).any(axis=-1, keepdims=True)
  )


def host(state: State) -> State:
  """A state's copy as plain NumPy arrays, its key as raw data."""
  return jax.tree.map(np.array, state._replace(key=jax.random.key_data(state.key)))


def close(a, b, rtol=1e-5, atol=2e-6):
  chex.assert_trees_all_close(a, b, rtol=rtol, atol=atol)


def finite(state: State, infos):
  """Whether all that a run computes is finite; losses that no mixing asks for are not computed."""
  results = host(state), infos.clients, infos.coefficients
  return all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(results))


class Run:
  """A method's run that the others are compared with: eight devices, two clients at a time, one chunk."""

  def __init__(self, method: str):
    algorithm = CASES[method](classifier(), BATCH)
    self.method, self.traces = method, 0
    self.cohort = len(SIZES) if method in EVERYBODY else COHORT

    def update(*args):
      self.count()
      return algorithm.client.update(*args)

    if (training := algorithm.client.training) and algorithm.asynchronous.overlaps:  # which reads its steps
      update = in_one_go(training._replace(finish=lambda *args: (self.count(), training.finish(*args))[1]))
    self.algorithm = algorithm._replace(client=algorithm.client._replace(update=update))
    self.data = federation(SIZES)
    self.engine = self.make(devices=8, client_batch=2)
    assert self.engine.mesh.size == 8
    first = self.engine.init(jax.random.key(5))
    self.first = host(first)
    state, self.infos = self.engine.advance(first, ROUNDS)
    self.last = host(state)

  def count(self):
    self.traces += 1

  @functools.cached_property
  def passes(self):
    """Local steps of a client with one batch: epochs, of however many models, and their inner steps."""
    least = int(self.infos.clients.steps[self.present].min())
    assert least >= EPOCHS
    return least

  @property
  def present(self):
    """Whose uploads arrived, bool [rounds, S]."""
    there = self.infos.present
    return np.ones(self.infos.cohort.shape, bool) if isinstance(there, tuple) else there

  @functools.cached_property
  def evaluation(self):
    return self.engine.evaluate(self.place(self.last))

  @functools.cached_property
  def update(self):
    """The client part alone, compiled outside of any engine."""
    return jax.jit(self.algorithm.client.update)

  def make(self, **settings) -> Engine:
    return Engine(self.algorithm, self.data, self.cohort, **settings)

  def on(self, data) -> Engine:
    """The same compiled programs on other data of the same shapes."""
    engine = copy.copy(self.engine)
    engine.data, engine.examples = data, Resident(place(data, replicated(engine.mesh)), data.num_clients)
    return engine

  def place(self, state: State, engine: Engine | None = None) -> State:
    """A host state on an engine's devices."""
    engine = engine or self.engine
    state = state._replace(key=jax.random.wrap_key_data(jnp.asarray(state.key)))
    return jax.device_put(state, engine.shardings(state))

  def in_halves(self, engine: Engine):
    """An engine's run from the first state, as two processes that share a file would do it."""
    state, infos = engine.advance(self.place(self.first, engine), ROUNDS // 2)
    saved = host(state)
    del state
    state, later = engine.advance(self.place(saved, engine), ROUNDS - ROUNDS // 2)
    return state, jax.tree.map(lambda *parts: np.concatenate(parts), infos, later)


@functools.cache
def run_of(method: str) -> Run:
  return Run(method)


@pytest.fixture(params=marked(CASES))
def run(request) -> Run:
  return run_of(request.param)


def test_every_method_of_the_table_has_a_case():
  covered = {name for names in cases().values() for name in names}
  assert not {name for table in METHODS.values() for name in table} - covered
  assert {one for one in CONDITIONS.values()} - OF_IMAGES == {
    CONDITIONS[name] for name in CASES if name in CONDITIONS
  }
  assert covered >= {*EVERYBODY}


def test_something_was_trained(run):
  """Or the comparisons below would compare nothing."""
  server = run.algorithm.server
  sent = [
    server.received(server.sent(own.broadcast, own.server), 1)
    if jax.tree.leaves(own.broadcast)
    else own.clients
    for own in (run.first, run.last)
  ]
  moved = [np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, sent))]
  assert min(moved) > 1e-3
  batches = 2 if run.method in CONDITIONS else 3  # some leave the few clients with three batches out
  assert set(run.infos.clients.steps[run.present]) >= {run.passes, run.passes * batches}
  assert finite(run.place(run.last), run.infos)


def test_chunked_and_resumed_is_whole(run):
  state, infos = run.in_halves(run.engine)
  chex.assert_trees_all_equal((host(state), infos), (run.last, run.infos))


@pytest.mark.slow
@pytest.mark.parametrize("run", ["fedavg", "superfed_mm", "fedevg, persistent"], indirect=True)
def test_a_new_process_compiles_the_same(run):
  engine = run.make(devices=8, client_batch=2)
  state, infos = run.in_halves(engine)
  chex.assert_trees_all_equal((host(state), infos), (run.last, run.infos))


@pytest.mark.slow
@pytest.mark.parametrize("run", ["fedavg", "superfed_mm", "fedevg, persistent"], indirect=True)
def test_one_device_and_one_client_at_a_time_change_nothing(run):
  """Nor to evaluation (`test_evaluation` tries other numbers, `test_devices` other methods)."""
  engine = run.make(devices=1, client_batch=1)
  chex.assert_trees_all_equal(host(engine.init(jax.random.key(5))), run.first)
  state, infos = run.in_halves(engine)
  close((host(state), infos), (run.last, run.infos))
  close(engine.evaluate(state), run.evaluation)


def test_later_chunks_are_not_traced_again(run):
  before = run.traces
  assert before > 0
  state = run.place(run.first)
  for length in (1, 2, 1):
    state, _ = run.engine.advance(state, length)
  chex.assert_trees_all_equal(host(state), run.last)
  assert run.traces == before
  assert len([name for name in run.engine._compiled if name == "advance"]) == 1


def test_where_a_client_lies_is_irrelevant(run):
  order = np.random.default_rng(0).permutation(len(SIZES))
  moved = federation(SIZES, order=order)
  assert not np.array_equal(moved.train.start, run.data.train.start)
  engine = run.on(moved)
  state, infos = engine.advance(run.place(run.first), ROUNDS)
  chex.assert_trees_all_equal((host(state), infos), (run.last, run.infos))
  if run.method in EVALUATED:
    chex.assert_trees_all_equal(engine.evaluate(state), run.evaluation)


def test_a_round_is_a_loop_over_single_clients_in_any_order(run):
  """However many at once, and on however many devices; an asynchronous run is an event queue over them."""
  if run.algorithm.asynchronous.overlaps:
    broadcast, states, cohorts, infos = queued_rounds(run, ROUNDS)
    for t, ((ids, passed), info) in enumerate(zip(cohorts, infos)):
      assert run.infos.cohort[t].tolist() == ids.tolist()
      assert run.infos.elapsed[t] == passed
      close(info, jax.tree.map(lambda leaf: leaf[t], run.infos.clients))
    close((broadcast, states), (run.last.broadcast, run.last.clients))
    return
  state, infos = plain_rounds(run, ROUNDS)
  for t, (order, info, losses) in enumerate(infos):
    close((info, losses), jax.tree.map(lambda leaf: leaf[t, order], (run.infos.clients, run.infos.losses)))
  close(state, run.last)


@pytest.mark.slow
@every_client
def test_jit_is_eager_and_room_in_a_batch_is_irrelevant(run):
  """Two small clients, one before and one after a change of course, in a batch that has room for them."""
  roomy = CASES[run.method](classifier(), 64).client
  for state, i in ((run.first, 1), (run.last, 3)):
    own = jax.tree.map(lambda leaf: leaf[i], state.clients)
    received, own, round = jax.tree.map(jnp.asarray, (state.broadcast, own, state.round))
    args = (jax.random.key(1), received, own, one_client(run.data, i), context_of(run, i, round))
    with jax.disable_jit():
      eager = roomy.update(*args)
    close(run.update(*args), eager)


def test_zero_gradients_give_finite_numbers(run):
  """All-zero examples, models and synthetic examples, for which the loss is constant."""
  data = dataclasses.replace(run.data, x=jnp.zeros_like(run.data.x))
  broadcast, clients = jax.tree.map(np.zeros_like, (run.first.broadcast, run.first.clients))
  engine = run.on(data)
  state, infos = engine.advance(run.place(run.first._replace(broadcast=broadcast, clients=clients)), ROUNDS)
  assert finite(state, infos)
  if run.method in EVALUATED:
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(engine.evaluate(state)))
  if run.method not in (*GENERATIVE, *OWN_LOSS):  # whose model, or loss, is another
    rounds = slice(0, 1) if run.method in CONDITIONS else slice(None)  # some add noise
    losses = infos.clients.loss[rounds][run.present[rounds]]
    np.testing.assert_allclose(losses, np.log(3), rtol=1e-6)


def test_tiny_clients_are_safe(run):
  """Clients of one to three examples, all of them in each batch."""
  data = federation((1, 3, 2, 1, 3, 1, 2, 1, 1, 3, 1, 2))
  rest = jnp.zeros((len(run.data.y) - len(data.y), data.x.shape[1]))
  data = dataclasses.replace(
    data,
    x=jnp.concatenate([data.x, rest]),
    y=jnp.concatenate([data.y, jnp.zeros(len(rest), jnp.int32)]),
    limits=run.data.limits,
    uniform=run.data.uniform,
  )
  state, infos = run.on(data).advance(run.place(run.first), ROUNDS)
  assert finite(state, infos) and (infos.clients.steps[run.present] == run.passes).all()
