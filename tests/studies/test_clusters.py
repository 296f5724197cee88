"""The study of clusters: its figures by hand and against scikit-learn, its pictures, and whole runs."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from cases import with_every
from changed_configs import with_values
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import small
from sklearn.metrics import adjusted_rand_score

from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.program.where import Where
from fedjax_het.studies.clusters import Clusters, adjusted_rand, crossed, plot_clusters, report

HIDDEN = np.array([0, 1, 0, 1, 2, 2])


def is_png(path):
  return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000


def test_the_report_by_hand():
  weights = np.array([[0.6, 0.4, 0], [0.1, 0.9, 0], [1, 0, 0], [0.2, 0.8, 0], [0.5, 0.3, 0.2], [0, 0.7, 0.3]])
  found = report(weights, HIDDEN)
  assert found["of"] == [0, 1, 0, 1, 0, 1] and found["sizes"] == [3, 3, 0]
  assert found["sure"] == pytest.approx((0.6 + 0.9 + 1 + 0.8 + 0.5 + 0.7) / 6)
  assert found["purity"] == pytest.approx(4 / 6)
  # pairs: 2 in both; 6 in ours, 3 in the truth, 15 in all: (2 - 18/15) / (4.5 - 18/15)
  assert found["rand"] == pytest.approx(0.8 / 3.3)
  assert set(report(weights)) == {"of", "sizes", "sure"}
  assert "of" not in report(np.ones((101, 2)))
  later = np.c_[weights, np.full((6, 2), np.nan)]  # of groups that do not exist yet
  assert report(later, HIDDEN) == found


def test_a_client_whose_weights_are_no_numbers_is_in_no_cluster(tmp_path):
  weights, lost = np.eye(3)[[0, 1, 1, 2]], np.array([False, False, True, False])
  weights[lost] = np.nan
  found = report(weights, [0, 1, 1, 1])
  assert found["of"] == [0, 1, -1, 2] and found["sizes"] == [1, 1, 1] and found["sure"] == 1.0
  assert found["purity"] == 1.0 and found["rand"] == report(weights[~lost], [0, 1, 1])["rand"]
  none = report(np.full((2, 3), np.nan), [0, 1])
  assert none["of"] == [-1, -1] and none["sizes"] == [] and np.isnan([none["sure"], none["purity"]]).all()
  study = Clusters(run_of(tmp_path, lambda broadcast, server, clients: broadcast))
  study.resume(0, None)
  lines = [{"round": n, **study.watch(None, moment(weights))} for n in (1, 2)]
  assert lines[1]["clusters"]["moved"] == 0.0
  study.draw(lines, {})
  assert is_png(tmp_path / "clusters.png")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_the_rand_index_is_scikit_learns(pairs):
  first, second = np.array(pairs).T
  assert adjusted_rand(first, second) == pytest.approx(adjusted_rand_score(second, first), abs=1e-12)
  assert crossed(first, second).sum() == len(pairs)


def test_a_method_with_groups_says_so():
  offers = lambda **own: SimpleNamespace(  # noqa: E731
    algorithm=SimpleNamespace(client=SimpleNamespace(studies=SimpleNamespace(**own)))
  )
  assert Clusters.fits(offers(membership=print, groups=None)) and Clusters.fits(
    offers(membership=None, groups=1)
  )
  assert not Clusters.fits(offers(membership=None, groups=None))


def run_of(tmp_path, groups, hidden=None):
  studies = SimpleNamespace(membership=None, groups=groups)
  return SimpleNamespace(
    algorithm=SimpleNamespace(client=SimpleNamespace(studies=studies)), hidden=hidden, figures=tmp_path,
    title="a run",
  )  # fmt: skip


def moment(weights, round=1, **more):
  state = SimpleNamespace(broadcast=weights, server=None, clients=None)
  own = {"evaluations": 1, "diverged": False, "round": round, "state": lambda: state} | more
  return SimpleNamespace(**own)


def test_groups_that_the_server_knows_are_read_of_the_state_and_moves_survive_a_stop(tmp_path):
  study = Clusters(run_of(tmp_path, lambda broadcast, server, clients: broadcast, HIDDEN[:3]))
  study.resume(0, None)
  first = study.watch(None, moment(np.eye(3)))
  assert "moved" not in first["clusters"] and first["clusters"]["of"] == [0, 1, 2]
  again = Clusters(study.run)
  again.resume(1, json.loads(json.dumps(study.checkpoint_state())))
  second = again.watch(None, moment(np.eye(3)[[0, 2, 2]], round=2))["clusters"]
  assert second["moved"] == pytest.approx(1 / 3) and second["purity"] == pytest.approx(2 / 3)
  assert again.watch(None, moment(np.eye(3), evaluations=None)) == {}
  assert again.watch(None, moment(np.eye(3), diverged=True)) == {}
  assert again.section(moment(np.eye(3), diverged=True)) == {}
  assert again.section(moment(np.eye(3)))["clusters"]["sizes"] == [1, 1, 1]
  told = Clusters.rows({"clusters": second}).plain
  assert told == "clusters of 1, 0, 2 clients; 66.7 % pure, Rand index -0.50"
  assert Clusters.rows({}) is None
  alone = again.watch(None, moment(np.c_[np.ones(3), np.full((3, 2), np.nan)]))["clusters"]
  assert alone["sizes"] == [3] and alone["of"] == [0, 0, 0] and alone["moved"] == pytest.approx(2 / 3)
  lines = [{"round": 0, "clusters": alone}, {"round": 1, **first}, {"round": 2, "clusters": second}]
  assert [curve.metric for curve in study.curves(lines)] == ["purity", "moved"]
  study.draw(lines, {})
  assert is_png(tmp_path / "clusters.png")


def test_pictures_of_many_clients_and_without_the_truth(tmp_path):
  rng = np.random.default_rng(0)
  of = rng.integers(0, 3, (5, 30))
  sizes = [np.bincount(row, minlength=3) for row in of]
  assert is_png(plot_clusters(np.arange(5), sizes, tmp_path / "few.png", of=of))
  assert is_png(plot_clusters(np.arange(5), sizes, tmp_path / "sizes.png"))


@pytest.mark.slow
@pytest.mark.parametrize("name", with_every(["ifca", "fedem"], "fedem"))
def test_a_run_reports_where_its_clients_are(tmp_path, name):
  """In agreement with the client part's own choice, on one and on several devices."""
  config = with_values(
    small(), {"algorithm": {"name": name, "models": 2}, "rounds": 4, "eval_every": 2, "cohort_size": 20,
              "feature_shift": {"name": "rotation", "clusters": 2}}
  )  # fmt: skip
  one, two = (
    run_experiment(config, str(tmp_path / str(devices)), Where(devices=devices)) for devices in (1, 2)
  )
  assert one["clusters"] == two["clusters"] and sum(one["clusters"]["sizes"]) == 20
  lines = [json.loads(line) for line in (tmp_path / "1" / "metrics.jsonl").read_text().splitlines()]
  assert all("clusters" in line for line in lines) and lines[-1]["clusters"]["of"] == one["clusters"]["of"]
  assert (tmp_path / "1" / "figures" / "clusters.png").exists()
  if name == "ifca":
    assert one["clusters"]["sure"] == 1.0
  else:
    assert 0.5 <= one["clusters"]["sure"] < 1.0
  assert "purity" in one["clusters"]
