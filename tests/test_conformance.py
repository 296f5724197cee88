"""What every method promises, for every method. A new method is one line in `METHODS`."""

import copy
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parts import SIZES, federation, gram, mlp, one_client, round_draws, scaffold, sgld, simplex, synthesis

from fedjax_het import mixing, server
from fedjax_het.clients.fedevg import fedevg
from fedjax_het.clients.generative import fedcgan, fedcvae
from fedjax_het.clients.sgd import fedavg, fedprox
from fedjax_het.clients.superfed import superfed
from fedjax_het.engine.engine import Engine
from fedjax_het.engine.examples import Resident
from fedjax_het.federated import Feedback, State, federated
from fedjax_het.models.generative import cgan_mlp, cvae_mlp

COHORT, ROUNDS, EPOCHS = 5, 4, 2  # 5 of 12 clients: no number of devices divides it
CVAE, CGAN = cvae_mlp((4,), 3, latent=2, hidden=5), cgan_mlp((4,), 3, latent=2, hidden=5)
LOCAL = dict(lr=0.1, lr_decay=0.9, epochs=EPOCHS)

MIXINGS = {
  "afl": mixing.afl,
  "qffl": mixing.qffl,
  "term": mixing.term,
  "fedmgda": mixing.fedmgda,
  "propfair": mixing.propfair,
  "aaggff_d": mixing.aaggff_d,
}
METHODS = {  # (model, batch size) -> algorithm; methods that change course do so in round 2
  "fedavg": lambda m, b: federated(fedavg(m, **LOCAL, batch_size=b)),
  "fedprox": lambda m, b: federated(fedprox(m, mu=0.1, **LOCAL, batch_size=b)),
  "superfed_mm": lambda m, b: federated(superfed(m, start_round=2, **LOCAL, batch_size=b)),
  "superfed_lm": lambda m, b: federated(
    superfed(m, granularity="layer", start_round=2, **LOCAL, batch_size=b)
  ),
  **{
    name: functools.partial(lambda mix, m, b: federated(fedavg(m, **LOCAL, batch_size=b), mix()), mix)
    for name, mix in MIXINGS.items()
  },
  "adam": lambda m, b: federated(fedavg(m, **LOCAL, batch_size=b), server=server.adam(lr=0.1)),
  "fedevg": lambda m, b: federated(
    fedevg(m, per_class=1, lam=0.0, epochs=EPOCHS, batch_size=b, bounded=False),
    server=server.sgld(ROUNDS, bounded=False),
  ),
  "fedevg, persistent": lambda m, b: federated(
    fedevg(m, per_class=1, energy="raw", persistent=True, lam=0.0, epochs=EPOCHS, batch_size=b),
    server=server.sgld(ROUNDS, step_size=1.0),
  ),
  "fedcvae": lambda m, b: federated(fedcvae(CVAE, epochs=EPOCHS, batch_size=b)),
  "fedcgan": lambda m, b: federated(fedcgan(CGAN, epochs=EPOCHS, batch_size=b)),
  "part: control variate": lambda m, b: federated(scaffold(m, COHORT / len(SIZES), batch_size=b)),
  "part: Gram mixing": lambda m, b: federated(fedavg(m, **LOCAL, batch_size=b), gram()),
  "part: synthetic data": lambda m, b: federated(synthesis(m, batch_size=b), server=sgld()),
  "part: endpoints": lambda m, b: federated(simplex(m, batch_size=b)),
}
BATCH = 4
GENERATIVE = ("fedcvae", "fedcgan")
every_method = pytest.mark.parametrize("method", METHODS)


def host(state: State) -> State:
  """A state's copy as plain NumPy arrays, its key as raw data."""
  return jax.tree.map(np.array, state._replace(key=jax.random.key_data(state.key)))


def equal(a, b):
  """Bit for bit."""
  assert jax.tree.structure(a) == jax.tree.structure(b)
  jax.tree.map(np.testing.assert_array_equal, a, b)


def close(a, b, rtol=1e-5, atol=2e-6):
  assert jax.tree.structure(a) == jax.tree.structure(b)
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), a, b)


class Run:
  """A method's run that the others are compared with: one device, one client at a time, one chunk."""

  def __init__(self, method: str):
    algorithm = METHODS[method](mlp(), BATCH)
    self.traces = 0

    def update(*args):
      self.traces += 1
      return algorithm.client.update(*args)

    self.algorithm = algorithm._replace(client=algorithm.client._replace(update=update))
    self.data = federation(SIZES)
    self.engine = self.make(devices=1, client_batch=1)
    first = self.engine.init(jax.random.key(5))
    self.first = host(first)
    state, self.infos = self.engine.advance(first, ROUNDS)
    self.last = host(state)
    self.evaluation = self.engine.evaluate(state)

  def make(self, **settings) -> Engine:
    return Engine(self.algorithm, self.data, COHORT, **settings)

  def place(self, state: State, engine: Engine | None = None) -> State:
    """A host state on an engine's devices."""
    engine = engine or self.engine
    state = state._replace(key=jax.random.wrap_key_data(jnp.asarray(state.key)))
    return jax.device_put(state, engine.shardings(state))


@functools.cache
def run_of(method: str) -> Run:
  return Run(method)


@pytest.fixture(params=METHODS)
def run(request) -> Run:
  return run_of(request.param)


def test_something_was_trained(run):
  """Or the comparisons below would compare nothing."""
  moved = [
    np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (run.first.broadcast, run.last.broadcast)))
  ]
  assert min(moved) > 1e-3
  assert set(run.infos.clients.steps.ravel()) >= {EPOCHS, EPOCHS * 3}


def test_chunked_is_whole(run):
  state, one = run.engine.advance(run.place(run.first), 1)
  state, rest = run.engine.advance(state, 3)
  equal(host(state), run.last)
  equal(jax.tree.map(lambda *parts: np.concatenate(parts), one, rest), run.infos)


def test_resumed_is_uninterrupted(run):
  state, _ = run.engine.advance(run.place(run.first), 2)
  saved = host(state)
  del state
  engine = run.make(devices=1, client_batch=1)  # a new process would start with these two lines
  state, infos = engine.advance(run.place(saved, engine), ROUNDS - 2)
  equal(host(state), run.last)
  equal(infos, jax.tree.map(lambda leaf: leaf[2:], run.infos))


def test_later_chunks_are_not_traced_again(run):
  before = run.traces
  assert before > 0
  state, _ = run.engine.advance(run.place(run.first), 2)
  run.engine.evaluate(state)
  for length in (1, 3):
    state, _ = run.engine.advance(state, length)
  run.engine.evaluate(state)
  assert run.traces == before
  assert len(run.engine._compiled) == 2


def test_where_a_client_lies_is_irrelevant(run):
  order = np.random.default_rng(0).permutation(len(SIZES))
  moved = federation(SIZES, order=order)
  assert not np.array_equal(moved.train.start, run.data.train.start)
  engine = copy.copy(run.engine)  # with the same compiled programs
  engine.data, engine.examples = moved, Resident(moved, engine.mesh)
  state, infos = engine.advance(run.place(run.first), ROUNDS)
  equal((host(state), infos, engine.evaluate(state)), (run.last, run.infos, run.evaluation))


@pytest.mark.parametrize(
  "run, devices, client_batch",
  [
    (name, *where)
    for name in METHODS
    for where in [(2, 3), (8, 1)]
    if where == (8, 1) or name not in MIXINGS  # which map nothing over clients themselves
  ],
  indirect=["run"],
)
def test_devices_and_clients_at_once_are_irrelevant(run, devices, client_batch):
  """One after another or many at a time, on one device or eight (`test_engine` tries every combination)."""
  engine = run.make(devices=devices, client_batch=client_batch)
  assert engine.mesh.size == devices
  state, infos = engine.advance(run.place(run.first, engine), ROUNDS)
  np.testing.assert_array_equal(infos.cohort, run.infos.cohort)
  close((host(state), infos), (run.last, run.infos))
  if devices == 8:
    close(engine.evaluate(state), run.evaluation)
    equal(host(engine.init(jax.random.key(5))), run.first)


def plain_round(algorithm, data, state, order=None):
  """One round as a Python loop over the cohort, visited in `order`: (state, infos of the clients)."""
  client, mixing, server = algorithm
  cohort, keys, server_key = round_draws(state, data.num_clients, COHORT)
  cohort = cohort if order is None else [cohort[slot] for slot in order]
  own_states = [jax.tree.map(lambda leaf: leaf[i], state.clients) for i in cohort]
  results = [
    client.update(keys[i], state.broadcast, own, one_client(data, i), state.round)
    for i, own in zip(cohort, own_states)
  ]
  uploads, own_states, infos = (
    jax.tree.map(lambda *leaves: jnp.stack(leaves), *part) for part in zip(*results)
  )
  ids = jnp.asarray(cohort)
  losses = lambda: jnp.stack([client.loss(state.broadcast, one_client(data, i)) for i in cohort])  # noqa: E731
  feedback = Feedback(ids, data.train.size[ids], state.round, losses, uploads, state.broadcast)
  p, mixing_state = mixing.update(state.mixing, feedback)
  aggregate = jax.tree.map(lambda leaf: jnp.tensordot(p, leaf, 1), uploads)
  if mixing.scale:
    weights, base = p * mixing.scale(feedback), state.broadcast.params
    total = lambda leaf, base: base * (1.0 - weights.sum()) + jnp.tensordot(weights, leaf, 1)  # noqa: E731
    aggregate = aggregate._replace(params=jax.tree.map(total, uploads.params, base))
  broadcast, server_state = server.update(server_key, state.server, state.broadcast, aggregate)
  clients = jax.tree.map(lambda everybody, some: everybody.at[ids].set(some), state.clients, own_states)
  return State(state.key, state.round + 1, broadcast, server_state, mixing_state, clients), infos


def test_mapping_is_a_loop_over_single_clients_in_any_order(run):
  algorithm = run.algorithm._replace(
    client=run.algorithm.client._replace(update=jax.jit(run.algorithm.client.update))
  )
  state = run.place(run.first)
  for t in range(ROUNDS):
    order = np.random.default_rng(t).permutation(COHORT) if t else np.arange(COHORT)
    state, infos = plain_round(algorithm, run.data, state, order)
    close(infos, jax.tree.map(lambda leaf: leaf[t, order], run.infos.clients))
  close(host(state), run.last)


@pytest.mark.parametrize("run", sorted(set(METHODS) - {*MIXINGS, "adam"}), indirect=True)
def test_jit_is_eager(run):
  """Two small clients, one before and one after a change of course; for each client part once."""
  client = run.algorithm.client
  for state, i in ((run.first, 1), (run.last, 3)):
    state = run.place(state)
    own = jax.tree.map(lambda leaf: leaf[i], state.clients)
    args = (jax.random.key(1), state.broadcast, own, one_client(run.data, i), state.round)
    with jax.disable_jit():
      eager = client.update(*args)
    close(jax.jit(client.update)(*args), eager)


@every_method
def test_zero_gradients_give_finite_numbers(method):
  """All-zero examples, all-zero models, a constant loss."""
  model = mlp()
  still = model._replace(
    init=lambda key: jax.tree.map(jnp.zeros_like, model.init(key)), apply=lambda p, x: 0.0 * model.apply(p, x)
  )
  data = federation(SIZES)
  data = dataclasses.replace(data, x=jnp.zeros_like(data.x))
  engine = Engine(METHODS[method](still, BATCH), data, COHORT, devices=1)
  state, infos = engine.advance(engine.init(jax.random.key(5)), ROUNDS)
  results = (host(state), infos.clients, infos.coefficients, engine.evaluate(state))
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(results))
  if method not in GENERATIVE:  # whose model is another
    np.testing.assert_allclose(infos.clients.loss, np.log(3), rtol=1e-6)


@pytest.mark.parametrize("method", sorted(set(METHODS) - {*MIXINGS, "adam"}))
def test_tiny_clients_and_large_batches_are_safe(method):
  """Clients of one to three examples, all of them in each batch: how much room it has left is irrelevant."""
  data = federation((1, 3, 2, 1, 3, 1))
  results = []
  for batch_size in (3, 64):
    engine = Engine(METHODS[method](mlp(), batch_size), data, COHORT, devices=1)
    state, infos = engine.advance(engine.init(jax.random.key(6)), ROUNDS)
    assert (infos.clients.steps == EPOCHS).all()
    results.append((host(state), infos))
    finite = (host(state), infos.clients, infos.coefficients)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(finite))
  close(*results)
