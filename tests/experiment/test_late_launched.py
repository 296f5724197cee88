"""Late evaluations of launched runs: a range over the last fifth, and nothing else that changes."""

import json

import numpy as np
import pytest
from launching import final_state, records, small, start, stopped_at
from run_folders import write_run
from terminal_text import shown as compared
from tiny_table import made, tiny_table, unchanged

from fedjax_het.compare.content import content
from fedjax_het.compare.groups import grouped
from fedjax_het.compare.runs import find
from fedjax_het.config.plan import plan
from fedjax_het.engine import run as engine_run
from fedjax_het.experiment import experiment, extend
from fedjax_het.experiment.recorded import timeless
from fedjax_het.experiment.report import report
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.output.terminal import console
from fedjax_het.program.where import Where
from fedjax_het.studies import Moment
from fedjax_het.studies import best as of_best
from fedjax_het.tables import layout
from fedjax_het.tables.compare import Late, entries
from fedjax_het.tables.reproduce import wanted
from fedjax_het.tables.runs import ended, identity
from fedjax_het.workdir.folder import check, prepare


def config(late=3, rounds=20, **changes):
  fixed = {"eval_every": 6, "algorithm": {"name": "fedavg"}, "model": {"name": "logistic_regression"}}
  return small(rounds=rounds, late_evaluations=late, **fixed | changes)


def of_file(workdir, rounds=20):
  """`late` by NumPy from metrics.jsonl."""
  lines = [line for line in records(workdir) if 5 * line["round"] > 4 * rounds]
  found = {}
  for model, metrics in lines[0]["metrics"].items():
    for metric in metrics:
      own = np.array([line["metrics"][model][metric]["mean"] for line in lines])
      of_metric = {"count": len(own), "min": own.min(), "max": own.max(), "std": own.std()}
      found.setdefault(model, {})[metric] = of_metric
  return found


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
  """The same run without and with late evaluations: (folder, summary) of each."""
  folders = [tmp_path_factory.mktemp("run") for _ in range(2)]
  return [(folder, start(config(late), str(folder))) for folder, late in zip(folders, (0, 3))]


@pytest.mark.slow
def test_the_range_is_that_of_the_lines_and_nothing_else_changes(pair):
  (plain, without), (own, summary) = pair
  assert [line["round"] for line in records(plain)] == [6, 12, 18, 20]
  assert [line["round"] for line in records(own)] == [6, 12, 17, 18, 20]
  assert [line for line in records(own) if line["round"] != 17] == records(plain)
  assert summary["late"] == of_file(own) and summary["late"]["global"]["top1"]["count"] == 3
  assert without["late"] == of_file(plain) and without["late"]["global"]["loss"]["count"] == 2
  assert timeless({**summary, "late": 0}) == timeless({**without, "late": 0})  # `best` too
  assert summary["best"]["course"]["rounds"] == [6, 12, 18, 20]
  for one, other in zip(final_state(own, config())[0], final_state(plain, config())[0], strict=True):
    np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [16, 17, 19])
def test_a_stopped_run_has_the_same_range(pair, tmp_path, monkeypatch, stop_at):
  monkeypatch.setattr(engine_run, "SECONDS_A_CHUNK", 0.0)
  with stopped_at(monkeypatch, stop_at):
    start(config(), str(tmp_path), checkpoint_seconds=0.0)
  assert timeless(start(config(), str(tmp_path))) == timeless(pair[1][1])
  assert records(tmp_path) == records(pair[1][0])


@pytest.mark.slow
def test_more_rounds_have_the_figures_of_a_longer_run_and_keep_late_lines(tmp_path):
  start(config(), str(tmp_path / "run"))
  longer, other = (start(config(rounds=40), str(tmp_path / name)) for name in ("run", "other"))
  assert timeless(longer) == timeless(other) and longer["late"] == of_file(tmp_path / "run", 40)
  lines = records(tmp_path / "run")
  assert [line for line in lines if line["round"] != 17] == records(tmp_path / "other")


@pytest.mark.slow
def test_fewer_rounds_count_the_judged_rounds_of_the_new_last_fifth(tmp_path, monkeypatch):
  def every(rounds):
    return config(0, rounds, eval_every=1)

  monkeypatch.setattr(engine_run, "SECONDS_A_CHUNK", 0.0)
  with stopped_at(monkeypatch, 12):
    start(every(30), str(tmp_path), checkpoint_seconds=0.0)
  summary = start(every(14), str(tmp_path))
  assert summary["late"] == of_file(tmp_path, 14) and summary["late"]["global"]["top1"]["count"] == 3


@pytest.mark.slow
def test_members_of_a_sweep_have_their_own_ranges(tmp_path):
  run_sweep(config(), {"local.lr": [0.01, 0.5]}, str(tmp_path), Where(devices=1))
  rows = json.loads((tmp_path / "sweep.json").read_text())
  for row in rows:
    assert row["late"] == of_file(tmp_path / "members" / row["member"])
  assert rows[0]["late"] != rows[1]["late"] and rows[0]["late"]["global"]["top1"]["count"] == 3


def test_late_evaluations_tell_no_two_configurations_apart(tmp_path):
  folder, more = tmp_path / "a", plan(config(7))
  prepare(folder, plan(config(0)).written, experiment.FREE)
  check(folder, more.written, experiment.FREE)
  kept = prepare(folder, more.written, experiment.FREE).config_path
  assert json.loads(kept.read_text())["late_evaluations"] == 7, "config.json says what a continued run has"
  assert identity(plan(config(0))) == identity(more)
  earlier = {name: own for name, own in more.written.items() if name != "late_evaluations"}
  assert identity(earlier) == identity(more), "a cell that ran before the field was there"
  assert extend.earlier_rounds(check(folder, more.written, experiment.FREE), more) is None
  assert extend.earlier_rounds(check(folder, more.written, experiment.FREE), plan(config(7, 40)),
                               experiment.FREE) == 20  # fmt: skip


# The mark.


LATE = {"count": 10, "min": 0.796, "max": 0.961, "std": 0.037}
FIGURES = {"mean": 0.9196, "std": 0.0729, "worst10": 0.8, "best10": 1.0, "gini": 0.1, "gap": 0.2}


def summary(late=LATE, clients=100, **more):
  models = ("personalized", "global")
  return {
    "algorithm": "fedavg", "num_clients": clients, "metrics": {m: {"top1": FIGURES} for m in models},
    "late": {m: {"top1": late} for m in models}, **more,
  }  # fmt: skip


def text_of(shown, width=100):
  terminal = console(width=width, record=True, quiet=False)
  with terminal.capture() as captured:
    terminal.print(shown)
  return captured.get()


def test_the_terminal_s_table_has_the_range_beside_an_unsettled_mean():
  text = text_of(report(summary()))
  assert "91.96 ± 7.29" in text and "* 79.60 to 96.10" in text and "* not settled" in text
  for own in (summary({**LATE, "std": 0.007}), summary(clients=3), summary() | {"late": {}}):
    assert "*" not in text_of(report(own)) and "last fifth" not in text_of(report(own))


def test_a_table_has_the_range_of_all_seeds_beside_an_unsettled_mean(tmp_path):
  table = tiny_table(tmp_path)
  runs = wanted(table, table.cells[:1], [0, 1, 2], unchanged)
  late = {**LATE, "min": 0.9, "max": 0.92, "std": 0.001}
  for seed, own in enumerate((summary(), summary(late), summary() | {"late": None})):
    folder = tmp_path / "runs" / str(seed)
    folder.mkdir(parents=True)
    (folder / "summary.json").write_text(json.dumps(own))
    (folder / "config.json").write_text(json.dumps(runs[seed].plan.written))
  own, loss = entries(table, runs, ended(tmp_path / "runs"))
  assert {*own.late} == {0, 1} and own.moving == pytest.approx((79.6, 96.1)) and not loss.late
  assert layout.ours(own) == "91.96 ± 0.00 (7.29) * 79.60 to 96.10"
  parts = [own, loss], table.cells, "", "title"
  assert r"91.96 ± 0.00 (7.29) \* 79.60 to 96.10" in layout.markdown(*parts)
  assert "not settled" in layout.latex(*parts) and "not settled" in text_of(layout.drawn(*parts))
  head, first, second = (line.split(",") for line in layout.as_csv(*parts[:3]).splitlines())
  assert dict(zip(head, first))["settled"] == "no" and float(dict(zip(head, first))["late_max"]) == 96.1
  assert dict(zip(head, second))["late_std"] == ""
  settled = made("A", {0: 90.0})._replace(late={0: Late(89.0, 91.0, 0.2, True)})
  assert layout.ours(settled) == "90.00 (1.00)" and settled.moving is None


def test_runs_side_by_side_have_the_range_of_their_seeds(tmp_path):
  late = {**LATE, "min": 0.5}
  for seed, own in enumerate((summary(), summary({**late, "std": 0.001}))):
    write_run(tmp_path / f"fedavg{seed}", summary=own, seed=seed)
  write_run(tmp_path / "ditto", algorithm__name="ditto")  # an earlier version's
  groups = grouped(find([tmp_path]))
  text = " ".join(compared(groups, width=150).split())
  assert "* 50.00 to 96.10" in text and "* not settled" in text and text.count(" to 96.10") == 1
  found = {group["label"]: group["late"] for group in content(groups)["groups"]}
  assert found["fedavg"]["personalized"]["top1"] == (0.5, 0.961) and found["ditto"] == {}


def test_best_counts_evaluations_alone():
  study = of_best.Best.__new__(of_best.Best)
  study.resume(0, None)
  moment = Moment(17, None, False, dict, dict, dict, late=object())
  assert study.watch(None, moment) == {} and study.checkpoint_state()["course"] == {}
