"""A study of one's own, through the whole life of a run; what clients report of their own."""

import json

import jax
import numpy as np
import pytest
from launching import small
from matplotlib.figure import Figure
from rich.text import Text

import fedjax_het as fh
from fedjax_het.config.plan import plan
from fedjax_het.engine import run as engine_run
from fedjax_het.errors import SettingError
from fedjax_het.experiment import experiment
from fedjax_het.experiment.recorded import timeless
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.methods import CLIENTS, Method
from fedjax_het.program.stopping import Stopped, StopRequest
from fedjax_het.program.where import Where
from fedjax_het.studies import Curve, Study, series


class Drift(Study):
  """How far the broadcast is from where it was at the evaluation before, and the worst loss since then."""

  name = "drift"

  def __init__(self, run):
    super().__init__(run)
    self._worst: list[float] = []
    self._before = None

  @classmethod
  def fits(cls, run):
    return run.algorithm.client.studies.synthesize is None

  def checkpoint_state(self):
    return {"worst": self._worst, "before": self._before}

  def resume(self, rounds_done, books):
    if books is not None:
      self._worst, self._before = list(books["worst"]), books["before"]

  def watch(self, infos, now):
    self._worst.extend(infos.clients.loss.max(axis=1).tolist())
    if now.evaluations is None:
      return {}
    weights = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(now.broadcast().params)])
    assert int(now.state().round) == now.round
    before = np.zeros_like(weights) if self._before is None else np.array(self._before, np.float32)
    worst, self._worst, self._before = self._worst, [], weights.tolist()
    moved = float(np.linalg.norm(weights - before))
    return {"drift": {"moved": moved, "worst": max(worst), "rounds": len(worst)}}

  def section(self, now):
    return {"drift": {"length": float(np.linalg.norm(self._before)), "round": now.round}}

  @classmethod
  def rows(cls, summary):
    return Text(f"the broadcast is {summary['drift']['length']:.6f} long") if "drift" in summary else None

  def curves(self, lines):
    return [Curve("drift", "cohort", series(lines, "drift", "moved"))]

  def draw(self, lines, summary):
    (self.run.figures / "drift.txt").write_text(f"{len(lines)} {summary['drift']['length']}")


class Namesake(Study):
  name = "mixture"


class Thief(Study):
  name = "thief"

  def section(self, now):
    return {"metrics": {}}


def tiny(**changes):
  own = {"model": {"name": "logistic_regression"}, "algorithm": {"name": "fedavg"}}
  return small(rounds=5, eval_every=3, **{**own, **changes})


def start(workdir, *studies):
  return experiment.run_experiment(tiny(), str(workdir), Where(devices=1), studies=studies)


def lines_of(workdir):
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  return timeless(lines)


def stop_after_a_round(monkeypatch, run):
  class Stop(StopRequest):
    made = property(lambda self: True, lambda self, value: None)

  with monkeypatch.context() as patch:
    patch.setattr(experiment, "StopRequest", Stop)
    with pytest.raises(Stopped, match="after round 1"):
      run()


@pytest.mark.slow
def test_a_study_of_ones_own(tmp_path, monkeypatch, capsys):
  """Watched, stopped between two evaluations and taken up, summed up, shown from the summary alone, drawn."""
  monkeypatch.setattr(Figure, "savefig", lambda *args, **kwargs: None)  # the other pictures' half of the time
  monkeypatch.setattr(engine_run, "SECONDS_A_CHUNK", 0.0)  # a round a chunk
  whole = start(tmp_path / "whole", Drift)
  lines = lines_of(tmp_path / "whole")
  assert [line["drift"]["rounds"] for line in lines] == [3, 2]
  assert all(line["drift"]["moved"] > 0 and line["drift"]["worst"] > line["train_loss"] for line in lines)
  shown = capsys.readouterr().out
  assert (row := f"the broadcast is {whole['drift']['length']:.6f} long") in shown and "%  drift " in shown
  assert (tmp_path / "whole" / "figures" / "drift.txt").read_text() == f"2 {whole['drift']['length']}"
  stop_after_a_round(monkeypatch, lambda: start(tmp_path / "stopped", Drift))
  again = start(tmp_path / "stopped", Drift)
  assert lines_of(tmp_path / "stopped") == lines
  assert timeless(again) == timeless(whole)
  capsys.readouterr()
  monkeypatch.setattr(experiment, "build", None)  # complete: nothing is built
  assert start(tmp_path / "stopped", Drift) == again and row in capsys.readouterr().out
  start(tmp_path / "stopped")
  assert "the broadcast" not in capsys.readouterr().out


def test_two_studies_of_one_name(tmp_path):
  with pytest.raises(SettingError, match="studies = 'mixture': the name of two"):
    start(tmp_path, Namesake)


@pytest.mark.slow
@pytest.mark.parametrize("of", ["draw", "curves"])
def test_a_picture_that_cannot_be_drawn_costs_nothing_else(of, tmp_path, caplog):
  class Unpaintable(Drift):
    pass

  def fail(self, *_):
    raise ValueError("too dark")

  setattr(Unpaintable, of, fail)
  if of == "curves":  # asked for progress too, which is no picture
    Unpaintable.curves = lambda self, lines: fail(self) if len(lines) > 1 else []
  summary = start(tmp_path, Unpaintable)
  assert "not all pictures could be drawn" in caplog.text and "too dark" in caplog.text
  assert json.loads((tmp_path / "summary.json").read_text())["drift"] == summary["drift"]
  assert (tmp_path / "clients.npz").is_file()
  drawn = {path.name for path in (tmp_path / "figures").iterdir()}
  assert "accuracy_over_clients.png" in drawn and ("learning_curve.png" in drawn) == (of == "draw")


@pytest.mark.slow
def test_a_study_changes_nothing_else(tmp_path):
  """And one that does not fit is not there; a field belongs to one."""

  class Elsewhere(Drift):
    fits = classmethod(lambda cls, run: False)

  with_it, without = (start(tmp_path / own.__name__, own) for own in (Drift, Elsewhere))
  assert with_it.pop("drift") and timeless(with_it) == timeless(without)
  for line, other in zip(*(lines_of(tmp_path / name) for name in ("Drift", "Elsewhere")), strict=True):
    assert line.pop("drift") and line == other
  with pytest.raises(SettingError, match="study thief's field = 'metrics': another has it"):
    start(tmp_path / "thief", Thief)


@pytest.mark.slow
def test_each_member_of_a_sweep_has_its_own(tmp_path):
  run_sweep(tiny(), {"local.lr": [0.1, 0.01]}, str(tmp_path), Where(devices=1), studies=(Drift,))
  far, near = (lines_of(tmp_path / "members" / f"local.lr={lr}") for lr in (0.1, 0.01))
  for line, other in zip(far, near, strict=True):
    assert line["drift"]["moved"] > other["drift"]["moved"] > 0


def talking(model: fh.Model) -> fh.ClientUpdate:
  """FedAvg without a global model, whose clients report their sizes and the rounds they saw."""
  plain = fh.fedavg(model, epochs=1, lr=0.1)

  def update(key, broadcast, state, data, context):
    message, state, info = plain.update(key, broadcast, state, data, context)
    rows, seen = jax.numpy.float32(data.size), jax.numpy.float32(context.round + 1)
    return message, state, info._replace(figures={"rows": rows, "round": seen})

  return plain._replace(update=update, global_model=None, name="talking")


@pytest.mark.slow
def test_clients_report_figures_and_there_is_no_global_model(tmp_path, monkeypatch, capsys):
  """The figures' means since the line before, also over a stop; "global" is nowhere."""
  monkeypatch.setattr(Figure, "savefig", lambda *args, **kwargs: None)
  monkeypatch.setattr(engine_run, "SECONDS_A_CHUNK", 0.0)
  monkeypatch.setitem(CLIENTS, "talking", Method("talking", talking, "reports", "nobody"))
  config = tiny(algorithm={"name": "talking"}, local={})
  stop_after_a_round(monkeypatch, lambda: experiment.run_experiment(config, str(tmp_path), Where(devices=1)))
  summary = experiment.run_experiment(config, str(tmp_path), Where(devices=1))
  lines, built = lines_of(tmp_path), experiment.build(plan(config))
  settings = {"rounds": 5, "cohort_size": 5, "eval_every": 3, "devices": 1}
  result = fh.run(built.algorithm, built.data, key=built.key, **settings)
  sizes = np.asarray(built.data.train.size)[result.infos.cohort]
  for line, rounds in zip(lines, (slice(0, 3), slice(3, 5)), strict=True):
    seen = np.arange(1, 6)[rounds].mean()
    assert line["clients"] == pytest.approx({"rows": sizes[rounds].mean(), "round": seen}, rel=1e-6)
  assert {*summary["metrics"]} == {*lines[0]["metrics"]} == {"personalized"} == {*result.metrics}
  shown = capsys.readouterr().out
  assert "personalised" in shown and "global" not in shown and "round 4.5" in shown
