"""When a run is evaluated, and which clients are: all of them, a round's participants, or a sample."""

from collections.abc import Iterator

import numpy as np

from fedjax_het.engine.base import Runs
from fedjax_het.engine.cohort import SAMPLE, drawn
from fedjax_het.engine.round import RoundInfo
from fedjax_het.engine.state import State
from fedjax_het.errors import SettingError, check_whole
from fedjax_het.metrics.late import before_last_fifth
from fedjax_het.parts import Algorithm

PARTICIPANTS = "participants"
EvalClients = int | str | None


def judged_clients(
  engine: Runs, eval_clients: EvalClients, state: State, infos: RoundInfo
) -> tuple[np.ndarray | None, int]:
  """Returns which clients are evaluated after a round that is not the last, bool [K]; None for all.

  The second value is for how many the program has rows, see `Runs.evaluate`: for a cohort, where it differs
  how many of them arrive.

  Args:
    engine: the engine; of M runs the result is [M, K].
    eval_clients: "participants", the clients of the round's cohort whose uploads arrived; n, a sample of n
      clients, which the run's key draws once for the whole run, without replacement; None for all.
    state: the state after the round.
    infos: the records of the rounds that led to it, the last of which is the round's.
  """
  if eval_clients is None:
    return None, 1
  if eval_clients != PARTICIPANTS:
    count, num_clients = int(eval_clients), engine.num_clients
    return engine.by_key(("sample", count), state, lambda _, key: drawn(key, SAMPLE, num_clients, count)), 1
  cohort = np.asarray(infos.cohort)[..., -1, :]
  here = np.ones(cohort.shape, bool) if isinstance(infos.present, tuple) else infos.present[..., -1, :]
  found = np.zeros((*cohort.shape[:-1], engine.num_clients), bool)
  for place in np.argwhere(here):
    found[(*place[:-1], cohort[tuple(place)])] = True
  return found, engine.rows


def check_eval_clients(eval_clients: EvalClients, num_clients: int | None = None) -> None:
  """Raises `SettingError` unless `eval_clients` is None, "participants" or a number of clients, 1 to K."""
  if eval_clients is None:
    return
  if isinstance(eval_clients, str):
    if eval_clients == PARTICIPANTS:
      return
    remedy = f"Use a number of clients, {PARTICIPANTS!r}, or None for all."
    raise SettingError("eval_clients", eval_clients, "names no group of clients", remedy)
  check_whole("eval_clients", eval_clients, 1)
  if num_clients is not None and eval_clients > num_clients:
    remedy = f"Use 1 to {num_clients}, or leave it out."
    raise SettingError("eval_clients", eval_clients, f"there are {num_clients} clients", remedy)


def all_are_judged(
  eval_clients: EvalClients, rounds: int, eval_every: int | None, late_evaluations: int, num_clients: int
) -> Iterator[str]:
  """Yields a note if `eval_clients` changes nothing, as every evaluation is one of all clients."""
  if eval_clients is None:
    return
  if eval_clients == num_clients:
    yield f"eval_clients = {eval_clients}: these are all clients, whom evaluations have without it."
  elif (eval_every is None or eval_every >= rounds) and not late_evaluations:
    yield f"eval_clients = {eval_clients}: has no effect, as only the end is evaluated, on all clients."


def check_rounds(
  rounds: int, eval_every: int | None, *algorithms: Algorithm, late_evaluations: int = 0
) -> None:
  """Raises `SettingError` for numbers of rounds that cannot be, or if a part refuses `rounds`.

  rounds >= 1, eval_every >= 1 or None, late_evaluations >= 0.
  """
  check_whole("rounds", rounds, 1)
  check_whole("late_evaluations", late_evaluations, 0)
  if eval_every is not None:
    check_whole("eval_every", eval_every, 1)
  for check in (part.needs.check_rounds for own in algorithms for part in own):
    if check is not None:
      check(int(rounds))


def fewer_late_rounds(rounds: int, late_evaluations: int) -> list[str]:
  """Returns a note if the last fifth of a run has fewer rounds than `late_evaluations`; else none."""
  there = rounds - before_last_fifth(rounds)
  if late_evaluations <= there:
    return []
  own = f"{there} round{'s' * (there > 1)}"
  return [
    f"late_evaluations = {late_evaluations}, and the last fifth of {rounds} rounds has {own}: all are judged."
  ]
