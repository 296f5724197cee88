"""How many rounds a call of the compiled program has."""

import numpy as np
import pytest

from fedjax_het.engine import run as engine_run


class Timed:
  """An engine whose calls take `call` seconds and `a_round` seconds for each of their rounds."""

  def __init__(self, call: float, a_round: float):
    self.now, self.lengths, self._call, self._round = 0.0, [], call, a_round

  def perf_counter(self):
    return self.now

  def rounds_done(self, state):
    return sum(self.lengths)

  def advance(self, state, rounds):
    self.now += self._call + rounds * self._round
    self.lengths.append(rounds)
    return state, None

  def diverged(self, state, infos):
    return []


@pytest.mark.parametrize(("call", "a_round", "steady"), [
  (0.0, 0.25, 20), (0.0, 7.0, 1),
  (2.0, 0.05, 60),  # short calls never pay for what a call costs: their rounds only look slow
  (2.0, 0.5, 6), (4.0, 0.1, 10),
])  # fmt: skip
def test_a_call_takes_about_five_seconds_also_where_it_costs_more_than_its_rounds(
  monkeypatch, call, a_round, steady
):
  engine = Timed(call, a_round)
  monkeypatch.setattr(engine_run, "time", engine)
  for _ in engine_run.chunks(engine, None, 3000, None, judge=lambda *_: None):
    pass
  assert sum(engine.lengths) == 3000 and engine.lengths[0] == 1
  assert np.median(engine.lengths[9:-1]) == pytest.approx(steady, abs=1)
  assert all(later <= 4 * now + 1 for now, later in zip(engine.lengths, engine.lengths[1:]))
