"""All clients' metrics on their own local data, with their personalised models and the global one."""

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
from fedjax_het.parts import ClientUpdate, Context
from fedjax_het.tasks import Task

PyTree = Any
ROWS_AT_ONCE = 512
OUTPUTS_AT_ONCE = 2**21  # numbers: fewer rows where a row's outputs are many, as a text's


class Evaluation(NamedTuple):
  """Metrics of every client: each dict maps a metric's name to float32 values.

  Attributes:
    personalized: values [K, M], a column for each of the client part's `lambdas`.
    global_: values [K], of the server's own model; empty where there is none.
  """

  personalized: dict[str, Any]
  global_: dict[str, Any]


def rows_at_once(outputs: int) -> int:
  """How many examples may be put through a model together, each of so many outputs."""
  return min(ROWS_AT_ONCE, max(OUTPUTS_AT_ONCE // outputs, 1))


def evaluate_model(task: Task, apply, params: PyTree, data: ClientData) -> dict[str, jax.Array]:
  """Metrics of one model on one client's rows, over the whole set at once, of outputs a block at a time.

  A client smaller than the largest skips the blocks that it lacks.
  """

  @functools.partial(jax.jit, inline=True)  # Python goes through it once
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
  """Whether two trees have the same array in each place, not only equal ones."""
  ours, theirs = jax.tree.leaves_with_path(first), jax.tree.leaves_with_path(second)
  if len(ours) != len(theirs):
    return False
  return all(place == other and one is another for (place, one), (other, another) in zip(ours, theirs))


def evaluate_clients(
  client: ClientUpdate,
  mesh: Mesh | None,
  cohort_size: int,
  client_batch: int | None,
  part: str,
  data: FederatedData,
  state: State,
  ids: jax.Array | None = None,
) -> Evaluation:
  """Evaluates clients `ids` (None: all), whose states `state` has, on their `part` of the data.

  The part is "train", "valid" or "test".
  """
  lambdas = jnp.asarray(client.studies.lambdas, jnp.float32)
  everybody = jnp.arange(data.num_clients) if ids is None else ids
  view, training = data.clients(everybody, part), data.clients(everybody)

  def one(shared, own: ClientData, i: jax.Array, slices: tuple[jax.Array, jax.Array], own_state: PyTree):
    broadcast, round = shared
    rows = dataclasses.replace(training, x=own.x, y=own.y, start=slices[0], size=slices[1])
    context = Context(i, round, cohort_size, data.num_clients)

    def judged(params: PyTree) -> dict[str, jax.Array]:
      return evaluate_model(client.task, client.apply, params, own)

    def personal(lam: jax.Array) -> PyTree:
      shown = client.shown("personalize", rows)
      return client.personalize(broadcast, own_state, shown, context, lam)

    each = lambda: lax.map(lambda lam: judged(personal(lam)), lambdas)  # noqa: E731
    if client.global_model is None:
      return each(), {}
    model = client.global_model(broadcast)
    values = judged(model)
    if same_arrays(personal(lambdas[0]), model):  # every client uses the global model: judged once
      return jax.tree.map(lambda value: jnp.repeat(value[None], len(lambdas), 0), values), values
    return each(), values

  shared, slices = (state.broadcast, state.round), (training.start, training.size)
  values = map_clients(one, mesh, client_batch, shared, view, everybody, slices, state.clients)
  return Evaluation(*constrain(values, mesh))


def check_losses(found: Evaluation) -> None:
  """Raises `FloatingPointError` for a loss that is not finite, of a client that has any metric.

  The metrics of a client without examples are NaN on purpose.
  """
  for model, values in (("personalized", found.personalized), ("global", found.global_)):
    if not values:
      continue
    known = np.any([~np.isnan(own) for own in values.values()], axis=0)
    bad = np.argwhere(known & ~np.isfinite(values["loss"]))
    if len(bad):
      value, place = values["loss"][tuple(bad[0])], bad[0].tolist()
      raise FloatingPointError(f"invalid value ({value}) in the evaluation: the {model} loss at {place}")


def parts_seen(client: ClientUpdate, part: str) -> tuple[str, ...]:
  """The parts of the data that an evaluation on `part` looks at."""
  return (part, "train") if "personalize" in client.needs.sees_data and part != "train" else (part,)
