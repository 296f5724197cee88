"""Ours beside the paper's: means over seeds, differences in pairs, and how they are written."""

import csv
import io
import json

import numpy as np
import pytest
from ml_collections import ConfigDict
from rich.console import Console
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
  assert texts[0] == ["", *(f"lr {lr}: {kind}" for lr in ("0.1", "0.2")
                            for kind in ("ours", "paper", "less paper", "less A"))]  # fmt: skip
  assert texts[2:] == [
    ["A", "91.00 ± 1.41 (1.00)", "95.00 (2.00)", "-4.00", "–", "1.00", "–", "–", "–"],
    ["B", "92.50 ± 2.12 (1.00)", "93.00", "-0.50", "+1.50 ± 0.50", "diverged", "–", "–", "–"],
    ["C", "not run", "50.00 (1.00)", "–", "–", "–", "–", "–", "–"],
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
  assert text.count(r" \\") == 4 and r"\begin{tabular}{lrrrrrr}" in text
  assert r"A & 91.00 $\pm$ 1.41 (1.00) & 95.00 (2.00) & -4.00 & 1.00 & -- & -- \\" in text
