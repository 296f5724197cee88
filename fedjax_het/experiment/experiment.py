"""Runs a configuration in a workdir: with resume, studies, and a record."""

import contextlib
import functools
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
from absl import logging

from fedjax_het.config.plan import plan
from fedjax_het.config.typed import Plan
from fedjax_het.engine.base import Runs, Seconds
from fedjax_het.engine.capacity import in_words
from fedjax_het.engine.divergence import check_any_left
from fedjax_het.engine.engine import Engine
from fedjax_het.engine.lambda_selection import Evaluations
from fedjax_het.engine.processes import agreed, of_the_first, writes
from fedjax_het.engine.run import chunks, evaluate
from fedjax_het.engine.state import State
from fedjax_het.errors import DataError, NonFiniteLoss, NoRoom, SettingError, check_range
from fedjax_het.experiment.build import Experiment, build, engine_of, notes_of
from fedjax_het.experiment.extend import earlier_rounds, take_up
from fedjax_het.experiment.moments import moments, share, together
from fedjax_het.experiment.record import Record
from fedjax_het.experiment.recorded import missing_rounds
from fedjax_het.experiment.report import beside, made_of, report
from fedjax_het.modes import in_float32
from fedjax_het.output.progress import Progress
from fedjax_het.program.display import TERMINAL, Display
from fedjax_het.program.stopping import Stopped, StopRequest
from fedjax_het.program.where import EVERYWHERE, Where
from fedjax_het.studies import Study
from fedjax_het.studies.client_metrics import FILE, write_clients
from fedjax_het.workdir.checkpoint import Checkpoints
from fedjax_het.workdir.claim import Lost, check_claim, check_claim_together
from fedjax_het.workdir.folder import (
  Workdir,
  check,
  check_writable,
  claimed,
  keep_config,
  prepare,
  read_record,
  workdir_of,
)
from fedjax_het.workdir.model import MODEL, write_model
from fedjax_het.workdir.pictures import missing_pictures

BEST = "best"  # the folder of the best round's model
FREE = ("data_dir", "late_evaluations")  # fields that may change on resume


@in_words()
@in_float32()
def run_experiment(
  config: Any,
  workdir: str,
  where: Where = EVERYWHERE,
  *,
  checkpoint_seconds: float = 600.0,
  studies: Sequence[type[Study]] = (),
  display: Display = TERMINAL,
) -> dict[str, Any]:
  """Runs a configuration in `workdir`, continues it, or shows its result if it is complete.

  Checkpoints are written at every evaluation, of a state above 256 MiB at most once a minute, at the latest
  after `checkpoint_seconds`, on SIGUSR1, after which the run continues, and on SIGTERM or Ctrl-C, which end
  it. Signals are handled between two chunks of rounds, some seconds apart. Several processes all call this
  function with the same arguments, and the first writes the files.

  Args:
    config: what to run: nested fields, as a ConfigDict or a mapping, or their `Plan`.
    workdir: the folder.
    where: the devices to use.
    checkpoint_seconds: the most seconds between two checkpoints.
    studies: further studies of the run, in addition to `fedjax_het.studies.STUDIES`.
    display: shows the run.

  Returns:
    The summary, as in summary.json.

  Raises:
    SettingError, DataError: found before anything is compiled; also if another process works on this run.
    NonFiniteLoss: names the round, the client and the last good checkpoint.
    NoRoom: memory does not suffice, or the workdir's disk is full.
    Stopped: SIGTERM or Ctrl-C was received, and a checkpoint is written.
  """
  planned = plan(config, studies)
  where.check()
  check_range("checkpoint_seconds", checkpoint_seconds, 0.0, on_host=True)
  run = workdir_of(workdir)
  if (old := earlier_rounds(run, planned, FREE)) is None:
    check(workdir, planned.written, FREE)
  if old is None and (summary := read_record(run.summary_path)):
    lost = FILE if not (run.root / FILE).is_file() and not summary.get("diverged") else ""

    def made() -> tuple[Runs, jax.Array, list[Experiment]]:
      experiment = build(planned)
      return engine_of(experiment, where), experiment.key, [experiment]

    rounds = summary.get("rounds", planned.rounds)  # fewer where it has stopped early
    display.show(*models_of_checkpoint(run, [run], rounds, made, display, lost))
    with contextlib.ExitStack() as stack:
      claim = functools.partial(stack.enter_context, claimed(run, writes()))
      lacks = draw_missing(planned, run, claim, display)
    place = f"This run is complete; its files are in {run.root}."
    if missing := missing_rounds(run, planned, rounds):
      place += f" But metrics.jsonl has lost its lines of rounds {', '.join(map(str, missing))}: without "
      place += "summary.json the same command takes them from the checkpoint, and ends the run again."
    return _show(run, summary, place, lacks, studies, display)
  check_writable(*run.folders)
  with display.doing("reading the data"):
    experiment = build(planned)
    engine = engine_of(experiment, where)
  display.show(*notes_of(experiment))
  with in_words(run), claimed(run, writes()):
    if old is not None and writes():
      take_up(run, planned, old)
    if summary := json.loads(of_the_first(json.dumps(read_record(run.summary_path)))):
      place = f"Another process has completed this run; its files are in {run.root}."
      return _show(run, summary, place, [], studies, display)
    prepare(workdir, planned.written, free=FREE, writes=writes())
    with Record(experiment, run, writes(), engine.groups) as record:
      checkpoints = Checkpoints(run.checkpoints)
      _, (summary,) = train(
        engine, experiment.key, [record], planned, checkpoints, checkpoint_seconds, display
      )
    if writes():
      keep_config(run, planned.written)
    check_claim_together(run)
  place = f"Table, figures, metrics and checkpoints are in {run.root}."
  return _show(run, summary, place, record.undrawn, studies, display)


def _show(
  run: Workdir, summary: dict[str, Any], place: str, undrawn: Sequence[str],
  studies: Sequence[type[Study]], display: Display,
) -> dict[str, Any]:  # fmt: skip
  """Shows a complete run and names missing pictures; returns its summary."""
  shown = made_of(run.summary_path, report, summary, studies)
  why = summary.get("stopping", {}).get("why", "")
  display.show(shown, *([why] if why else []), place, *not_drawn(undrawn), beside(run, "OTHER_RUN ..."))
  return summary


def not_drawn(why: Sequence[str]) -> list[str]:
  """Returns a sentence about pictures that could not be drawn, if there are any."""
  return [f"Pictures are missing ({'; '.join(why)}): the same command draws them."] if why else []


def draw_missing(plan: Plan, run: Workdir, claim: Callable[[], Any], display: Display) -> list[str]:
  """Draws the pictures that a complete run lacks, from its files and data; no number changes.

  Args:
    plan: the run's plan.
    run: its folder.
    claim: claims the folder; called if there is something to draw.
    display: shows that the data are being read.

  Returns:
    Reasons why pictures are still missing; [] if there are all.
  """
  lacks = missing_pictures(run) if writes() else []
  if not agreed(bool(lacks))[0]:
    return []
  try:
    check_writable(*run.folders)
    claim()
    with display.doing("reading the data"):
      experiment = build(plan)
    with Record(experiment, run, writes()) as record:
      if writes():
        record.draw_again(read_record(run.summary_path) or {})
      return record.undrawn
  except (SettingError, DataError, OSError) as error:  # a full disk does not invalidate the figures
    return [*lacks, str(error)]


def models_of_checkpoint(
  root: Workdir, runs: Sequence[Workdir], rounds: int,
  made: Callable[[], tuple[Runs, jax.Array, Sequence[Experiment]]], display: Display, lost: str = "",
) -> list[str]:  # fmt: skip
  """Writes the missing model.npz of complete runs from their last checkpoint.

  Args:
    root: the workdir with the checkpoints: the run's, or the sweep's.
    runs: the folder of each run.
    rounds: the number of rounds of all runs.
    made: () -> (engine, key or keys, the runs' experiments).
    display: shows the work that is going on.
    lost: clients.npz where it is missing in the only run, which is then evaluated again; "" for models alone.

  Returns:
    A sentence on why that is impossible; [] if no file is missing any more.
  """
  if not (missing := lost or next((MODEL for run in runs if not (run.root / MODEL).is_file()), "")):
    return []
  problem = f"its checkpoint of round {rounds} is not there"
  try:
    if (root.checkpoints / str(rounds)).is_dir():
      with display.doing(f"writing {MODEL}"), claimed(root, writes()):
        engine, key, experiments = made()
        with contextlib.closing(Checkpoints(root.checkpoints)) as checkpoints:
          found = checkpoints.restore(engine.to_save(engine.init(key)))
          whole = checkpoints.latest() == rounds  # the newest checkpoint was readable
        if found is not None and whole:
          for run, experiment, own in zip(runs, experiments, engine.split(found[0])):
            write_model(run.root, experiment.algorithm, own)
          if lost:
            assert isinstance(engine, Engine)
            evaluations = evaluate(engine, found[0])
            if writes():
              write_clients(root.root, evaluations, engine.data.encoder.clients)
          return []
  except (SettingError, DataError, NoRoom, OSError) as error:
    problem = str(error)
  return [f"{missing} is missing in {root.root}, and cannot be written: {problem}"]


def train(
  engine: Runs,
  key: jax.Array,
  records: Sequence[Record],
  plan: Plan,
  checkpoints: Checkpoints,
  checkpoint_seconds: float,
  display: Display = TERMINAL,
  alone: bool = True,
) -> tuple[State, list[dict[str, Any]]]:
  """Trains an engine's runs from the newest checkpoint on, and keeps the record of each.

  Args:
    engine: trains the runs.
    key: the run's key, or the members' keys.
    records: a record for each run.
    plan: of one of the runs, which have its rounds and evaluations alike.
    checkpoints: the checkpoints of all runs together.
    checkpoint_seconds: see `run_experiment`.
    display: shows the progress.
    alone: whether the training ends with an error if all of these runs have diverged. It is False for members
      that are added to a sweep, whose earlier members may be finite.

  Returns:
    (the final state, the runs' summaries).
  """
  display.show(*dict.fromkeys(remark for record in records for remark in record.remarks))
  display.trains(engine)
  with contextlib.closing(checkpoints), display.progress(plan.rounds) as progress:
    engine.doing = progress.doing
    try:
      return _train(engine, key, records, plan, checkpoints, checkpoint_seconds, progress, alone)
    except NonFiniteLoss as error:
      for record in records:
        record.fail(f"diverged: {record.diverged or error}")
      raise NonFiniteLoss(f"{error} Last good checkpoint: {checkpoints.path()}.") from error
    except OSError as error:
      check_claim(checkpoints.folder)  # a file cannot be written because its folder is gone
      if isinstance(error, IsADirectoryError | NotADirectoryError | FileExistsError | PermissionError):
        what = error.filename2 or error.filename or "a file of the run"
        problem = f"{what} cannot be written ({error.strerror or error}): it was replaced under the run"
        remedy = "Put it right, and start the same command again, which goes on from the last checkpoint."
        raise Lost("workdir", str(records[0].run.root), problem, remedy) from error
      raise


def shown_of(evaluations: Evaluations | None) -> dict[str, float]:
  """Returns {"evaluated": the number of clients}, for progress, of an evaluation that is not of all."""
  if evaluations is None or evaluations.clients is None:
    return {}
  return {"evaluated": float(evaluations.clients.sum(-1).max())}


def _train(
  engine: Runs, key: jax.Array, records: Sequence[Record], plan: Plan,
  checkpoints: Checkpoints, checkpoint_seconds: float, progress: Progress, alone: bool,
) -> tuple[State, list[dict[str, Any]]]:  # fmt: skip
  state, evaluations = engine.init(key), None
  checkpoints.check_room(state)
  found = checkpoints.restore(engine.to_save(state))
  if found is not None:
    state = engine.from_saved(found[0])
  else:
    for record in records:
      record.keep_metrics(checkpoints.damaged())
  first = engine.rounds_done(state)
  for i, record in enumerate(records):
    record.begin(first, found and found[1]["runs"][i])

  def seconds() -> Seconds:
    return share(engine.seconds, len(records))

  saved = time.monotonic()
  progress.begin(first)
  (stopping,) = {record.stopping for record in records} if len(records) == 1 else {None}
  if stopping and not engine.has_validation:
    remedy = "Use a larger valid_fraction, or leave stopping out."
    raise SettingError("stopping", dict(plan.stopping), "no client has validation examples", remedy)
  rounds = first if stopping and stopping.why else plan.rounds  # it had ended early
  with StopRequest() as stop:
    every, late = plan.eval_every, plan.late_evaluations
    for chunk in chunks(engine, state, rounds, every, late, plan.eval_clients):
      state, done, evaluations = chunk.state, engine.rounds_done(chunk.state), chunk.evaluations
      check_claim_together(checkpoints.folder)
      latest = [
        record.add(infos, found, now, seconds())
        for record, infos, found, now in zip(
          records,
          engine.split(chunk.infos),
          chunk.diverged,
          moments(engine, len(records), state, evaluations, chunk.late),
        )
      ]
      if alone:
        check_any_left([record.run.root.name for record in records], [record.diverged for record in records])
      if stopping and evaluations is not None and stopping.watch(done, evaluations) and stopping.keep_best:
        records[0].keep_model(engine.to_save(state), BEST)
      rounds = done if stopping and stopping.why else plan.rounds
      asked, stop.save = stop.save, False
      waited = time.monotonic() - saved
      judged = evaluations is not None and (done == rounds or checkpoints.writes_after(waited))
      must_stop, due = agreed(stop.made, asked or judged or waited > checkpoint_seconds)
      if must_stop or due:
        books = {"runs": [record.checkpoint_state(seconds()) for record in records]}
        checkpoints.save(done, engine.to_save(state), books)
        saved = time.monotonic()
      if must_stop and done < rounds:
        progress.update(done)
        raise Stopped(
          f"Stopped by {stop.by.name} after round {done}; the same command goes on from there.", stop.by
        )
      going = [figures for figures in latest if figures]
      told = together(going) | ({"diverged": len(latest) - len(going)} if going != latest else {})
      progress.update(done, **told, **shown_of(evaluations))
      if done == rounds < plan.rounds:
        break
  if evaluations is None or evaluations.clients is not None:
    # An earlier start ended between the last checkpoint and the summary, or the last clients were a sample.
    evaluations = evaluate(engine, state)
  check_claim_together(checkpoints.folder)
  checkpoints.wait()
  for record, own in zip(records, engine.split(engine.to_save(state))):
    record.keep_model(own)
  spent = seconds()  # taken before studies evaluate
  if not checkpoints.holds(rounds):  # a run with a summary also has its last checkpoint
    logging.warning("The run's last checkpoint was removed under it; it is written again.")
    books = {"runs": [record.checkpoint_state(spent) for record in records]}
    checkpoints.save(rounds, engine.to_save(state), books)
    checkpoints.wait()
  with progress.doing("summary and pictures"):
    return state, [
      record.finish(now, spent)
      for record, now in zip(records, moments(engine, len(records), state, evaluations))
    ]
