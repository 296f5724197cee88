"""A node of a deployment: one client, its rows and state, and the work that the engine does for a client."""

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.data.container import FederatedData, Part
from fedjax_het.data.untrusted import read_arrays
from fedjax_het.engine.border import checked_clients, checked_loss
from fedjax_het.engine.checks import check_fit
from fedjax_het.engine.cohort import round_keys
from fedjax_het.engine.evaluate import Evaluation, evaluate_clients
from fedjax_het.engine.placement import map_clients
from fedjax_het.engine.shown import shown_validation
from fedjax_het.engine.state import State, first_state, in_batches, init_client
from fedjax_het.engine.trained import described
from fedjax_het.errors import DataError, SettingError
from fedjax_het.flower.arrays import Arrays, Parcel, of_arrays, to_arrays
from fedjax_het.flower.deployment import Deployment
from fedjax_het.modes import in_float32
from fedjax_het.parts import Algorithm, Context, Message, Sent
from fedjax_het.vectors import form_of_one
from fedjax_het.workdir.folder import written_at_once

PyTree = Any
PLACE = "partition-id"  # the field of a node's configuration that says which client it is


def at_place(data: FederatedData, i: int, num_clients: int) -> FederatedData:
  """Returns one client's data as those of client i of K, the others without rows; of K clients unchanged."""
  if data.num_clients == num_clients:
    return data
  if data.num_clients != 1:
    problem = f"the data have {data.num_clients} clients, and the deployment {num_clients}"
    raise SettingError("num_clients", num_clients, problem, "Give the rows of one client, or of all.")

  def alone(part: Part) -> Part:
    start, size = (np.where(np.arange(num_clients) == i, own, 0).astype(np.int32) for own in part)
    return Part(start, size)

  return dataclasses.replace(data, train=alone(data.train), valid=alone(data.valid), test=alone(data.test))


def first_message(algorithm: Algorithm, key: jax.Array) -> Sent:
  """Returns a message in the form of every message to a node: the broadcast, and the client's own, if any."""
  broadcast = algorithm.client.init_broadcast(key)
  return Sent(broadcast, () if algorithm.server.send is None else broadcast)


def start(deployment: Deployment, data: FederatedData, ids: jax.Array, raw: jax.Array) -> State:
  """Returns a run's first state with the states of the clients `ids` alone, as the engine makes them."""
  algorithm, _, count, *_ = deployment

  def clients(key: jax.Array, broadcast: Message) -> PyTree:
    def own(i: jax.Array) -> PyTree:
      context = Context(i, jnp.int32(0), deployment.size, count)
      return init_client(algorithm.client, key, broadcast, data.clients(i), context)

    return in_batches(own, ids, count)

  return first_state(
    algorithm, jax.random.wrap_key_data(raw), jnp.asarray(data.train.size), deployment.size, clients
  )


def work(
  deployment: Deployment, data: FederatedData, state: State, ids: jax.Array, losses: bool
) -> tuple[PyTree, PyTree]:
  """Computes the round's work of the clients `ids`, int32 [n], as the engine does.

  Args:
    deployment: what is run.
    data: the data, which have the rows of these clients.
    state: of the run: its key, round, and the clients' states [n, ...]; what each was sent, see `addressed`.
    ids: the clients.
    losses: whether the mixing part asks for F_i.

  Returns:
    ((uploads, infos, F or ()), new states), each leaf [n, ...].
  """
  client = shown_validation(deployment.algorithm.client, data)
  server = addressed(deployment.algorithm).server
  view, key = data.clients(ids), round_keys(state.key, state.round)[1]
  keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(ids)

  def context(i: jax.Array, round: jax.Array) -> Context:
    return Context(i, round, deployment.size, deployment.num_clients)

  def train(shared, own, i, key, own_state):
    sent, round = shared
    return client.update(key, server.received(sent, i), own_state, own, context(i, round))

  def loss(shared, own, i, own_state):
    sent, round = shared
    return checked_loss(client.loss(server.received(sent, i), own_state, own, context(i, round)))

  shared, before = (server.sent(state.broadcast, state.server), state.round), state.clients
  trained = map_clients(train, None, 1, shared, view, ids, keys, before)
  uploads, after, info = checked_clients(client, state.broadcast, before, trained)
  return (uploads, info, map_clients(loss, None, 1, shared, view, ids, before) if losses else ()), after


def addressed(algorithm: Algorithm) -> Algorithm:
  """Returns the algorithm at a node, where the server's state is the client's message, if it has its own."""
  if algorithm.server.send is None:
    return algorithm
  server = algorithm.server._replace(send=lambda message, broadcast, i: message)
  return algorithm._replace(server=server)


def judge(deployment: Deployment, data: FederatedData, state: State, ids: jax.Array, part: str) -> Evaluation:
  """Evaluates the clients `ids`, int32 [n], on "test" or "valid", as the engine does; see `work`."""
  client, _, server, *_ = addressed(deployment.algorithm)
  return evaluate_clients(client, server, None, deployment.size, 1, part, data, state, ids)


class Node:
  """Client k of a deployment: answers the server's requests, and keeps the client's state in a folder.

  The state after round t is one file, written at once. The one before is kept too, so that a round that is
  asked for twice, because its answer was lost, has the same upload.

  Args:
    deployment: what is run.
    config: the node's configuration: `partition-id`, which is k; `folder`, which only clients with a state
      need; and what `Deployment.data` reads.
    run: name of the run, which makes the files of several runs different.

  Raises:
    SettingError: the node's place or folder is missing, or the data do not fit the algorithm.
  """

  def __init__(self, deployment: Deployment, config: Mapping[str, Any], run: str):
    place, made = config.get(PLACE), deployment.checked()
    if type(place) is not int or not 0 <= place < deployment.num_clients:
      remedy = f"Start the node with --node-config '{PLACE}=0', 0 to {deployment.num_clients - 1}."
      raise SettingError(PLACE, place, "is no client's number", remedy)
    self.place, self._deployment, self._config, self._run = place, made, config, run
    self._data = at_place(deployment.data(config), place, deployment.num_clients)
    self._first = functools.partial(deployment.shapes, start)
    self._start, self._work = deployment.compiled(start), deployment.compiled(work, 3)
    self._judge = deployment.compiled(judge, 3)

  @property
  def ids(self) -> jax.Array:
    """The client's number as the clients of a program, int32 [1]."""
    return jnp.array([self.place], jnp.int32)

  @in_float32()
  def answer(self, kind: str, parcel: Parcel) -> Parcel:
    """Returns the answer to a request: `query`, `train` or `evaluate`."""
    if kind == "query":
      check_fit(lambda: self._deployment.algorithm, [self._data], self._deployment.size, {})
      size = int(np.asarray(self._data.train.size)[self.place])
      rows = form_of_one([self._data.x, self._data.y])
      return {}, {"client": self.place, "size": size, "rows": json.dumps(described(rows))}
    arrays, said = parcel
    state = self._before(arrays, said)
    if kind == "train":
      sent, after = self._work(self._data, state, self.ids, said["losses"])
      self._keep(said["round"] + 1, said["trained"], after)
      return to_arrays(sent), {}
    found: Arrays = {}
    for part in ("test", "valid") if self._data.limits[1] else ("test",):
      for model, values in zip(Evaluation._fields, self._judge(self._data, state, self.ids, part)):
        found |= {f"{part}/{model}/{name}": np.asarray(own[0]) for name, own in values.items()}
    return found, {}

  def _before(self, arrays: Arrays, said: Mapping[str, Any]) -> State:
    """Returns the run's state as this client knows it."""
    raw = np.array(said["key"], np.uint32)
    first = self._first(self._data, self.ids, raw)
    like = jax.eval_shape(lambda key: first_message(self._deployment.algorithm, key), jax.random.key(0))
    sent = of_arrays(arrays, like, "The server's message")
    key = jax.random.split(jax.random.wrap_key_data(jnp.asarray(raw)), 3)[2]  # as `first_state` does
    own, rounds = first.clients, said["trained"]
    if jax.tree.leaves(own) and rounds:
      own = self._read(rounds, own)
    elif jax.tree.leaves(own):
      own = self._start(self._data, self.ids, raw).clients
    return State(key, jnp.int32(said["round"]), sent.broadcast, sent.server, (), own)

  @property
  def folder(self) -> Path:
    """The folder of the client's state."""
    if not (folder := self._config.get("folder")):
      name = self._deployment.algorithm.client.name
      remedy = f"Start the node with --node-config '{PLACE}={self.place} folder=\"/path/of/its/own\"'."
      raise SettingError("folder", folder, f"clients of {name} keep a state, and need a place for it", remedy)
    return Path(str(folder)) / f"run_{self._run}" / f"client_{self.place}"

  def _read(self, rounds: int, like: PyTree) -> PyTree:
    path = self.folder / f"{rounds:06d}.npz"
    if not path.is_file():
      raise DataError(f"{path} is missing, this client's state after round {rounds}. Restore the folder.")
    return of_arrays(read_arrays(path), like, str(path))

  def _keep(self, rounds: int, before: int, state: PyTree) -> None:
    if not jax.tree.leaves(state):
      return
    self.folder.mkdir(parents=True, exist_ok=True)
    with written_at_once(self.folder / f"{rounds:06d}.npz") as file:
      np.savez(file, **to_arrays(state))  # type: ignore[arg-type]
    for path in self.folder.glob("*.npz"):
      if path.stem not in (f"{rounds:06d}", f"{before:06d}"):
        path.unlink()
