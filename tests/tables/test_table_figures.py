"""Ours beside the paper's: means over seeds, differences in pairs, and how they are written."""

import csv
import io
import json

import numpy as np
import pytest
from ml_collections import ConfigDict
from rich.console import Console
from scipy import stats
from tiny_table import SHOWN, made

from fedjax_het.tables import layout
from fedjax_het.tables.compare import entries, read
from fedjax_het.tables.compare import made as who_made
from fedjax_het.tables.layout import less_than
from fedjax_het.tables.paper import Cell, Relative, Table
from fedjax_het.tables.runs import Wanted, identity


def test_figures_of_a_summary():
  summary = {"a": {"b": {"mean": 0.5, "std": 0.25}, "c": 2.0, "d": {"mean": None}, "e": float("nan")}}
  assert read(summary, ("a.b", 100.0)) == (50.0, 25.0)
  assert read(summary, ("a.c", 1.0)) == (2.0, None) and read(summary, ("a.b.mean", 1.0)) == (0.5, None)
  assert {read(summary, (path, 1.0)) for path in ("a.d", "a.e", "a.x", "a.c.x")} == {None}


def test_a_figure_of_two_runs(tmp_path):
  """Of the same seed and column; a method without another is beside itself."""
  source = Relative("n.m", lambda own, other: other / own if own > 1 else None, {"B": "A", "C": "D"},
                  "{}'s is not reached")  # fmt: skip
  keys = [(method, size) for size in ("1", "2") for method in "ABC"]
  cells = [Cell(method, {"size": size, "algorithm": method.lower()}, {}) for method, size in keys]
  table = Table("t", "t", ConfigDict, {"ratio": source}, cells)
  wanted = [Wanted(cell, seed, {"of": cell.text, "seed": seed}) for cell in cells for seed in (0, 1)]
  ended = {}
  for number, one in enumerate(wanted):
    folder = tmp_path / str(number)
    folder.mkdir()
    (folder / "summary.json").write_text(json.dumps({"n": {"m": number + 1.0}}))
    ended[identity(one.plan)] = folder
  found = {(entry.cell.method, entry.cell.keys["size"]): entry for entry in entries(table, wanted, ended)}
  assert found["A", "2"].values == {0: 1.0, 1: 1.0} and found["A", "1"].values == {1: 1.0}
  assert found["B", "1"].values == {0: 1.0 / 3.0, 1: 2.0 / 4.0}
  assert found["B", "2"].values == {0: 7.0 / 9.0, 1: 8.0 / 10.0}
  assert found["A", "1"].failed == {0: "A's is not reached"}
  (tmp_path / "0" / "summary.json").write_text("{}")  # of A, seed 0
  found = {(entry.cell.method, entry.cell.keys["size"]): entry for entry in entries(table, wanted, ended)}
  assert found["A", "1"].failed == {0: "its summary has no n.m"}
  assert found["B", "1"].failed == {0: "A, which it is compared with: its summary has no n.m"}
  assert found["C", "1"].values == {} and found["C", "1"].failed[1] == "no run of D to compare with"


@pytest.mark.parametrize("diverged", ["A", "B"])
def test_what_diverged_has_no_figure_nor_is_one_beside_it(diverged, tmp_path):
  """A sweep's member has a summary, with a best of before."""
  cells = [Cell(method, {"algorithm": method.lower()}, {}) for method in "AB"]
  figures = {"best": ("best.value", 100.0), "ratio": Relative("best", lambda own, other: 2.0, {"B": "A"})}
  table, ended = Table("t", "t", ConfigDict, figures, cells), {}
  wanted = [Wanted(cell, 0, {"of": cell.text}) for cell in cells]
  for one in wanted:
    folder = tmp_path / one.cell.method
    folder.mkdir()
    gone = {"diverged": {"round": 3}} if one.cell.method == diverged else {}
    (folder / "summary.json").write_text(json.dumps({"best": {"value": 0.5}, **gone}))
    ended[identity(one.plan)] = folder
  found = {(entry.cell.method, entry.metric): entry for entry in entries(table, wanted, ended)}
  other = "B" if diverged == "A" else "A"
  assert found[diverged, "best"].failed == {0: "diverged in round 3"} == found[diverged, "ratio"].failed
  assert found[other, "best"].values == {0: 50.0}
  if diverged == "A":
    assert found["B", "ratio"].failed == {0: "A, which it is compared with: diverged in round 3"}
  else:
    assert found["A", "ratio"].values == {0: 2.0}


def test_brackets_are_no_markup():
  shown = [made("A [x]", {0: 90.0}), made("B [/y]", {0: 91.0}), made("B [/y]", {0: 1.0}, lr="[z]")]
  out = io.StringIO()
  Console(file=out, width=100).print(layout.drawn(shown, [entry.cell for entry in shown], "B [/y]", "T"))
  assert all(text in out.getvalue() for text in ("A [x]", "B [/y]", "[z]", "less B [/y]"))


def test_who_made_a_table_is_listed(tmp_path):
  for number in range(5):
    (tmp_path / str(number)).mkdir()
    start = {"commit": f"c{number}", "date": f"2026-01-0{number + 1}", "machine": f"M{number % 4}"}
    (tmp_path / str(number) / "starts.jsonl").write_text(json.dumps(start))
  text = who_made(sorted(tmp_path.iterdir()))
  assert text == "commit c0, c1, c2, c3, c4; machine M0, M1, M2, M3; date 2026-01-01 to 2026-01-05"


def test_means_over_seeds_and_differences_in_pairs():
  own = np.array([90.0, 92.0, 97.0])
  entry = made("A", dict(enumerate(own)), (95.0, 2.0))
  assert entry.mean == own.mean() and entry.over_seeds == own.std(ddof=1) and entry.over_clients == 1.0
  assert entry.difference == own.mean() - 95.0
  other = np.array([91.0, 94.0])
  found = less_than(entry, made("B", {1: 91.0, 2: 94.0, 7: 0.0}))
  pairs = own[1:] - other
  assert found == (pairs.mean(), pairs.std(ddof=1) / np.sqrt(2), 2)
  assert less_than(entry, made("B", {1: 91.0})) == (1.0, None, 1)
  assert less_than(entry, made("B", {8: 91.0})) is None and less_than(entry, entry) is None
  assert made("A", {0: 1.0}).over_seeds is None and made("A", {}).mean is None
  assert made("A", {}, (1.0, 1.0)).difference is None and made("A", {0: 1.0}).difference is None


def test_a_table_as_text():
  cells = [entry.cell for entry in SHOWN]
  rows = [
    line.split("|")[1:-1] for line in layout.markdown(SHOWN, cells, "A", "T").splitlines() if "|" in line
  ]
  texts = [[text.strip() for text in row] for row in rows]
  kinds = "ours", "95 % interval", "paper", "less paper", "less A"
  assert texts[0] == ["", *(f"lr {lr}: {kind}" for lr in ("0.1", "0.2") for kind in kinds)]
  assert texts[2:] == [
    ["A", "91.00 ± 1.41 (1.00)", "78.29 to 103.71", "95.00 (2.00)", "-4.00", "–", "1.00", *"––––"],
    ["B", "92.50 ± 2.12 (1.00)", "73.44 to 111.56", "93.00", "-0.50", "+1.50 ± 0.50", "diverged", *"––––"],
    ["C", "not run", "–", "50.00 (1.00)", *"–––––––"],
  ]
  notes = " ".join(layout.footnotes(SHOWN, "A"))
  assert "2 seeds (0, 1)" in notes and "B, algorithm=b,lr=0.2, seed 0: diverged in round 3" in notes
  out = io.StringIO()
  Console(file=out, width=100).print(layout.drawn(SHOWN, cells, "A", "T"))
  assert all(text in out.getvalue() for row in texts[2:] for text in row)


def test_a_table_for_programs():
  cells = [entry.cell for entry in SHOWN]
  first, _, second, *_ = csv.DictReader(io.StringIO(layout.as_csv(SHOWN, cells, "A")))
  assert first["ours"] == "91.0" and first["seeds"] == "0+1" and first["less"] == ""
  assert second["less"] == "A" and float(second["ours_less_method"]) == 1.5
  assert float(second["standard_error"]) == pytest.approx(0.5) and second["shared_seeds"] == "2"
  text = layout.latex(SHOWN, cells, "", "T")
  assert text.count(r" \\") == 4 and r"\begin{tabular}{lrrrrrrrr}" in text
  assert (
    r"A & 91.00 $\pm$ 1.41 (1.00) & 78.29 to 103.71 & 95.00 (2.00) & -4.00 & 1.00 & -- & -- & -- \\" in text
  )


def test_intervals_are_left_out_for_one_seed_and_the_paper_where_there_is_none():
  alone = [made("A", {0: 90.0}), made("B", {0: 91.0})]
  assert layout.kinds(alone, "") == ["ours"] and layout.kinds(alone, "A") == ["ours", "less A"]
  text = layout.markdown(alone, [entry.cell for entry in alone], "A", "T")
  assert "paper" not in text and "interval" not in text and "+1.00" in text
  assert layout.kinds([*alone, made("C", {}, (1.0, 1.0))], "") == ["ours", "paper", "less paper"]
  own = np.array([90.0, 92.0, 97.0])
  low, high = stats.t.interval(0.95, 2, own.mean(), stats.sem(own))
  several = [made("A", dict(enumerate(own)))]
  assert layout.interval(several[0]) == f"{low:.2f} to {high:.2f}" and layout.interval(alone[0]) == "–"
  (row,) = csv.DictReader(io.StringIO(layout.as_csv(several, [several[0].cell], "")))
  assert (float(row["interval_low"]), float(row["interval_high"])) == pytest.approx((low, high))


def test_a_missing_figure_is_explained_by_the_method(tmp_path):
  paths = {"global": "metrics.global.top1", "auroc": "metrics.personalized.auroc", "line": "lambda.common"}
  paths |= {"official": "synthetic.downstream.official"}
  cell = Cell("FedPer", {"algorithm": "fedper"}, {})
  table = Table("t", "t", ConfigDict, {name: (path, 1.0) for name, path in paths.items()}, [cell])
  summary = {"metrics": {"personalized": {"top1": {"mean": 0.5}}}, "synthetic": {"downstream": {}}}
  (tmp_path / "summary.json").write_text(json.dumps(summary))
  wanted = [Wanted(cell, 0, {})]
  found = {own.metric: own for own in entries(table, wanted, {identity(wanted[0].plan): tmp_path})}
  assert {name: own.failed[0] for name, own in found.items()} == {
    "global": "no global model", "auroc": "no auroc among its task's metrics", "line": "no line of models",
    "official": "no official among its synthetic figures",
  }  # fmt: skip
  assert layout.ours(found["global"]) == "no global model"


def test_budgets_stand_below_the_table_and_say_where_they_differ():
  took = {"client_steps": 1000.0, "bytes": 2e6, "seconds": 5.0}
  a, b = made("A", {0: 90.0})._replace(budget=took), made("B", {0: 91.0})
  b = b._replace(budget={**took, "client_steps": 2000.0})
  first, second = layout.budgets([a, b])
  assert first == (
    "A run took: A 1,000 client steps, 2 MB, 5 s of training; B 2,000 client steps, 2 MB, 5 s of training."
  )
  assert second == "Budgets differ: B took 2.0 times the client steps of A (2,000; 1,000)."
  assert len(layout.budgets([a, a])) == 1 and layout.budgets([made("A", {})]) == []
  row, _ = csv.DictReader(io.StringIO(layout.as_csv([a, b], [a.cell, b.cell], "")))
  assert (row["client_steps"], row["bytes"], row["seconds"]) == ("1000.0", "2000000.0", "5.0")


def test_budgets_are_compared_in_the_columns_of_the_table_whatever_the_metrics():
  """The strength is the method's own in each size, and tells no columns apart."""
  several = []
  for method, steps in (("A", 1000.0), ("B", 2000.0)):
    for size in "12":
      cell = Cell(method, {"algorithm": method, "size": size, "strength": f"{method}{size}"}, {})
      one = made(method, {0: 90.0})._replace(cell=cell, budget={"client_steps": steps})
      several += [one._replace(metric=metric) for metric in ("top1", "loss")]
  said = "Budgets differ: B took 2.0 times the client steps of A (2,000; 1,000)."
  assert layout.budgets(several)[1:] == layout.budgets(several[::2])[1:] == [
    f"size 1: {said}", f"size 2: {said}"
  ]  # fmt: skip
