"""How long rounds take in simulated seconds, on the host and in float64, see `System`."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.data.container import FederatedData
from fedjax_het.engine.border import checked_speeds
from fedjax_het.engine.clock import steps_of
from fedjax_het.engine.cohort import participation_key, system_key
from fedjax_het.engine.message_bytes import message_bytes
from fedjax_het.engine.round import RoundInfo
from fedjax_het.engine.state import run_key
from fedjax_het.engine.timed import asked
from fedjax_het.errors import SettingError, check_run_key, check_whole
from fedjax_het.modes import in_float32
from fedjax_het.parts import Algorithm


class Clock:
  """The clock of one run, whose clients' speeds are those of its program.

  Args:
    algorithm: the parts, made of concrete numbers, whose system part has speeds.
    data: the clients' data.
    cohort_size: S.
    key: the run's typed key, as `Runs.init` takes it.

  Raises:
    SettingError: the algorithm has no speeds, or the cohort size or the key cannot be a run's.
  """

  def __init__(self, algorithm: Algorithm, data: FederatedData, cohort_size: int, key: jax.Array):
    """See the class."""
    if algorithm.system.speeds is None:
      remedy = "Give fh.federated(..., system=fh.system.constant()), or another system."
      raise SettingError("system", algorithm.system.name, "has no speeds to compute a time from", remedy)
    check_whole("cohort_size", cohort_size, 1)
    self._algorithm, self._data, self._key = algorithm, data, check_run_key(key)
    self._size = algorithm.clients_in_a_round(int(cohort_size))

  @functools.cached_property
  def _clients(self) -> tuple[np.ndarray, np.ndarray]:
    """Seconds in which each client receives and sends, and its seconds a gradient; float64 [K] each.

    Raises:
      SettingError: a client's speed is no number above 0.
    """
    system, sizes = self._algorithm.system, np.asarray(self._data.train.size)
    assert system.speeds is not None
    with in_float32():
      key = system_key(participation_key(run_key(self._key)))
      found = checked_speeds(jax.jit(system.speeds)(key, jnp.asarray(sizes)), len(sizes))
    step, link = (np.asarray(own, np.float64) for own in found)
    for name, own in zip(found._fields, (step, link)):
      if (wrong := np.flatnonzero(~((own > 0) & np.isfinite(own)))).size:
        problem = f"client {wrong[0]} has {name} = {own[wrong[0]]}"
        raise SettingError("system", system.name, problem, "Let all speeds be numbers above 0.")
    each = message_bytes(self._algorithm, self._data, self._size)
    return float(each.up + each.down) / link, step

  def rounds(self, infos: RoundInfo) -> np.ndarray:
    """Computes the seconds of each round, float64 [rounds], of infos [rounds, S]."""
    if not isinstance(infos.elapsed, tuple):
      return np.asarray(infos.elapsed, np.float64) + float(self._algorithm.system.server_seconds)
    transfer, step = self._clients
    there: Any = np.ones(infos.cohort.shape, bool)
    present = there if isinstance(infos.present, tuple) else infos.present
    contacted = there if isinstance(infos.contacted, tuple) else infos.contacted
    return self._until(transfer[infos.cohort] + infos.gradients * step[infos.cohort], present, contacted)

  def _until(self, done: np.ndarray, present: np.ndarray, contacted: np.ndarray) -> np.ndarray:
    """Computes the seconds of rounds whose clients are done at `done`, float64 [rounds, S]."""
    system = self._algorithm.system
    last = np.where(present, done, 0.0).max(axis=1)
    enough = system.over_selects & (present.sum(axis=1) >= self._size)
    if system.has_deadline:
      missed = (contacted & ~present).any(axis=1) & ~enough
      last = np.where(missed, system.deadline, np.minimum(last, system.deadline))
    return last + float(system.server_seconds)

  def expected(self, draws: int = 1000) -> float | None:
    """Estimates the mean seconds of a round, for uniform cohorts of which no upload is lost.

    It is the mean over `draws` random cohorts, or over as many steps of an asynchronous server; None if a
    client's number of steps is known only after its training.
    """
    training = self._algorithm.client.training
    if training is None:
      return None
    transfer, step = self._clients
    sizes = jnp.asarray(self._data.train.size)
    with in_float32():
      steps = np.asarray(steps_of(training, sizes, self._data))
    each, system = step * training.gradients, self._algorithm.system
    if (part := self._algorithm.asynchronous).overlaps:
      done = transfer + steps * each
      return mean_of_steps(done, part.buffer_size, part.concurrency, float(system.server_seconds), draws)
    many = int(asked(system, len(sizes), self._size))
    rng = np.random.default_rng(0)
    cohorts = np.array([rng.choice(len(sizes), many, replace=False) for _ in range(draws)])
    if system.has_deadline:
      steps = np.clip(np.floor((system.deadline - transfer) / each), 0, steps)
    done, present = (transfer + steps * each)[cohorts], (steps > 0)[cohorts]
    if system.over_selects:
      order = np.argsort(np.where(present, done, np.inf), axis=1, kind="stable")[:, : self._size]
      chosen = np.zeros_like(present)
      np.put_along_axis(chosen, order, True, axis=1)
      present = present & chosen
    return float(self._until(done, present, np.ones_like(present)).mean())


def mean_of_steps(
  done: np.ndarray, buffer_size: int, concurrency: int, server_seconds: float, steps: int
) -> float:
  """Estimates the mean seconds of an asynchronous server's step, see `Asynchronous`, from a random course.

  Args:
    done: seconds of each client's part, float64 [K].
    buffer_size: B.
    concurrency: M.
    server_seconds: seconds of the server, each step.
    steps: number of steps; the first half is left out.
  """
  rng, clock = np.random.default_rng(0), np.zeros(steps + 1)
  working = rng.choice(len(done), concurrency, replace=False)
  until = done[working]
  for step in range(steps):
    order = np.argsort(until, kind="stable")
    clock[step + 1] = max(until[order[buffer_size - 1]], clock[step]) + server_seconds
    rest = order[buffer_size:]
    free = np.setdiff1d(np.arange(len(done)), working[rest])
    new = rng.choice(free, buffer_size, replace=False)
    working = np.concatenate([working[rest], new])
    until = np.concatenate([until[rest], clock[step + 1] + done[new]])
  return float((clock[-1] - clock[steps // 2]) / (steps - steps // 2))
