"""Trains some trials up to a rung as one program, and judges them on the clients' validation parts alone."""

import contextlib
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.config.plan import plan
from fedjax_het.config.values import with_values
from fedjax_het.engine.base import Runs
from fedjax_het.engine.lambda_selection import Evaluations
from fedjax_het.engine.run import chunks, honest, summarize
from fedjax_het.engine.state import State
from fedjax_het.errors import SettingError
from fedjax_het.experiment.members import Sweep, build_members
from fedjax_het.output.progress import Progress
from fedjax_het.program.stopping import Stopped, StopRequest
from fedjax_het.program.where import Where
from fedjax_het.workdir.checkpoint import Checkpoints
from fedjax_het.workdir.claim import check_claim
from fedjax_het.workdir.folder import Workdir


class Rung(NamedTuple):
  """A rung of a batch of trials.

  Attributes:
    folder: the folder of its checkpoints.
    begin: the round from which the trials go on, 0 for the first rung.
    end: the round at which they are compared.
    done: rounds of trials that the study had done before this rung, for the progress.
  """

  folder: Path
  begin: int
  end: int
  done: int = 0

  @property
  def begun(self) -> bool:
    """Returns whether the rung has a checkpoint, from which its trials go on."""
    return self.folder.is_dir() and any(path.name.isdecimal() for path in self.folder.iterdir())


class Judged(NamedTuple):
  """The results of the trials of a rung.

  Attributes:
    metric: the headline metric of the personalised models.
    values: its mean over the clients' validation parts, [M]; NaN for a trial that diverged.
    steps: the client steps of each trial from round 0 on, [M].
    state: the trials' states at the end of the rung, each leaf [M, ...].
  """

  metric: str
  values: list[float]
  steps: list[int]
  state: State


def on_validation(engine: Runs, state: State) -> Evaluations:
  """Evaluates all clients on their validation parts, which stand in the place of the test parts."""
  return honest(Evaluations(engine.evaluate(state, "valid"), None, engine.task.headline), engine, state)


def train(
  config: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], rung: Rung, where: Where,
  member_batch: int | None, checkpoint_seconds: float, progress: Progress, stop: StopRequest,
  programs: dict[int, dict[Any, Any]],
) -> Judged:  # fmt: skip
  """Trains trials from a rung's beginning, or its newest checkpoint, to its end, and judges them.

  Args:
    config: the configuration that the trials share otherwise.
    trials: the values of each, dotted field -> number.
    rung: the rung.
    where: the devices.
    member_batch: see `Members`.
    checkpoint_seconds: the most seconds between two checkpoints.
    progress: shows the study's rounds.
    stop: what was asked by a signal.
    programs: number of trials -> the compiled programs of as many, which later calls use again; this call
      adds its own.

  Raises:
    SettingError: the validation rows give no value of the headline metric, or a checkpoint is gone.
    Stopped: SIGTERM or Ctrl-C came, and a checkpoint is written.
  """
  plans = [plan(with_values(config, values)) for values in trials]
  fields = {path: [values[path] for values in trials] for path in trials[0]}
  sweep = Sweep(Workdir(rung.folder), [*map(dict, trials)], plans, [], {"sweep": fields})
  engine, experiments, _ = build_members(sweep, where, member_batch)
  engine.keep_programs(programs.setdefault(len(trials), {}))
  engine.doing = progress.doing
  state = engine.init(jnp.stack([one.key for one in experiments]))
  steps, gone = np.zeros(len(trials), int), np.zeros(len(trials), bool)
  with contextlib.closing(Checkpoints(rung.folder)) as checkpoints:
    if found := checkpoints.restore(engine.to_save(state)):
      state, books = engine.from_saved(found[0]), found[1]
      steps, gone = np.array(books["steps"]), np.array(books["diverged"])
    elif rung.begin:
      raise SettingError(
        "workdir", str(rung.folder), f"its checkpoint of round {rung.begin} is gone or damaged",
        "Use another workdir: the trials cannot go on.",
      )  # fmt: skip
    saved, evaluations = time.monotonic(), None
    for chunk in chunks(engine, state, rung.end, None, judge=on_validation):
      state, evaluations, done = chunk.state, chunk.evaluations, engine.rounds_done(chunk.state)
      check_claim(rung.folder)
      steps = steps + chunk.infos.clients.steps.sum(axis=(1, 2))
      gone = gone | [one is not None for one in chunk.diverged]
      progress.update(rung.done + len(trials) * (done - rung.begin))
      asked, stop.save = stop.save or stop.made, False
      if done == rung.end or asked or time.monotonic() - saved > checkpoint_seconds:
        books = {"steps": steps.tolist(), "diverged": gone.tolist()}
        checkpoints.save(done, engine.to_save(state), books)
        saved = time.monotonic()
      if stop.made and done < rung.end:
        checkpoints.wait()
        raise Stopped(f"Stopped by {stop.by.name}; the same command goes on from there.", stop.by)
  if evaluations is None:  # an earlier start trained to the end
    evaluations = on_validation(engine, state)
  split = engine.split(evaluations)
  metric = split[0].headline
  values = [
    float("nan") if lost else summarize(own)["personalized"][metric]["mean"] for own, lost in zip(split, gone)
  ]
  if np.isnan(values).all() and not gone.all():
    problem = f"the validation rows give no client a value of {metric}"
    raise SettingError("valid_fraction", plans[0].valid_fraction, problem, "Use more, such as 0.3.")
  return Judged(metric, values, steps.tolist(), engine.to_save(state))


def hand_on(found: Judged, chosen: Sequence[int], rung: Rung, following: Rung) -> None:
  """Writes the checkpoint from which the chosen trials go on, and removes those of their last rung."""
  places = np.array(chosen)
  state = jax.tree.map(lambda leaf: leaf[places], found.state)
  books = {"steps": [found.steps[place] for place in chosen], "diverged": [False] * len(chosen)}
  with contextlib.closing(Checkpoints(following.folder)) as checkpoints:
    checkpoints.save(rung.end, state, books)
    checkpoints.wait()
  shutil.rmtree(rung.folder)
