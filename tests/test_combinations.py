"""Plug and play: every mixing with every client update and every server."""

import functools

import jax
import numpy as np
import pytest
from jax import lax
from parts import federation, linear

from fedjax_het.clients.sgd import fedavg, fedprox
from fedjax_het.clients.superfed import superfed
from fedjax_het.engine.round import round_step
from fedjax_het.experiment import build
from fedjax_het.experiment.build import MIXINGS
from fedjax_het.federated import Mixing, ServerUpdate, federated, init

LOCAL = dict(lr=0.1, epochs=1, batch_size=4)
SERVERS = {name: make for name, make in build.SERVERS.items() if name != "sgld"}  # which is FedEvg's
CLIENTS = {
  "fedavg": lambda: fedavg(linear(), **LOCAL),
  "fedprox": lambda: fedprox(linear(), mu=0.1, **LOCAL),
  "superfed": lambda: superfed(linear(), start_round=1, **LOCAL),
}


def choose(which, parts, call, states):
  """`call(part, its state)` for the part of number `which`, a traced one: (answer, all parts' states)."""

  def branch(i):
    def run(states):
      answer, state = call(parts[i], states[i])
      return answer, (*states[:i], state, *states[i + 1 :])

    return run

  return lax.switch(which, [branch(i) for i in range(len(parts))], states)


@functools.cache
def program(of_client):
  """(first state, compiled round): which mixing and server is data, so that 36 pairs are one program."""
  mixings = [make() for make in MIXINGS.values()]
  servers = [make() for make in SERVERS.values()]
  data = federation((6, 3, 9, 4))

  def algorithm(mixing, server):
    def mix(states, feedback):
      losses = feedback.losses()
      feedback = feedback._replace(losses=lambda: losses)
      return choose(mixing, mixings, lambda part, state: part.update(state, feedback), states)

    def scale(feedback):
      everyone = [part.scale or (lambda feedback: jax.numpy.ones(feedback.sizes.shape)) for part in mixings]
      return lax.switch(mixing, [lambda of=of: of(feedback) for of in everyone])

    def serve(key, states, broadcast, aggregate):
      call = lambda part, state: part.update(key, state, broadcast, aggregate)  # noqa: E731
      return choose(server, servers, call, states)

    return federated(
      CLIENTS[of_client](),
      Mixing(lambda sizes: tuple(part.init(sizes) for part in mixings), mix, scale=scale),
      ServerUpdate(lambda broadcast: tuple(part.init(broadcast) for part in servers), serve),
    )

  def step(mixing, server, state):
    return round_step(algorithm(mixing, server), None, len(data.train.size), None, data, state)

  return init(algorithm(0, 0), jax.random.key(0), data.train.size), jax.jit(step)


@pytest.mark.slow
@pytest.mark.parametrize("of_server", SERVERS)
@pytest.mark.parametrize("of_client", CLIENTS)
@pytest.mark.parametrize("of_mixing", MIXINGS)
def test_every_combination_runs(of_mixing, of_client, of_server):
  first, step = program(of_client)
  mixing, server = list(MIXINGS).index(of_mixing), list(SERVERS).index(of_server)
  state = first
  for _ in range(2):
    state, info = step(mixing, server, state)
  p = np.asarray(info.coefficients, np.float64)
  assert (p >= 0).all() and p.sum() == pytest.approx(1.0, abs=1e-6)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state._replace(key=()), info)))
  moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), state.broadcast, first.broadcast)
  assert min(jax.tree.leaves(moved)) > 0
  for chosen, was, states in ((mixing, first.mixing, state.mixing), (server, first.server, state.server)):
    for i, (a, b) in enumerate(zip(was, states)):
      changed = any((x != y).any() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b)))
      assert changed == (i == chosen and len(jax.tree.leaves(a)) > 0)
