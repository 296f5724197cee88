"""Evaluates all clients on their local data, with their personalised models and the global model."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from fedjax_het.data.container import ClientData, FederatedData
from fedjax_het.engine.placement import constrain, map_clients
from fedjax_het.engine.state import State
from fedjax_het.parts import ClientUpdate, Context, ServerUpdate
from fedjax_het.tasks import Task

PyTree = Any
ROWS_AT_ONCE = 512
OUTPUTS_AT_ONCE = 2**21  # numbers; fewer rows if each has many outputs, as in language models


class Evaluation(NamedTuple):
  """Metrics of every client: dicts from a metric's name to values, float32 in a program.

  What `Runs.evaluate` returns is float64, and NaN for clients that were not evaluated.

  Attributes:
    personalized: values [K, M] of the personalised models, a column for each of `Studies.lambdas`.
    global_: values [K] of the server's model; empty if the method has none.
  """

  personalized: dict[str, Any]
  global_: dict[str, Any]


def itself(client: ClientUpdate) -> ClientUpdate:
  """Returns the client part unchanged."""
  return client


def rows_at_once(outputs: int) -> int:
  """Returns how many examples a model is applied to at once, given the number of outputs of each."""
  return min(ROWS_AT_ONCE, max(OUTPUTS_AT_ONCE // outputs, 1))


def evaluate_model(task: Task, apply, params: PyTree, data: ClientData) -> dict[str, jax.Array]:
  """Evaluates one model on one client's rows; the model is applied block by block, and scores are joined.

  A client with fewer rows than the largest skips blocks without rows.
  """

  @functools.partial(jax.jit, inline=True)  # traced once
  def scores(index: jax.Array) -> PyTree:
    x, y = data.take(index)
    return task.scores(apply(params, x), y)

  rows = jnp.arange(max(data.limit, 1))
  outputs = jax.eval_shape(lambda: apply(params, data.take(rows[:1])[0])).size
  at_once = data.block(rows_at_once(outputs))
  if data.limit <= at_once:
    found = scores(rows)
  else:
    block = jnp.arange(at_once)

    def fill(i: jax.Array, found: PyTree) -> PyTree:
      put = functools.partial(lax.dynamic_update_slice_in_dim, start_index=i * at_once, axis=0)
      return jax.tree.map(put, found, scores(i * at_once + block))

    room = -(-data.limit // at_once) * at_once
    shapes = jax.eval_shape(scores, block)
    empty = jax.tree.map(lambda leaf: jnp.zeros((room, *leaf.shape[1:]), leaf.dtype), shapes)
    found = lax.fori_loop(0, -(-data.length // at_once), fill, empty)
    found = jax.tree.map(lambda leaf: leaf[: data.limit], found)
  return task.metrics(found, data.take(rows)[1], rows < data.size)


def same_arrays(first: PyTree, second: PyTree) -> bool:
  """Returns whether two trees hold the same array objects in the same places."""
  ours, theirs = jax.tree.leaves_with_path(first), jax.tree.leaves_with_path(second)
  if len(ours) != len(theirs):
    return False
  return all(place == other and one is another for (place, one), (other, another) in zip(ours, theirs))


def evaluate_clients(
  client: ClientUpdate,
  server: ServerUpdate,
  mesh: Mesh | None,
  cohort_size: int,
  client_batch: int | None,
  part: str,
  data: FederatedData,
  state: State,
  ids: jax.Array | None = None,
) -> Evaluation:
  """Evaluates clients on a part of their data, with personalised models and the global model.

  Args:
    client: the client part.
    server: the server part, which says what each client receives.
    mesh: the devices; None for the one that runs this.
    cohort_size: S.
    client_batch: clients that a device evaluates at once; None for all.
    part: "train", "valid" or "test".
    data: all clients' data.
    state: the state, whose `clients` are the states of the evaluated clients.
    ids: the evaluated clients' indices; None for all.
  """
  lambdas = jnp.asarray(client.studies.lambdas, jnp.float32)
  everybody = jnp.arange(data.num_clients) if ids is None else ids
  view = data.clients(everybody, part)
  shown_parts = {name: data.clients(everybody, name) for name in ("train", *beside(client)[1:])}

  def one(shared, own: ClientData, i: jax.Array, slices: dict[str, Any], own_state: PyTree):
    (sent, round), broadcast = shared, server.received(shared[0], i)
    found = {
      name: dataclasses.replace(each, x=own.x, y=own.y, start=slices[name][0], size=slices[name][1])
      for name, each in shown_parts.items()
    }
    rows = dataclasses.replace(found["train"], validation=found.get("valid"))
    context = Context(i, round, cohort_size, data.num_clients)

    def judged(params: PyTree) -> dict[str, jax.Array]:
      return evaluate_model(client.task, client.apply, params, own)

    def personal(lam: jax.Array) -> PyTree:
      shown = client.shown("personalize", rows)
      return client.personalize(broadcast, own_state, shown, context, lam)

    each = lambda: lax.map(lambda lam: judged(personal(lam)), lambdas)  # noqa: E731
    if client.global_model is None:
      return each(), {}
    model = client.global_model(sent.broadcast)
    values = judged(model)
    if same_arrays(personal(lambdas[0]), model):  # every client uses the global model: evaluated once
      return jax.tree.map(lambda value: jnp.repeat(value[None], len(lambdas), 0), values), values
    return each(), values

  shared = server.sent(state.broadcast, state.server), state.round
  slices = {name: (each.start, each.size) for name, each in shown_parts.items()}
  values = map_clients(one, mesh, client_batch, shared, view, everybody, slices, state.clients)
  return Evaluation(*constrain(values, mesh))


def chosen(clients: np.ndarray, least: int = 1) -> np.ndarray:
  """Returns the indices of the clients that a program evaluates, int32 [n], for a choice of clients.

  Of several runs these are the clients that any of them chose. n is the largest number of clients of a run,
  at least `least`, times a power of two, and at most K, so that a program serves several choices: the last
  index is repeated.

  Args:
    clients: which clients are chosen, bool [K], or [M, K] for M runs.
    least: least number of indices, >= 1.
  """
  rows = np.asarray(clients).reshape(-1, clients.shape[-1])
  ids = np.flatnonzero(rows.any(0)).astype(np.int32)
  if not len(ids):  # in a round in which no upload arrived
    ids = np.zeros(1, np.int32)
  room = max(int(rows.sum(1).max()), least)
  while room < len(ids):
    room *= 2
  return ids[np.minimum(np.arange(min(room, rows.shape[1])), len(ids) - 1)]


def spread(found: Evaluation, ids: np.ndarray, clients: np.ndarray) -> Evaluation:
  """Returns the metrics of all K clients, NaN for those that were not chosen, from those of some.

  Args:
    found: metrics of the clients `ids`, [n, ...], or [M, n, ...] for M runs.
    ids: the clients' indices, int32 [n].
    clients: which clients are chosen, bool [K], or [M, K].
  """
  axis = clients.ndim - 1
  places: tuple[Any, ...] = (*[slice(None)] * axis, ids)

  def everybody(leaf: np.ndarray) -> np.ndarray:
    whole = np.full((*leaf.shape[:axis], clients.shape[-1], *leaf.shape[axis + 1 :]), np.nan)
    whole[places] = leaf
    return np.where(clients.reshape(*clients.shape, *[1] * (whole.ndim - axis - 1)), whole, np.nan)

  return jax.tree.map(everybody, found)


def check_losses(found: Evaluation) -> None:
  """Raises `FloatingPointError` for a non-finite loss of a client that has some finite metric.

  All metrics of a client without examples are NaN on purpose.
  """
  for model, values in (("personalized", found.personalized), ("global", found.global_)):
    if not values:
      continue
    known = np.any([~np.isnan(own) for own in values.values()], axis=0)
    bad = np.argwhere(known & ~np.isfinite(values["loss"]))
    if len(bad):
      value, place = values["loss"][tuple(bad[0])], bad[0].tolist()
      raise FloatingPointError(f"invalid value ({value}) in the evaluation: the {model} loss at {place}")


def beside(client: ClientUpdate) -> tuple[str, ...]:
  """Returns the parts of a client's data that `personalize` reads: none, "train", or "train" and "valid"."""
  if "personalize" not in client.needs.sees_data:
    return ()
  return ("train", "valid") if "validation" in client.needs.sees_data else ("train",)


def parts_seen(client: ClientUpdate, part: str) -> tuple[str, ...]:
  """Returns the parts of the data that an evaluation on `part` reads."""
  return tuple(dict.fromkeys((part, *beside(client))))
