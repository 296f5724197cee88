"""The server of a deployment: samples nodes, mixes what they send, moves, and judges by what they report."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.data.container import FederatedData, Part
from fedjax_het.engine.checks import check_simplex
from fedjax_het.engine.cohort import cohort_of
from fedjax_het.engine.divergence import check_finite, divergence, finite_here
from fedjax_het.engine.evaluate import Evaluation
from fedjax_het.engine.lambda_selection import Evaluations
from fedjax_het.engine.round import RoundInfo, server_step
from fedjax_het.engine.run import judged
from fedjax_het.engine.state import State, first_state
from fedjax_het.engine.trained import example_of
from fedjax_het.errors import SettingError
from fedjax_het.flower.arrays import Arrays, Parcel, of_arrays, to_arrays
from fedjax_het.flower.deployment import Deployment
from fedjax_het.flower.node import first_message, start, work
from fedjax_het.metrics.late import is_due
from fedjax_het.modes import in_float32
from fedjax_het.parts import Feedback, Message, Sent

PyTree = Any
AskFn = Callable[[str, Mapping[int, Parcel]], dict[int, Parcel]]


@in_float32()
def serve(
  deployment: Deployment,
  about: Mapping[int, Mapping[str, Any]],
  ask: AskFn,
  tell: Callable[[dict[str, Any]], None],
) -> State:
  """Runs all rounds from the server's side, and returns the final state, without the clients' states.

  Args:
    deployment: what is run.
    about: each client's answer to `query`.
    ask: (kind, requests by client) -> their answers; returns when all have answered.
    tell: called with each evaluation, a dict as a line of metrics.jsonl: `round`, `train_loss`, `metrics`,
      and `valid` where clients have validation parts.

  Raises:
    SettingError: the nodes' rows have different forms, or coefficients are wrong.
    NonFiniteLoss: the run diverged.
  """
  made = deployment.checked()
  algorithm, _, count, rounds, key, *_ = made
  server, raw = algorithm.server, jax.random.key_data(key)
  sizes = np.array([about[k]["size"] for k in range(count)], np.int32)
  step, like = _compiled_step(deployment, sizes, _form({about[k]["rows"] for k in range(count)}, count))
  state, own = deployment.compiled(_begin)(key, sizes), deployment.compiled(_received)
  trained, losses = dict.fromkeys(range(count), 0), []

  def request(k: int) -> Parcel:
    sent = Sent(state.broadcast, () if server.send is None else own(state, jnp.int32(k)))
    said = {"key": [*map(int, np.asarray(raw))], "round": int(state.round), "trained": trained[k]}
    return to_arrays(sent), {**said, "losses": bool(jax.tree.leaves(like[2]))}

  for t in range(rounds):
    cohort = np.asarray(cohort_of(state.key, state.round, count, deployment.size))
    answers = ask("train", {k: request(k) for k in cohort.tolist()})
    each = [of_arrays(answers[k][0], like, f"The upload of client {k}") for k in cohort.tolist()]
    sent = jax.tree.map(lambda *rows: np.concatenate(rows), *each)
    state, coefficients = step(state, cohort, sizes[cohort], sent)
    check_simplex(np.asarray(coefficients))
    info = jax.tree.map(
      lambda leaf: np.asarray(leaf)[None], RoundInfo(jnp.asarray(cohort), coefficients, None, sent[1])
    )
    check_finite(divergence(t, info, finite_here(state.broadcast)))
    trained |= dict.fromkeys(cohort.tolist(), t + 1)
    losses.append(float(sent[1].loss.mean()))
    if is_due(t + 1, rounds, deployment.eval_every):
      found = ask("evaluate", {k: request(k) for k in range(count)})
      evaluations = _joined([found[k][0] for k in range(count)], algorithm.client.task.headline)
      tell({"round": t + 1, "train_loss": float(np.mean(losses)), **judged(evaluations)})
      losses = []
  return state


def _compiled_step(deployment: Deployment, sizes: np.ndarray, data: FederatedData) -> tuple[Any, PyTree]:
  """Returns the program of what follows local training, and the form of what a node sends.

  Args:
    deployment: what is run.
    sizes: the clients' numbers of training examples, int32 [K].
    data: the shapes of their data.

  Returns:
    (state, cohort, its sizes, (uploads, infos, F or ()) stacked) -> (state, coefficients); and the shapes of
    one client's (upload, info, F or ()), each leaf [1, ...].
  """
  size, count, asked = deployment.size, len(sizes), []

  def step(
    made: Deployment, state: State, cohort: jax.Array, sizes: jax.Array, sent: PyTree
  ) -> tuple[State, jax.Array]:
    uploads, info, found = sent

    def losses() -> jax.Array:
      asked.append(True)
      return jnp.zeros(len(cohort)) if isinstance(found, tuple) else found

    now, before = state.round, state.broadcast
    feedback = Feedback(cohort, sizes, now, losses, lambda: uploads, before, None, info.steps)
    # Nodes keep their states, and a network shows who is asked: nothing is promised of who takes part.
    sampling = made.algorithm.participation.sampled(count, size, keeps_state=True)
    return server_step(made.algorithm, None, state, feedback, uploads, count, sampling=sampling)

  def shapes(clients: int, losses: bool) -> tuple[State, PyTree]:
    def first(made: Deployment, data: FederatedData) -> tuple[State, PyTree]:
      ids, raw = jnp.arange(clients, dtype=jnp.int32), jax.random.key_data(made.key)
      state, message = start(made, data, ids, raw), first_message(made.algorithm, made.key)
      return state, work(made, data, state._replace(server=message.server), ids, losses)[0]

    return deployment.shapes(first, data)

  state, sent = shapes(size, False)
  deployment.shapes(step, state._replace(clients=()), np.arange(size), np.arange(size), sent)
  return deployment.compiled(step), shapes(1, bool(asked))[1]


def _begin(made: Deployment, key: jax.Array, sizes: jax.Array) -> State:
  """Returns the first state, without those of the clients."""
  return first_state(made.algorithm, key, sizes, made.size, lambda *_: ())


def _received(made: Deployment, state: State, i: jax.Array) -> Message:
  """Returns client i's own message."""
  server = made.algorithm.server
  return server.received(server.sent(state.broadcast, state.server), i)


def _form(rows: set[str], count: int) -> FederatedData:
  """Returns the shapes of K clients' data from what the nodes say of an example and its label."""
  if len(rows) > 1:
    raise SettingError("data", sorted(rows), "are the nodes' rows, of different forms", "Give all the same.")
  x, y = jax.tree.map(
    lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), example_of(json.loads(min(rows)))
  )
  part = Part(*(jax.ShapeDtypeStruct((count,), jnp.int32) for _ in range(2)))  # type: ignore[arg-type]
  return FederatedData(x, y, part, part, part, 1, (1, 1, 1), (False, False, False))


def _joined(answers: list[Arrays], headlines: tuple[str, ...]) -> Evaluations:
  """Returns the evaluations of all clients; a metric that a client does not report is NaN."""
  shapes = {name: own.shape for arrays in answers for name, own in arrays.items()}

  def seen(part: str) -> Evaluation | None:
    found: tuple[dict[str, Any], ...] = ({}, {})
    for name, shape in shapes.items():
      of, model, metric = name.split("/")
      if of == part:
        rows = [arrays.get(name, np.full(shape, np.nan)) for arrays in answers]
        found[Evaluation._fields.index(model)][metric] = np.stack(rows).astype(np.float64)
    return Evaluation(*found) if found[0] else None

  test = seen("test")
  if test is None:
    raise SettingError("data", None, "no node has test examples", "Give one at least some.")
  return Evaluations(test, seen("valid"), headlines)
