"""The client part of an algorithm: what a client does with what it receives."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax

from fedjax_het.data.container import Array, ClientData
from fedjax_het.errors import SettingError, renamed
from fedjax_het.parts.message import Context, Info, Message, Pooled, PyTree
from fedjax_het.parts.needs import Needs, PersonalizeFn, Studies
from fedjax_het.tasks import Task, classification


class InitBroadcastFn(Protocol):
  """Draws the first broadcast from a typed key."""

  def __call__(self, key: jax.Array) -> Message: ...  # noqa: D102


class ClientInitFn(Protocol):
  """Makes the first state of one client, which it keeps between rounds; `()` for a stateless client.

  Args:
    key: typed key, the same for all clients; `fold_in(key, context.client)` is the client's own.
    broadcast: the first broadcast.
    data: the client's training examples, readable if `Needs.sees_data` has "init".
    context: the client's index; round 0.
  """

  def __call__(self, key: jax.Array, broadcast: Message, data: ClientData, context: Context) -> PyTree: ...  # noqa: D102


class ClientUpdateFn(Protocol):
  """Does one client's work in one round.

  Args:
    key: typed key, folded in from (seed, round, client).
    broadcast: the message that the server sent.
    state: the client's state.
    data: the client's training examples.
    context: the client's and the round's index.

  Returns:
    (upload, new state, info). For the upload's shapes see `Message`; the new state has those of the old one.
  """

  def __call__(  # noqa: D102
    self, key: jax.Array, broadcast: Message, state: PyTree, data: ClientData, context: Context
  ) -> tuple[Message, PyTree, Info]: ...


@renamed(walk="run_steps")
class LocalTraining(NamedTuple):
  """Local training that can stop after any step and continue on another device, which spares idle devices.

  The `update` of such a client part is `in_one_go` of it: `start`, then `run_steps` over all steps, then
  `finish`. "work" is whatever local training carries from step to step.

  Attributes:
    steps: (data) -> number of local steps, int32 scalar; the most where a client draws it, which a system
      part's clock then counts.
    start: (broadcast, state, context) -> work before the first step.
    run_steps: (key, broadcast, state, data, context, work, first, last) -> work after the steps first, ...,
      last - 1; `last` = None means the last step.
    finish: (broadcast, state, data, context, work) -> (upload, state, info).
    gradients: gradients that a step computes; used only in reports of the cost, see `Info.steps`.
    counted: (n int32, round) -> a_n, the total weight of the gradients of n steps in the negative update
      divided by the round's learning rate, float32, n for plain SGD; None if no such weights are known.
  """

  steps: Callable[[ClientData], int | Array]
  start: Callable[[Message, PyTree, Context], PyTree]
  run_steps: Callable[..., PyTree]
  finish: Callable[[Message, PyTree, ClientData, Context, PyTree], tuple[Message, PyTree, Info]]
  gradients: int = 1
  counted: Callable[[jax.Array, jax.Array], jax.Array] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class in_one_go:
  """The `update` of a client part that runs a `LocalTraining` from its first step to its last one."""

  training: LocalTraining

  def __call__(
    self,
    key: jax.Array,
    broadcast: Message,
    state: PyTree,
    data: ClientData,
    context: Context,
    last: jax.Array | None = None,
  ) -> tuple[Message, PyTree, Info]:
    """See `ClientUpdateFn`; `last`, int32 scalar, is the step before which to stop, None for all steps."""
    work = self.training.start(broadcast, state, context)
    work = self.training.run_steps(key, broadcast, state, data, context, work, 0, last)
    return self.training.finish(broadcast, state, data, context, work)


class LossFn(Protocol):
  """Computes F_i, float32 scalar: the mean training loss of the client's model before local training.

  The function takes one forward pass over the client's data. It is called only if the mixing part asks for
  the losses.
  """

  def __call__(  # noqa: D102
    self, broadcast: Message, state: PyTree, data: ClientData, context: Context
  ) -> jax.Array: ...


class FirstPassFn(Protocol):
  """Computes what a client sends before the round's training, such as the gradient of F_i at the broadcast.

  The cohort's v_i, pooled to Σ_i w_i v_i / Σ_i w_i, take the place of the broadcast's `pooled`: in what every
  client of the cohort then trains on, and in the broadcast that mixing and server part see. An upload without
  `pooled` leaves them so.

  Args:
    key: typed key, folded in from (seed, round, client), independent of the update's.
    broadcast: the message that the server sent.
    state: the client's state.
    data: the client's training examples.
    context: the client's and the round's index.
  """

  def __call__(  # noqa: D102
    self, key: jax.Array, broadcast: Message, state: PyTree, data: ClientData, context: Context
  ) -> Pooled: ...


class DataNotRequested:
  """Placeholder for training examples that a function did not ask for; raises an error when it is read."""

  def __init__(self, function: str):
    """Makes the placeholder that `function` of a client part receives."""
    self._function = function

  def __getattr__(self, name: str) -> Any:
    """Raises `SettingError`, naming the function and the remedy."""
    if name.startswith("__"):
      raise AttributeError(name)
    raise SettingError(
      "sees_data", (), f"{self._function} looks at data.{name}, and is shown examples only where it says so",
      f'Add "{self._function}" to sees_data in the client part\'s needs.',
    )  # fmt: skip


@renamed(
  share="init_broadcast",
  globalize="global_model",
  **{name: f"studies.{name}" for name in Studies._fields},
  **{name: f"needs.{name}" for name in Needs._fields},
)
class ClientUpdate(NamedTuple):
  """The client part: a client's work in a round, from the received broadcast to its upload.

  Attributes:
    init_broadcast: see `InitBroadcastFn`.
    init: see `ClientInitFn`.
    update: see `ClientUpdateFn`.
    loss: see `LossFn`.
    personalize: see `PersonalizeFn`.
    apply: (params, x [B, ...]) -> outputs [B, ...], with which the models are evaluated.
    global_model: (broadcast) -> the server's model, as `apply` takes it; None for a method that has none.
    task: the task that the models are evaluated by; the model's own.
    name: the method's name, for reports.
    studies: what the method offers to evaluations and studies, see `Studies`.
    needs: what the method requires of the run, its data and the other parts, see `Needs`.
    first_pass: see `FirstPassFn`; None for methods whose clients work once in a round.
  """

  init_broadcast: InitBroadcastFn
  init: ClientInitFn
  update: ClientUpdateFn
  loss: LossFn
  personalize: PersonalizeFn
  apply: Callable[[PyTree, jax.Array], jax.Array]
  global_model: Callable[[Message], PyTree] | None = None
  task: Task = classification()
  name: str = "custom"
  studies: Studies = Studies()
  needs: Needs = Needs()
  first_pass: FirstPassFn | None = None

  @property
  def training(self) -> LocalTraining | None:
    """The pieces of `update`; None if `update` is a plain function, for example a wrapper."""
    return self.update.training if isinstance(self.update, in_one_go) else None

  def shown(self, function: str, data: ClientData | None) -> Any:
    """Returns the training examples that `function`, "init" or "personalize", receives."""
    return data if function in self.needs.sees_data else DataNotRequested(function)
