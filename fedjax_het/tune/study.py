"""A tuning study: Optuna proposes values in batches, each batch trains as one program and is halved at rungs.

The study's storage is DIR/study.db, Optuna's own. Everything follows from it and from checkpoints: after a
stop or a kill the same call continues, and ends with the values of an unbroken study.
"""

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from fedjax_het.config.plan import written
from fedjax_het.config.typed import Plan
from fedjax_het.config.values import is_number, with_values
from fedjax_het.engine.capacity import in_words
from fedjax_het.errors import NonFiniteLoss, SettingError, check_range
from fedjax_het.experiment.build import build
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.metrics.catalogue import known
from fedjax_het.modes import in_float32
from fedjax_het.output.progress import Progress
from fedjax_het.program.display import TERMINAL, Display
from fedjax_het.program.stopping import Stopped, StopRequest
from fedjax_het.program.where import EVERYWHERE, Where
from fedjax_het.tune.checks import (
  SETTINGS,
  about,
  check_same,
  check_validation_rows,
  checked_study,
  import_optuna,
)
from fedjax_het.tune.report import Trial, in_short, plot_trials, trials_table, write_trials
from fedjax_het.tune.rung import Rung, hand_on, train
from fedjax_het.tune.rungs import BATCH, batches, better_half, budget, members, rung_rounds
from fedjax_het.tune.space import Dimension, Space, Span
from fedjax_het.workdir.claim import claimed
from fedjax_het.workdir.folder import (
  Workdir,
  as_json,
  check_writable,
  read_record,
  workdir_of,
  write_atomic,
)

NAME = "tuning"  # the study's name in Optuna's storage


@in_words()
@in_float32()
def run_tune(
  config: Any, space: Space | None, workdir: str, where: Where = EVERYWHERE, *, trials: int,
  batch: int = BATCH, member_batch: int | None = None, checkpoint_seconds: float = 600.0,
  display: Display = TERMINAL,
) -> tuple[dict[str, Any], list[Trial]]:  # fmt: skip
  """Tunes numbers of a configuration on the clients' validation parts, and runs the best configuration.

  The trials of a batch train to the round ⌈T/3⌉ as one program, the better half of them goes on from its
  checkpoint to ⌈2T/3⌉, and the better half of those to T. Trials are compared by the task's headline metric,
  its mean over the clients' validation parts; test parts are not evaluated. The best trial that has reached T
  is then run by itself in `workdir`/best, as any run.

  Args:
    config: what to tune, see `run_experiment`; with validation rows.
    space: dotted field -> range or list of numbers; None is `default_space`.
    workdir: the folder.
    where: the devices over which the trials of a batch are spread.
    trials: N, the number of trials.
    batch: how many trials begin together; Optuna's proposals follow what earlier batches have reached.
    member_batch: see `Members`.
    checkpoint_seconds: see `run_experiment`.
    display: shows the study.

  Returns:
    (the best configuration's summary, the trials).

  Raises:
    SettingError: there are no validation rows, a field cannot vary within a program, Optuna is not installed,
      or the folder belongs to another study.
    NonFiniteLoss: every trial has diverged.
    Stopped: SIGTERM or Ctrl-C was received, and a checkpoint is written.
  """
  best, found = find(
    config, space, workdir, where, trials=trials, batch=batch, member_batch=member_batch,
    checkpoint_seconds=checkpoint_seconds, display=display,
  )  # fmt: skip
  summary = run_experiment(
    with_values(written(config), best.values), os.fspath(workdir_of(workdir).root / "best"), where,
    checkpoint_seconds=checkpoint_seconds, display=display,
  )  # fmt: skip
  return summary, found


@in_words()
@in_float32()
def find(
  config: Any, space: Space | None, workdir: str, where: Where = EVERYWHERE, *, trials: int,
  batch: int = BATCH, member_batch: int | None = None, checkpoint_seconds: float = 600.0,
  display: Display = TERMINAL,
) -> tuple[Trial, list[Trial]]:  # fmt: skip
  """Tunes numbers of a configuration as `run_tune`, without the run of the best; test parts are not read.

  Returns:
    (the best trial, all trials).

  Raises:
    SettingError, NonFiniteLoss, Stopped: see `run_tune`.
  """
  where.check()
  if where.device_states is not None:
    problem = "trials train as one program, which keeps its clients' states on the devices"
    raise SettingError("device_states", where.device_states, problem, "Leave it out.")
  if jax.process_count() > 1:
    raise SettingError("distributed", True, "a study is one process", "Start it without --distributed.")
  check_range("checkpoint_seconds", checkpoint_seconds, 0.0, on_host=True)
  planned, own_space = checked_study(config, space, trials, batch)
  base = written(config)
  root = workdir_of(workdir)
  whole = {
    "config": dict(planned.written), "trials": trials, "batch": batch,
    "space": {path: own._asdict() if isinstance(own, Span) else own for path, own in own_space.items()},
  }  # fmt: skip
  check_same(root, whole)
  import_optuna()
  check_writable(*root.folders)
  display.show(*about(own_space, trials, batch, planned.rounds))
  with display.doing("reading the data"):
    experiment = build(planned)
  check_validation_rows(planned, experiment.data)
  maximize = known(experiment.algorithm.client.task.headline[0]).higher_is_better
  with claimed(root):
    if read_record(root.root / SETTINGS) is None:
      write_atomic(root.root / SETTINGS, as_json(whole, indent=2) + "\n")
    study = Study(root, base, own_space, planned, maximize, trials, batch)
    with StopRequest() as stop, display.progress(budget(trials, batch, planned.rounds)) as progress:
      study.run(where, member_batch, checkpoint_seconds, progress, stop)
    found = study.trials()
    title = f"Tuning {planned.client.name} on {planned.dataset}"
    plot_trials(found, maximize, root.figures / "tuning.png", title=title.replace("$", r"\$"))
  best = best_of(found, maximize)
  display.show(trials_table(found, best), in_short(found, best))
  return best, found


def best_of(trials: list[Trial], maximize: bool) -> Trial:
  """Returns the best trial that has reached the last round, the first of equally good ones.

  Raises:
    NonFiniteLoss: there is none, because all trials have diverged.
  """
  whole = [own for own in trials if own.state == "complete"]
  if not whole:
    raise NonFiniteLoss("Every trial has diverged. Lower the space of the learning rates.")
  return max(whole, key=lambda own: own.value if maximize else -own.value)


def _has_float(own: Dimension) -> bool:
  """Returns whether a setting is tuned over a list of values, not a range, and one of them is a float."""
  return not isinstance(own, Span) and any(isinstance(value, float) for value in own)


class Study:
  """Optuna's study in a folder, and the training of its trials.

  Args:
    root: the study's folder, which is claimed.
    config: the configuration that the trials share otherwise.
    space: field -> range or list.
    plan: the configuration's plan.
    maximize: whether higher values of the metric are better.
    trials: N, the number of trials.
    batch: how many trials begin together.
  """

  def __init__(
    self, root: Workdir, config: Mapping[str, Any], space: Space, plan: Plan, maximize: bool, trials: int,
    batch: int,
  ):  # fmt: skip
    """See the class."""
    self._optuna = import_optuna()
    self._root, self._config, self._space, self._plan = root, config, space, plan
    self._maximize, self._direction = maximize, "maximize" if maximize else "minimize"
    self._batches, self._rungs = batches(trials, batch), rung_rounds(plan.rounds)
    self._total = budget(trials, batch, plan.rounds)
    self._storage = self._optuna.storages.RDBStorage(f"sqlite:///{root.root / 'study.db'}")
    self._study = self._optuna.create_study(
      study_name=NAME, storage=self._storage, direction=self._direction, load_if_exists=True
    )

  def run(
    self, where: Where, member_batch: int | None, checkpoint_seconds: float, progress: Progress,
    stop: StopRequest,
  ) -> None:  # fmt: skip
    """Trains all batches that are not done, from where an earlier start left them."""
    done, begun = 0, False
    programs: dict[int, dict[Any, Any]] = {}
    for number, batch in enumerate(self._batches):
      for trial in range(len(self._study.trials), batch.stop):
        self._ask(trial)
      counts = members(len(batch), len(self._rungs))
      alive = [] if self._finished(batch) else [*batch]
      folder = self._root.checkpoints / f"batch{number}"
      rungs = [
        Rung(folder / f"rung{k}", begin, end)
        for k, (begin, end) in enumerate(zip([0, *self._rungs], self._rungs))
      ]
      for k, rung in enumerate(rungs):
        rung, last = rung._replace(done=done), k == len(rungs) - 1
        done += counts[k] * (rung.end - rung.begin)
        if not alive:
          continue
        over = self._known(alive, rung.end) and any(own.begun for own in rungs[k + 1 :])
        if not over:
          if stop.made:
            raise Stopped(f"Stopped by {stop.by.name}; the same command goes on from there.", stop.by)
          if not begun:
            progress.begin(rung.done)
            begun = True
          values = [self._values(trial) for trial in alive]
          found = train(
            self._config, values, rung, where, member_batch, checkpoint_seconds, progress, stop, programs
          )
          self._report(alive, rung.end, found.metric, found.values, found.steps)
          chosen = better_half(found.values, self._maximize)
          if chosen and not last:
            hand_on(found, chosen, rung, rungs[k + 1])
        alive = self._settle(alive, rung.end, last)
        self._write()
        progress.update(done, **self._best_so_far())
      if folder.is_dir():
        shutil.rmtree(folder)
    if stop.made:
      raise Stopped(f"Stopped by {stop.by.name}; the same command goes on from there.", stop.by)

  def trials(self) -> list[Trial]:
    """Returns what is known of all trials."""
    states = self._optuna.trial.TrialState
    words = {states.COMPLETE: "complete", states.PRUNED: "pruned", states.RUNNING: "running"}
    return [
      Trial(
        own.number, next(i for i, batch in enumerate(self._batches) if own.number in batch), dict(own.params),
        "diverged" if any(map(math.isnan, own.intermediate_values.values())) else words[own.state],
        self._study.user_attrs.get("metric", ""), dict(sorted(own.intermediate_values.items())),
        own.user_attrs.get("client_steps", 0),
      )
      for own in self._study.trials
    ]  # fmt: skip

  def _ask(self, number: int) -> None:
    """Adds a trial with values that Optuna's TPE proposes from the trials before it.

    They are drawn in a copy of the study with a sampler of the trial's own seed, and stored together with the
    trial, so that a start that was killed in between proposes the same again.
    """
    optuna = self._optuna
    spaces = {path: self._distribution(own) for path, own in self._space.items()}
    seed, first = (self._plan.seed * 100_003 + number) % 2**32, len(self._batches[0])
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=first)  # the first batch is at random
    copy = optuna.create_study(direction=self._direction, sampler=sampler)
    copy.add_trials(self._study.trials)
    values = copy.ask(spaces).params
    running = optuna.trial.TrialState.RUNNING
    self._study.add_trial(optuna.trial.create_trial(state=running, params=values, distributions=spaces))

  def _distribution(self, own: Any) -> Any:
    distributions = self._optuna.distributions
    if not isinstance(own, Span):
      return distributions.CategoricalDistribution(own)
    if own.whole:
      return distributions.IntDistribution(int(own.low), int(own.high), log=own.log)
    return distributions.FloatDistribution(own.low, own.high, log=own.log)

  def _values(self, number: int) -> dict[str, Any]:
    """Returns the values that a trial trains with, all floats where a list has one.

    A program is for one type of numbers, and trials of 1 and of 0.5 share it.
    """
    return {
      path: float(value) if is_number(value) and _has_float(self._space[path]) else value
      for path, value in self._study.trials[number].params.items()
    }

  def _report(self, trials: list[int], end: int, metric: str, values: list[float], steps: list[int]) -> None:
    """Stores what trials have reached at a rung, again where an earlier start did, to the same bits."""
    self._study.set_user_attr("metric", metric)
    study = self._storage.get_study_id_from_name(NAME)
    for number, value, count in zip(trials, values, steps):
      trial = self._storage.get_trial_id_from_study_id_trial_number(study, number)
      if self._study.trials[number].state.is_finished():
        continue
      self._storage.set_trial_user_attr(trial, "client_steps", int(count))
      self._storage.set_trial_intermediate_value(trial, end, value)

  def _settle(self, trials: list[int], end: int, last: bool) -> list[int]:
    """Ends the trials that do not go on after a rung; returns the others."""
    values = [self._study.trials[number].intermediate_values[end] for number in trials]
    chosen = {trials[place] for place in better_half(values, self._maximize)}
    pruned = self._optuna.trial.TrialState.PRUNED
    for number, value in zip(trials, values):
      if self._study.trials[number].state.is_finished():
        continue
      if last and not math.isnan(value):
        self._study.tell(number, value)
      elif last or number not in chosen:
        self._study.tell(number, state=pruned)
    return [] if last else sorted(chosen)

  def _known(self, trials: list[int], end: int) -> bool:
    return all(end in self._study.trials[number].intermediate_values for number in trials)

  def _finished(self, trials: Sequence[int]) -> bool:
    return all(self._study.trials[number].state.is_finished() for number in trials)

  def _best_so_far(self) -> dict[str, float]:
    """Returns {metric: the best value at the last rung, or before one was reached, at any}."""
    found = self.trials()
    values = [own.value for own in found if own.state == "complete"] or [
      value for own in found for value in own.rungs.values() if not math.isnan(value)
    ]
    return {found[0].metric: (max if self._maximize else min)(values)} if values else {}

  def _write(self) -> None:
    write_trials(self.trials(), Path(self._root.root))
