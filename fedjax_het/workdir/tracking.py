"""The run's record: one JSON line an evaluation, and the same numbers for TensorBoard."""

import functools
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from fedjax_het.workdir.claim import check_claim
from fedjax_het.workdir.folder import Workdir, write_atomic


def to_json(value: Any, indent: int | None = None) -> str:
  """Strict JSON of a nested record: arrays as lists, null for NaN and infinities."""
  return json.dumps(_plain(value), indent=indent, allow_nan=False)


class Tracker:
  """Appends records to DIR/metrics.jsonl and their scalars to event files in DIR/tensorboard.

  In a run over several processes only one of them should hold a tracker.

  Args:
    workdir: the run's folder, which exists.

  Attributes:
    lines: the lines of the run so far, once `truncate` was called; what a checkpoint keeps of them.
  """

  def __init__(self, workdir: str | os.PathLike[str]):
    """See the class."""
    self._workdir = Workdir(Path(workdir))
    self._file = self._workdir.metrics_path.open("a", encoding="utf-8")
    self._events: Any = None
    self._resumed = False
    self.lines: list[str] = []

  def log(self, record: Mapping[str, Any]) -> None:
    """Appends one evaluation, on the disk before a checkpoint counts it as written.

    A file that somebody else removed, cut or changed the length of since is written anew, with a warning.

    Args:
      record: nested; holds `round`, an int, the step of the scalars' TensorBoard tags `part/part/name`.
        Leaves are numbers, strings, None or arrays (also JAX's), of which TensorBoard gets finite numbers.
    """
    record = _plain(record)
    check_claim(self._workdir.metrics_path)
    self.keep()
    self.lines.append(to_json(record) + "\n")
    self._file.write(self.lines[-1])
    self._file.flush()
    os.fsync(self._file.fileno())
    events = self._open_events(record["round"])
    for tag, value in _scalars(record):
      if tag != "round":
        events.write_event(self._event(record["round"], summary=self._scalar(tag, value)))
    events.flush()

  def keep(self) -> None:
    """Writes metrics.jsonl anew where it is no longer the file that this tracker wrote, with a warning."""
    path = self._workdir.metrics_path
    try:
      found = path.stat()
      same = os.path.samestat(found, os.fstat(self._file.fileno()))
      whole = same and found.st_size == sum(len(line.encode()) for line in self.lines)
    except FileNotFoundError:
      whole = False
    if self._resumed and not whole:
      logging.warning("%s was removed or changed under the run; its lines are written again.", path)
      self._rewrite()

  def _rewrite(self) -> None:
    self._file.close()
    write_atomic(self._workdir.metrics_path, "".join(self.lines))
    self._file = self._workdir.metrics_path.open("a", encoding="utf-8")

  def truncate(self, after_round: int, written: Sequence[str] | None = None) -> list[str]:
    """Forgets what was logged past a checkpoint, so that a resumed run's file equals an uninterrupted one's.

    Drops the lines with `round` > `after_round` and those that a crash left unreadable; the other lines stay
    byte for byte. The file is replaced in one step. TensorBoard hides the events from the next record on.

    Args:
      after_round: the round of the checkpoint to resume from; -1 forgets everything.
      written: the lines until that round, as the checkpoint holds them: the file then holds these.

    Returns:
      The lines of `written` that the file lacked or held otherwise.
    """
    text = self._workdir.metrics_path.read_text(encoding="utf-8", errors="replace")
    kept = [line for line in text.splitlines(keepends=True) if _round_of(line) <= after_round]
    self.lines = kept if written is None else [*written]
    self._rewrite()
    self._resumed = True
    return sorted({*self.lines} - {*kept}, key=self.lines.index)

  def close(self) -> None:
    """Closes the files; a second call does nothing."""
    self._file.close()
    if self._events is not None:
      self._events.close()
      self._events = None

  def __enter__(self) -> "Tracker":
    """Itself."""
    return self

  def __exit__(self, *exc: object) -> None:
    """Closes."""
    self.close()

  def _open_events(self, first_round: int) -> Any:
    """The writer of event files, made at the first record, which after a resume purges the later ones.

    It writes in this thread: that of tensorboardX's own writer dies of a full disk, and its caller waits.
    """
    if self._events is None:
      from tensorboardX.event_file_writer import EventsWriter
      from tensorboardX.proto.event_pb2 import Event, SessionLog
      from tensorboardX.summary import scalar

      self._scalar, self._event = scalar, functools.partial(_event, Event)
      folder = self._workdir.root / "tensorboard"
      folder.mkdir(exist_ok=True)
      self._events = EventsWriter(os.fspath(folder / "events"))
      if self._resumed:
        self._events.write_event(self._event(first_round, session_log=SessionLog(status=SessionLog.START)))
    return self._events


def _event(kind: Any, step: int, **what: Any) -> Any:
  """An event of now."""
  return kind(wall_time=time.time(), step=step, **what)


def _plain(value: Any) -> Any:
  """Dicts, lists and numbers in place of mappings, tuples and arrays; None for what is not finite."""
  if isinstance(value, Mapping):
    return {str(name): _plain(part) for name, part in value.items()}
  if isinstance(value, list | tuple):
    return [_plain(part) for part in value]
  if hasattr(value, "tolist"):
    return _plain(value.tolist())
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


def _scalars(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
  """(tag, number) of every numeric leaf."""
  for name, value in tree.items():
    if isinstance(value, dict):
      yield from _scalars(value, f"{prefix}{name}/")
    elif isinstance(value, int | float):
      yield prefix + name, value


def _round_of(line: str) -> float:
  """The round of a line of the record; inf where it cannot be read or has no end."""
  try:
    return json.loads(line)["round"] if line.endswith("\n") else math.inf
  except (ValueError, KeyError, TypeError):
    return math.inf
