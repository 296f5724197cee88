"""The folder of one run: its files' names, and the promise that it holds one configuration only."""

import contextlib
import dataclasses
import errno
import glob
import itertools
import json
import os
import re
import secrets
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fedjax_het.config.own_epochs import of_earlier
from fedjax_het.config.same import as_given, with_defaults
from fedjax_het.errors import SettingError, folder_of
from fedjax_het.workdir.claim import Claimed as Claimed
from fedjax_het.workdir.claim import check_claim, lock, writable
from fedjax_het.workdir.claim import claimed as claimed

STARTS = "starts.jsonl"
TABLE = "sweep.json"
FAILED = "failed.json"
DERIVED = ("eval_every",)  # fields that shipped configurations reckon from others


@dataclasses.dataclass(frozen=True)
class Workdir:
  """Where a run keeps its files; itself a path, so `Path(workdir)` and `open(...)` take it."""

  root: Path

  def __fspath__(self) -> str:
    """The folder, as `os.fspath` wants it."""
    return os.fspath(self.root)

  @property
  def config_path(self) -> Path:
    """The resolved configuration, written once."""
    return self.root / "config.json"

  @property
  def starts_path(self) -> Path:
    """One JSON line a start: version and commit, day, machine."""
    return self.root / STARTS

  @property
  def metrics_path(self) -> Path:
    """One JSON line an evaluation."""
    return self.root / "metrics.jsonl"

  @property
  def summary_path(self) -> Path:
    """The final figures."""
    return self.root / "summary.json"

  @property
  def failed_path(self) -> Path:
    """Why the last start came to no summary, where it diverged."""
    return self.root / FAILED

  @property
  def checkpoints(self) -> Path:
    """Folder of the checkpoints."""
    return self.root / "checkpoints"

  @property
  def samples(self) -> Path:
    """Folder of the synthetic examples, a file an evaluation; made by methods that synthesise."""
    return self.root / "samples"

  @property
  def figures(self) -> Path:
    """Folder of the figures."""
    return self.root / "figures"

  @property
  def traces(self) -> tuple[Path, ...]:
    """What a run or a sweep leaves once it has its config.json, so that one without is not taken for new."""
    names = "summary.json", TABLE, STARTS, FAILED, "metrics.jsonl", "checkpoints", "members"
    return tuple(self.root / name for name in names)

  @property
  def folders(self) -> tuple[Path, ...]:
    """Those that every run writes to, its own last."""
    return self.checkpoints, self.figures, self.root


def workdir_of(workdir: str | os.PathLike[str]) -> Workdir:
  """The folder that a path names, there or not yet there; raises `SettingError` for an empty one."""
  if not os.fspath(workdir):
    raise SettingError("workdir", "", "is empty", "Name a folder, such as runs/a.")
  return Workdir(Path(os.path.abspath(folder_of("workdir", workdir))))


def check(workdir: str | os.PathLike[str], config: Mapping[str, Any], free: Collection[str] = ()) -> Workdir:
  """Checks whose a run's folder is, there or not yet there, before anything is read; makes nothing.

  Args:
    workdir: the folder.
    config: the resolved configuration, nested; leaves are what JSON holds, tuples, NumPy scalars or paths.
    free: fields that may differ when a run is taken up, such as where its data lie.

  Raises:
    SettingError: the folder belongs to a run with another configuration, and the error names all fields that
      differ, parts' names first and derived fields last; it holds a run whose config.json is gone or damaged,
      which could be any configuration's; or it cannot be reached.
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
  """Raises `SettingError` where one of a run's files is there and cannot be read, which is no damage."""
  for path in (run.config_path, run.starts_path, run.metrics_path, run.summary_path, run.failed_path):
    try:
      path.open("rb").close()
    except (FileNotFoundError, NotADirectoryError):
      continue
    except OSError as error:
      if error.errno == errno.ENAMETOOLONG:  # there can be no such folder, which is said elsewhere
        continue
      problem = f"its {path.name} cannot be read ({error.strerror or error})"
      raise SettingError(
        "workdir", str(run.root), problem, "Let its owner make it readable, or use another workdir."
      ) from error


def _holds_something(path: Path) -> bool:
  """Whether there is a file that is not empty, or a folder that is not."""
  return any(path.iterdir()) if path.is_dir() else path.exists() and path.stat().st_size > 0


def check_writable(*folders: Path) -> None:
  """Raises `SettingError` where a folder, there or not yet there, cannot be written; makes nothing.

  Nor can checkpoints be read again from a path with a sign of a pattern, which Orbax takes for one.
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
  """Makes a run's folder, or takes up the one that an earlier start of the same run left.

  Call it once all that the run needs is found: until then the folder is nobody's.

  Args:
    workdir: the folder; it and its parents are made where missing.
    config: see `check`.
    free: see `check`.
    writes: whether this process writes the configuration, as one of several does.

  Raises:
    SettingError: see `check` and `check_writable`.
  """
  run = check(workdir, config, free)
  check_writable(*run.folders)
  with writable(workdir):
    for folder in (run.checkpoints, run.figures):
      folder.mkdir(parents=True, exist_ok=True)
  if writes:
    keep_config(run, config)
  return run


def keep_config(run: Workdir, config: Mapping[str, Any]) -> None:
  """Writes config.json where it is not there, as when somebody removed it while the run was under way."""
  if not run.config_path.exists():
    write_atomic(run.config_path, as_json(config, indent=2) + "\n")


def as_json(config: Mapping[str, Any], indent: int | None = None) -> str:
  """A resolved configuration as text, of which equal ones have the same; see `prepare`."""
  return json.dumps(config, indent=indent, sort_keys=True, default=_plain)


def write_atomic(path: Path, text: str) -> None:
  """Writes a text file in one step: a reader, or a crash, sees the old file or the new one, never a part.

  Several processes, also on several hosts, may write one file at once: the last one's content stays. Partial
  files of it that killed processes left are removed.

  Raises:
    Lost, Claimed: see `check_claim`.
  """
  check_claim(path)
  partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
  try:
    with partial.open("x", encoding="utf-8") as file:
      lock(file)  # until it is closed: this writer is alive
      file.write(text)
      file.flush()
      os.fsync(file.fileno())
      _remove_partials(path, but=partial)
      partial.replace(path)
  finally:
    partial.unlink(missing_ok=True)
  _sync(path.parent)


def _remove_partials(path: Path, but: Path) -> None:
  """Removes partial files of `path` whose writers are dead.

  A live writer has a lock on its own, but for the instant between making the file and locking it: an empty
  one is left alone for a minute, and where there are no locks any for an hour, by the clock of the file
  system, which also dated `but`.
  """
  now = but.stat().st_mtime
  pattern = re.compile(re.escape(f".{path.name}.") + r"([0-9a-f]{16}|\d+)")  # digits: of earlier versions
  for partial in path.parent.glob(f".{glob.escape(path.name)}.*"):
    if partial != but and (named := pattern.fullmatch(partial.name)):
      with contextlib.suppress(OSError), partial.open("r+b") as file:
        locks, about = lock(file), os.fstat(file.fileno())
        known = locks and len(named[1]) == 16
        patience = 0 if known and about.st_size else 60 if known else 3600
        if locks is not False and now - about.st_mtime >= patience:
          partial.unlink()


def _sync(folder: Path) -> None:
  """Brings a folder's entries to the disk, where the system can: a file's new name outlives a power cut."""
  with contextlib.suppress(OSError):
    descriptor = os.open(folder, os.O_RDONLY)
    try:
      os.fsync(descriptor)
    finally:
      os.close(descriptor)


def read_json(path: Path) -> Any:
  """What a file holds; None where it is not there, or is damaged: then it is to be written again."""
  try:
    return _parsed(path.read_text(encoding="utf-8"))
  except (OSError, UnicodeError):
    return None


def read_record(path: Path) -> dict[str, Any] | None:
  """The same of a file that holds fields and values; None where it holds anything else."""
  found = read_json(path)
  return found if isinstance(found, dict) else None


def read_json_lines(path: Path) -> list[dict[str, Any]]:
  """The records in a file of one a line, but for a line that is just being written, or damaged; [] without
  a file that can be read."""
  records = map(_parsed, lines_of(path))
  return [record for record in records if isinstance(record, dict)]


def lines_of(path: Path) -> list[str]:
  """The lines of a text file, damaged characters replaced; [] without a file that can be read."""
  try:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()
  except OSError:
    return []


def read_starts(folder: Path) -> list[dict[str, Any]]:
  """A run's starts in order, each with what its data set was found to be in "data"; {} if unknown."""
  starts = read_json_lines(folder / STARTS)
  return [start | {"data": data if isinstance(data := start.get("data"), dict) else {}} for start in starts]


def _parsed(text: str) -> Any:
  try:
    return json.loads(text)
  except (ValueError, RecursionError):  # the latter of lists within lists without end
    return None


def free_name(path: Path) -> Path:
  """The path, or the first of PATH_2, PATH_3, ... where there is nothing yet."""
  others = (path.with_name(f"{path.stem}_{n}{path.suffix}") for n in itertools.count(2))
  return next(name for name in itertools.chain([path], others) if not name.exists())


def _check_same(run: Workdir, config: Any, free: Collection[str]) -> None:
  """Raises `SettingError` where the folder's config.json differs from `config`."""
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
  """Derived fields last, for nobody has set them; names of parts first, as the others go with them."""
  last = field.rpartition(".")[2]
  return last in DERIVED, last != "name", field


def filled(config: Mapping[str, Any]) -> dict[str, Any]:
  """What JSON holds of a configuration with every default filled in, see `with_defaults`."""
  return json.loads(as_json(with_defaults(config)))


def leaves(tree: Any, prefix: str = "") -> dict[str, str]:
  """Dotted field name -> JSON text of its value; text, so that NaN equals NaN and 1 differs from true."""
  if isinstance(tree, dict) and tree:
    parts = (leaves(value, f"{prefix}.{name}" if prefix else name) for name, value in tree.items())
    return {name: text for part in parts for name, text in part.items()}
  return {prefix: json.dumps(tree, sort_keys=True)}


def _plain(value: Any) -> Any:
  """What JSON cannot hold by itself: mappings, arrays and NumPy scalars, paths."""
  if isinstance(value, Mapping):
    return dict(value)
  if hasattr(value, "tolist"):
    return value.tolist()
  if isinstance(value, os.PathLike):
    return os.fspath(value)
  raise TypeError(f"a config field holds {value!r} ({type(value).__name__}), which JSON cannot")
