"""Writes a run's metrics: one JSON line per evaluation, and the same numbers for TensorBoard."""

import contextlib
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
  """Converts a nested record to strict JSON: arrays become lists, and NaN and infinities null."""
  return json.dumps(plain_record(value), indent=indent, allow_nan=False)


class Tracker(contextlib.AbstractContextManager):
  """Appends records to DIR/metrics.jsonl and their scalars to event files in DIR/tensorboard.

  In a run over several processes only one of them should hold a tracker.

  Args:
    workdir: the run's folder, which exists.

  Attributes:
    lines: the run's lines so far, available after `truncate`; checkpoints keep them.
  """

  def __init__(self, workdir: str | os.PathLike[str]):
    """See the class."""
    self._workdir = Workdir(Path(workdir))
    self._file = self._workdir.metrics_path.open("a", encoding="utf-8")
    self._events: Any = None
    self._resumed = False
    self.lines: list[str] = []

  def log(self, record: Mapping[str, Any]) -> None:
    """Appends one evaluation, and syncs it to the disk before a checkpoint counts it as written.

    A file that another program has removed or resized is written again, with a warning.

    Args:
      record: nested dict with `round`, an int, which is the TensorBoard step of the tags `part/part/name`.
        Leaves are numbers, strings, None or arrays (also JAX's); TensorBoard gets finite numbers only.
    """
    record = plain_record(record)
    check_claim(self._workdir.metrics_path)
    self.keep()
    self.lines.append(to_json(record) + "\n")
    self._file.write(self.lines[-1])
    self._file.flush()
    os.fsync(self._file.fileno())
    events = self._open_events(record["round"])
    for tag, value in scalars(record):
      if tag != "round":
        events.write_event(self._event(record["round"], summary=self._scalar(tag, value)))
    events.flush()

  def keep(self) -> None:
    """Writes metrics.jsonl again, with a warning, if it is no longer the file that this tracker wrote."""
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
    """Drops lines logged after a checkpoint, so that a resumed file equals an uninterrupted one.

    Lines with `round` > `after_round` and unreadable lines are dropped; the others are kept byte for byte.
    The file is replaced atomically. TensorBoard hides later events once the next record is written.

    Args:
      after_round: the round of the checkpoint to resume from; -1 drops all lines.
      written: the lines up to that round that the checkpoint holds, which the file then contains.

    Returns:
      The lines of `written` that were missing or different in the file.
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

  def __exit__(self, *exc: object) -> None:
    """Closes the files."""
    self.close()

  def _open_events(self, first_round: int) -> Any:
    """Opens the event file at the first record; after a resume it purges later events.

    It writes in the calling thread, because tensorboardX's writer thread dies of a full disk and its caller
    waits forever.
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
  """Makes a TensorBoard event with the current time."""
  return kind(wall_time=time.time(), step=step, **what)


def plain_record(value: Any) -> Any:
  """Converts mappings, tuples and arrays to dicts, lists and numbers, with None for non-finite values."""
  if isinstance(value, Mapping):
    return {str(name): plain_record(part) for name, part in value.items()}
  if isinstance(value, list | tuple):
    return [plain_record(part) for part in value]
  if hasattr(value, "tolist"):
    return plain_record(value.tolist())
  if isinstance(value, float) and not math.isfinite(value):
    return None
  return value


def scalars(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
  """Yields (tag, number) of every numeric leaf."""
  for name, value in tree.items():
    if isinstance(value, dict):
      yield from scalars(value, f"{prefix}{name}/")
    elif isinstance(value, int | float):
      yield prefix + name, value


def _round_of(line: str) -> float:
  """Returns the round of a line of metrics.jsonl; inf if it cannot be read or is incomplete."""
  try:
    return json.loads(line)["round"] if line.endswith("\n") else math.inf
  except (ValueError, KeyError, TypeError):
    return math.inf
