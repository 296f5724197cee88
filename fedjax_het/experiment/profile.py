"""Where the time of a launched run goes: the seconds of each phase, and a trace for Perfetto."""

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedjax_het.engine.base import Runs
from fedjax_het.engine.processes import writes
from fedjax_het.output.progress import Progress
from fedjax_het.program.display import Display
from fedjax_het.workdir.folder import write_atomic

FOLDER = "profile"
FILES = TRACE, TABLE = "trace.json.gz", "profile.json"
SECONDS_OF_TRACE = 5.0
REST = "checkpoints, files, and what no phase has"


class Profile(Display):
  """Display that also measures; a context manager, which writes WORKDIR/profile/ and shows a table.

  profile.json has `seconds`, by phase, whose sum is `total`; `rounds`, how many were trained; and `traced`,
  the rounds that are in the trace, [after, until], or null.

  The trace, trace.json.gz, is what `jax.profiler` records for about five seconds, in the format of Perfetto
  (ui.perfetto.dev). It begins after the first chunk of rounds for which nothing had to be compiled. Recording
  slows the traced rounds down; writing the trace is a phase of its own.

  Args:
    workdir: the run's folder.
    seconds_of_trace: how long the trace is.
  """

  def __init__(self, workdir: str, seconds_of_trace: float = SECONDS_OF_TRACE):
    """See the class."""
    self._folder, self._length = Path(workdir) / FOLDER, seconds_of_trace
    self._phases: dict[str, float] = {}
    self._inside: list[float] = []  # seconds of inner phases, for each phase that is going on
    self._engine: Runs | None = None
    self._started = time.monotonic()
    self._tracing: float | None = None  # when the trace began
    self._first, self._rounds = 0, 0
    self._traced: list[int] | None = None
    self._compiled = -1.0  # seconds of compiling until the chunk before

  def trains(self, engine: Runs) -> None:
    """See `Display`."""
    self._engine = engine

  @contextlib.contextmanager
  def doing(self, what: str) -> Iterator[None]:
    """See `Display`; what is done is a phase."""
    with super().doing(what), self.phase(what):
      yield

  def progress(self, total: int) -> Progress:
    """See `Display`."""
    return _Profiled(self, total, quiet=not writes())

  @contextlib.contextmanager
  def phase(self, name: str) -> Iterator[None]:
    """Context manager that counts its time for a phase, without that of inner phases and of the engine."""
    started, before = time.monotonic(), self._of_engine()
    self._inside.append(0.0)
    try:
      yield
    finally:
      elapsed = time.monotonic() - started
      inner = self._inside.pop() + self._of_engine() - before
      self._phases[name] = self._phases.get(name, 0.0) + max(elapsed - inner, 0.0)
      if self._inside:
        self._inside[-1] += elapsed - (self._of_engine() - before)

  def begin(self, round: int) -> None:
    """Takes note of the rounds that an earlier start has done."""
    self._first = self._rounds = round

  def update(self, round: int) -> None:
    """Begins the trace after a chunk of rounds without compiling, and ends it in time."""
    self._rounds = round
    if not writes() or self._engine is None:
      return
    before, self._compiled = self._compiled, self._engine.seconds.compile
    if self._traced is None and before == self._compiled:
      shutil.rmtree(self._folder, ignore_errors=True)
      options = jax.profiler.ProfileOptions()
      options.python_tracer_level = 0  # whose events are many more than those of the programs
      jax.profiler.start_trace(str(self._folder), create_perfetto_trace=True, profiler_options=options)
      self._tracing, self._traced = time.monotonic(), [round, round]
    elif self._tracing is not None and self._traced is not None:
      self._traced[1] = round
      if time.monotonic() - self._tracing > self._length:
        self.end_trace()

  def end_trace(self) -> None:
    """Writes the trace if there is one under way."""
    if self._tracing is None:
      return
    self._tracing = None
    with self.phase("writing the trace"):
      jax.profiler.stop_trace()
      for path in self._folder.rglob("perfetto_trace.json.gz"):
        path.rename(self._folder / TRACE)
      shutil.rmtree(self._folder / "plugins", ignore_errors=True)

  def __enter__(self) -> "Profile":
    """Returns itself."""
    return self

  def __exit__(self, *exc: object) -> None:
    """Writes profile.json and shows the table; says so if nothing was trained."""
    self.end_trace()
    if self._engine is None:
      self.show("No rounds were trained, so there is no profile.")
    elif writes():
      found = self.found()
      if self._folder.parent.is_dir():
        self._folder.mkdir(exist_ok=True)
        write_atomic(self._folder / TABLE, json.dumps(found, indent=2))
      self.show(table_of(found), *self._where(found))

  def found(self) -> dict[str, Any]:
    """Returns what profile.json holds."""
    total = time.monotonic() - self._started
    seconds = dict(self._phases)
    if self._engine is not None:
      seconds |= {"rounds": self._engine.seconds.train, "evaluations": self._engine.seconds.eval}
    seconds[REST] = max(total - sum(seconds.values()), 0.0)
    ordered = dict(sorted(seconds.items(), key=lambda own: -own[1]))
    traced = self._traced if self._traced and self._traced[0] < self._traced[1] else None
    return {"seconds": ordered, "total": total, "rounds": self._rounds - self._first, "traced": traced}

  def _where(self, found: dict[str, Any]) -> list[str]:
    """Returns the sentence that says what is in the trace."""
    if not found["traced"]:
      return ["The run ended before there was something to trace: more rounds have a trace."]
    after, until = found["traced"]
    return [f"Rounds {after + 1} to {until} are in {self._folder / TRACE}: open it at ui.perfetto.dev."]

  def _of_engine(self) -> float:
    return 0.0 if self._engine is None else self._engine.seconds.train + self._engine.seconds.eval


class _Profiled(Progress):
  """Progress that tells a profile of each chunk of rounds, and of other work."""

  def __init__(self, profile: Profile, total: int, *, quiet: bool):
    super().__init__(total, console=None, quiet=quiet)
    self._profile = profile

  def begin(self, start: int) -> None:
    """See `Progress`."""
    super().begin(start)
    self._profile.begin(start)

  @contextlib.contextmanager
  def doing(self, what: str) -> Iterator[None]:
    """See `Progress`."""
    with super().doing(what), self._profile.phase(what):
      yield

  def update(self, round: int, /, **latest: float) -> None:
    """See `Progress`."""
    super().update(round, **latest)
    self._profile.update(round)

  def __exit__(self, *exc: object) -> None:
    """See `Progress`."""
    super().__exit__(*exc)
    self._profile.end_trace()


def table_of(found: dict[str, Any]) -> Table:
  """Returns the table of a profile's phases, the longest first, with their shares."""
  table = Table(box=SIMPLE_HEAD, caption=f"{found['rounds']} rounds", caption_justify="left")
  table.add_column("where the time went")
  for name in ("seconds", "share"):
    table.add_column(name, justify="right")
  for phase, seconds in found["seconds"].items():
    table.add_row(phase, f"{seconds:.2f}", f"{100 * seconds / max(found['total'], 1e-9):.1f} %")
  table.add_section()
  table.add_row("together", f"{found['total']:.2f}", "")
  return table
