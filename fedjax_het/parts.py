r"""What the parts of a federated algorithm are, and what travels between them.

The objective is  min_θ Σ_i w_i E_{ξ~D_i} L(ξ; θ).  Clients differ in one of three places, and an algorithm
is composed of one small part for each question that this raises:

=================  =======================================================
`ClientUpdate`     what a client does with what it receives
`Mixing`           how much each client counts
`ServerUpdate`     how the server moves
=================  =======================================================

Every part is a NamedTuple of pure functions, safe under `jit`, `vmap` and `scan`; any client part runs
with any mixing part and any server part, as far as each says what it sends and takes. Parts never see the
engine and the engine never sees a method: what travels is a `Message`, whose contents only client and server
part know.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from fedjax_het.data.container import Array, ClientData, FederatedData
from fedjax_het.errors import SettingError
from fedjax_het.tasks import Task, classification

PyTree = Any


class Message(NamedTuple):
  """What travels between server and clients, in both directions.

  Leaves are floats or whole numbers: an average of whole numbers is rounded to the nearest. p are the mixing
  coefficients of the cohort's S clients.

  Attributes:
    params: what the server part moves: a model, several endpoints of a simplex, synthetic data; Σ_i p_i u_i.
    extra: what goes with it and is only averaged, by p too.
    stats: a model's running statistics: averaged like its parameters, and moved by no optimiser.
    even: what is averaged evenly, Σ_i u_i / S, whatever the mixing, such as control variates.
  """

  params: PyTree
  extra: PyTree = ()
  stats: PyTree = ()
  even: PyTree = ()


class Context(NamedTuple):
  """Where a client stands; by default alone, in the first round.

  Attributes:
    client: its number i from 0, int32 scalar.
    round: the round's number from 0, int32 scalar (for schedules and late starts); 0 in `init`, and in an
      evaluation the number of rounds that are done.
    cohort_size: S.
    num_clients: K.
  """

  client: int | jax.Array = 0
  round: int | jax.Array = 0
  cohort_size: int | jax.Array = 1
  num_clients: int | jax.Array = 1


class Info(NamedTuple):
  """What a client reports of its local training; for people and logs, never for the algorithm.

  Attributes:
    loss: mean of the mini-batch losses over the local steps, float32 scalar.
    steps: number of local gradient steps, int32 scalar.
    figures: what else a method has to say, name -> float32 scalar, the same names in every round; their means
      over the cohort stand in metrics.jsonl.
  """

  loss: jax.Array
  steps: jax.Array
  figures: Any = ()

  @classmethod
  def of_sum(cls, total: jax.Array, steps: jax.Array, figures: Any = ()) -> "Info":
    """The report of a training whose mini-batch losses sum to `total`, float32, over `steps`, int32."""
    return cls(total / steps.astype(jnp.float32), steps, figures)


class InitBroadcastFn(Protocol):
  """Draws what the server starts from."""

  def __call__(self, key: jax.Array) -> Message: ...  # noqa: D102


class ClientInitFn(Protocol):
  """Makes the state that one client keeps between rounds; `()` for a client without memory.

  Args:
    key: typed key, the same for all clients; `fold_in(key, context.client)` is a client's own.
    broadcast: what the server sends first.
    data: its training examples, shown where `sees_data` names "init".
    context: who it is.
  """

  def __call__(self, key: jax.Array, broadcast: Message, data: ClientData, context: Context) -> PyTree: ...  # noqa: D102


class ClientUpdateFn(Protocol):
  """One client's work in one round.

  Args:
    key: typed key, folded in from (seed, round, client).
    broadcast: what the server sent.
    state: this client's own state.
    data: this client's training examples.
    context: who it is, and when.

  Returns:
    (upload, state, info).
  """

  def __call__(  # noqa: D102
    self, key: jax.Array, broadcast: Message, state: PyTree, data: ClientData, context: Context
  ) -> tuple[Message, PyTree, Info]: ...


class LocalTraining(NamedTuple):
  """Local training that can stop between two steps and go on elsewhere, which spares idle devices.

  `update` is `in_one_go` of it: `finish` of `run_steps` of `start`, over all steps.

  Attributes:
    steps: (data) -> n_i, the number of steps, int32 scalar.
    start: (broadcast, state, context) -> what local training changes, before the first step.
    run_steps: (key, broadcast, state, data, context, work, first, last) -> work after the steps first, ...,
      last - 1; with 0 and None after all of them.
    finish: (broadcast, state, data, context, work) -> (upload, state, info).
    gradients: of a step; for people, see `Info.steps`.
  """

  steps: Callable[[ClientData], int | Array]
  start: Callable[[Message, PyTree, Context], PyTree]
  run_steps: Callable[..., PyTree]
  finish: Callable[[Message, PyTree, ClientData, Context, PyTree], tuple[Message, PyTree, Info]]
  gradients: int = 1


@dataclasses.dataclass(frozen=True, eq=False)
class in_one_go:
  """The `update` that takes all of a training's steps, where the engine does not cut them."""

  training: LocalTraining

  def __call__(
    self, key: jax.Array, broadcast: Message, state: PyTree, data: ClientData, context: Context
  ) -> tuple[Message, PyTree, Info]:
    """See `ClientUpdateFn`."""
    work = self.training.start(broadcast, state, context)
    work = self.training.run_steps(key, broadcast, state, data, context, work, 0, None)
    return self.training.finish(broadcast, state, data, context, work)


class LossFn(Protocol):
  """F_i: mean training loss of the model that the client would use, before local training, float32 scalar.

  One forward pass over the client's data; evaluated only where the mixing part asks for it.
  """

  def __call__(  # noqa: D102
    self, broadcast: Message, state: PyTree, data: ClientData, context: Context
  ) -> jax.Array: ...


class PersonalizeFn(Protocol):
  """The model that a client would use, at position `lam` of the method's line of models.

  `data`, its training examples, is shown where `sees_data` names "personalize".
  """

  def __call__(  # noqa: D102
    self, broadcast: Message, state: PyTree, data: ClientData, context: Context, lam: jax.Array
  ) -> PyTree: ...


class Simplex(NamedTuple):
  """Where clients stand in a simplex of models, whose points α have M + 1 coordinates.

  Attributes:
    at: (broadcast, α) -> the server's model at α, as `apply` takes it.
    centers: the point that each client's model is, [K, M + 1].
    radius: η, how far from it in L1 distance the client trains.
    points: where each client's data alone would put it, [K, M + 1].
    clusters: clients of one number share their center, int [K].
  """

  at: Callable[[Message, jax.Array], PyTree]
  centers: Array
  radius: float | jax.Array
  points: Array
  clusters: Array


class DataNotRequested:
  """Stands for examples that a function has not asked for, and says so when it looks at them."""

  def __init__(self, function: str):
    """For a function of a client part."""
    self._function = function

  def __getattr__(self, name: str) -> Any:
    """Raises `SettingError`."""
    if name.startswith("__"):
      raise AttributeError(name)
    raise SettingError(
      "sees_data", (), f"{self._function} looks at data.{name}, and is shown examples only where it says so",
      f'Add "{self._function}" to the client part\'s sees_data.',
    )  # fmt: skip


class ClientUpdate(NamedTuple):
  """What a client does with what it receives.

  What it does:

  Attributes:
    init_broadcast: see `InitBroadcastFn`.
    init: see `ClientInitFn`.
    update: see `ClientUpdateFn`.
    loss: see `LossFn`.
    personalize: see `PersonalizeFn`.
    apply: the model's function, (params, x [B, ...]) -> outputs [B, ...], with which models are evaluated.
    global_model: the server's own model out of a broadcast; None where there is none, and none is judged.
    task: what is learnt, by which they are judged: the model's own.

    lambdas: what it offers: where on its line a personalised model is evaluated; one point for methods
      without a line.
    line: as `personalize`, the model θ(λ) = (1 - λ)·θ^f + λ·θ^l between the federated and the local one of a
      client that has both. It is studied, wherever on it the client's own model is. None for a client without
      such two.
    simplex: the simplex of models that the server keeps, for a method with one; studied likewise.
    synthesize: (key, broadcast) -> (x, y), labelled examples that the server can make of a broadcast,
      [M, ...] and int32 [M], class after class; None for a method that makes none.

    name: what it says of itself: the method's name.
    uploads_model: whether an upload's params are the broadcast's after local training, so that their
      difference is an update; False where they are a signal to the server part.
    sees_data: which of "init" and "personalize" look at the client's training examples.
    check_rounds: (T) -> None; raises `SettingError` where a run of T rounds would not be the method that its
      settings describe. None where every T will do.
    check_examples: (least, largest) -> None, of all numbers in the clients' examples as they are read; raises
      `SettingError` where the part keeps what it makes within others. None where every example will do.
    remarks: (data) -> sentences on what the settings come to with these clients: one without effect, or with
      another than may have been meant. A launched run shows them, `run` and `sweep` warn of them.
    milestones: symbol -> the round, from 0, in which the method's training becomes another; for pictures.
    num_clients: K, for a part that is made for so many; None where any will do.
    upload_norm: what the L2 norm of an upload is shortened to, where nothing else of it tells of the client's
      data; None where there is no such bound.
  """

  init_broadcast: InitBroadcastFn
  init: ClientInitFn
  update: ClientUpdateFn
  loss: LossFn
  personalize: PersonalizeFn
  apply: Callable[[PyTree, jax.Array], jax.Array]
  global_model: Callable[[Message], PyTree] | None = None
  task: Task = classification()
  lambdas: tuple[float, ...] = (0.0,)
  line: PersonalizeFn | None = None
  simplex: Simplex | None = None
  synthesize: Callable[[jax.Array, Message], tuple[jax.Array, jax.Array]] | None = None
  name: str = "custom"
  uploads_model: bool = True
  sees_data: tuple[str, ...] = ()
  check_rounds: Callable[[int], None] | None = None
  check_examples: Callable[[float, float], None] | None = None
  remarks: Callable[[FederatedData], Iterable[str]] = lambda data: ()
  milestones: Mapping[str, float | Array] = MappingProxyType({})
  num_clients: int | None = None
  upload_norm: float | None = None

  @property
  def training(self) -> LocalTraining | None:
    """`update` in pieces; None where it is a function of its own, as one that wraps a method's."""
    return self.update.training if isinstance(self.update, in_one_go) else None

  def shown(self, function: str, data: ClientData | None) -> Any:
    """A client's training examples, as `function`, "init" or "personalize", is shown them."""
    return data if function in self.sees_data else DataNotRequested(function)


class Feedback(NamedTuple):
  """What a mixing part may look at. S is the cohort's size.

  Attributes:
    cohort: the sampled clients' numbers, int32 [S], no number twice.
    sizes: their numbers of training examples, int32 [S].
    round: the round's number from 0, int32 scalar.
    losses: () -> float32 [S], the losses F_i before local training. Calling it costs one forward pass over
      the cohort's data; who does not call does not pay.
    uploads: () -> the cohort's uploads, each leaf [S, ...]. Calling it brings all of them to every device.
    broadcast: what the cohort received; uploads minus it are the clients' updates.
  """

  cohort: jax.Array
  sizes: jax.Array
  round: jax.Array
  losses: Callable[[], jax.Array]
  uploads: Callable[[], Message]
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
    figures: (feedback) -> name -> float32 scalar, what there is to say of a round; for people and logs. None
      for nothing.
    check_cohort: (S, K) -> None; raises `SettingError` for a size of cohorts that the part does not take.
      None where every size will do.
  """

  init: Callable[[jax.Array], PyTree]
  update: Callable[[PyTree, Feedback], tuple[jax.Array, PyTree]]
  name: str = "custom"
  scale: Callable[[Feedback], jax.Array] | None = None
  figures: Callable[[Feedback], Mapping[str, jax.Array]] | None = None
  check_cohort: Callable[[int, int], None] | None = None


class ServerUpdate(NamedTuple):
  """How the server moves.

  Attributes:
    init: first broadcast -> state.
    update: (key, state, broadcast, aggregate) -> (next broadcast, state), where the aggregate is
      Σ_i p_i upload_i, leaf by leaf (of uploads that the mixing part may have scaled, see `Mixing.scale`;
      with `even` as `Message` says).
    name: the method's name.
    check_rounds: see `ClientUpdate`.
    check_examples: see `ClientUpdate`.
    takes_models: whether the aggregate's params are to be an average of models; False where they are to be
      one of signals, see `ClientUpdate.uploads_model`.
    beside: (client part, mixing part) -> the part that it is beside these, for a part that has to ask them
      something, such as the labels of what is synthesised; `federated` asks, and composes a part without.
      None for most.
  """

  init: Callable[[Message], PyTree]
  update: Callable[[jax.Array, PyTree, Message, Message], tuple[Message, PyTree]]
  name: str = "custom"
  check_rounds: Callable[[int], None] | None = None
  check_examples: Callable[[float, float], None] | None = None
  takes_models: bool = True
  beside: "Callable[[ClientUpdate, Mixing], ServerUpdate] | None" = None


class Algorithm(NamedTuple):
  """A client part, a mixing part and a server part."""

  client: ClientUpdate
  mixing: Mixing
  server: ServerUpdate
