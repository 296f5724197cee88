"""Pictures of mixing are drawn, for few and for many clients."""

import json
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pytest
from changed_configs import with_values

import fedjax_het as fh
from benchmarks.papers.regret import plot_regret
from fedjax_het.config.quickstart import get_config
from fedjax_het.engine.round import RoundInfo
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.program.where import Where
from fedjax_het.studies.mixture import Mixture, cumulative_objective, first_mixture, plot_mixture


def is_png(path):
  return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000


def test_mixtures_of_few_named_and_of_many_clients(tmp_path):
  rng = np.random.default_rng(0)
  few, many = rng.dirichlet(np.ones(3), 20), rng.dirichlet(np.ones(50), 20)
  assert is_png(plot_mixture(few, tmp_path / "new" / "few.png", names=["a", "b", "c"]))
  assert is_png(plot_mixture(many, tmp_path / "many.png"))
  assert is_png(
    plot_mixture(few, tmp_path / "cohorts.png", same_clients=False, rounds=np.arange(10, 210, 10))
  )


def test_a_single_round_is_drawn_too(tmp_path):
  """As much of the picture is drawn for one round's coefficients as for the same in two rounds."""
  for names, cohort in (
    (["a", "b", "c"], [[0.6, 0.3, 0.1]]),
    (None, np.random.default_rng(0).dirichlet(np.ones(50), 1)),
  ):
    one, two = (
      matplotlib.image.imread(plot_mixture(np.repeat(cohort, n, axis=0), tmp_path / f"{n}.png", names=names))
      for n in (1, 2)
    )
    assert abs(one[..., :3].mean() - two[..., :3].mean()) < 0.003


def test_regret_beside_its_bound(tmp_path):
  at = np.array([1, 10, 100])
  curves = {name: (np.array([[0.0, 0.1, 0.2], [0.0, 0.2, 0.4]]), at**0.5) for name in ("one", "two")}
  assert is_png(plot_regret(at, curves, tmp_path / "regret.png"))


def test_cumulative_objective_by_hand():
  p, losses = [[0.5, 0.5], [0.25, 0.75]], [[1.0, 3.0], [2.0, 0.0]]
  np.testing.assert_allclose(cumulative_objective(p, losses), [2.0, 2.5])
  np.testing.assert_allclose(cumulative_objective(p[1:], losses[1:], before=2.0), [2.5])


def test_what_counts_before_any_loss_is_known():
  for part, wanted in (
    (fh.mixing.static(), [0.25, 0.75]), (fh.mixing.term(), [0.25, 0.75]), (fh.mixing.uniform(), [0.5, 0.5]),
    (fh.mixing.aaggff_s(), [0.5, 0.5]), (fh.mixing.afl(), [0.5, 0.5]),
  ):  # fmt: skip
    np.testing.assert_allclose(first_mixture(part, [3, 9]), wanted)


def lines_of(folder):
  return [json.loads(line)["mixing"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_every_round_counts_in_the_cumulative_objective_by_the_coefficients_of_the_round_before(tmp_path):
  """From the coefficients and losses of single rounds; also where lines are few, and after a stop."""
  small = {
    "mixing": {"name": "aaggff_s"}, "num_clients": 4, "cohort_size": 4,
    "model": {"name": "two_nn", "hidden": 8},
  }  # fmt: skip
  config = lambda **more: with_values(get_config("algorithm=fedavg"), small | more)  # noqa: E731
  run_experiment(config(rounds=5, eval_every=1), str(tmp_path / "each"), Where(devices=1))
  each = lines_of(tmp_path / "each")
  objectives = [own["objective"] for own in each]  # with p of the round itself
  sums = [own["cumulative"] for own in each]
  assert sums == sorted(sums) and 0.5 < sums[-1] / sum(objectives) < 2.0 and sums[0] != objectives[0]
  run_experiment(config(rounds=5, eval_every=5), str(tmp_path / "last"), Where(devices=1))
  assert [own["cumulative"] for own in lines_of(tmp_path / "last")] == sums[-1:]
  run_experiment(config(rounds=2, eval_every=2), str(tmp_path / "stopped"), Where(devices=1))
  run_experiment(config(rounds=4, eval_every=2), str(tmp_path / "stopped"), Where(devices=1))
  assert [own["cumulative"] for own in lines_of(tmp_path / "stopped")] == [sums[1], sums[3]]
  run_experiment(
    config(rounds=2, eval_every=1, cohort_size=3, mixing={"name": "term"}), str(tmp_path / "some")
  )
  assert all("cumulative" not in own for own in lines_of(tmp_path / "some"))


def test_the_cumulative_objective_is_of_what_was_decided_before():
  """Against the direct sum over rounds, in two chunks with a checkpoint between; cohorts are in any order."""
  rng = np.random.default_rng(0)
  p, losses = rng.dirichlet(np.ones(3), 4), rng.gamma(1.0, size=(4, 3))
  orders = np.stack([rng.permutation(3) for _ in range(4)])
  along = [orders, *(np.take_along_axis(rows, orders, 1) for rows in (p, losses))]
  run = SimpleNamespace(
    algorithm=SimpleNamespace(mixing=fh.mixing.aaggff_s()),
    data=SimpleNamespace(num_clients=3, train=SimpleNamespace(size=np.array([1, 2, 3]))),
  )
  books, found = None, []
  for done in (0, 2):
    study = Mixture(run)
    study.resume(done, books)
    report = study.watch(RoundInfo(*(own[done : done + 2] for own in along), None), None)
    found.append(report["mixing"]["cumulative"])
    books = json.loads(json.dumps(study.checkpoint_state()))
  decided = [np.full(3, 1 / 3), *p[:-1]]
  wanted = np.cumsum([q @ own for q, own in zip(decided, losses)])
  np.testing.assert_allclose(found, wanted[[1, 3]], rtol=1e-12)
  study = Mixture(run)
  study.resume(2, None)  # a checkpoint of an earlier version
  assert "cumulative" not in study.watch(RoundInfo(*(own[2:] for own in along), None), None)["mixing"]
  assert study.checkpoint_state() is None
