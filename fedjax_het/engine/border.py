"""Checks the shapes and dtypes that parts return, while programs are traced, before they are compiled."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from fedjax_het.data.container import FederatedData
from fedjax_het.engine.state import init_client
from fedjax_het.errors import SettingError
from fedjax_het.parts import Algorithm, ClientUpdate, Context, Draw, Feedback, Info, Message, Pooled, Speeds
from fedjax_het.tasks import Task
from fedjax_het.vectors import form_of_one

PyTree = Any


def first_context(data: FederatedData, cohort_size: int) -> Context:
  """Returns the context of client 0 in round 0."""
  return Context(jnp.int32(0), jnp.int32(0), cohort_size, data.num_clients)


def checked_clients(client: ClientUpdate, broadcast: Message, before: PyTree, sent: Any) -> Any:
  """Returns what the cohort's updates return, after checking it.

  Args:
    client: the client part.
    broadcast: what the server sent.
    before: the cohort's states before the round, each leaf [S, ...].
    sent: what `client.update` returns, each leaf [S, ...].

  Raises:
    SettingError: `sent` is not (upload, state, info), the upload's params (if it is a model) or the state
      have other shapes than before, or a value in info is not a scalar per client.
  """
  remedy = "Return (upload, state, info): a fh.Message, the client's state, a fh.Info."
  whole = isinstance(sent, tuple) and len(sent) == 3
  if not whole or not isinstance(sent[0], Message) or not isinstance(sent[2], Info):
    given = ", ".join(type(one).__name__ for one in sent) if whole else type(sent).__name__
    raise SettingError("client's update", given, "is what it returns", remedy)
  upload, state, info = form_of_one(sent)
  if client.needs.uploads_model:
    check_alike(
      "client's update", upload.params, broadcast.params, "the upload's params", "the broadcast's",
      "Return params as received, or say needs=fh.Needs(uploads_model=False) with a server that takes them.",
    )  # fmt: skip
  if not isinstance(sent[0].pooled, tuple) or sent[0].pooled:
    check_pooled("client's update", broadcast, sent[0].pooled)
  first = form_of_one(before)
  check_alike("client's update", state, first, "the new state", "the state of init", remedy)
  for name, value in info._asdict().items():
    check_scalars(f"info.{name} of the client's update", value)
  return sent


def checked_first_pass(broadcast: Message, found: Any) -> Pooled:
  """Checks and returns what the cohort's clients return from `first_pass`, each leaf [S, ...].

  Raises:
    SettingError: it is no `Pooled`, or does not fit the broadcast's `pooled`, see `check_pooled`.
  """
  check_pooled("client's first_pass", broadcast, found)
  return found


def check_pooled(function: str, broadcast: Message, sent: Any) -> None:
  """Raises `SettingError` unless `sent`, each leaf [S, ...], fits the broadcast's `pooled`."""
  remedy = "Return fh.Pooled(values, weights), floats; init_broadcast has the first values in pooled."
  if not isinstance(sent, Pooled):
    problem = "is what it returns for Message.pooled"
    raise SettingError(function, type(sent).__name__, problem, remedy)
  one = form_of_one(sent)
  check_alike(function, one.values, broadcast.pooled, "pooled values", "the broadcast's", remedy)
  try:
    each = jax.tree.broadcast(one.weights, one.values)
  except ValueError:
    problem = "is the form of the weights, and no prefix of that of the values"
    raise SettingError(function, shapes(one.weights), problem, remedy) from None
  for value, weight in zip(jax.tree.leaves(one.values), jax.tree.leaves(each)):
    if not all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in (value, weight)):
      raise SettingError(function, (shapes(value), shapes(weight)), "are no floats", remedy)
    if weight.shape != value.shape[: len(weight.shape)]:
      problem = f"is a weight for {shapes(value)}, and no leading part of its shape"
      raise SettingError(function, shapes(weight), problem, remedy)


def check_send(algorithm: Algorithm) -> None:
  """Raises `SettingError` unless a server that addresses clients sends messages as the broadcast is."""
  client, _, server, *_ = algorithm
  if server.send is None:
    return

  def messages(key: jax.Array) -> tuple[Any, Message]:
    broadcast = client.init_broadcast(key)
    return server.received(server.sent(broadcast, server.init(broadcast)), jnp.int32(0)), broadcast

  remedy = "Return broadcast._replace(params=...) with the structure, shapes and dtypes of the broadcast."
  found, broadcast = jax.eval_shape(messages, jax.random.key(0))
  check_alike("server's send", found, broadcast, "a client's message", "the broadcast", remedy, dtypes=True)


def checked_loss(loss: jax.Array) -> jax.Array:
  """Returns a client's loss F_i; raises `SettingError` unless it is a scalar."""
  check_scalars("client's loss", loss)
  return loss


def checked_server(before: tuple[Message, PyTree], found: Any) -> Any:
  """Returns (next broadcast, state) of a server part.

  Raises:
    SettingError: `found` is not such a pair, or differs from `before`, those of the round, in shapes or
      dtypes.
  """
  remedy = "Return (next broadcast, state) with the structure, shapes and dtypes of those before."
  if not (isinstance(found, tuple) and len(found) == 2):
    raise SettingError("server's update", type(found).__name__, "is what it returns, and no pair", remedy)
  for own, wanted, what in zip(found, before, ("broadcast", "state")):
    check_alike("server's update", own, wanted, f"the next {what}", "the one before", remedy, dtypes=True)
  return found


def checked_draw(state: PyTree, cohort_size: int, found: Any) -> Draw:
  """Returns what a participation part draws, `Draw` with [R] in each field and its state as before.

  Raises:
    SettingError: it is something else.
  """
  remedy = "Return Draw(ids int32 [R], present bool [R], work and probability float32 [R], state)."
  if not isinstance(found, Draw):
    raise SettingError("participation's draw", type(found).__name__, "is what it returns", remedy)
  found = found._replace(contacted=found.present if found.contacted is None else found.contacted)
  kinds = dict(ids="int32", present="bool", work="float32", probability="float32", contacted="bool")
  for name, kind in kinds.items():
    own = getattr(found, name)
    if getattr(own, "shape", None) != (cohort_size,) or own.dtype != kind:
      raise SettingError("participation's draw", shapes(own), f"is what {name} are, not {kind} [R]", remedy)
  what = "the next state"
  check_alike("participation's draw", found.state, state, what, "the one before", remedy, dtypes=True)
  return found


def checked_speeds(found: Any, num_clients: int) -> Speeds:
  """Returns what a system part says of the clients' speeds, `Speeds` of two float32 arrays [K].

  Raises:
    SettingError: it is something else.
  """
  if not isinstance(found, Speeds) or any(
    getattr(own, "shape", None) != (num_clients,) or own.dtype != jnp.float32 for own in found
  ):
    given = shapes(found) if isinstance(found, Speeds) else type(found).__name__
    remedy = "Return fh.Speeds(step_seconds, bytes_per_second), each float32 [K]."
    raise SettingError("system's speeds", given, "is what it returns", remedy)
  return found


def checked_aggregate(uploads: Message, state: PyTree, found: Any) -> tuple[Message, PyTree]:
  """Returns (aggregate, state) of an aggregation part.

  Raises:
    SettingError: `found` is not such a pair, the aggregate has another form than an upload, whose leaves here
      are [S, ...], or the state another than before.
  """
  remedy = "Return (aggregate, state): a message in the form of one upload, and the state as before."
  if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Message)):
    problem = "is what it returns, and no pair of a message and a state"
    raise SettingError("aggregation's combine", type(found).__name__, problem, remedy)
  one = form_of_one(uploads)
  for own, wanted, what, like in zip(found, (one, state), ("aggregate", "state"), ("an upload", "before")):
    check_alike("aggregation's combine", own, wanted, f"the {what}", like, remedy, dtypes=True)
  return found


def one_upload(
  client: ClientUpdate, key: jax.Array, data: FederatedData, broadcast: Message, cohort_size: int
) -> Message:
  """Returns client 0's upload, see `one_result`."""
  return one_result(client, key, data, broadcast, cohort_size)[0]


def one_result(
  client: ClientUpdate, key: jax.Array, data: FederatedData, broadcast: Message, cohort_size: int
) -> tuple[Message, PyTree, Info]:
  """Returns what client 0's update returns; `jax.eval_shape` of it takes no local steps, if there are any."""
  own, context = data.clients(jnp.int32(0)), first_context(data, cohort_size)
  state = init_client(client, key, broadcast, own, context)
  if client.training is None:
    return client.update(key, broadcast, state, own, context)
  work = client.training.start(broadcast, state, context)  # the steps change no shape
  return client.training.finish(broadcast, state, own, context, work)


def check_mixing(algorithm: Algorithm, data: FederatedData, cohort_size: int) -> None:
  """Raises `SettingError` unless the mixing part returns float coefficients [S] and a state as before.

  Its `scale` and `figures` are checked too, whether uploads have fields that no protecting part covers, and
  whether upload transforms fit the uploads.
  """
  client, mixing, *_ = algorithm

  def mix(key: jax.Array, data: FederatedData) -> tuple[Any, ...]:
    sizes, broadcast = jnp.asarray(data.train.size), client.init_broadcast(key)

    def uploads() -> PyTree:
      sent = one_upload(client, key, data, broadcast, cohort_size)
      return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (cohort_size, *leaf.shape)), sent)

    cohort, state = jnp.arange(cohort_size, dtype=jnp.int32), mixing.init(sizes)
    losses = lambda: jnp.zeros(cohort_size)  # noqa: E731
    steps = jnp.ones(cohort_size, jnp.int32)
    heard = Feedback(cohort, sizes[:cohort_size], jnp.int32(0), losses, uploads, broadcast, steps=steps)
    more = (function and function(heard) for function in (mixing.scale, mixing.figures))
    asked = algorithm.covering or client.needs.upload_bits
    sent = one_upload(client, key, data, broadcast, cohort_size) if asked else None
    return sent, state, mixing.update(state, heard), *more

  sent, before, found, scale, figures = jax.eval_shape(mix, jax.random.key(0), data)
  if sent is not None:
    algorithm.check_covered(sent)
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
