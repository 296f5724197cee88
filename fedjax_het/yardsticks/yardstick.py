"""What a yardstick is: one study of a launched run, from its first round to its last picture.

The record of a run keeps its books and asks every yardstick that fits the run, at five places:

===========  ====================================================================================
`resume`     at the start, and after every stop; then `draw_first`, pictures without a round
`watch`      after each chunk of rounds: what goes into this evaluation's line of metrics.jsonl
`section`    at the end: its part of summary.json
`rows`       its part of the table on the terminal, from summary.json alone
`draw`       its pictures, and `curves`, what it adds to the one of the learning curve
===========  ====================================================================================

A yardstick only looks: with it and without it a run gives the same numbers. In a run over several processes
each has its yardsticks and asks them alike; one process writes the files.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict
from rich.console import RenderableType

from fedjax_het.data.container import FederatedData
from fedjax_het.data.files import Source
from fedjax_het.engine.evaluate import Evaluation
from fedjax_het.engine.pick import Evaluations
from fedjax_het.engine.round import RoundInfo
from fedjax_het.engine.runs import OfFn
from fedjax_het.engine.state import State
from fedjax_het.models import Generative, Model
from fedjax_het.parts import Algorithm, Message


class Watched(NamedTuple):
  """The run that a yardstick watches.

  Attributes:
    config: its configuration.
    algorithm: its three parts.
    data: the clients' data.
    source: the data set.
    parts: row numbers of each client in the data set.
    key: the run's key.
    folder: where it keeps its files.
    writes: whether this process writes them.
    model: the model.
    unseen: the data of clients that never train; None where all may.
  """

  config: ConfigDict
  algorithm: Algorithm
  data: FederatedData
  source: Source
  parts: list[np.ndarray]
  key: jax.Array
  folder: Path
  writes: bool = True
  model: Model | Generative | None = None
  unseen: FederatedData | None = None

  @property
  def figures(self) -> Path:
    """Where pictures go."""
    return self.folder / "figures"

  @property
  def title(self) -> str:
    """What stands above them."""
    return f"{self.algorithm.client.name} on {self.config.dataset}, {self.data.num_clients} clients"


class Moment(NamedTuple):
  """Where a run stands.

  Attributes:
    round: rounds that it has behind it.
    evaluations: all clients' metrics, where an evaluation is due, else None; NaN once it has diverged.
    diverged: whether a training loss, or what the server sends, became NaN or infinite.
    broadcast: () -> what the server sends next; copied out of a sweep's for who calls.
    state: () -> the whole state, likewise. Its buffers are gone when `watch` has returned, and with several
      processes all of them call, or none.
    evaluate: (of) -> all clients on their test parts, by the models that `of` makes of the run's client part,
      see `Runs.evaluate`; as `state` otherwise.
    seconds: spent so far, of all starts: {"compile", "train", "eval"}.
  """

  round: int
  evaluations: Evaluations | None
  diverged: bool
  broadcast: Callable[[], Message]
  state: Callable[[], State]
  evaluate: Callable[[OfFn], Evaluation]
  seconds: Mapping[str, float] = MappingProxyType({})


class Curve(NamedTuple):
  """A line of the learning curve, a value an evaluation.

  Attributes:
    metric: what is drawn, a name of `metrics.catalogue` or any other; curves of one metric share a panel.
    of: whose it is, for the legend: "personalized", "global" or any other.
    values: [R], NaN where there is none.
    low: the lower edge of a band around it, [R], or None.
    high: its upper edge.
  """

  metric: str
  of: str
  values: np.ndarray
  low: np.ndarray | None = None
  high: np.ndarray | None = None


class Yardstick:
  """A study of one run, which does nothing; a subclass overrides what it needs.

  Args:
    run: see `Watched`.

  Attributes:
    name: the yardstick's name, under which checkpoints keep its books.
  """

  name: ClassVar[str] = "custom"

  def __init__(self, run: Watched):
    self.run = run

  @classmethod
  def fits(cls, run: Watched) -> bool:
    """Whether the run offers what is studied; asks data and parts what they have, never who they are."""
    return True

  def books(self) -> Any:
    """What a checkpoint keeps for `resume`: what JSON holds; None for a yardstick without memory."""
    return None

  def resume(self, rounds_done: int, books: Any) -> None:
    """Takes up `books` after so many rounds, and forgets what it wrote of later ones.

    A run that begins has rounds_done = 0 and books = None.
    """

  def draw_first(self) -> None:
    """Writes the pictures that are known before the first round; called at every start, after `resume`."""

  def watch(self, infos: RoundInfo, now: Moment) -> Mapping[str, Any]:
    """Looks at a chunk of rounds.

    Args:
      infos: what happened in them, NumPy arrays [rounds, S].
      now: where the run stands after them.

    Returns:
      Fields of the line that metrics.jsonl gets where `now.evaluations` is there; of no use elsewhere.
    """
    return {}

  def section(self, now: Moment) -> Mapping[str, Any]:
    """Fields of summary.json, of the finished run."""
    return {}

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> RenderableType | None:
    """What the terminal shows of a stored summary; None where it holds nothing of this yardstick."""
    return None

  def curves(self, lines: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """What the learning curve, and of the last line the progress, shows of metrics.jsonl's lines, [R]."""
    return []

  def draw(self, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Writes the pictures of the finished run, after `section`, from all lines and the summary."""


def series(lines: Sequence[Mapping[str, Any]], *path: str) -> np.ndarray:
  """The number under a path of names in each line, float64 [R]; NaN where there is none."""

  def at(value: Any) -> float:
    for name in path:
      value = value.get(name) if isinstance(value, Mapping) else None
    return np.nan if value is None else value

  return np.array([at(line) for line in lines], np.float64)
