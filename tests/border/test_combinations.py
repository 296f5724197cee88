"""Plug and play: every algorithm that `federated` composes of the table's methods runs."""

import functools

import jax
import numpy as np
import pytest
from cases import client
from jax import lax
from small_parts import federation, linear, mlp

from fedjax_het.engine.engine import Engine
from fedjax_het.engine.round import round_step
from fedjax_het.federated import federated
from fedjax_het.methods import METHODS, bare, compositions, partners
from fedjax_het.parts import Mixing, ServerUpdate

ROUNDS = 2
# Client parts that are trained with all others; the programs of all are traced. Each is of another form.
TRAINED = (
  "fedavg", "scaffold", "fedper", "apfl", "superfed_mm", "sosicfl_plus", "fedevg", "fedcvae", "fedcm",
  "fedem",
)  # fmt: skip


def choose(which, parts, call, states):
  """`call(part, its state)` for the part of number `which`, a traced one: (answer, all parts' states)."""

  def branch(i):
    def run(states):
      answer, state = call(parts[i], states[i])
      return answer, (*states[:i], state, *states[i + 1 :])

    return run

  return lax.switch(which, [branch(i) for i in range(len(parts))], states)


FEATURES = (  # of a model that names its last layer
  "moon", "fedrod", "fedproto", "fedntd", "feddbe", "fedphp", "gpfl", "fedcp", "knn_per",
  "fedpac", "fedas", "fml", "fedkd", "fedgen", "fd",
)  # fmt: skip


@functools.cache
def program(of_client):
  """(first state, compiled round): which mixing and server is data, so all pairs are one program."""
  of = partners("algorithm", of_client)
  mixings, servers = ([bare(METHODS[part][name]) for name in of[part]] for part in ("mixing", "server"))
  data, of_model = (
    federation((6, 3, 9, 4)),
    client(of_client, mlp() if of_client in FEATURES else linear(), rounds=ROUNDS, num_clients=4, epochs=1,
           batch_size=4),
  )  # fmt: skip
  brought = of_model.needs.brings
  mixings = [brought["mixing"]] if "mixing" in brought else [
    part if part.adapt_to is None else part.adapt_to(of_model) for part in mixings
  ]  # fmt: skip
  servers = [brought["server"]] if "server" in brought else servers
  scales = [part.scale or (lambda feedback: jax.numpy.ones(feedback.sizes.shape)) for part in mixings]
  servers = [federated(of_model, server=part).server for part in servers]

  def algorithm(mixing, server):
    def mix(states, feedback):
      losses = feedback.losses()
      feedback = feedback._replace(losses=lambda: losses)
      return choose(mixing, mixings, lambda part, state: part.update(state, feedback), states)

    def scale(feedback):
      return lax.switch(mixing, [lambda of=of: of(feedback) for of in scales])

    def serve(key, states, broadcast, aggregate, feedback, share):
      def call(part, state):
        asked_for = [feedback] * part.takes_feedback + [share] * part.takes_share
        return part.update(key, state, broadcast, aggregate, *asked_for)

      return choose(server, servers, call, states)

    return federated(
      of_model._replace(needs=of_model.needs._replace(brings={})),
      Mixing(
        lambda sizes: tuple(part.init(sizes) for part in mixings), mix,
        scale=scale if any(part.scale for part in mixings) else None,
      ),
      ServerUpdate(
        lambda broadcast: tuple(part.init(broadcast) for part in servers), serve,
        takes_models=of_model.needs.uploads_model, takes_feedback=True, takes_share=True,
        send=servers[0].send and (lambda states, broadcast, i: servers[0].send(states[0], broadcast, i)),
      ),
    )  # fmt: skip

  def step(mixing, server, state):
    return round_step(algorithm(mixing, server), None, len(data.train.size), None, data, state)

  first = Engine(algorithm(0, 0), data, data.num_clients, devices=1).init(jax.random.key(0))
  return first, jax.jit(step), [*of["mixing"]], [*of["server"]]


@pytest.mark.slow
@pytest.mark.parametrize("of_client", [name for name in METHODS["algorithm"] if name not in TRAINED])
def test_the_other_clients_go_with_every_mixing_and_server(of_client):
  first, step, *_ = program(of_client)
  state, _ = jax.eval_shape(step, 0, 0, first)
  assert jax.tree.map(lambda leaf: leaf.shape, state) == jax.tree.map(lambda leaf: leaf.shape, first)


@pytest.mark.slow
@pytest.mark.parametrize(
  "of_client, of_mixing, of_server", [names for names in compositions() if names[0] in TRAINED]
)
def test_every_composition_runs(of_client, of_mixing, of_server):
  first, step, mixings, servers = program(of_client)
  mixing, server = mixings.index(of_mixing), servers.index(of_server)
  state = first
  for _ in range(ROUNDS):
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
