"""The server part of an algorithm, and the algorithm that the parts make."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax

from fedjax_het.errors import SettingError, renamed
from fedjax_het.parts.aggregation import Aggregation
from fedjax_het.parts.asynchronous import Asynchronous
from fedjax_het.parts.attack import Attack
from fedjax_het.parts.client import ClientUpdate, LocalTraining
from fedjax_het.parts.message import Feedback, Message, PyTree
from fedjax_het.parts.mixing import Mixing
from fedjax_het.parts.needs import Needs
from fedjax_het.parts.participation import Participation
from fedjax_het.parts.privacy import Mechanism, Sampling
from fedjax_het.parts.system import System


@renamed(beside="adapt_to", **{name: f"needs.{name}" for name in Needs._fields})
class ServerUpdate(NamedTuple):
  """A server part: computes how the server moves.

  Attributes:
    init: (first broadcast) -> state.
    update: (key, state, broadcast, aggregate) -> (next broadcast, state). The aggregate is Σ_i p_i upload_i
      leaf by leaf, of uploads that the mixing part may have scaled, see `Mixing.scale`; `Message` says how
      the fields `even` and `pooled` are averaged. An `Aggregation` may combine the uploads otherwise.
    name: the method's name, for reports.
    needs: what the part requires of the run, see `Needs`.
    takes_models: whether the aggregate's params must be an average of models; False if they must be an
      average of signals, see `Needs.uploads_model`.
    adapt_to: (client part, mixing part) -> the server part for them, if it depends on them, for example on
      the labels of synthetic examples; `federated` calls it. None for most methods.
    takes_feedback: whether `update` takes the round's `Feedback` as a fifth argument: who took part, and
      `uploads()`, which are gathered on every device only if it calls for them.
    send: (state, broadcast, i) -> the message for client i, int32 scalar, in the form of the broadcast; for a
      server that sends clients different things, such as each its own model. It is called on the device that
      trains or evaluates the client, so that no device holds the messages of a whole cohort, and its bits
      depend neither on the cohort nor on the devices. None sends everybody the broadcast. The first states
      of clients (`ClientUpdate.init`) and the global model are made of the broadcast itself.
    figures: (state after the round, feedback) -> name -> float32 scalar, per-round diagnostics for logging;
      never fed back into training. None for none.
    uses_aggregate: whether `update` reads the aggregate's params; `federated` refuses an aggregation part
      beside one that does not.
    mechanism: how the part noises the mean of clients' uploads before it uses it, for the privacy ledger;
      None for a part that does not.
    takes_share: whether `update` takes as its last argument the share of all clients that the aggregate is
      of, float32 scalar: S/K, with S the number of uploads that arrived, or for an aggregation part that is
      `by_expected` the number that it divides by.
  """

  init: Callable[[Message], PyTree]
  update: Callable[..., tuple[Message, PyTree]]
  name: str = "custom"
  needs: Needs = Needs()
  takes_models: bool = True
  adapt_to: "Callable[[ClientUpdate, Mixing], ServerUpdate] | None" = None
  takes_feedback: bool = False
  send: Callable[[PyTree, Message, jax.Array], Message] | None = None
  figures: Callable[[PyTree, Feedback], Mapping[str, jax.Array]] | None = None
  uses_aggregate: bool = True
  mechanism: Mechanism | None = None
  takes_share: bool = False

  def received(self, sent: "Sent", i: jax.Array) -> Message:
    """Returns what client i receives."""
    return sent.broadcast if self.send is None else self.send(sent.server, sent.broadcast, i)

  def sent(self, broadcast: Message, state: PyTree) -> "Sent":
    """Returns all that `received` reads: the server part's state only if it addresses clients."""
    return Sent(broadcast, () if self.send is None else state)


class Sent(NamedTuple):
  """All that the clients' messages are made of, see `ServerUpdate.sent`.

  Attributes:
    broadcast: what the server sends everybody.
    server: the server part's state; () for one that sends everybody the broadcast.
  """

  broadcast: Message
  server: PyTree


COVERING = {  # role -> what its part does with fields of `Needs.covers`, what is done with others, a remedy
  "mixing": ("protects", "averaged as it comes", "an aggregation that covers it"),
  "aggregation": ("protects", "averaged as it comes", "an aggregation that covers it"),
  "attack": ("forges", "sent honestly", "an attack of rows, such as label_flip"),
  "participation": ("corrects", "averaged as if all were drawn alike", "a participation such as poisson"),
}


class Algorithm(NamedTuple):
  """A federated algorithm: the parts of which `fedjax_het.federated` composes it."""

  client: ClientUpdate
  mixing: Mixing
  server: ServerUpdate
  aggregation: Aggregation = Aggregation()
  participation: Participation = Participation()
  attack: Attack = Attack()
  system: System = System()
  asynchronous: Asynchronous = Asynchronous()

  def check_covered(self, sent: Message) -> None:
    """Raises `SettingError` if an upload `sent` has fields that `Needs.covers` leaves unprotected."""
    fields = [name for name, own in sent._asdict().items() if jax.tree.leaves(own)]
    for role, (does, end, other) in COVERING.items():
      part = getattr(self, role)
      covered = part.needs.covers
      if covered is not None and (left := ", ".join(name for name in fields if name not in covered)):
        raise SettingError(
          role, part.name, f"{does} {', '.join(covered)} of an upload, and {self.client.name} also sends "
          f"{left}, which would be {end}", f"Use a method that sends nothing else, or {other}.",
        )  # fmt: skip

  def clients_in_a_round(self, cohort_size: int) -> int:
    """Returns `cohort_size`, or B of an asynchronous server, which waits for B uploads; also where B = M."""
    return self.asynchronous.buffer_size or cohort_size

  def sampled(self, num_clients: int, cohort_size: int, keeps_state: bool = False) -> Sampling:
    """Returns what is guaranteed of who takes part in a round, see `Participation.sampled`.

    Where the time that clients take decides whose uploads a round has, no chance of being left out is known.
    """
    timed = self.asynchronous.overlaps or self.system.over_selects
    size = self.clients_in_a_round(cohort_size)
    return self.participation.sampled(num_clients, size, keeps_state or timed)

  def training_in_steps(self) -> LocalTraining:
    """Returns the client part's local training; raises `SettingError` if it has none, or no system is there.

    Without it the number of a client's steps is not known before the client has trained.
    """
    if not self.system.there:
      remedy = "Give one: system=fh.system.lognormal(), say."
      raise SettingError("system", self.system.name, "has no speeds, which the clients' seconds need", remedy)
    if self.client.training is None:
      raise SettingError(
        "system", self.system.name, f"{self.client.name} does not say before it has trained how many local "
        "steps it takes", "Use a method with a LocalTraining, or leave out what needs a client's seconds.",
      )  # fmt: skip
    return self.client.training

  @property
  def covering(self) -> bool:
    """Whether a part has `Needs.covers`, so that uploads have to be checked."""
    return any(part.needs.covers is not None for part in (getattr(self, role) for role in COVERING))
