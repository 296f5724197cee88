"""The record of one run: its losses, its metrics over the rounds, and its summary."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from absl import logging

from fedjax_het.conditions import conditions_of
from fedjax_het.engine.base import Seconds
from fedjax_het.engine.divergence import Divergence, unknown
from fedjax_het.engine.round import RoundInfo, of_rounds, over_rounds
from fedjax_het.engine.state import State
from fedjax_het.engine.stopping import Stopping
from fedjax_het.errors import SettingError
from fedjax_het.experiment.build import Experiment, notes_of, watched
from fedjax_het.experiment.counted import Counted
from fedjax_het.experiment.recorded import missing_rounds, with_nan
from fedjax_het.program.stopping import Stopped
from fedjax_het.studies import Curve, Moment, Study
from fedjax_het.studies.plots import learning_curve
from fedjax_het.studies.study import series
from fedjax_het.workdir.claim import check_claim
from fedjax_het.workdir.encoder import write_encoder
from fedjax_het.workdir.folder import Workdir, filled, free_name, leaves, read_json_lines, write_atomic
from fedjax_het.workdir.model import write_model
from fedjax_het.workdir.pictures import note_pictures, pictures
from fedjax_het.workdir.provenance import check_start, note_start, numerics
from fedjax_het.workdir.trackers import Trackers, check_installed
from fedjax_het.workdir.tracking import Tracker, to_json


class Record(contextlib.AbstractContextManager):
  """Context manager that writes a run's files in its workdir.

  Args:
    experiment: the run's data, model and algorithm; the plan's studies that fit the run watch it.
    run: its workdir.
    writes: whether this process writes the files; the others only keep the record in memory.
    groups: see `Runs`; recorded in starts.jsonl.

  Attributes:
    remarks: sentences on what this start may change in the last bits of a continued run.
    undrawn: reasons why pictures could not be drawn.
    stopping: what ends the run early; None for a run of all its rounds.

  Raises:
    SettingError: two studies have one name, or the run began with JAX options that give other draws.
    DataError: the run began with other data.
  """

  def __init__(
    self, experiment: Experiment, run: Workdir, writes: bool = True,
    groups: Mapping[str, int | None] = MappingProxyType({}),
  ):  # fmt: skip
    """See the class."""
    self.run, self._plan, self._experiment = run, experiment.plan, experiment
    self._numerics = numerics(groups)
    self.remarks = check_start(run, experiment.digests, self._numerics)
    self._counted = Counted(experiment)
    self._losses: list[float] = []  # losses of the rounds since the last evaluation
    self._earlier = Seconds()  # time of earlier starts
    self.undrawn: list[str] = []
    self.diverged: Divergence | None = None
    self._watched = watched(experiment, run.root, writes)
    fitting = [own for own in self._plan.watching if own.fits(self._watched)]
    self._studies: dict[str, Study] = {}
    for own in fitting:
      if own.name in self._studies:
        raise SettingError("studies", own.name, "the name of two", "Give one of them another name.")
      self._studies[own.name] = own(self._watched)
    if writes:
      check_installed(self._plan.tracking)
    self._tracker = Tracker(run) if writes else None
    self._trackers: Trackers | None = None  # from `begin` on
    self.stopping = Stopping(**self._plan.stopping) if self._plan.stopping else None

  def __exit__(self, *exc: object) -> None:
    """Closes the files."""
    if self._trackers:
      self._trackers.close(failed=exc[1] is not None and not isinstance(exc[1], Stopped))
    if self._tracker:
      self._tracker.close()

  def keep_metrics(self, damaged: bool) -> None:
    """Moves metrics.jsonl and samples aside before a start from round 0 without an intact checkpoint.

    Args:
      damaged: whether there was a damaged checkpoint. A run that was killed before its first checkpoint has
        at most two lines, which are worth no warning.
    """
    if not self._tracker or not (damaged or len(read_json_lines(self.run.metrics_path)) > 2):
      return
    if self.run.samples.exists():
      self.run.samples.rename(free_name(self.run.root / "samples.before_damage"))
    if kept := self._put_aside():
      logging.warning("No checkpoint is whole: the run starts at round 0, and %s keeps its metrics.", kept)

  def _put_aside(self) -> Path | None:
    """Copies metrics.jsonl to a free name; returns None if it is empty."""
    text = self.run.metrics_path.read_text(encoding="utf-8", errors="replace")
    if not text:
      return None
    kept = free_name(self.run.root / "metrics.before_damage.jsonl")
    write_atomic(kept, text)
    return kept

  def begin(self, rounds_done: int, books: Mapping[str, Any] | None) -> None:
    """Restores the record of a checkpoint after `rounds_done` rounds, and drops what was written later.

    Lost lines of metrics.jsonl are written again from the checkpoint, with a warning. The start is recorded,
    because it can no longer be refused.

    Raises:
      SettingError: the record is of another version with other fields.
    """
    if books is not None:
      with self._of_this_version():
        self._losses = list(books["losses"])
        self._counted.resume(rounds_done, books)
        self._earlier = Seconds(**books["seconds"])
        self.diverged = Divergence(**books["diverged"]) if books.get("diverged") else None
        kept = dict(books["yardsticks"])
        if self.stopping:
          self.stopping.state = dict(books.get("stopping") or {})
    else:
      kept = {}
    if self._tracker:
      notes = notes_of(self._experiment)
      note_start(self.run, self._experiment.source, notes, self._experiment.digests, self._numerics)
      write_encoder(self.run.root, self._experiment.data.encoder)
      self.run.failed_path.unlink(missing_ok=True)
      self._take_up_metrics(rounds_done, books or {})
      if self._plan.tracking and not self._trackers:
        self._trackers = Trackers(self.run, self._plan.tracking, leaves(filled(self._plan.written)))
    for name, study in self._studies.items():
      with self._of_this_version() if kept.get(name) is not None else contextlib.nullcontext():
        study.resume(rounds_done, kept.get(name))
      if rounds_done and kept.get(name) is None and study.checkpoint_state():
        logging.warning(
          "%s: the checkpoint of round %d knows nothing of the study %s, whose figures count the rounds "
          "since then alone.", self.run.root, rounds_done, name,
        )  # fmt: skip
    self._draw_first()

  def _take_up_metrics(self, rounds_done: int, books: Mapping[str, Any]) -> None:
    """Restores metrics.jsonl to its content after these rounds, and reports what it had lost."""
    assert self._tracker
    path, written = self.run.metrics_path, books.get("lines")
    if written is None:  # a checkpoint of an earlier version, without a copy of the lines
      missing = missing_rounds(self.run, self._plan, rounds_done)
      self._tracker.truncate(rounds_done or -1)
      if missing:
        logging.warning(
          "%s has lost its lines of rounds %s, and the checkpoint, of an earlier version, has no copy.",
          path, ", ".join(map(str, missing)),
        )  # fmt: skip
      return
    aside = self._put_aside() if self._otherwise(written, rounds_done) else None
    lost = self._tracker.truncate(rounds_done or -1, written)
    if lost or aside:
      rounds = ", ".join(str(json.loads(line)["round"]) for line in lost)
      what = f"had lost its lines of rounds {rounds}" if lost else "held lines that are not the run's"
      beside = f"; {aside} keeps what it held" if aside else ""
      logging.warning("%s %s; the checkpoint has them as they were%s.", path, what, beside)

  def _otherwise(self, written: Sequence[str], rounds_done: int) -> bool:
    """Returns whether metrics.jsonl has lines up to a round that differ from the checkpoint's."""
    own = {to_json(json.loads(line)) for line in written}
    found = read_json_lines(self.run.metrics_path)
    return any(line.get("round", 0) <= rounds_done and to_json(line) not in own for line in found)

  @contextlib.contextmanager
  def _of_this_version(self) -> Iterator[None]:
    """Context manager that reports an error in reading a checkpoint's record as one of another version."""
    try:
      yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
      problem = f"the books of its newest checkpoint have other fields ({type(error).__name__}: {error})"
      remedy = "Continue with the version that wrote it, or use another workdir."
      raise SettingError("workdir", str(self.run.root), problem, remedy) from error

  def fail(self, why: str) -> None:
    """Records that the run failed, and why, until it is started again."""
    if self._tracker:
      write_atomic(self.run.failed_path, json.dumps({"failed": why}))

  def checkpoint_state(self, seconds: Seconds) -> dict[str, Any]:
    """Returns what a checkpoint keeps in addition to the state."""
    return {
      **self._counted.checkpoint_state(), "seconds": self._total(seconds),
      "losses": self._losses,
      "diverged": self.diverged and self.diverged.fields,
      "lines": self._tracker.lines if self._tracker else [],
      "stopping": self.stopping and self.stopping.state,
      "yardsticks": {name: study.checkpoint_state() for name, study in self._studies.items()},
    }  # fmt: skip

  def add(
    self, infos: RoundInfo, found: Divergence | None, now: Moment, seconds: Seconds
  ) -> dict[str, float]:
    """Adds a chunk of rounds; returns the figures that progress shows, or none after divergence.

    The figures are `train_loss`, the mean over the rounds since the last evaluation, NaN if none of them had
    an upload, and after an evaluation its headline metrics.

    Args:
      infos: per-round information of the chunk.
      found: where the run diverged in the chunk, or None.
      now: the run's progress after the chunk.
      seconds: time spent since the start.

    Raises:
      Lost, Claimed: see `check_claim`.
    """
    check_claim(self.run.root)
    if found and not self.diverged:
      self.diverged = found
      logging.warning("%s of %s; the other members go on.", found, self.run.root.name)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite losses of opposite signs give NaN
      self._losses.extend(of_rounds(infos, infos.clients.loss))
      train_loss = over_rounds(self._losses)
    self._counted.add(infos)
    now, latest = self._known(now, seconds), {"train_loss": train_loss}
    line = {"round": now.round, "train_loss": train_loss, "seconds": self._total(seconds)}
    line |= self._counted.fields
    line = self._asked(line, lambda study: study.watch(infos, now))
    if now.evaluations is not None:
      for curve in self._curves([line]):
        latest.setdefault(curve.metric, float(curve.values[-1]))
      self._log(line)
      self._losses = []
    elif now.late is not None:
      self._log(line)
    return {} if self.diverged else latest

  def _log(self, line: Mapping[str, Any]) -> None:
    """Writes the line of an evaluation."""
    if self._tracker:
      self._tracker.log(line)
    if self._trackers:
      self._trackers.log(line)

  def keep_model(self, state: State, folder: str = "") -> None:
    """Writes a state's model to a folder of the run's, see `write_model`; every process calls it."""
    (self.run.root / folder).mkdir(exist_ok=True)
    write_model(self.run.root / folder, self._experiment.algorithm, state)

  def finish(self, now: Moment, seconds: Seconds) -> dict[str, Any]:
    """Writes the summary and the pictures."""
    check_claim(self.run.root)
    plan, algorithm, now = self._plan, self._experiment.algorithm, self._known(now, seconds)
    summary: dict[str, Any] = {
      "algorithm": algorithm.client.name,
      "mixing": algorithm.mixing.name,
      "server": algorithm.server.name,
      "dataset": plan.dataset,
      "rounds": now.round,
      "num_clients": self._experiment.data.num_clients,
      "cohort_size": algorithm.clients_in_a_round(plan.cohort_size),
      "seconds": self._total(seconds),
      **self._counted.fields,
    }
    if conditions := conditions_of(plan.parts):
      summary["conditions"] = conditions
    if self._experiment.label_noise:
      summary["label_noise"] = self._experiment.label_noise
    if self.stopping and self.stopping.state:
      summary["stopping"] = {**self.stopping.state, "why": self.stopping.why or "All rounds are done."}
    if self.diverged:
      summary["diverged"] = self.diverged.fields
    summary = self._asked(summary, lambda study: study.section(now))
    if self._tracker:
      self._tracker.keep()
      if self.undrawn:
        self.undrawn.clear()
        self._draw_first()
      self._draw(summary)
      write_atomic(self.run.summary_path, to_json(summary, indent=2))
    if self._trackers:
      pictures_there = sorted(self.run.figures.glob("*.png"))
      self._trackers.finish(summary, [self.run.config_path, self.run.summary_path, *pictures_there])
    return summary

  def _asked(self, fields: dict[str, Any], ask: Callable[[Study], Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the fields merged with those that the studies return when asked."""
    for name, study in self._studies.items():
      more = ask(study)
      if both := sorted({*fields} & {*more}):
        raise SettingError(f"study {name}'s field", both[0], "another has it", "Give it another name.")
      fields = {**fields, **more}
    return fields

  def draw_again(self, summary: dict[str, Any]) -> None:
    """Draws the pictures of a complete run from its files."""
    self.run.figures.mkdir(exist_ok=True)
    self._draw_first()
    self._draw(with_nan(summary))

  def _draw_first(self) -> None:
    """Draws the pictures that need no round."""
    if self._tracker:
      for study in self._studies.values():
        with pictures(self.run, self.undrawn):
          study.draw_first()

  def _draw(self, summary: dict[str, Any]) -> None:
    check_claim(self.run.root)
    lines = read_json_lines(self.run.metrics_path)
    with pictures(self.run, self.undrawn):
      # Figures of parts that are 0 throughout get no panel.
      curves = [own for own in self._curves(lines) if own.there is None or own.values.any()]
      there = np.array(["train_loss" in line for line in lines], bool)
      curves.append(Curve("train_loss", "cohort", series(lines, "train_loss"), there=there))
      path = self.run.figures / "learning_curve.png"
      marks = self._experiment.algorithm.client.studies.milestones
      learning_curve(series(lines, "round"), curves, path, title=self._watched.title, milestones=marks)
    for study in self._studies.values():
      with pictures(self.run, self.undrawn):
        study.draw(lines, summary)
    note_pictures(self.run, self.undrawn)

  def _curves(self, lines: Sequence[Mapping[str, Any]]) -> Iterable[Curve]:
    return (curve for study in self._studies.values() for curve in study.curves(lines))

  def _known(self, now: Moment, seconds: Seconds) -> Moment:
    now = now._replace(
      seconds=self._total(seconds), bytes=self._counted.bytes, simulated_seconds=self._counted.simulated
    )
    if not self.diverged:
      return now
    return now._replace(
      diverged=True, evaluations=now.evaluations and unknown(now.evaluations),
      late=now.late and unknown(now.late),
      evaluate=lambda of, part="test": unknown(now.evaluate(of, part)),
    )  # fmt: skip

  def _total(self, seconds: Seconds) -> dict[str, float]:
    return {kind: getattr(self._earlier, kind) + now for kind, now in seconds._asdict().items()}
