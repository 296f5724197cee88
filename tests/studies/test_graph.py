"""The study of mixing graphs: its figures by hand, its file and its picture."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from small_parts import federation

import fedjax_het as fh
from fedjax_het.studies.graph import Graph, plot_graph, report
from fedjax_het.workdir.tracking import to_json

WEIGHTS = np.array([[0.5, 0.3, 0.2, 0], [0.25] * 4, [0, 0, 1, 0], [0.1, 0.2, 0.3, 0.4]])
HIDDEN = np.array([0, 1, 0, 1])


def test_the_report_by_hand():
  found = report(WEIGHTS, HIDDEN)
  rows = [-sum(p * np.log(p) for p in row if p) for row in WEIGHTS]
  assert found["self"] == pytest.approx((0.5 + 0.25 + 1.0 + 0.4) / 4)
  assert found["entropy"] == pytest.approx(np.mean(rows))
  inside = 0.2 + 0.25 + 0.0 + 0.2  # 0 of 2, 1 of 3, 2 of 0, 3 of 1
  assert found["inside"] == pytest.approx(inside / (0.5 + 0.75 + 0.0 + 0.6))
  assert set(report(WEIGHTS)) == {"self", "entropy"}
  assert np.isnan(report(np.eye(3), [0, 0, 1])["inside"])


def run_of(folder, hidden=HIDDEN, graph=lambda broadcast, server, clients: clients):
  data = federation(sizes=(6, 7, 8, 9))
  client = SimpleNamespace(studies=SimpleNamespace(graph=graph), task=fh.tasks.classification())
  return SimpleNamespace(
    algorithm=SimpleNamespace(client=client), data=data, hidden=hidden, folder=folder, writes=True,
    figures=folder / "figures", title="a run",
  )  # fmt: skip


@pytest.mark.parametrize("hidden", [HIDDEN, None])
def test_the_graph_is_read_of_the_state_and_drawn_from_the_file(tmp_path, hidden):
  study = Graph(run_of(tmp_path, hidden))
  state = SimpleNamespace(broadcast=None, server=None, clients=WEIGHTS)
  now = SimpleNamespace(evaluations=1, diverged=False, state=lambda: state)
  assert Graph.fits(study.run) and not Graph.fits(run_of(tmp_path, graph=None))
  assert study.watch(None, now) == {"graph": report(WEIGHTS, hidden)} == study.section(now)
  for other in ({"evaluations": None}, {"diverged": True}):
    assert study.watch(None, SimpleNamespace(**vars(now) | other)) == {}
  assert study.section(SimpleNamespace(**vars(now) | {"diverged": True})) == {}
  with np.load(tmp_path / "graph.npz") as file:
    np.testing.assert_allclose(file["weights"], WEIGHTS, rtol=1e-6)
    order = file["order"].tolist()
  most = fh.data.label_counts(study.run.data).argmax(1)
  key = most if hidden is None else hidden
  assert sorted(order) == [0, 1, 2, 3] and np.all(np.diff(key[order]) >= 0)
  study.draw([], {})
  assert not (tmp_path / "figures").exists()
  study.draw([], {"graph": {}})
  path = tmp_path / "figures" / "graph.png"
  assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000
  told = Graph.rows(study.section(now)).plain
  assert told.startswith("mixing graph: a client takes 53.8 % of itself")
  assert ("of its hidden cluster" in told) == (hidden is not None) and Graph.rows({}) is None
  lines = [{"graph": report(WEIGHTS, hidden)}]
  assert [curve.of for curve in study.curves(lines)] == ["graph", "graph"]


def test_a_stored_report_of_clients_that_take_of_nobody_else_is_shown():
  """Nothing is taken of others, so that the share of the own cluster is null in the file."""
  stored = json.loads(to_json({"graph": report(np.eye(3), [0, 0, 1])}))
  assert stored["graph"]["inside"] is None
  told = Graph.rows(stored).plain
  assert told == "mixing graph: a client takes 100.0 % of itself, – of the rest of its hidden cluster"


def test_a_graph_of_clients_that_take_of_nobody_else(tmp_path):
  assert plot_graph(np.eye(60), tmp_path / "alone.png").stat().st_size > 5000
