"""What a run has taken so far: client steps, bytes, and, where a system part simulates time, seconds."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_het.engine.elapsed import Clock
from fedjax_het.engine.message_bytes import message_bytes
from fedjax_het.engine.round import RoundInfo
from fedjax_het.experiment.build import Experiment
from fedjax_het.experiment.traffic import visits


class Counted:
  """Counts of a run; the seconds are summed round by round, so that they are the same after a resume.

  Args:
    experiment: the run.
  """

  def __init__(self, experiment: Experiment):
    """See the class."""
    self._experiment, self._steps, self._visits, self._simulated = experiment, 0, 0, 0.0
    self._sent: int | None = None  # bytes to the server, where clients report them, see `Info.sent`
    own = experiment
    there = own.algorithm.system.there
    self._clock = Clock(own.algorithm, own.data, own.plan.cohort_size, own.key) if there else None

  def add(self, infos: RoundInfo) -> None:
    """Adds a chunk of rounds, with leaves [rounds, S]."""
    self._steps += int(infos.clients.steps.sum())
    self._visits += visits(infos)
    if not isinstance(infos.clients.sent, tuple):
      self._sent = (self._sent or 0) + int(infos.clients.sent.sum(dtype=np.int64))
    if self._clock:
      for seconds in self._clock.rounds(infos).tolist():
        self._simulated += seconds

  def checkpoint_state(self) -> dict[str, Any]:
    """Returns what a checkpoint keeps for `resume`."""
    sent = {} if self._sent is None else {"sent": self._sent}
    return {"client_steps": self._steps, "visits": self._visits, **sent, **self._seconds}

  def resume(self, rounds_done: int, books: Mapping[str, Any]) -> None:
    """Restores what a checkpoint has kept.

    Raises:
      KeyError: it has other fields.
    """
    self._steps = books["client_steps"]
    # Checkpoints of earlier versions have no visits: all of a cohort were there.
    self._visits = books.get("visits", rounds_done * self._experiment.plan.cohort_size)
    self._sent = books.get("sent")
    if self._clock:
      self._simulated = books["simulated_seconds"]

  @property
  def fields(self) -> dict[str, Any]:
    """Fields of metrics.jsonl and summary.json."""
    return {"client_steps": self._steps, "bytes": self.bytes, **self._seconds}

  @property
  def bytes(self) -> dict[str, int]:
    """Bytes that were sent so far, to the server (up) and to the clients (down)."""
    found = {way: self._visits * each for way, each in self._each.items()}
    return found if self._sent is None else {**found, "up": self._sent}

  @property
  def simulated(self) -> float | None:
    """Simulated seconds so far; None for a run without a system part."""
    return self._simulated if self._clock else None

  @property
  def _seconds(self) -> dict[str, float]:
    return {"simulated_seconds": self._simulated} if self._clock else {}

  @functools.cached_property
  def _each(self) -> dict[str, int]:
    """Bytes of one client's visit."""
    own = self._experiment
    each = message_bytes(own.algorithm, own.data, own.plan.cohort_size)
    return {"up": int(each.up), "down": each.down}
