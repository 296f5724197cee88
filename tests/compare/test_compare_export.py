"""What `compare` writes beside its page: CSV, LaTeX, clients, curves over a budget, notes on budgets."""

import csv
import io

import numpy as np
import pytest
from run_folders import write_run
from scipy import stats
from terminal_text import shown

from fedjax_het.compare import curves, export, launcher
from fedjax_het.compare.content import content
from fedjax_het.compare.groups import baseline_of, grouped
from fedjax_het.compare.runs import find
from fedjax_het.errors import SettingError

FEDAVG, DITTO = (0.71, 0.74, 0.69), (0.81, 0.79, 0.83)
NAMES = np.array(["Köln", "Oslo"])


@pytest.fixture
def runs(tmp_path):
  """Three seeds of two methods on two hospitals; Ditto takes twice the client steps."""
  for name, values, steps in (("fedavg", FEDAVG, 300), ("ditto", DITTO, 600)):
    for seed, value in enumerate(values):
      took = {"rounds": 30, "client_steps": steps, "bytes": {"up": 10, "down": 20}, "seconds": {"train": 2.0}}
      arrays = {"personalized/top1": np.array([value, value - 0.5]), "names": NAMES}
      write_run(
        tmp_path / "r" / f"{name}{seed}", (0.5, 0.6, value), summary=took, arrays={"clients.npz": arrays},
        algorithm__name=name, seed=seed,
      )  # fmt: skip
  return tmp_path / "r"


def test_the_table_as_csv_and_latex(runs, tmp_path, capsys):
  launcher.main([str(runs), f"--csv={tmp_path / 'a.csv'}", f"--latex={tmp_path / 'a.tex'}", "--baseline=fed"])
  assert not (tmp_path / "compare.html").exists() and "a.tex is written" in capsys.readouterr().out
  ditto, fedavg = csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text()))
  assert ditto["label"] == "ditto" and ditto["algorithm.name"] == "ditto" and ditto["baseline"] == "fedavg"
  assert float(ditto["mean"]) == pytest.approx(np.mean(DITTO)) and ditto["client_steps"] == "600.0"
  low, high = stats.ttest_rel(DITTO, FEDAVG).confidence_interval(0.95)
  assert float(ditto["difference"]) == pytest.approx((low + high) / 2)
  assert float(ditto["difference_half"]) == pytest.approx((high - low) / 2)
  assert fedavg["difference"] == "" and float(fedavg["worst10"]) == pytest.approx(np.mean(FEDAVG) - 0.02)
  text = (tmp_path / "a.tex").read_text()
  assert r"\begin{tabular}{lrrrrr}" in text and text.count(r" \\") == 3
  assert rf"ditto & 3 & {100 * np.mean(DITTO):.2f} $\pm$" in text and "less fedavg" in text


def test_another_metric_is_shown_where_asked(runs):
  groups = grouped(find([runs]))
  text = shown(groups, metric="loss")
  assert "loss of the personalised models" in text and f"{2 - np.mean(DITTO):.4f}" in text
  with pytest.raises(SettingError, match=r"metric = 'los': no run has it.* Did you mean 'loss'"):
    launcher.compare([str(runs)], plain=True, metric="los")
  other = {"personalized": {"rmse": {name: 0.5 for name in ("mean", "std", "worst10")}}}
  write_run(runs / "amounts", summary={"metrics": other}, line={"metrics": other}, algorithm__name="fedper")
  assert "fedper: complete, without loss of the personalised model" in shown(
    grouped(find([runs])), metric="loss"
  )


def test_the_baseline_by_the_beginning_of_its_label(runs):
  groups = grouped(find([runs]))
  assert groups[baseline_of(groups, "fed")].label == "fedavg"
  write_run(runs / "x", algorithm__name="fedprox")
  with pytest.raises(SettingError, match=r"several begin with it.*fedavg; fedprox"):
    baseline_of(grouped(find([runs])), "fed")


def test_clients_have_rows_by_name(runs, tmp_path, capsys):
  launcher.main([str(runs), "--clients", f"--csv={tmp_path / 'c.csv'}"])
  said = capsys.readouterr().out
  assert said.index("Oslo") < said.index("Köln")  # the worst first
  rows = [*csv.DictReader(io.StringIO((tmp_path / "c.csv").read_text()))]
  assert [row["client"] for row in rows] == ["Oslo", "Köln"]
  assert float(rows[1]["ditto"]) == pytest.approx(np.mean(DITTO))
  assert float(rows[0]["fedavg"]) == pytest.approx(np.mean(FEDAVG) - 0.5)
  (plain,) = export.clients(grouped(find([write_run(tmp_path / "u", arrays={"clients.npz": {
    "personalized/top1": np.array([0.25])}})])), "top1", "personalized")  # fmt: skip
  assert plain == {"client": "0", "fedavg on digits": 0.25}


def test_clients_without_names_are_not_averaged_over_seeds_that_deal_them_anew(tmp_path):
  def table(**fields):
    folder = tmp_path / str(len([*tmp_path.iterdir()]))
    for seed, value in enumerate((0.25, 0.75)):
      arrays = {"clients.npz": {"personalized/top1": np.array([value, 1.0])}}
      write_run(folder / str(seed), arrays=arrays, seed=seed, **fields)
    return export.clients(grouped(find([folder])), "top1", "personalized")

  dirichlet = {"name": "dirichlet", "alpha": 1.0}
  for partition in (dirichlet, {"name": "natural", "sample": 2}):
    with pytest.raises(SettingError, match=r"clients = True: clients have no names, .* in each of 2 seeds"):
      table(partition=partition)
  for partition in (dirichlet | {"seed": 3}, {"name": "natural"}):
    first = table(partition=partition)[0]
    assert first["client"] == "0" and [*first.values()][1] == pytest.approx(0.5)


def test_a_table_of_clients_in_latex_is_refused_before_anything_is_shown(runs, tmp_path, capsys):
  with pytest.raises(SettingError, match=r"latex = .*: is the table of groups, not of clients"):
    launcher.compare([str(runs)], clients=True, csv=str(tmp_path / "a.csv"), latex=str(tmp_path / "a.tex"))
  assert not capsys.readouterr().out and not (tmp_path / "a.csv").exists()


def test_unequal_budgets_are_said(runs):
  text = " ".join(shown(grouped(find([runs]))).split())
  assert "Budgets differ: ditto took 2.0 times the client steps of fedavg (600; 300)." in text
  assert "times the bytes" not in text and "30 B" in text and "2 s" in text
  found = content(grouped(find([runs])))
  named = {"Köln": pytest.approx(DITTO[0]), "Oslo": pytest.approx(DITTO[0] - 0.5)}
  assert found["runs"][0]["named_clients"] == {"personalized/top1": named}
  assert len(found["budgets"]) == 1 and found["groups"][0]["budget"]["client_steps"] == 600


def test_curves_over_budgets(runs, tmp_path):
  """Steps and bytes of the lines where they say so, else shares of the whole."""
  ditto, _ = grouped(find([runs]))
  for over, ends in (("round", (10, 30)), ("client_steps", (200, 600)), ("bytes", (10, 30))):
    x, values = curves.curve(ditto, "personalized", "top1", over)
    assert (x[0], x[-1]) == pytest.approx(ends) and values[:, -1] == pytest.approx(DITTO)
  said = write_run(tmp_path / "own", line={"client_steps": 7, "seconds": {"train": 3.0}}, ended=False)
  (run,) = find([said])
  own = curves.axes(run)
  assert own["client_steps"].tolist() == [7] * 3 and own["seconds"].tolist() == [3.0] * 3
  assert np.isnan(own["bytes"]).all() and "bytes" not in curves.for_page(run)
  assert np.isnan(own["simulated_seconds"]).all() and "simulated_seconds" not in curves.for_page(run)
  line = {"bytes": {"up": 30, "down": 12}, "simulated_seconds": 8.5}
  (run,) = find([write_run(tmp_path / "timed", line=line)])
  assert curves.axes(run)["bytes"].tolist() == [42] * 3
  assert curves.for_page(run)["simulated_seconds"] == [8.5] * 3


def test_curves_are_drawn_at_a_switch(runs, tmp_path, capsys):
  path = tmp_path / "p" / "curves.png"
  launcher.main([str(runs), f"--picture={path}", "--over=client_steps"])
  assert path.read_bytes()[:4] == b"\x89PNG" and "over client steps" in capsys.readouterr().out
  for without in ("--plain", "--clients"):
    with pytest.raises(SettingError, match="over = 'bytes': no curves are asked for"):
      launcher.compare([str(runs)], plain=without == "--plain", clients=without == "--clients", over="bytes")
  with pytest.raises(SystemExit):
    launcher.main([str(runs), f"--picture={path}", "--over=seconds"])
  assert "no run has the top1 of the personalised model over seconds" in capsys.readouterr().err
