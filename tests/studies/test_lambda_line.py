"""The line between a client's endpoints, for methods whose own models are at a λ of their own."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from launching import small
from small_parts import float64, linear, linear_logits, rows_of, softmax

import fedjax_het as fh
from fedjax_het.engine.evaluate import Evaluation
from fedjax_het.engine.lambda_selection import Evaluations
from fedjax_het.experiment import experiment
from fedjax_het.experiment.recorded import with_nan
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.program.display import console
from fedjax_het.program.where import Where
from fedjax_het.studies.lambda_line import (
  GRID,
  LambdaLine,
  between_endpoints,
  lambda_curve,
  lambda_report,
  lambda_table,
  own_report,
)
from fedjax_het.studies.unseen import plot_unseen
from fedjax_het.workdir.tracking import to_json

LOCAL = dict(lr=0.1, epochs=1, batch_size=4)
METHODS = {  # and the column of the grid where a client's own model is
  "apfl": (lambda: fh.apfl(linear(), alpha=0.3, **LOCAL), 3, lambda state: state.local),
  "ditto": (lambda: fh.ditto(linear(), local_epochs=1, **LOCAL), 10, lambda state: state),
  "pfedme": (lambda: fh.pfedme(linear(), inner_steps=1, **LOCAL), 10, lambda state: state),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["apfl", "ditto", "pfedme"])
def test_the_line_by_hand(ragged, name):
  """Its ends are the global and the kept model, the client's own is on it; between them, NumPy's loss."""
  make, column, kept = METHODS[name]
  engine = fh.Engine(fh.federated(make()), ragged, ragged.num_clients, devices=1)
  state, _ = engine.advance(engine.init(jax.random.key(0)), 2)
  line, own = engine.evaluate(state, of=between_endpoints), engine.evaluate(state)
  federated, local = float64(state.broadcast.params), float64(kept(state.clients))
  for i in range(ragged.num_clients):
    x, y = rows_of(ragged, i, "test")
    for at, lam in enumerate(GRID):
      mixed = jax.tree.map(lambda f, l: (1 - lam) * f + lam * l[i], federated, local)
      p = softmax(linear_logits(mixed, x))
      loss = -np.log(p[np.arange(len(y)), y]).mean()
      np.testing.assert_allclose(line.personalized["loss"][i, at], loss, rtol=1e-4)
      assert line.personalized["top1"][i, at] == pytest.approx((p.argmax(1) == y).mean())
  np.testing.assert_allclose(line.personalized["loss"][:, column], own.personalized["loss"][:, 0], rtol=1e-5)
  np.testing.assert_allclose(line.personalized["loss"][:, 0], own.global_["loss"], rtol=1e-5)
  apart = np.abs(line.personalized["loss"][:, 0] - line.personalized["loss"][:, 10])
  assert apart.max() > 0.01  # or any line would do


def test_the_report_of_a_line_beside_the_clients_own_models():
  values = np.array([[0.5, 0.9, 0.7], [0.6, 0.2, 0.4]])
  own = Evaluations(Evaluation({"top1": np.array([[0.8], [0.4]]), "loss": np.ones((2, 1))}, {}))
  report = own_report((0.0, 0.5, 1.0), Evaluation({"top1": values, "loss": values}, {}), own)
  np.testing.assert_allclose(report["mean"], [0.55, 0.55, 0.55])
  np.testing.assert_allclose(report["std"], [0.05, 0.35, 0.15])
  assert report["own"] == {"mean": pytest.approx(0.6), "std": pytest.approx(0.2)}
  assert report["per_client_test_optimistic"]["mean"] == pytest.approx(0.75)
  assert (report["common"], report["picked_on"]) == (None, "own")
  texts = [str(part) for part in lambda_table(report).renderables]
  assert "the clients' own models, at the method's λ: 60.00 ± 20.00 %" in texts


def test_dishonest_clients_are_on_no_line():
  client = fh.ditto(linear(), local_epochs=1, **LOCAL)
  run = SimpleNamespace(algorithm=SimpleNamespace(client=client))
  values, liars = np.random.default_rng(0).random((3, 11)), np.array([False, True, False])
  seen = Evaluation({"top1": values[:, :1]}, {})
  now = SimpleNamespace(
    evaluations=Evaluations(seen, headlines=("top1",), dishonest=liars),
    evaluate=lambda of: Evaluation({"top1": values}, {}),
  )
  np.testing.assert_allclose(LambdaLine(run).section(now)["lambda"]["mean"], values[::2].mean(0))


def test_pictures_are_drawn_again_of_figures_that_are_null_in_the_summary(tmp_path):
  """As of a run whose clients have no test examples."""
  own = {"mean": np.nan, "std": np.nan, "worst10": np.nan, "best10": np.nan}
  curve = {"grid": [0.0, 1.0], "metric": "top1", "mean": [0.1, 0.2], "std": [0.0, 0.1], "common": None}
  unseen = {"clients": 2, "steps": [0, 1], "metrics": [{"top1": own}] * 2}
  metrics = {"personalized": {"top1": own}, "global": {"top1": own}}
  summary = {"lambda": {**curve, "own": own}, "unseen": unseen, "metrics": metrics}
  stored = with_nan(json.loads(to_json(summary)))
  assert stored["lambda"]["common"] is None and np.isnan(stored["lambda"]["own"]["mean"])
  found = stored["lambda"]
  lambda_curve(found["grid"], found["mean"], found["std"], tmp_path / "a.png", own=found["own"])
  plot_unseen(stored["unseen"], stored["metrics"], tmp_path / "b.png")
  assert all((tmp_path / name).stat().st_size > 5000 for name in ("a.png", "b.png"))


def test_statistics_of_each_client_s_own_are_said(capsys):
  """λ = 0 has others than the global model then."""
  curve = {"grid": [0.0, 1.0], "metric": "top1", "mean": [0.1, 0.2], "std": [0.0, 0.0]}
  for more, said in (({"statistics": "own"}, True), ({}, False)):
    console().print(lambda_table(curve | more))
    assert ("λ = 0 is not the global model" in capsys.readouterr().out) == said


@pytest.mark.slow
def test_launched_runs_and_sweeps_have_their_line(tmp_path, capsys):
  """From one evaluation at the end; the headline stays the clients' own; NaN where a member diverged."""
  config = small(rounds=3, eval_every=3, algorithm={"name": "apfl", "alpha": 0.3})
  alone = experiment.run_experiment(config, str(tmp_path / "run"), Where(devices=1))
  curve, own = alone["lambda"], alone["metrics"]["personalized"]["top1"]
  assert curve["own"] == {"mean": own["mean"], "std": own["std"]}
  assert curve["mean"][3] == pytest.approx(own["mean"]) and len(set(curve["mean"])) > 2
  assert (tmp_path / "run" / "figures" / "lambda_curve.png").stat().st_size > 10_000
  assert "at the method's λ" in capsys.readouterr().out
  grid = {"algorithm.alpha": [0.3, 0.6], "local.lr": [0.05, 1e30]}
  members = run_sweep(config, grid, str(tmp_path / "sweep"), Where(devices=2))
  np.testing.assert_allclose(members[0]["lambda"]["mean"], curve["mean"], atol=1e-6)
  assert members[2]["lambda"]["mean"] != members[0]["lambda"]["mean"]
  assert members[0]["seconds"] == members[3]["seconds"]  # not what a member's line took
  assert members[1]["diverged"] and members[1]["lambda"]["mean"] == [None] * 11


def test_the_least_loss_over_the_line_is_at_a_lambda_of_its_own():
  """Top-1 picks λ = 0.5, whose mean loss is larger than at λ = 1."""
  top1 = np.array([[0.5, 0.9, 0.7], [0.6, 0.8, 0.4]])
  loss = np.array([[2.0, 1.5, 1.0], [1.0, 1.5, 1.4]])
  report = lambda_report((0.0, 0.5, 1.0), Evaluations(Evaluation({"top1": top1, "loss": loss}, {})))
  assert report["common"] == 0.5
  assert report["least_loss"] == {"at": 1.0, "mean": pytest.approx(1.2), "std": pytest.approx(0.2)}
