"""Makes a row of the board: tunes a method on a task, then runs fresh seeds of what was best."""

import contextlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_het.config.plan import written
from fedjax_het.config.values import with_values
from fedjax_het.errors import NonFiniteLoss, SettingError
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.leaderboard.board import Board, Row
from fedjax_het.leaderboard.budget import SEEDS
from fedjax_het.leaderboard.raw import fingerprint, made_by
from fedjax_het.program.display import Display
from fedjax_het.program.where import Where
from fedjax_het.tune.report import Trial
from fedjax_het.tune.space import Dimension, Span
from fedjax_het.tune.study import find
from fedjax_het.workdir.folder import read_record, write_atomic
from fedjax_het.workdir.provenance import provenance

CLOCK = "seconds.json"
# Settings of the call, whose errors say nothing of the row; any other refusal is the method's.
OF_CALL = (
  "workdir", "data_dir", "dataset", "dataset_options", "tune", "devices", "mesh", "device_states",
  "distributed", "client_batch", "member_batch", "checkpoint_seconds",
)  # fmt: skip
EDGE = 0.05  # of a range, at either end, within which a chosen value is said to be at its edge


def make_row(
  board: Board, row: Row, folder: Path, where: Where, display: Display, *, data_dir: str = "",
  checkpoint_seconds: float = 600.0,
) -> dict[str, Any]:  # fmt: skip
  """Tunes a row by successive halving on the clients' validation parts, then runs its seeds as one program.

  What a killed or stopped call has done stays in `folder`, and the same call goes on from there.

  Args:
    board: the board.
    row: the row.
    folder: the row's workdir, with `tuning` and `seeds` in it.
    where: the devices.
    display: shows both.
    data_dir: the data sets' folder.
    checkpoint_seconds: see `run_experiment`.

  Returns:
    The row's raw figures, see docs/reading_parts.md. Where all trials or all seeds diverge, or the data show
    that the method does not go with the task, `failed` says so and there are no `seeds`.

  Raises:
    Stopped: SIGTERM or Ctrl-C came, and a checkpoint is written.
    DataError: the data are missing.
  """
  made, space = made_by(board, row), board.space(row)
  config = with_values(written(board.config(row)), {"data_dir": data_dir})
  found: dict[str, Any] = {
    "task": row.task, "method": row.method, "made_by": made, "fingerprint": fingerprint(made),
  }  # fmt: skip
  folder.mkdir(parents=True, exist_ok=True)
  try:
    with _clocked(folder, "tuning"):
      best, trials = find(
        config, space, str(folder / "tuning"), where, trials=made["trials"],
        checkpoint_seconds=checkpoint_seconds, display=display,
      )  # fmt: skip
    with _clocked(folder, "seeds"):
      summaries = run_sweep(
        with_values(config, best.values), {"seed": [*SEEDS]}, str(folder / "seeds"), where,
        checkpoint_seconds=checkpoint_seconds, display=display,
      )  # fmt: skip
  except NonFiniteLoss as error:
    return found | {"failed": str(error), "provenance": provenance()}
  except SettingError as error:
    if error.setting.partition(".")[0] in OF_CALL:
      raise
    return found | {"failed": str(error), "provenance": provenance()}
  clock = read_record(folder / CLOCK) or {}
  return found | {
    "metric": best.metric,
    "num_clients": summaries[0]["num_clients"],
    "chosen": dict(best.values),
    "at_edge": at_edge(best.values, space),
    "tuning": {
      "valid": best.value,
      "client_steps": sum(one.client_steps for one in trials),
      "seconds": round(clock.get("tuning", 0.0), 1),
      "states": _counted(trials),
    },
    "seconds": round(clock.get("seeds", 0.0), 1),
    "seeds": by_seed(summaries, best.metric),
    "provenance": provenance(),
  }


def by_seed(summaries: Sequence[Mapping[str, Any]], metric: str) -> dict[str, dict[str, Any]]:
  """Returns what the board keeps of a row's runs: seed, as text -> its `figures`, such as the mean.

  Args:
    summaries: the summary.json of each run, one for each of `SEEDS`, in their order.
    metric: the task's headline metric.
  """
  return {str(seed): figures(own, metric) for seed, own in zip(SEEDS, summaries)}


def figures(summary: Mapping[str, Any], metric: str) -> dict[str, Any]:
  """Returns the figures of a seed's run; those that the method or task does not have are None.

  Args:
    summary: its summary.json.
    metric: the task's headline metric.
  """
  if summary.get("diverged"):
    return {"diverged": True}

  def at(section: str, model: str, name: str, *rest: str) -> Any:
    own: Any = summary.get(section, {}).get(model, {}).get(name)
    for key in rest:
      own = own.get(key) if isinstance(own, Mapping) else None
    return own

  return {
    "mean": at("metrics", "personalized", metric, "mean"),
    "worst": at("metrics", "personalized", metric, "worst10"),
    "weighted": at("weighted", "personalized", metric),
    "global": at("metrics", "global", metric, "mean"),
    "ece": at("metrics", "personalized", "ece", "mean"),
    "up": summary.get("bytes", {}).get("up"),
    "down": summary.get("bytes", {}).get("down"),
    "client_steps": summary.get("client_steps"),
    "train_seconds": summary.get("seconds", {}).get("train"),
    "compile_seconds": summary.get("seconds", {}).get("compile"),
  }


def at_edge(values: Mapping[str, float], space: Mapping[str, Dimension]) -> list[str]:
  """Returns the fields whose chosen value is within 5 % of its range, as drawn, of one of its ends."""
  found = []
  for field, value in values.items():
    own = space[field]
    if not isinstance(own, Span):
      continue
    low, high, at = (math.log(x) if own.log else x for x in (own.low, own.high, value))
    if not EDGE <= (at - low) / (high - low) <= 1.0 - EDGE:
      found.append(field)
  return found


def _counted(trials: Sequence[Trial]) -> dict[str, int]:
  states = [one.state for one in trials]
  return {state: states.count(state) for state in sorted({*states})}


@contextlib.contextmanager
def _clocked(folder: Path, what: str) -> Iterator[None]:
  """Adds the wall-clock seconds of a block to the folder's record, over all starts that ended by themselves.

  Those of a start that was killed are lost. A block that finds its work done adds the second that this takes.
  """
  begin = time.monotonic()
  try:
    yield
  finally:
    clock = read_record(folder / CLOCK) or {}
    clock[what] = clock.get(what, 0.0) + time.monotonic() - begin
    write_atomic(folder / CLOCK, json.dumps(clock) + "\n")
