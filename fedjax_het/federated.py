r"""The three parts of a federated algorithm, and their composition.

The objective is  min_θ Σ_i w_i E_{ξ~D_i} L(ξ; θ).  Clients differ in one of three places, and an algorithm
is composed of one small part for each question that this raises:

=================  =======================================================
`ClientUpdate`     what a client does with what it receives
`Mixing`           how much each client counts
`ServerUpdate`     how the server moves
=================  =======================================================

Every part is a NamedTuple of pure functions, safe under `jit`, `vmap` and `scan`; any client part runs
with any mixing part and any server part. Parts never see the engine and the engine never sees a method:
what travels is a `Message`, whose contents only client and server part know.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from fedjax_het.data.container import Array, ClientData
from fedjax_het.errors import SettingError

PyTree = Any


class Message(NamedTuple):
  """What travels between server and clients, in both directions.

  Leaves are floats or whole numbers: an average of whole numbers is rounded to the nearest.

  Attributes:
    params: what the server part moves: a model, several endpoints of a simplex, synthetic data.
    extra: what goes with it and is only averaged, such as SCAFFOLD's control variate.
    stats: a model's running statistics: averaged like its parameters, and moved by no optimiser.
  """

  params: PyTree
  extra: PyTree = ()
  stats: PyTree = ()


class Info(NamedTuple):
  """What a client reports of its local training; for people and logs, never for the algorithm.

  Attributes:
    loss: mean of the mini-batch losses over the local steps, float32 scalar.
    steps: number of local gradient steps, int32 scalar.
  """

  loss: jax.Array
  steps: jax.Array


class ShareFn(Protocol):
  """Draws what the server starts from."""

  def __call__(self, key: jax.Array) -> Message: ...  # noqa: D102


class ClientInitFn(Protocol):
  """Makes the state that one client keeps between rounds; `()` for a client without memory."""

  def __call__(self, key: jax.Array, broadcast: Message) -> PyTree: ...  # noqa: D102


class ClientUpdateFn(Protocol):
  """One client's work in one round.

  Args:
    key: typed key, folded in from (seed, round, client).
    broadcast: what the server sent.
    state: this client's own state.
    data: this client's training examples.
    round: the round's number from 0, int32 scalar (for schedules and late starts).

  Returns:
    (upload, state, info).
  """

  def __call__(  # noqa: D102
    self, key: jax.Array, broadcast: Message, state: PyTree, data: ClientData, round: jax.Array
  ) -> tuple[Message, PyTree, Info]: ...


class LocalTraining(NamedTuple):
  """Local training that can stop between two steps and go on elsewhere, which spares idle devices.

  `update` is `finish` of `walk` of `start`, over all steps; see `in_one_go`.

  Attributes:
    steps: (data) -> n_i, the number of steps, int32 scalar.
    start: (broadcast, state, round) -> what local training changes, before the first step.
    walk: (key, broadcast, data, round, work, first, last) -> work after the steps first, ..., last - 1;
      after all of them where `last` is None.
    finish: (broadcast, state, work) -> (upload, state, info).
  """

  steps: Callable[[ClientData], int | Array]
  start: Callable[[Message, PyTree, jax.Array], PyTree]
  walk: Callable[..., PyTree]
  finish: Callable[[Message, PyTree, PyTree], tuple[Message, PyTree, Info]]


def in_one_go(training: LocalTraining) -> ClientUpdateFn:
  """The `update` that takes all of a training's steps."""

  def update(key, broadcast, state, data, round):
    work = training.start(broadcast, state, round)
    work = training.walk(key, broadcast, data, round, work, 0, None)
    return training.finish(broadcast, state, work)

  return update


class LossFn(Protocol):
  """F_i: mean training loss of what was received, before local training, float32 scalar.

  One forward pass over the client's data; evaluated only where the mixing part asks for it.
  """

  def __call__(self, broadcast: Message, data: ClientData) -> jax.Array: ...  # noqa: D102


class PersonalizeFn(Protocol):
  """The model that a client would use, at position `lam` of the method's line of models."""

  def __call__(self, broadcast: Message, state: PyTree, lam: jax.Array) -> PyTree: ...  # noqa: D102


class ClientUpdate(NamedTuple):
  """What a client does with what it receives.

  Attributes:
    share: see `ShareFn`.
    init: see `ClientInitFn`.
    update: see `ClientUpdateFn`.
    loss: see `LossFn`.
    personalize: see `PersonalizeFn`.
    globalize: the server's own model out of a broadcast.
    apply: the model's function, (params, x [B, ...]) -> logits [B, C], with which both are evaluated.
    lambdas: where on its line a personalised model is evaluated; one point for methods without a line.
    training: `update` in pieces, for a method that offers them.
    synthesize: (key, broadcast) -> (x, y), labelled examples that the server can make of a broadcast,
      [M, ...] and int32 [M], class after class; None for a method that makes none.
    name: the method's name.
    uploads_model: whether an upload's params are the broadcast's after local training, so that their
      difference is an update; False where they are a signal to the server part.
    check_rounds: (T) -> None; raises `SettingError` where a run of T rounds would not be the method that its
      settings describe. None where every T will do.
  """

  share: ShareFn
  init: ClientInitFn
  update: ClientUpdateFn
  loss: LossFn
  personalize: PersonalizeFn
  globalize: Callable[[Message], PyTree]
  apply: Callable[[PyTree, jax.Array], jax.Array]
  lambdas: tuple[float, ...] = (0.0,)
  training: LocalTraining | None = None
  synthesize: Callable[[jax.Array, Message], tuple[jax.Array, jax.Array]] | None = None
  name: str = "custom"
  uploads_model: bool = True
  check_rounds: Callable[[int], None] | None = None


class Feedback(NamedTuple):
  """What a mixing part may look at. S is the cohort's size.

  Attributes:
    cohort: the sampled clients' numbers, int32 [S], no number twice.
    sizes: their numbers of training examples, int32 [S].
    round: the round's number from 0, int32 scalar.
    losses: () -> float32 [S], the losses F_i of the broadcast before local training. Calling it costs
      one forward pass over the cohort's data; who does not call does not pay.
    uploads: the cohort's uploads, each leaf [S, ...].
    broadcast: what the cohort received; uploads minus it are the clients' updates.
  """

  cohort: jax.Array
  sizes: jax.Array
  round: jax.Array
  losses: Callable[[], jax.Array]
  uploads: Message
  broadcast: Message


class Mixing(NamedTuple):
  """How much each client counts.

  Attributes:
    init: sizes, int32 [K] -> state.
    update: (state, feedback) -> (coefficients, float32 [S] on the simplex, state).
    name: the method's name.
    scale: (feedback) -> s, float32 [S], for a part that makes the clients' updates longer or shorter before
      they are mixed: the server part then sees θ + Σ_i p_i s_i (θ_i - θ) of the broadcast's params θ. None
      mixes the uploads as they are, bit for bit.
  """

  init: Callable[[jax.Array], PyTree]
  update: Callable[[PyTree, Feedback], tuple[jax.Array, PyTree]]
  name: str = "custom"
  scale: Callable[[Feedback], jax.Array] | None = None


class ServerUpdate(NamedTuple):
  """How the server moves.

  Attributes:
    init: first broadcast -> state.
    update: (key, state, broadcast, aggregate) -> (next broadcast, state), where the aggregate is
      Σ_i p_i upload_i, leaf by leaf (of uploads that the mixing part may have scaled, see `Mixing.scale`).
    name: the method's name.
    check_rounds: see `ClientUpdate`.
    takes_models: whether the aggregate's params are to be an average of models; False where they are to be
      one of signals, see `ClientUpdate.uploads_model`.
  """

  init: Callable[[Message], PyTree]
  update: Callable[[jax.Array, PyTree, Message, Message], tuple[Message, PyTree]]
  name: str = "custom"
  check_rounds: Callable[[int], None] | None = None
  takes_models: bool = True


class Algorithm(NamedTuple):
  """A client part, a mixing part and a server part."""

  client: ClientUpdate
  mixing: Mixing
  server: ServerUpdate


def federated(
  client: ClientUpdate, mixing: Mixing | None = None, server: ServerUpdate | None = None
) -> Algorithm:
  """Composes an algorithm; by default clients count by n_i and the server moves to the average.

  Raises:
    SettingError: something that is not such a part, as a factory is that was not called; a mixing part
      that scales updates around a client part that sends none; or a server part that takes models around a
      client part that uploads signals, or the other way about.
  """
  from fedjax_het import mixing as mixings
  from fedjax_het import server as servers

  parts = Algorithm(client, mixing or mixings.static(), server or servers.sgd())
  kinds: tuple[type, ...] = (ClientUpdate, Mixing, ServerUpdate)
  for role, part, kind in zip(Algorithm._fields, parts, kinds):
    if not isinstance(part, kind):
      what = getattr(part, "__name__", type(part).__name__)
      raise SettingError(
        role, what, f"is not a {kind.__name__}",
        f"Call the factory: {what}(...)." if callable(part) else "Give client, mixing, server in this order.",
      )  # fmt: skip
  if parts.mixing.scale is not None and not parts.client.uploads_model:
    raise SettingError(
      "mixing", parts.mixing.name, f"scales the clients' updates, and {parts.client.name} uploads no model",
      "Use a mixing that only weighs what is uploaded, such as static.",
    )  # fmt: skip
  if parts.server.takes_models != parts.client.uploads_model:
    given, fitting = ("models", "sgd") if parts.client.uploads_model else ("signals", "sgld")
    raise SettingError(
      "server", parts.server.name, f"does not take the {given} that {parts.client.name} uploads",
      f"Use a server part that does, such as {fitting}.",
    )  # fmt: skip
  return parts


class State(NamedTuple):
  """Everything that a run carries from round to round, a pytree.

  Attributes:
    key: the run's key; every draw is folded in from (key, round, client), so none is stored.
    round: rounds finished, int32 scalar.
    broadcast: what the server sends next.
    server: the server part's state.
    mixing: the mixing part's state.
    clients: the clients' states, each leaf [K, ...].
  """

  key: jax.Array
  round: jax.Array
  broadcast: Message
  server: PyTree
  mixing: PyTree
  clients: PyTree


def init(
  algorithm: Algorithm, key: jax.Array, sizes: jax.Array, over_clients: Callable[..., PyTree] | None = None
) -> State:
  """The state before the first round, for clients with `sizes` (int32 [K]) training examples.

  `over_clients` maps a function over the clients' numbers [K], some at once by default.
  """
  share_key, clients_key, run_key = jax.random.split(key, 3)
  broadcast = algorithm.client.share(share_key)

  def init_client(i: jax.Array) -> PyTree:
    return algorithm.client.init(jax.random.fold_in(clients_key, i), broadcast)

  return State(
    run_key,
    jnp.int32(0),
    broadcast,
    algorithm.server.init(broadcast),
    algorithm.mixing.init(sizes),
    (over_clients or in_batches)(init_client, jnp.arange(sizes.shape[0])),
  )


def in_batches(function: Callable[[jax.Array], PyTree], ids: jax.Array) -> PyTree:
  """The function of every number, stacked; at most sixteen at once, without a rest, which would be copied."""
  return jax.lax.map(function, ids, batch_size=max(n for n in range(1, 17) if ids.shape[0] % n == 0))
