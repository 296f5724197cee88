"""Checks the shapes and dtypes that parts return, by abstract evaluation, before anything is compiled."""

from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from fedjax_het.data.container import FederatedData
from fedjax_het.engine.state import init_client
from fedjax_het.errors import SettingError
from fedjax_het.parts import Algorithm, ClientUpdate, Context, Feedback, Info, Message
from fedjax_het.tasks import Task

PyTree = Any


class Sent(NamedTuple):
  """Abstract values of a client's first round; leaves are `jax.ShapeDtypeStruct`.

  Attributes:
    broadcast: the first broadcast.
    state: the client's first state.
    sent: what its `update` returns.
  """

  broadcast: Any
  state: PyTree
  sent: Any


def check_returns(algorithm: Algorithm, data: FederatedData, cohort_size: int) -> None:
  """Raises `SettingError`, naming part and function, for a return value that a round cannot use.

  Args:
    algorithm: the parts.
    data: the clients' data.
    cohort_size: S.
  """
  client = algorithm.client
  first = first_round(client, data, cohort_size)
  check_client(client, first)
  check_mixing(algorithm, data, cohort_size, first)
  check_server(algorithm, first)


def first_round(client: ClientUpdate, data: FederatedData, cohort_size: int) -> Sent:
  """Evaluates client 0's first round abstractly; local training in pieces without its steps."""

  def local(key: jax.Array, data: FederatedData) -> Sent:
    own, context = data.clients(jnp.int32(0)), first_context(data, cohort_size)
    broadcast = client.init_broadcast(key)
    state = init_client(client, key, broadcast, own, context)
    if client.training is None:
      return Sent(broadcast, state, client.update(key, broadcast, state, own, context))
    work = client.training.start(broadcast, state, context)
    return Sent(broadcast, state, client.training.finish(broadcast, state, own, context, work))

  return jax.eval_shape(local, jax.random.key(0), data)


def first_context(data: FederatedData, cohort_size: int) -> Context:
  """Returns the context of client 0 in round 0."""
  return Context(jnp.int32(0), jnp.int32(0), cohort_size, data.num_clients)


def check_client(client: ClientUpdate, first: Sent) -> None:
  """Raises `SettingError` unless upload, state and info of a client's first round are well-formed."""
  remedy = "Return (upload, state, info): a fh.Message, the client's state, a fh.Info."
  if not isinstance(first.broadcast, Message):
    given = type(first.broadcast).__name__
    raise SettingError("client's init_broadcast", given, "is not a Message", "Return fh.Message(params).")
  sent = first.sent
  whole = isinstance(sent, tuple) and len(sent) == 3
  if not whole or not isinstance(sent[0], Message) or not isinstance(sent[2], Info):
    given = ", ".join(type(one).__name__ for one in sent) if whole else type(sent).__name__
    raise SettingError("client's update", given, "is what it returns", remedy)
  upload, state, info = sent
  if client.needs.uploads_model:
    check_alike(
      "client's update", upload.params, first.broadcast.params, "the upload's params", "the broadcast's",
      "Return params as received, or say needs=fh.Needs(uploads_model=False) with a server that takes them.",
    )  # fmt: skip
  check_alike("client's update", state, first.state, "the new state", "the state of init", remedy)
  for name, value in info._asdict().items():
    check_scalars(f"info.{name} of the client's update", value)


def check_mixing(algorithm: Algorithm, data: FederatedData, cohort_size: int, first: Sent) -> None:
  """Raises `SettingError` unless the mixing part returns float coefficients [S] and a state as before.

  Its `scale` and `figures`, and the client part's `loss` if the mixing part asks for losses, are checked too.
  """
  client, mixing, _ = algorithm
  asked: list[bool] = []

  def mix(key: jax.Array, data: FederatedData, first: Sent) -> tuple[Any, ...]:
    sizes = jnp.asarray(data.train.size)

    def losses() -> jax.Array:
      asked.append(True)
      return jnp.zeros(cohort_size)

    def uploads() -> PyTree:
      return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (cohort_size, *leaf.shape)), first.sent[0])

    cohort, state = jnp.arange(cohort_size, dtype=jnp.int32), mixing.init(sizes)
    heard = Feedback(cohort, sizes[:cohort_size], jnp.int32(0), losses, uploads, first.broadcast)
    mixed = mixing.update(state, heard)
    more = (function and function(heard) for function in (mixing.scale, mixing.figures))
    return state, mixed, *more

  before, found, scale, figures = jax.eval_shape(mix, jax.random.key(0), data, first)
  if not (isinstance(found, tuple) and len(found) == 2):
    given, problem = type(found).__name__, "is what its update gives, and no pair"
  elif not are_floats(found[0], cohort_size):
    given = shapes(found[0])
    problem = f"its coefficients are not floats ({cohort_size},), one a client of the cohort"
  elif shapes(found[1]) != shapes(before):
    given, problem = shapes(found[1]), f"is what its state becomes, and it was {shapes(before)}"
  else:
    problem = ""
  if problem:
    raise SettingError("mixing", given, problem, "Let its update return (coefficients, state).")
  if scale is not None and not are_floats(scale, cohort_size):
    problem = f"is not a float for each client of the cohort, ({cohort_size},)"
    raise SettingError("mixing's scale", shapes(scale), problem, "Return one number per client.")
  check_scalars("mixing's figures", figures)
  if asked:
    judged = jax.eval_shape(
      lambda data, first: client.loss(
        first.broadcast, first.state, data.clients(jnp.int32(0)), first_context(data, cohort_size)
      ),
      data,
      first,
    )
    check_scalars("client's loss", judged)


def check_server(algorithm: Algorithm, first: Sent) -> None:
  """Raises `SettingError` unless the server part returns a broadcast and a state as before."""
  server = algorithm.server

  def move(key: jax.Array, first: Sent) -> tuple[Any, Any]:
    state = server.init(first.broadcast)
    return state, server.update(key, state, first.broadcast, first.sent[0])

  before, found = jax.eval_shape(move, jax.random.key(0), first)
  remedy = "Return (next broadcast, state) with the structure, shapes and dtypes of those before."
  if not (isinstance(found, tuple) and len(found) == 2):
    raise SettingError("server's update", type(found).__name__, "is what it returns, and no pair", remedy)
  for own, wanted, what in ((found[0], first.broadcast, "broadcast"), (found[1], before, "state")):
    check_alike("server's update", own, wanted, f"the next {what}", "the one before", remedy, dtypes=True)


def check_task(task: Task, outputs: jax.ShapeDtypeStruct, y: jax.ShapeDtypeStruct) -> None:
  """Raises `SettingError` unless a task's `losses` are one number per example."""
  found = jax.eval_shape(task.losses, outputs, y)
  alike = isinstance(found, tuple) and len(found) == 2
  if not alike or any(one is not None and not are_floats(one, len(y)) for one in found):
    problem = f"are the losses of {len(y)} example, and not (total, weight) of shape ({len(y)},) each"
    raise SettingError("task's losses", shapes(found), problem, "Sum over all axes but the first.")


def check_alike(
  function: str, found: PyTree, wanted: PyTree, what: str, like: str, remedy: str, dtypes: bool = False
) -> None:
  """Raises `SettingError` unless two trees have one structure and shapes, and, if asked for, dtypes."""
  check: Callable[..., None] = chex.assert_trees_all_equal_shapes
  if dtypes:
    check = chex.assert_trees_all_equal_shapes_and_dtypes
  try:
    check(found, wanted)
  except AssertionError as error:
    told = " ".join(str(error).partition("failed:")[2].split()).rstrip(".")
    problem = f"the form of {what} (tree 0) is not that of {like} (tree 1): {told}"
    raise SettingError(function, shapes(found), problem, remedy) from None


def check_scalars(function: str, found: PyTree) -> None:
  """Raises `SettingError` unless all leaves of a tree are scalars."""
  if any(leaf.shape for leaf in jax.tree.leaves(found)):
    raise SettingError(function, shapes(found), "is not a scalar, of shape ()", "Return the mean.")


def are_floats(found: Any, count: int) -> bool:
  """Returns whether an abstract value is a float array of shape [count]."""
  return getattr(found, "shape", None) == (count,) and jnp.issubdtype(found.dtype, jnp.floating)


def shapes(tree: PyTree) -> PyTree:
  """Returns a tree with the dtype and shape of each leaf as text, such as "float32 (3, 2)"."""
  return jax.tree.map(lambda leaf: f"{leaf.dtype} {leaf.shape}", tree)
