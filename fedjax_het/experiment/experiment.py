"""A launched run, from its configuration to its table: resumable, watched, recorded."""

import contextlib
import functools
import os
import time
from collections.abc import Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from fedjax_het.engine.divergence import check_any_left
from fedjax_het.engine.pick import Evaluations
from fedjax_het.engine.processes import agreed, writes
from fedjax_het.engine.progress import Progress
from fedjax_het.engine.run import chunks, evaluate
from fedjax_het.engine.runs import Runs, Seconds
from fedjax_het.engine.state import State
from fedjax_het.errors import NonFiniteLoss, check_range
from fedjax_het.experiment.build import build, engine_of, notes_of
from fedjax_het.experiment.check import check_config
from fedjax_het.experiment.checkpoint import Checkpoints
from fedjax_het.experiment.display import TERMINAL, Display
from fedjax_het.experiment.own_epochs import resolved
from fedjax_het.experiment.record import Record
from fedjax_het.experiment.report import beside, report
from fedjax_het.experiment.stopping import Stopped, StopRequest
from fedjax_het.experiment.where import EVERYWHERE, Where
from fedjax_het.experiment.workdir import check, check_writable, claimed, prepare, read_record
from fedjax_het.yardsticks import Moment, Yardstick

FREE = ("data_dir",)  # what may change on resume


def run_experiment(
  config: ConfigDict,
  workdir: str,
  where: Where = EVERYWHERE,
  *,
  checkpoint_seconds: float = 600.0,
  yardsticks: Sequence[type[Yardstick]] = (),
  display: Display = TERMINAL,
) -> dict[str, Any]:
  """Runs a configuration in `workdir`, continues it, or shows its result where it is complete.

  Checkpoints are written at every evaluation, at the latest after `checkpoint_seconds`, and on SIGTERM or
  Ctrl-C, to which a run listens between two chunks of rounds, a second or two apart. With several processes
  each calls it alike, and the first writes the files.

  Args:
    config: what to run.
    workdir: the folder.
    where: devices.
    checkpoint_seconds: see above.
    yardsticks: your own, which watch the run beside `fedjax_het.yardsticks.YARDSTICKS`.
    display: what shows the run.

  Returns:
    The summary, as in summary.json.

  Raises:
    SettingError, DataError: found before anything is compiled; also where another process is at this run.
    NonFiniteLoss: names the round, the client and the last good checkpoint.
    Stopped: SIGTERM or Ctrl-C came; a checkpoint is written.
  """
  check_config(config)
  config = resolved(config)
  where.check()
  check_range("checkpoint_seconds", checkpoint_seconds, 0.0)
  run = check(workdir, config.to_dict(), FREE)
  if summary := read_record(run.summary_path):
    place = f"This run is complete; its files are in {os.fspath(run)}."
    display.show(report(summary, yardsticks), place, beside(run, "OTHER_RUN ..."))
    return summary
  check_writable(*run.folders)
  with display.doing("reading the data"):
    experiment = build(config)
    engine = engine_of(config, experiment, where)
  display.show(*notes_of(config, experiment))
  prepare(workdir, config.to_dict(), free=FREE, writes=writes())
  with claimed(run, writes()), Record(config, experiment, run, writes(), yardsticks) as record:
    _, (summary,) = train(
      engine, experiment.key, [record], config, Checkpoints(run.checkpoints), checkpoint_seconds, display
    )
  place = f"Table, figures, metrics and checkpoints are in {os.fspath(run)}."
  display.show(report(summary, yardsticks), place, beside(run, "OTHER_RUN ..."))
  return summary


def train(
  engine: Runs,
  key: jax.Array,
  records: Sequence[Record],
  config: ConfigDict,
  checkpoints: Checkpoints,
  checkpoint_seconds: float,
  display: Display = TERMINAL,
) -> tuple[State, list[dict[str, Any]]]:
  """Trains an engine's runs from the newest checkpoint on, and keeps the record of each.

  Returns:
    (the final state, the runs' summaries).
  """
  with contextlib.closing(checkpoints), display.progress(config.rounds) as progress:
    engine.doing = progress.doing
    try:
      return _train(engine, key, records, config, checkpoints, checkpoint_seconds, progress)
    except NonFiniteLoss as error:
      for record in records:
        record.fail(f"diverged: {record.diverged or error}")
      raise NonFiniteLoss(f"{error} Last good checkpoint: {checkpoints.path()}.") from error


def _train(
  engine: Runs, key: jax.Array, records: Sequence[Record], config: ConfigDict,
  checkpoints: Checkpoints, checkpoint_seconds: float, progress: Progress,
) -> tuple[State, list[dict[str, Any]]]:  # fmt: skip
  state, evaluations = engine.init(key), None
  checkpoints.check_room(state)
  found = checkpoints.restore(engine.to_save(state))
  if found is not None:
    state = engine.from_saved(found[0])
  elif checkpoints.damaged():
    for record in records:
      record.keep_metrics()
  first = engine.rounds_done(state)
  for i, record in enumerate(records):
    record.begin(first, found and found[1]["runs"][i])

  def seconds() -> Seconds:
    return share(engine.seconds, len(records))

  saved = time.monotonic()
  progress.begin(first)
  with StopRequest() as stop:
    for chunk in chunks(engine, state, config.rounds, config.eval_every):
      state, done, evaluations = chunk.state, engine.rounds_done(chunk.state), chunk.evaluations
      latest = [
        record.add(infos, found, now, seconds())
        for record, infos, found, now in zip(
          records,
          engine.split(chunk.infos),
          chunk.diverged,
          moments(engine, len(records), state, evaluations),
        )
      ]
      check_any_left([record.run.root.name for record in records], [record.diverged for record in records])
      must_stop, overdue = agreed(stop.made, time.monotonic() - saved > checkpoint_seconds)
      if evaluations is not None or must_stop or overdue:
        books = {"runs": [record.books(seconds()) for record in records]}
        checkpoints.save(done, engine.to_save(state), books)
        saved = time.monotonic()
      if must_stop and done < config.rounds:
        progress.update(done)
        raise Stopped(
          f"Stopped by {stop.by.name} after round {done}; the same command goes on from there.", stop.by
        )
      going = [figures for figures in latest if figures]
      means = {name: sum(own[name] for own in going) / len(going) for name in going[0]}
      progress.update(done, **means | ({"diverged": len(latest) - len(going)} if going != latest else {}))
  if evaluations is None:  # stopped between the last checkpoint and the summary
    evaluations = evaluate(engine, state)
  states = jax.eval_shape(engine.split, state)
  checkpoints.wait()  # a run that has a summary has its last checkpoint
  spent = seconds()  # before a yardstick evaluates more
  with progress.doing("summary and pictures"):
    return state, [
      record.finish(own, now, spent)
      for record, own, now in zip(records, states, moments(engine, len(records), state, evaluations))
    ]


def moments(engine: Runs, runs: int, state: State, evaluations: Evaluations | None) -> list[Moment]:
  """Where each of an engine's runs stands after a chunk of rounds."""
  done, broadcasts = engine.rounds_done(state), functools.cache(lambda: engine.split(state.broadcast))
  states = functools.cache(lambda: engine.split(state))
  values = engine.split(evaluations) if evaluations is not None else None
  others = functools.cache(lambda of: engine.split(engine.evaluate(state, of=of)))

  def one(run: int) -> Moment:
    return Moment(
      done, values[run] if values else None, False, lambda: broadcasts()[run], lambda: states()[run],
      lambda of: others(of)[run],
    )  # fmt: skip

  return [one(run) for run in range(runs)]


def share(seconds: Seconds, runs: int) -> Seconds:
  """What each of an engine's runs is booked of the time spent: equal shares."""
  return Seconds(*(kind / runs for kind in seconds))
