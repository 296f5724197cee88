"""A sweep's members over the numbers in which they differ: laid out, drawn, and table 2.7's configuration."""

import csv
import math
from pathlib import Path

import matplotlib.image
import numpy as np
from rich.console import Console

from configs import table_2_3, table_2_7
from fedjax_het.config.algorithm import build_algorithm
from fedjax_het.config.plan import plan
from fedjax_het.engine.sweep import grid_of
from fedjax_het.experiment.moments import together
from fedjax_het.methods import CLIENTS, small_model
from fedjax_het.studies.members import Grid, _of_how_many, grid_of_members, members_table, plot_members

GRID = {"algorithm.mu": [0.1, 0.0], "seed": [5, 3], "algorithm.nu": [1.0, 0.0, 2.0], "local.lr": [0.1]}
FACTS = {"algorithm": "superfed_mm", "dataset": "digits", "num_clients": 3}


def summary(top1, loss):
  figures = {name: {"mean": mean, "std": std, "worst10": mean} for name, (mean, std) in
             {"top1": top1, "loss": loss}.items()}  # fmt: skip
  return {**FACTS, "metrics": {"personalized": figures}}


def made(values):
  """A summary whose figures tell the member's values, one of them without any."""
  code = 10 * values["seed"] + values["algorithm.mu"] + values["algorithm.nu"] / 100
  mean = None if (values["seed"], values["algorithm.nu"]) == (3, 2.0) else code
  return summary((mean, 0.5 * code), (2 * code, code / 4))


MEMBERS = grid_of(GRID)
LAID = grid_of_members(MEMBERS, [made(values) for values in MEMBERS])


def test_members_are_laid_out_by_what_they_differ_in():
  assert LAID.fields == {"algorithm.mu": [0.0, 0.1], "algorithm.nu": [0.0, 1.0, 2.0]}
  assert LAID.figures.keys() == {"top1", "loss"} and LAID.figures["top1"].shape == (2, 3, 2, 2)
  code = np.add.outer(np.add.outer([0.0, 0.1], [0.0, 0.01, 0.02]), [30.0, 50.0])
  np.testing.assert_allclose(LAID.figures["loss"], np.stack([2 * code, code / 4], -1))
  code[:, 2, 0] = np.nan
  np.testing.assert_allclose(LAID.figures["top1"][..., 0], code)


def pixels(grid, path):
  image = matplotlib.image.imread(plot_members(grid, path))
  assert min(image.shape[:2]) > 300 and image[..., :3].std() > 0.02
  return image


def test_one_number_is_a_curve_and_two_are_a_heat_map(tmp_path):
  """Each figure that is drawn moves a pixel; of other numbers of fields there is no picture."""
  one = Grid({"algorithm.start": [0.0, 0.4, 0.8]}, {"top1": np.random.default_rng(0).random((3, 2, 2)) / 10})
  two = Grid(LAID.fields, {name: values / 100 for name, values in LAID.figures.items()})
  for grid in (one, two):
    first = pixels(grid, tmp_path / "a.png")
    for part in range(2):
      figures = {name: values.copy() for name, values in grid.figures.items()}
      figures["top1"][(*[0] * len(grid.fields), 1, part)] += 0.05
      assert (pixels(grid._replace(figures=figures), tmp_path / "b.png") != first).any()
  for fields in ({}, {"a": [0, 1], "b": [0, 1], "c": [0, 1]}):
    assert (
      plot_members(Grid(fields, {"top1": np.zeros((*map(len, fields.values()), 1, 2))}), tmp_path) is None
    )


def test_a_mean_of_fewer_seeds_says_so():
  assert _of_how_many(np.array([0.9, np.nan, 0.8])) == "\n(2 of 3 seeds)"
  assert _of_how_many(np.array([0.9, 0.8])) == "" and _of_how_many(np.array([np.nan])) == "\n(0 of 1 seeds)"


def test_the_table_has_the_loss_and_both_spreads(capsys):
  seen = summary((0.9267, 0.0404), (0.72, 0.4))
  Console(width=120).print(members_table([{"algorithm.start": 0.2}], [seen]))
  shown = capsys.readouterr().out
  assert shown.splitlines()[0].rstrip() == "The personalised models, over the clients"
  assert "92.67 ± 4.04" in shown and "0.7200 ± 0.4000" in shown


def test_the_table_has_the_epsilon_of_private_members(capsys):
  seen = summary((0.9, 0.1), (0.7, 0.4))
  members = [{"local.dp_noise_multiplier": z} for z in (0.5, 1.0, 0.0, 2.0)]
  told = [
    {"privacy": {"epsilon": 2.345}},
    {"privacy_of_records": {"epsilon": 7.0}, "privacy": {"epsilon": None}},
  ]
  told += [{"privacy": {"epsilon": math.inf}}, {}]
  Console(width=160).print(members_table(members, [seen | own for own in told]))
  rows = [line.split() for line in capsys.readouterr().out.splitlines()]
  assert rows[1][-5:] == ["ε", "ε", "of", "a", "record"]
  assert [row[-1] for row in rows[2:]] == ["2.35", "7", "∞", "0.4000"] and rows[3][-2] == "∞"
  Console(width=160).print(members_table(members[:1], [seen]))
  assert "ε" not in capsys.readouterr().out


def test_progress_of_several_runs_has_means_and_the_largest_epsilon():
  found = together([{"train_loss": 1.0, "epsilon": 2.0}, {"train_loss": 3.0, "epsilon": 8.0}])
  assert found == {"train_loss": 2.0, "epsilon": 8.0} and together([]) == {}


def test_what_synthesises_is_told_apart_by_what_its_examples_are_worth(capsys):
  grid = {"server.temperature": [0.0, 0.3]}
  members = grid_of(grid)
  local = [{"mean": 0.868, "std": 0.1}, {"mean": 0.877, "std": 0.2}]
  seen = [summary((0.8, 0.1), (1.0, 0.1)) | {"synthetic": {"downstream": {"local": own}}} for own in local]
  laid = grid_of_members(members, seen)
  assert (laid.model, [*laid.figures]) == ("synthetic", ["top1"])
  np.testing.assert_allclose(laid.figures["top1"], [[[0.868, 0.1]], [[0.877, 0.2]]])
  diverged = summary((None, None), (None, None)) | {"synthetic": None}
  Console(width=120).print(members_table([*members, {"server.temperature": 9.0}], [*seen, diverged]))
  shown = capsys.readouterr().out
  assert "87.70 ± 20.00" in shown and "80.00" not in shown
  assert shown.startswith("A classifier of the synthetic examples alone")


# Table 2.7.


def test_table_2_7_is_table_2_3_with_another_start():
  """T = 200, ν = 2, at K = 100 on CIFAR-10; a shorter run keeps the share."""
  cell = table_2_7.get_config("start=0.2,algorithm=superfed_lm,seed=4")
  other = table_2_3.get_config("dataset=cifar10,clients=100,algorithm=superfed_lm,seed=4")
  other.rounds, other.algorithm.start, other.algorithm.nu = 200, 0.2, 2.0
  assert cell.to_dict() == other.to_dict() and cell.model.name == "two_cnn" and cell.eval_every == 20
  cell.rounds = 10
  plan(cell)
  assert build_algorithm(plan(cell), small_model(CLIENTS["superfed_lm"])).client.name == "superfed_lm"


def test_the_papers_figures_are_cells_of_the_configuration():
  text = (Path(__file__).parents[2] / "configs" / "table_2_7.csv").read_text()
  rows = list(csv.DictReader(text.splitlines()))
  assert len(rows) == 30 and {row["metric"] for row in rows} == {"top1", "loss", "least_loss"}
  cells = {(row["method"], row["start"], row["algorithm"]) for row in rows}
  assert len(cells) == 10
  for method, start, algorithm in cells:
    config = table_2_7.get_config(f"start={start},algorithm={algorithm}")
    plan(config)
    assert config.algorithm.start == float(start)
    assert algorithm == {"SuPerFed-MM": "superfed_mm", "SuPerFed-LM": "superfed_lm"}[method]
  best = max(float(row["mean"]) for row in rows if row["metric"] == "top1")
  assert best == 92.69
