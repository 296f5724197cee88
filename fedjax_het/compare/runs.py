"""Finds the runs below some folders and reads what each has written so far."""

import os
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from fedjax_het.compare import sound
from fedjax_het.config.own_epochs import to_compare
from fedjax_het.engine.divergence import Divergence
from fedjax_het.errors import SettingError, folder_of
from fedjax_het.workdir.folder import FAILED, Workdir, read_starts

MEMBERS = "members"  # a sweep's folder of its members; its checkpoints are next to it until it is complete
OF_A_RUN = ("metrics.jsonl", "summary.json", "starts.jsonl", "checkpoints")  # a run has at least one
FOUND = ("examples", "data_digest")  # recorded in starts.jsonl when the data set was read
REASON = 100  # most characters of a failure's reason in the state


class Run(NamedTuple):
  """The content that a run has written so far.

  Attributes:
    folder: its workdir.
    name: its folder, relative to the common folder of all runs.
    config: its configuration.
    lines: the readable lines of metrics.jsonl.
    summary: the content of summary.json; {} where there is none.
    failed: the reason why it has no summary, from failed.json; "" for none.
    saved: the round of its newest checkpoint; 0 without one.
    damaged: the names of damaged files and where the damage is; "" for none.
    found: the number of "examples" and the "data_digest" of the data set as recorded in starts.jsonl; {} for
      none.
  """

  folder: Path
  name: str
  config: Mapping[str, Any]
  lines: Sequence[Mapping[str, Any]]
  summary: Mapping[str, Any]
  failed: str = ""
  saved: int = 0
  damaged: str = ""
  found: Mapping[str, Any] = MappingProxyType({})

  @property
  def seed(self) -> int:
    """The seed in its configuration."""
    return self.config["seed"]

  @property
  def round(self) -> int:
    """The round of the last evaluation; 0 before the first."""
    return self.lines[-1]["round"] if self.lines else 0

  @property
  def reached(self) -> int:
    """The last round that is known to be done, by an evaluation or a checkpoint."""
    return max(self.round, self.saved)

  @property
  def diverged(self) -> str:
    """Returns a sentence on where the run diverged or why it failed; "" if neither happened."""
    if self.summary.get("diverged"):
      return f"{Divergence(**self.summary['diverged'])}."
    if self.summary:
      return ""
    gone = f"Its training loss was not finite by round {self._gone}." if self._gone else ""
    return self.failed or gone

  @property
  def _gone(self) -> int:
    lost = (line["round"] for line in self.lines if line.get("train_loss", 0.0) is None and not _judged(line))
    return next(lost, 0)

  @property
  def complete(self) -> bool:
    """Returns whether the run has ended with final figures."""
    return bool(self.summary) and not self.diverged

  @property
  def state(self) -> str:
    """Returns the run's progress in a few words."""
    return "; ".join(filter(None, (self._state, self.damaged)))

  @property
  def _state(self) -> str:
    if self.summary.get("diverged"):
      return f"diverged in round {self.summary['diverged']['round']}"
    if self.summary:
      return "complete"
    if self.failed:
      return _reason(self.failed)
    if self._gone:
      return f"diverged by round {self._gone}"
    rounds = self.config["rounds"]
    first = (
      "" if self.lines else f", first evaluation at {min(self.config.get('eval_every') or rounds, rounds)}"
    )
    return f"round {self.reached} of {rounds}{first}"

  def metrics(self, round: int | None = None) -> Mapping[str, Any]:
    """Returns figures over the clients, model -> metric -> figures, at an evaluation, by default the last."""
    if round is None and self.summary.get("metrics"):
      return self.summary["metrics"]
    lines = [line for line in self.lines if line.get("metrics") and round in (None, line["round"])]
    return lines[-1]["metrics"] if lines else {}


def find(paths: Sequence[str | os.PathLike[str]], left_out: list[str] | None = None) -> list[Run]:
  """Finds the runs in some folders.

  A run's folder gives that run, a sweep's its members, and any other all runs below it.

  Args:
    paths: the folders.
    left_out: a list to which a sentence is added for each run that is left out because its configuration is
      damaged.

  Raises:
    SettingError: a folder does not exist, or has no run in it or below.
  """
  folders: dict[Path, Mapping[str, Any]] = {}
  damaged: list[str] = []
  for path in paths:
    own = Path(os.path.abspath(folder_of("RUN", path)))
    if not own.is_dir():
      raise SettingError(
        "RUN",
        str(path),
        "is a file" if own.exists() else "no such folder",
        "Name the workdir of a run, or a folder of such.",
      )
    found = dict(_below(own, damaged))
    if not found:
      problem = "holds no run: there is no config.json of one in it or below"
      problem = ". ".join([problem, *damaged])
      raise SettingError("RUN", str(path), problem, "Name what --workdir was, or --runs of a table.")
    folders |= found
  if left_out is not None:
    left_out += damaged
  parent = Path(os.path.commonpath([folder.parent for folder in folders]))
  configs = to_compare([*folders.values()])
  return [_read(folder, _name(folder, parent), config) for folder, config in zip(folders, configs)]


def _below(folder: Path, damaged: list[str]) -> Iterator[tuple[Path, Mapping[str, Any]]]:
  for path, inside, files in os.walk(folder):
    inside.sort()
    names = {*inside, *files}
    if "config.json" not in names:
      continue
    config, problem = sound.read_record(Path(path) / "config.json", sound.config)
    if not problem:
      inside.clear()
      yield Path(path), config
    elif names & {*OF_A_RUN} and MEMBERS not in names:  # other programs write a config.json too
      damaged.append(f"The run in {path} is left out: its {problem}")


def _reason(failed: str) -> str:
  """Returns the first sentence of a failure, preceded by "failed: " unless it says that the run diverged."""
  first = failed.splitlines()[0].partition(". ")[0].removesuffix(".")
  short = textwrap.shorten(first, REASON, placeholder=" …")
  return short if first.startswith("diverged") else f"failed: {short}"


def _name(folder: Path, parent: Path) -> str:
  return "/".join(part for part in folder.relative_to(parent).parts if part != MEMBERS)


def _read(folder: Path, name: str, config: Mapping[str, Any]) -> Run:
  run = Workdir(folder)
  lines, of_lines = sound.read_records(run.metrics_path, sound.line)
  summary, of_summary = sound.read_record(run.summary_path, sound.summary)
  failed, of_failed = sound.read_record(folder / FAILED, sound.failed)
  starts = read_starts(folder)
  data = starts[-1]["data"] if starts else {}
  found = {field: data[field] for field in FOUND if isinstance(data.get(field), str | int)}
  problems = filter(None, (of_summary, of_lines, of_failed))
  return Run(
    folder, name, config, lines, summary, failed.get("failed", ""), _saved(folder), "; ".join(problems), found
  )


def _judged(line: Mapping[str, Any]) -> bool:
  """Returns whether a line has metrics, as one without a training loss has after rounds without uploads."""
  models = (line.get("metrics") or {}).values()
  return any((own or {}).get("mean") is not None for metrics in models for own in (metrics or {}).values())


def _saved(folder: Path) -> int:
  """Returns the round of the newest checkpoint of a run, or of the sweep that it is a member of."""
  owners = (folder, folder.parents[1]) if folder.parent.name == MEMBERS else (folder,)
  names = (path.name for owner in owners for path in Workdir(owner).checkpoints.glob("[0-9]*"))
  return max((int(name) for name in names if name.isdecimal()), default=0)


def leaves(config: Mapping[str, Any], without: Collection[str] = (), prefix: str = "") -> dict[str, Any]:
  """Flattens a nested configuration without some fields and sections: dotted field -> value."""
  found: dict[str, Any] = {}
  for name, value in config.items():
    field = f"{prefix}{name}"
    if field in without:
      continue
    if isinstance(value, Mapping):
      found |= leaves(value, without, f"{field}.")
    else:
      found[field] = value
  return found
