"""The folder of one run: the names of its files, and the check that it belongs to one configuration."""

import contextlib
import dataclasses
import errno
import glob
import inspect
import itertools
import json
import os
import re
import secrets
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import optax

from fedjax_het.config.own_epochs import of_earlier
from fedjax_het.config.same import as_given, with_defaults
from fedjax_het.errors import SettingError, folder_of
from fedjax_het.workdir.claim import Claimed as Claimed
from fedjax_het.workdir.claim import check_claim, lock, writable
from fedjax_het.workdir.claim import claimed as claimed

STARTS = "starts.jsonl"
TABLE = "sweep.json"
FAILED = "failed.json"
DERIVED = ("eval_every",)  # fields that shipped configurations derive from others


class _Inside:
  """The path of a file or a folder in a run's folder, as an attribute of `Workdir`."""

  def __init__(self, name: str):
    self._name = name

  def __get__(self, run: "Workdir", kind: type) -> Path:
    return run.root / self._name


@dataclasses.dataclass(frozen=True)
class Workdir:
  """Paths of a run's files; a path-like object, so `Path(workdir)` and `open(...)` accept it."""

  root: Path
  config_path = _Inside("config.json")  # the resolved configuration, written once
  starts_path = _Inside(STARTS)  # one line per start: version and commit, date, machine
  metrics_path = _Inside("metrics.jsonl")  # one line per evaluation
  summary_path = _Inside("summary.json")  # the final figures
  failed_path = _Inside(FAILED)  # the reason why the last start diverged
  checkpoints = _Inside("checkpoints")
  samples = _Inside("samples")  # synthetic examples, one file per evaluation, for methods that synthesise
  figures = _Inside("figures")

  def __fspath__(self) -> str:
    """Returns the folder's path."""
    return os.fspath(self.root)

  @property
  def traces(self) -> tuple[Path, ...]:
    """The files that exist once a run or sweep has its config.json; a folder with any of them is not new."""
    names = "summary.json", TABLE, STARTS, FAILED, "metrics.jsonl", "checkpoints", "members"
    return tuple(self.root / name for name in names)

  @property
  def folders(self) -> tuple[Path, ...]:
    """The folders that every run writes to; the run's own is last."""
    return self.checkpoints, self.figures, self.root


def workdir_of(workdir: str | os.PathLike[str]) -> Workdir:
  """Returns the `Workdir` of a path, which need not exist; raises `SettingError` for an empty path."""
  path = folder_of("workdir", workdir)
  if not os.fspath(workdir):
    raise SettingError("workdir", "", "is empty", "Name a folder, such as runs/a.")
  return Workdir(Path(os.path.abspath(path)))


def check(workdir: str | os.PathLike[str], config: Mapping[str, Any], free: Collection[str] = ()) -> Workdir:
  """Checks that a folder, existing or not, belongs to this run, before data are read; creates nothing.

  Args:
    workdir: the folder.
    config: the resolved configuration, nested, with leaves that are JSON values, tuples, NumPy scalars or
      paths.
    free: fields that may differ when a run is continued, such as the folder of its data.

  Raises:
    SettingError: the folder belongs to another configuration (the error names all fields that differ, parts'
      names first and derived fields last), or to a run whose config.json is missing or damaged, or it cannot
      be reached.
  """
  run = workdir_of(workdir)
  check_readable(run)
  with writable(workdir):
    if run.config_path.exists():
      _check_same(run, json.loads(as_json(config)), free)
    elif left := next(filter(_holds_something, run.traces), None):
      raise SettingError(
        "workdir", str(run.root), f"holds {left.name} of a run without its config.json, which says whose",
        "Put that file back, or use another workdir.",
      )  # fmt: skip
  return run


def check_readable(run: Workdir) -> None:
  """Raises `SettingError` if one of a run's files exists and may not be read, which is not damage."""
  for path in (run.config_path, run.starts_path, run.metrics_path, run.summary_path, run.failed_path):
    try:
      path.open("rb").close()
    except (FileNotFoundError, NotADirectoryError):
      continue
    except OSError as error:
      if error.errno == errno.ENAMETOOLONG:  # no such folder can exist; reported elsewhere
        continue
      problem = f"its {path.name} cannot be read ({error.strerror or error})"
      raise SettingError(
        "workdir", str(run.root), problem, "Let its owner make it readable, or use another workdir."
      ) from error


def _holds_something(path: Path) -> bool:
  """Returns whether a path is a non-empty file or a non-empty folder."""
  return any(path.iterdir()) if path.is_dir() else path.exists() and path.stat().st_size > 0


def check_writable(*folders: Path) -> None:
  """Raises `SettingError` if a folder, existing or not, cannot be written; creates nothing.

  It also refuses paths with characters of glob patterns, from which Orbax could not read checkpoints.
  """
  if re.search("[\ud800-\udfff]", os.path.abspath(folders[-1])):
    problem = "has bytes in its path that are no UTF-8, to which Orbax can write no checkpoint"
    raise SettingError("workdir", str(folders[-1]), problem, "Name another folder.")
  if any(sign in os.path.abspath(folders[-1]) for sign in "*?["):
    problem = "has one of the signs *, ? and [ in its path, from which Orbax could read no checkpoint again"
    raise SettingError("workdir", str(folders[-1]), problem, "Name another folder.")
  with writable(folders[-1]):
    for there in {next(path for path in (own, *own.parents) if path.exists()) for own in folders}:
      with tempfile.TemporaryFile(dir=there):
        pass


def prepare(
  workdir: str | os.PathLike[str],
  config: Mapping[str, Any],
  free: Collection[str] = (),
  writes: bool = True,
) -> Workdir:
  """Makes a run's folder, or takes up the one of an earlier start of the same run.

  Call it after everything that the run needs has been found, because from then on the folder belongs to the
  run.

  Args:
    workdir: the folder; it and its parents are made where missing.
    config: see `check`.
    free: see `check`.
    writes: whether this process writes the configuration; one of several processes does.

  Raises:
    SettingError: see `check` and `check_writable`.
  """
  run = check(workdir, config, free)
  check_writable(*run.folders)
  with writable(workdir):
    for folder in (run.checkpoints, run.figures):
      folder.mkdir(parents=True, exist_ok=True)
  if writes:
    keep_config(run, config, free)
  return run


def keep_config(run: Workdir, config: Mapping[str, Any], free: Collection[str] = ()) -> None:
  """Writes config.json if it is missing, such as removed during the run, or has other values of `free`."""
  text = as_json(config, indent=2) + "\n"
  if run.config_path.exists():
    old, new = leaves(read_record(run.config_path)), leaves(json.loads(text))
    if all(old.get(name) == new.get(name) for name in free):
      return
  write_atomic(run.config_path, text)


def as_json(config: Mapping[str, Any], indent: int | None = None) -> str:
  """Converts a resolved configuration to text, the same for equal configurations; see `prepare`."""
  return json.dumps(config, indent=indent, sort_keys=True, default=_plain)


def write_atomic(path: Path, text: str) -> None:
  """Writes a text file atomically, see `written_at_once`."""
  with written_at_once(path) as file:
    file.write(text.encode())


@contextlib.contextmanager
def written_at_once(path: Path) -> Iterator[BinaryIO]:
  """Context manager that yields a file to write, which then takes the place of `path` in one step.

  A reader, or a crash, sees the old file or the new one, never a part. Several processes, also on several
  hosts, may write a file at once: the last content wins. Partial files that killed processes left are
  removed.

  Raises:
    Lost, Claimed: see `check_claim`.
  """
  check_claim(path)
  partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
  try:
    with partial.open("xb") as file:
      while lock(file) is False:  # held until the file is closed, as a sign that this writer is alive
        time.sleep(0.001)  # another writer looks at it, and would take a file without lock for a dead one's
      yield file
      file.flush()
      os.fsync(file.fileno())
      _remove_partials(path, but=partial)
      partial.replace(path)
  finally:
    partial.unlink(missing_ok=True)
  _sync(path.parent)


def _remove_partials(path: Path, but: Path) -> None:
  """Removes partial files of `path` whose writers are dead.

  A live writer holds a lock on its partial file, except for the instant between creating and locking it.
  Therefore empty files are kept for a minute, and on file systems without locks all files for an hour, by the
  file system's clock, which also dated `but`.
  """
  now = but.stat().st_mtime
  ends = r"([0-9a-f]{16}|[0-9a-f]{32}|\d+)"  # the latter two by earlier versions
  pattern = re.compile(re.escape(f".{path.name}.") + ends)
  for partial in path.parent.glob(f".{glob.escape(path.name)}.*"):
    if partial != but and (named := pattern.fullmatch(partial.name)):
      with contextlib.suppress(OSError), partial.open("r+b") as file:
        locks, about = lock(file), os.fstat(file.fileno())
        known = locks and len(named[1]) == 16
        patience = 0 if known and about.st_size else 60 if known else 3600
        if locks is not False and now - about.st_mtime >= patience:
          partial.unlink()


def _sync(folder: Path) -> None:
  """Syncs a folder's entries to the disk, if the system can, so that renames survive a power cut."""
  with contextlib.suppress(OSError):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
      os.fsync(descriptor)
    finally:
      os.close(descriptor)


def read_json(path: Path) -> Any:
  """Reads a JSON file; returns None if it is missing or damaged, so that it is written again."""
  try:
    return _parsed(path.read_text(encoding="utf-8"))
  except (OSError, UnicodeError):
    return None


def read_record(path: Path) -> dict[str, Any] | None:
  """Reads a JSON file that holds an object; returns None for anything else."""
  found = read_json(path)
  return found if isinstance(found, dict) else None


def read_json_lines(path: Path) -> list[dict[str, Any]]:
  """Reads the records of a file with one JSON record per line; damaged and incomplete lines are left out."""
  records = map(_parsed, lines_of(path))
  return [record for record in records if isinstance(record, dict)]


def lines_of(path: Path) -> list[str]:
  """The lines of a text file, damaged characters replaced; [] without a file that can be read."""
  try:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()
  except OSError:
    return []


def read_starts(folder: Path) -> list[dict[str, Any]]:
  """Returns a run's starts in order, each with the data set's digests in "data"; {} if unknown."""
  starts = read_json_lines(folder / STARTS)
  return [start | {"data": data if isinstance(data := start.get("data"), dict) else {}} for start in starts]


def _parsed(text: str) -> Any:
  try:
    return json.loads(text)
  except (ValueError, RecursionError):  # RecursionError: deeply nested lists
    return None


def free_name(path: Path) -> Path:
  """Returns the path, or the first of PATH_2, PATH_3, ... that does not exist."""
  others = (path.with_name(f"{path.stem}_{n}{path.suffix}") for n in itertools.count(2))
  return next(name for name in itertools.chain([path], others) if not name.exists())


def _check_same(run: Workdir, config: Any, free: Collection[str]) -> None:
  """Raises `SettingError` if the folder's config.json differs from `config`."""
  try:
    stored = json.loads(run.config_path.read_text(encoding="utf-8"))
    if not isinstance(stored, dict):
      raise ValueError("it holds no fields")
  except (OSError, ValueError, RecursionError) as error:
    problem = f"its config.json cannot be read ({error})"
    raise SettingError(
      "workdir", str(run.root), problem, "Put it back as it was, or use another workdir."
    ) from error
  if ("sweep" in stored) != ("sweep" in config):
    kinds = ("a single run", "a sweep")
    raise SettingError(
      "workdir", str(run.root), f"holds {kinds['sweep' in stored]}, not {kinds['sweep' in config]}",
      "Use another workdir.",
    )  # fmt: skip
  before = of_earlier(stored)
  old, new, written = leaves(filled(before)), leaves(filled(config)), leaves(config)
  names = sorted({*old, *new} - {*free}, key=_precedence)
  differ = [name for name in names if old.get(name) != new.get(name)]
  if differ:
    first, *others = differ
    told = {name: as_given(name, written, leaves(stored)) for name in differ}
    problem = f"the run in {run.root} was started with {told[first]} = {old.get(first, 'absent')}"
    if others:
      were = (f"{told[name]} = {old.get(name, 'absent')} (here {new.get(name, 'absent')})" for name in others)
      problem += f", and with {', '.join(were)}"
    assumed = {*leaves(before)} - {*leaves(stored)}
    if of_version := [own for own in told.values() if own in assumed]:
      problem += f". An earlier version began it, which trained {', '.join(of_version)} so unless it was set"
    raise SettingError(
      told[first], json.loads(new[first]) if first in new else "absent", problem,
      "Use another workdir for the new config, or the same config to resume this run.",
    )  # fmt: skip


def _precedence(field: str) -> tuple[bool, bool, str]:
  """Sort key of differing fields: names of parts first, on which others depend, and derived fields last."""
  last = field.rpartition(".")[2]
  return last in DERIVED, last != "name", field


def filled(config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns a configuration with every default filled in, as its JSON file has it; see `with_defaults`."""
  return json.loads(as_json(with_defaults(config)))


def leaves(tree: Any, prefix: str = "") -> dict[str, str]:
  """Flattens a configuration: dotted field -> JSON text, so that NaN equals NaN and 1 differs from true."""
  if isinstance(tree, dict) and tree:
    parts = (leaves(value, f"{prefix}.{name}" if prefix else name) for name, value in tree.items())
    return {name: text for part in parts for name, text in part.items()}
  return {prefix: json.dumps(tree, sort_keys=True)}


def _plain(value: Any) -> Any:
  """Converts mappings, arrays, NumPy scalars, paths and functions, by their names, for JSON."""
  if isinstance(value, Mapping):
    return dict(value)
  if hasattr(value, "tolist"):
    return value.tolist()
  if isinstance(value, os.PathLike):
    return os.fspath(value)
  if inspect.isfunction(value):
    of_optax = getattr(optax, value.__name__, None) is value
    return f"optax.{value.__name__}" if of_optax else f"{value.__module__}.{value.__qualname__}"
  raise TypeError(f"a config field holds {value!r} ({type(value).__name__}), which JSON cannot")
