"""`Studies`, which a method offers beyond its functions, and `Needs`, which a part requires."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import jax

from fedjax_het.data.container import Array, ClientData, FederatedData
from fedjax_het.parts.message import Context, Message, PyTree
from fedjax_het.parts.privacy import Release


class PersonalizeFn(Protocol):
  """Returns the model that a client would use, for `apply`, at position λ of the client's line of models.

  `lam` is a float32 scalar out of `Studies.lambdas`; methods without a line ignore it. `data`, the client's
  training examples, is readable if `Needs.sees_data` has "personalize".
  """

  def __call__(  # noqa: D102
    self, broadcast: Message, state: PyTree, data: ClientData, context: Context, lam: jax.Array
  ) -> PyTree: ...


class Simplex(NamedTuple):
  """A simplex of models that the server keeps; its points α have M + 1 coordinates.

  Attributes:
    at: (broadcast, α) -> the server's model at α, as `apply` takes it.
    centers: center of each client's region, float32 [K, M + 1]; the client uses the model there.
    radius: η >= 0, the largest L1 distance from the center at which the client trains.
    points: the point that each client's data alone determines, float32 [K, M + 1].
    clusters: cluster of each client, int [K]; clients of a cluster share their center.
  """

  at: Callable[[Message, jax.Array], PyTree]
  centers: Array
  radius: float | jax.Array
  points: Array
  clusters: Array


class MembershipFn(Protocol):
  """Returns how much a client belongs to each of M groups, float32 [M] >= 0 with sum 1.

  `broadcast` is what the client is sent. `data`, the client's training examples, is readable if
  `Needs.sees_data` has "personalize".
  """

  def __call__(  # noqa: D102
    self, broadcast: Message, state: PyTree, data: ClientData, context: Context
  ) -> jax.Array: ...


class Records(NamedTuple):
  """Record-level privacy of a client's local training, as its ledger needs it.

  Attributes:
    noise_multiplier: z, the noise's deviation divided by the clip of a record's gradient.
    batch_size: B; a client of n records puts each into a mini-batch with probability min(1, B/n).
    capacity: the most records of a mini-batch, of which larger ones keep as many by chance; None for batches
      of shuffled epochs, whose sampling is not counted on.
    releases: (n) -> how many mini-batches of a round a record of a client of n may be in, at most: all steps
      if they are drawn, else the epochs.
    gradients: noised gradients of one mini-batch.
  """

  noise_multiplier: float | Array
  batch_size: int
  capacity: int | None
  releases: Callable[[int], int]
  gradients: int = 1


class Studies(NamedTuple):
  """Offers of a method to evaluations and studies, beyond one personalised and one global model.

  Studies are chosen by these fields, never by a method's name. The defaults offer nothing.

  Attributes:
    lambdas: the λ at which the personalised models are evaluated; one value for methods without a line.
    line: as `ClientUpdate.personalize`, but always the model θ(λ) = (1 - λ)·θ^f + λ·θ^l between a client's
      federated model θ^f and its local model θ^l; None if a client does not have both.
    simplex: the simplex of models that the server keeps; None if there is none.
    synthesize: (key, broadcast) -> (x [M, ...], y int32 [M]), labelled synthetic examples ordered by class;
      None for a method that makes none.
    model: the `models.Model` whose parameters, `Model.joined` with statistics, `ClientUpdate.personalize`
      returns; None if a client is evaluated with something else.
    membership: how much a client belongs to each of the method's groups: one of several models, or a share
      of each; None for a method without groups.
    groups: (broadcast, server state, client states [K, ...]) -> float32 [K, M], the same of all clients, for
      a method whose server alone knows the groups; NaN in the last columns, of groups that do not exist yet.
      At most one of `membership` and `groups` is set.
    graph: (broadcast, server state, client states [K, ...]) -> float32 [K, K] >= 0 with rows of sum 1: how
      much what client i gets next is made of each client j; None for a method that mixes all clients alike.
    prototypes: (broadcast) -> (each class's prototype, float32 [C, d]; whether there is one, [C]); None for a
      method without prototypes.
    milestones: symbol -> index of the round in which the method's training changes; marked in pictures.
    records: record-level privacy of what a client sends; None for none.
  """

  lambdas: tuple[float, ...] = (0.0,)
  line: PersonalizeFn | None = None
  simplex: Simplex | None = None
  synthesize: Callable[[jax.Array, Message], tuple[jax.Array, jax.Array]] | None = None
  milestones: Mapping[str, float | Array] = MappingProxyType({})
  membership: MembershipFn | None = None
  groups: Callable[[Message, PyTree, PyTree], jax.Array] | None = None
  graph: Callable[[Message, PyTree, PyTree], jax.Array] | None = None
  prototypes: Callable[[Message], tuple[jax.Array, jax.Array]] | None = None
  model: Any = None
  records: Records | None = None


HONOURED = {  # field of `Needs` -> the only roles whose parts may set it
  **dict.fromkeys(
    ("sees_data", "uploads_model", "upload_norm", "transformed", "replaces", "upload_bits", "brings"),
    ("client",),
  ),
  "covers": ("mixing", "aggregation", "attack", "participation"),
  "withstands": ("mixing", "aggregation"),
  "probability": ("mixing",),
}


class Needs(NamedTuple):
  """Requirements of a part on the run and on the other parts; every check raises `SettingError`.

  The defaults require nothing. The first five fields and `releases` are honoured for every part, the others
  for the parts of `HONOURED`.

  Attributes:
    num_clients: K, for a part that was made for so many clients; None for any number.
    check_rounds: (T) -> None; refuses runs of T rounds that would not be the described method.
    check_cohort: (S, K) -> None; refuses cohorts of S out of K clients.
    check_examples: (least, largest) -> None; refuses clients whose examples, as they are read, have numbers
      outside the range that the part works in.
    remarks: (data) -> sentences on settings that have no effect, or an unexpected one, with these clients. A
      launched run shows them; `run` and `sweep` issue them as warnings.
    sees_data: those of "init" and "personalize" that read the client's training examples; "validation" if
      "personalize", and "update" if the update also reads its validation rows, as `ClientData.validation`.
    uploads_model: whether an upload's params are the broadcast's params after local training, so that their
      difference is an update; False if they are a signal that only a matching server part understands.
    upload_norm: the bound on the L2 norm of an upload that is otherwise independent of the client's data;
      None if there is no such bound.
    covers: fields of `Message` that a mixing or aggregation part protects from dishonest uploads, or that an
      attack forges: a client part that sends others is refused, as those would be averaged unprotected. A
      mixing's uploads with the coefficient 0 are then not read, so that they may be NaN. None for parts that
      protect from nothing.
    withstands: (m) -> how many of m uploads may be dishonest at most, for parts that protect from any number
      below a limit only; None for parts without such a limit. A remark says where more are.
    transformed: fields of an upload that transforms, such as quantisation, may change. Running statistics
      are left out because rounding could make a variance negative.
    replaces: fields of an upload whose values take the place of those that the client received, such as
      running statistics or a mean gradient, where others are updates of them; see `Asynchronous`.
    upload_bits: (an upload's shapes) -> the bits that it needs on its way; None for an upload that is sent as
      it is.
    probability: whether a mixing part reads `Feedback.probability`, which is unknown under an over-selection.
    brings: "mixing" or "server" -> the part that belongs to the method, which takes the place of the default
      one; `federated` refuses any other choice.
    releases: what of the clients' data the server learns beside uploads, see `Release`.
  """

  num_clients: int | None = None
  check_rounds: Callable[[int], None] | None = None
  check_cohort: Callable[[int, int], None] | None = None
  check_examples: Callable[[float, float], None] | None = None
  remarks: Callable[[FederatedData], Iterable[str]] = lambda data: ()
  sees_data: tuple[str, ...] = ()
  uploads_model: bool = True
  upload_norm: float | None = None
  covers: tuple[str, ...] | None = None
  withstands: Callable[[int], float] | None = None
  transformed: tuple[str, ...] = ("params", "extra", "even")
  replaces: tuple[str, ...] = ("stats",)
  upload_bits: Callable[[Message], int] | None = None
  brings: Mapping[str, Any] = MappingProxyType({})
  probability: bool = False
  releases: tuple[Release, ...] = ()

  def without_effect(self, beside: str, **settings: tuple[Any, Any]) -> "Needs":
    """Returns the needs with a remark on settings that have no effect beside another one.

    Args:
      beside: that one and its value, as in "mu = 0".
      **settings: name -> (value, default); remarked on where the value is another one, and known.
    """
    changed = {
      name: value for name, (value, usual) in settings.items()
      if not isinstance(value, jax.Array) and value != usual
    }  # fmt: skip
    own = [f"{name} = {value}: no effect beside {beside}." for name, value in changed.items()]
    return self._replace(remarks=lambda data: [*self.remarks(data), *own])

  def not_of(self, role: str) -> tuple[str, ...]:
    """Returns the names of the fields that are set and that a part of this role has no use for."""
    names = (name for name, roles in HONOURED.items() if role not in roles)
    return tuple(name for name in names if getattr(self, name) != Needs._field_defaults[name])
