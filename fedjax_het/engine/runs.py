"""What trains, whether it is one run or several side by side: what all that follows runs relies on."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax

from fedjax_het.engine.divergence import Divergence
from fedjax_het.engine.evaluate import Evaluation
from fedjax_het.engine.round import RoundInfo
from fedjax_het.engine.state import State
from fedjax_het.parts import ClientUpdate
from fedjax_het.tasks import Task

PyTree = Any


OfFn = Callable[[ClientUpdate], ClientUpdate]
DoingFn = Callable[[str], contextlib.AbstractContextManager[Any]]


def itself(client: ClientUpdate) -> ClientUpdate:
  """The same client part."""
  return client


class Seconds(NamedTuple):
  """Wall-clock seconds spent so far."""

  compile: float = 0.0
  train: float = 0.0
  eval: float = 0.0


class Runs(Protocol):
  """One run (`Engine`), or M runs as one program (`Members`).

  A state, what happened in rounds and what clients' models are worth are one tree for all runs: of a single
  run as they are, of M runs each leaf with an axis [M, ...] in front.

  Attributes:
    seconds: time spent so far, by all runs together.
    doing: told in words of each program that is compiled, and entered for as long as that takes; for people.
    has_validation: whether a client has a validation part.
    task: what is learnt.
    groups: how many a device computes side by side, "client_batch" and of several runs "member_batch"; None:
      all of its own. Numbers depend on it by rounding.
  """

  groups: Mapping[str, int | None]
  seconds: Seconds
  doing: DoingFn = contextlib.nullcontext
  has_validation: bool
  task: Task

  def init(self, key: jax.Array) -> State:
    """The state before the first round, for a typed key, or M of them.

    Raises:
      SettingError: what is no key.
    """

  def advance(self, state: State, num_rounds: int) -> tuple[State, RoundInfo]:
    """Runs `num_rounds` rounds (at most `MAX_CHUNK`); the given state's buffers are consumed.

    Returns:
      (state, infos on the host as NumPy arrays, each [num_rounds, S]).

    Raises:
      NonFiniteLoss: a single run has diverged; of several the others go on, see `diverged`.
    """

  def diverged(self, state: State, infos: RoundInfo) -> list[Divergence | None]:
    """Of each run, where in the rounds that `advance` just ran it diverged; None where it did not."""

  def evaluate(self, state: State, part: str = "test", of: OfFn = itself) -> Evaluation:
    """Evaluates all clients on their `part` of the data; values on the host, float64.

    Args:
      state: the state.
      part: "train", "valid" or "test".
      of: makes the client part whose models are evaluated, out of the run's: another `personalize` or other
        `lambdas`. One program a function: a new lambda a call would be compiled anew.
    """

  def rounds_done(self, state: State) -> int:
    """Rounds that a state has behind it."""

  def split(self, tree: PyTree) -> list[PyTree]:
    """What belongs to each run, of a state or of what `advance` and `evaluate` give."""

  def to_save(self, state: State) -> State:
    """The state without what only these devices need, for a checkpoint."""

  def from_saved(self, state: State) -> State:
    """The inverse of `to_save`."""
