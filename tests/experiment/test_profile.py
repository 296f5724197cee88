"""Where a launched run's time goes."""

import gzip
import json
import time

import pytest
from launching import small, start

from fedjax_het.engine.base import Seconds
from fedjax_het.experiment.profile import REST, Profile
from fedjax_het.experiment.recorded import timeless


class Engine:
  """The seconds of an engine that trains."""

  def __init__(self):
    self.seconds = Seconds()

  def spend(self, kind: str, seconds: float) -> None:
    time.sleep(seconds)
    self.seconds = self.seconds._replace(**{kind: getattr(self.seconds, kind) + seconds})


def test_a_phase_counts_neither_inner_phases_nor_the_engine(tmp_path, capsys):
  engine = Engine()
  with Profile(str(tmp_path), seconds_of_trace=0.0) as profile:
    with profile.doing("reading"):
      time.sleep(0.05)
    profile.trains(engine)
    with profile.progress(9) as progress:
      progress.begin(2)
      engine.spend("train", 0.06)
      progress.update(3)
      with progress.doing("the end"):
        engine.spend("eval", 0.04)
        with progress.doing("compiling"):
          time.sleep(0.03)
        time.sleep(0.02)
  found = json.loads((tmp_path / "profile" / "profile.json").read_text())
  expected = {"reading": 0.05, "rounds": 0.06, "evaluations": 0.04, "compiling": 0.03, "the end": 0.02}
  for phase, seconds in expected.items():
    assert seconds * 0.9 < found["seconds"][phase] < seconds + 0.5, phase
  assert {*found["seconds"]} == {*expected, REST} and found["rounds"] == 1 and found["traced"] is None
  assert sum(found["seconds"].values()) == pytest.approx(found["total"])
  assert "where the time went" in (text := capsys.readouterr().out) and "nothing to trace" not in text


def test_without_training_there_is_no_profile(tmp_path, capsys):
  with Profile(str(tmp_path)):
    pass
  assert "no profile" in capsys.readouterr().out and not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_a_run_writes_its_phases_and_a_trace_and_has_the_same_numbers(tmp_path):
  config = small(algorithm={"name": "fedavg"}, model={"name": "logistic_regression"}, rounds=12)
  plain = timeless(start(config, str(tmp_path / "plain")))
  with Profile(str(tmp_path / "run")) as profile:
    assert timeless(start(config, str(tmp_path / "run"), display=profile)) == plain
  found = json.loads((tmp_path / "run" / "profile" / "profile.json").read_text())
  assert {"reading the data", "compiling the rounds", "rounds", "evaluations"} <= {*found["seconds"]}
  assert found["rounds"] == 12 and found["traced"][0] < found["traced"][1] <= 12
  with gzip.open(tmp_path / "run" / "profile" / "trace.json.gz") as file:
    names = {event.get("name") for event in json.load(file)["traceEvents"]}
  assert {"the rounds", "the evaluation"} <= names
