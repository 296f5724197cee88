"""The interface of studies, which observe a launched run and report on it.

The record of a run calls every study that applies to the run, at five points:

===========  ====================================================================================
`resume`     at the start, and after every restart; then `draw_first`: figures that need no round
`watch`      after each chunk of rounds: returns fields of this evaluation's line of metrics.jsonl
`section`    at the end: returns its part of summary.json
`rows`       returns its part of the table on the terminal, from summary.json alone
`draw`       writes its figures; `curves` adds to the figure of the learning curve
===========  ====================================================================================

A study only observes: a run gives the same numbers with it and without it. In a run over several
processes, each process calls its studies alike; one process writes the files. What a configuration may set of
a study is its `options`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import numpy as np
from rich.console import RenderableType

from fedjax_het.data.container import FederatedData
from fedjax_het.data.files import Source
from fedjax_het.engine.evaluate import Evaluation
from fedjax_het.engine.lambda_selection import Evaluations
from fedjax_het.engine.round import RoundInfo
from fedjax_het.engine.state import State
from fedjax_het.models import Generative, Model
from fedjax_het.parts import Algorithm, ClientUpdate, Message, Mixing
from fedjax_het.settings import NO_DEFAULT, Setting, settings_of, signature_of


class Options(NamedTuple):
  """The options that a configuration may set of a study: the fields of a section, or a single field.

  Attributes:
    name: the name of the section or field, as in `--config.NAME.SETTING=VALUE` or `--config.NAME=VALUE`.
    takes: the function, or the dataclass, whose keyword-only arguments are the settings; their types and
      defaults are those of its signature, and their descriptions those of `Args` in its docstring.
    single: whether it is a single field, whose value is the argument of that name.
    on_request: whether an empty section means that the study is off, rather than on with its defaults.
    silent: whether the study leaves all figures of a table unchanged.
  """

  name: str
  takes: Callable[..., Any]
  single: bool = False
  on_request: bool = False
  silent: bool = False

  @property
  def settings(self) -> dict[str, Setting]:
    """Returns the settings by name."""
    known = signature_of(self.takes).parameters
    settings = settings_of(self.takes)
    return {name: settings[name] for name, own in known.items() if own.kind is own.KEYWORD_ONLY}

  @property
  def defaults(self) -> dict[str, Any]:
    """Returns the defaults of the settings that may be left out."""
    found = {name: own.default for name, own in self.settings.items()}
    return {name: value for name, value in found.items() if value is not NO_DEFAULT}


class Chosen(Protocol):
  """A part with its settings by name."""

  @property
  def settings(self) -> Mapping[str, Any]: ...  # noqa: D102


class Plan(Protocol):
  """What studies read of `fedjax_het.config.typed.Plan`.

  Attributes:
    dataset: the data set's name.
    client: the client part.
    unseen_steps: after how many local steps clients that never train are judged.
    rounds: T.
    cohort_size: S.
    eval_every: rounds between two evaluations; None for one after the last round.
    eval_clients: whom evaluations before the end are of; None for all clients.
    feature_shift: the section `feature_shift`; {} for none.
    studies: sections and fields of studies that the configuration gives, by name.
  """

  @property
  def dataset(self) -> str: ...  # noqa: D102
  @property
  def client(self) -> Chosen: ...  # noqa: D102
  @property
  def unseen_steps(self) -> tuple[int, ...]: ...  # noqa: D102
  @property
  def rounds(self) -> int: ...  # noqa: D102
  @property
  def cohort_size(self) -> int: ...  # noqa: D102
  @property
  def eval_every(self) -> int | None: ...  # noqa: D102
  @property
  def eval_clients(self) -> int | str | None: ...  # noqa: D102
  @property
  def feature_shift(self) -> Mapping[str, Any]: ...  # noqa: D102
  @property
  def studies(self) -> Mapping[str, Any]: ...  # noqa: D102


class Watched(NamedTuple):
  """The run that a study observes.

  Attributes:
    config: its plan.
    algorithm: its client, mixing and server parts.
    data: the clients' data.
    source: the data set.
    parts: row numbers of each client in the data set.
    key: the run's key.
    folder: the run's folder for files.
    writes: whether this process writes files.
    model: the model.
    unseen: the data of clients that never train; None if all clients may train.
    hidden: the cluster that each client belongs to by its data, int [K], where that is known; methods do not
      see it.
  """

  config: Plan
  algorithm: Algorithm
  data: FederatedData
  source: Source
  parts: list[np.ndarray]
  key: jax.Array
  folder: Path
  writes: bool = True
  model: Model | Generative | None = None
  unseen: FederatedData | None = None
  hidden: np.ndarray | None = None

  @property
  def figures(self) -> Path:
    """Returns the folder of the run's figures."""
    return self.folder / "figures"

  @property
  def title(self) -> str:
    """Returns the title of the run's figures; a dollar sign in a name opens no formula."""
    text = f"{self.algorithm.client.name} on {self.config.dataset}, {self.data.num_clients} clients"
    return text.replace("$", r"\$")


class Moment(NamedTuple):
  """Progress of a run, and access to its broadcast, state and evaluation.

  Attributes:
    round: number of completed rounds.
    evaluations: all clients' metrics if an evaluation is due, else None; NaN after divergence.
    diverged: whether a training loss or the broadcast became NaN or infinite.
    broadcast: () -> the next broadcast; for a run of a sweep it is copied out on each call.
    state: () -> the whole state, likewise. Its buffers are invalid after `watch` has returned, and with
      several processes all of them must call it, or none.
    evaluate: (of, part="test") -> evaluation of all clients on a part of their data with the models that `of`
      derives from the run's client part, see `Runs.evaluate`; the restrictions of `state` apply.
    seconds: time spent so far, over all starts: {"compile", "train", "eval"}.
    bytes: bytes that were sent so far: {"up", "down"}.
    simulated_seconds: simulated time so far; None for a run without a system part.
    late: all clients' metrics if `late_evaluations` alone had the round judged, else None. Such a round is no
      evaluation to studies, so that it changes none of their figures; only `late` of the summary uses it.
  """

  round: int
  evaluations: Evaluations | None
  diverged: bool
  broadcast: Callable[[], Message]
  state: Callable[[], State]
  evaluate: Callable[..., Evaluation]
  seconds: Mapping[str, float] = MappingProxyType({})
  late: Evaluations | None = None
  bytes: Mapping[str, int] = MappingProxyType({})
  simulated_seconds: float | None = None


class Curve(NamedTuple):
  """A line of the learning curve, with one value per evaluation.

  Attributes:
    metric: name of the metric, from `metrics.catalogue` or any other; curves of one metric share a panel.
    of: name for the legend: "personalized", "global" or any other.
    values: [R], NaN where there is none.
    low: lower edge of a band around the line, [R], or None.
    high: upper edge of the band.
    there: which evaluations have a field of the curve's, bool [R]: where its value is NaN, there is a gap.
      None for those with a finite value, so that the line has no gap.
  """

  metric: str
  of: str
  values: np.ndarray
  low: np.ndarray | None = None
  high: np.ndarray | None = None
  there: np.ndarray | None = None


class Study:
  """Base class of studies of one run; every method does nothing until a subclass overrides it.

  Args:
    run: the observed run, see `Watched`.

  Attributes:
    name: the study's name, the key of its state in checkpoints.
    options: the options that a configuration may set; None if there are none.
  """

  name: ClassVar[str] = "custom"
  options: ClassVar[Options | None] = None

  def __init__(self, run: Watched):
    self.run = run

  @property
  def settings(self) -> Any:
    """Returns the settings by name, or the value of a single field, with the defaults filled in."""
    if self.options is None:
      return {}
    name, own = self.options.name, self.options.defaults
    return self.run.config.studies.get(name, own[name] if self.options.single else own)

  @classmethod
  def check(cls, given: Any, client: ClientUpdate, validates: bool) -> None:
    """Raises `SettingError` for invalid options; called before any data is read.

    Args:
      given: the section, {} if it is empty or absent; for a single field its value, or its default.
      client: the client part, around a small model.
      validates: whether clients have validation parts.
    """

  @classmethod
  def check_run(cls, given: Any, run: Watched) -> None:
    """Raises `SettingError` if the options do not fit the data or the model; called before compilation."""

  @classmethod
  def observed(cls, given: Any, mixing: Mixing, model: Model | Generative) -> Mixing:
    """Returns the mixing part, wrapped so that it reports the quantities that the study observes."""
    return mixing

  @classmethod
  def fits(cls, run: Watched) -> bool:
    """Returns whether the study applies to the run.

    This is decided by what data and parts offer, never by their names.
    """
    return True

  def checkpoint_state(self) -> Any:
    """Returns the JSON-serialisable state that a checkpoint keeps for `resume`; None if stateless."""
    return None

  def resume(self, rounds_done: int, checkpoint_state: Any) -> None:
    """Restores `checkpoint_state` after `rounds_done` rounds, and deletes what was written of later rounds.

    A run that begins calls it with rounds_done = 0 and checkpoint_state = None.
    """

  def draw_first(self) -> None:
    """Writes the pictures that are known before the first round; called at every start, after `resume`."""

  def watch(self, infos: RoundInfo, now: Moment) -> Mapping[str, Any]:
    """Observes a chunk of rounds.

    Args:
      infos: per-round information, NumPy arrays [rounds, S].
      now: the run's progress after these rounds.

    Returns:
      Fields of the line that metrics.jsonl gets if the round is judged; ignored otherwise.
    """
    return {}

  def section(self, now: Moment) -> Mapping[str, Any]:
    """Returns fields of summary.json for the finished run."""
    return {}

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> RenderableType | None:
    """Returns the terminal's output for a stored summary; None if it has nothing of this study."""
    return None

  @classmethod
  def judged(cls, summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the figures of further models that the study evaluates: name -> metric -> figures."""
    return {}

  @classmethod
  def on_page(cls, folder: Path) -> dict[str, Any]:
    """Returns the study's JSON data for a run's entry on the page of `fedjax_het.compare`, by name."""
    return {}

  def curves(self, lines: Sequence[Mapping[str, Any]]) -> list[Curve]:
    """Returns the curves of this study over metrics.jsonl's lines, [R], for learning curve and progress."""
    return []

  def draw(self, lines: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> None:
    """Writes the figures of the finished run, after `section`, from all lines and the summary."""


def series(lines: Sequence[Mapping[str, Any]], *path: str) -> np.ndarray:
  """Extracts the number under a path of keys from each line, float64 [R]; NaN where there is no number."""

  def at(value: Any) -> float:
    for name in path:
      value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, int | float) else np.nan

  return np.array([at(line) for line in lines], np.float64)
