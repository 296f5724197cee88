"""The leaderboard's methods on MNIST under conditions of real federations: which of them stay ahead.

    taskset -c 0 python benchmarks/leaderboard/conditions.py --data_dir=DATA --runs=RUNS [--minutes 150]
      [--methods ditto,fedavg] [--only dropout,bits]

The ten methods with the best means on the board's task mnist_shards, and ten that are well known (`KNOWN`;
where one is among the best, the next best takes its place). Each has the settings that it was tuned to on the
board, without any condition, and the board's five seeds as one program:

none        the board's row
dropout     30 % of the uploads are lost
bits        uploads are rounded to 8 bits a number
attackers   20 of the 100 clients reverse their updates, and the server takes the coordinate-wise median
thousand    K = 1,000 clients instead of 100, with a tenth of the images each, Poisson cohorts of 100; all
            clients count equally (`uniform`), as privacy asks for, unless the method is a mixing itself
private     the same with clipped updates and noise for ε = 8 at δ = K^-1.1; of four clips (0.1, 0.3, 1, 3)
            the one with the best validation accuracy of one further seed, which is not paid for in ε

Figures of attackers are those of the honest clients. A cell is a file in docs/results/raw, and not run again
where that is there, so that several processes may share the methods. Page and picture are written at the end,
and with --draw alone nothing is run.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import kendalltau

import fedjax_het as fh
from benchmarks.provenance import PAGES, RAW, ROOT, made, provenance, write_tables
from fedjax_het.config.plan import plan, written
from fedjax_het.config.values import with_values
from fedjax_het.errors import NonFiniteLoss, SettingError
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.leaderboard.board import Row, read_board
from fedjax_het.leaderboard.budget import SEEDS
from fedjax_het.leaderboard.raw import read_raw, read_task, write_raw
from fedjax_het.leaderboard.row import by_seed
from fedjax_het.metrics.groups import with_the_best
from fedjax_het.metrics.seeds import over_seeds
from fedjax_het.program.where import Where
from fedjax_het.studies.plots import save

TASK, BEST, TUNING, CLIPS = "mnist_shards", 10, 100, (0.1, 0.3, 1.0, 3.0)
KNOWN = (
  "fedavg", "fedprox", "scaffold", "fednova", "adam", "feddyn", "moon", "per_fedavg", "ditto", "fedrep",
)  # fmt: skip
MANY_CLIENTS = {"num_clients": 1000, "cohort_size": 100, "participation": {"name": "poisson"}}
MANY, PRIVATE = "thousand", "private"
CONDITIONS: dict[str, dict[str, Any]] = {
  "dropout": {"participation": {"name": "uniform", "dropout": 0.3}},
  "bits": {"uploads": [{"name": "quantize", "bits": 8}]},
  "attackers": {"attack": {"name": "sign_flip", "share": 0.2}, "aggregation": {"name": "median"}},
  MANY: MANY_CLIENTS,
  PRIVATE: {**MANY_CLIENTS, "aggregation": {"name": "gaussian", "epsilon": 8.0, "clip": 1.0}},
}
NONE = "none"  # the board's rows
COLUMNS = (NONE, *CONDITIONS)
CELLS, PAGE = RAW / "leaderboard_conditions", PAGES.parent / "leaderboard" / "conditions.md"
PICTURE = PAGES.parent / "images" / "leaderboard" / "conditions.png"


def chosen_methods(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """Returns the known methods and as many of the best others, the best mean first."""
  means = {
    name: np.mean([own["mean"] for own in row["seeds"].values()])
    for name, row in rows.items()
    if row.get("seeds") and all(own.get("mean") is not None for own in row["seeds"].values())
  }
  order = sorted(means, key=lambda name: -means[name])
  best = [name for name in order if name not in KNOWN][:BEST]
  return [name for name in order if name in best or name in KNOWN]


def brings_mixing(config: Mapping[str, Any]) -> bool:
  """Returns whether the method refuses a mixing part beside its own."""
  try:
    plan({**config, "mixing": {"name": "uniform"}})
  except SettingError as error:
    return error.setting == "mixing"
  return False


def cell(
  row: Mapping[str, Any], config: Mapping[str, Any], condition: str, folder: Path, data_dir: str
) -> dict[str, Any]:
  """Returns a cell: each seed's figures, or why there are none."""
  config = {**config, **CONDITIONS[condition], "data_dir": data_dir}
  if condition in (MANY, PRIVATE) and config["mixing"]["name"] == "static" and not brings_mixing(config):
    config["mixing"] = {"name": "uniform"}
  config = with_values(written(config), row["chosen"])
  found: dict[str, Any] = {"by": provenance()}
  try:
    if condition == PRIVATE:
      tried = run_sweep(
        with_values(config, {"seed": TUNING}), {"aggregation.clip": [*CLIPS]}, str(folder / "clips"), Where(1)
      )
      valid = [own.get("valid", {}).get("personalized", {}).get("top1", {}).get("mean") for own in tried]
      found["clip"] = CLIPS[int(np.nanargmax(np.array(valid, float)))]
      config = with_values(config, {"aggregation.clip": found["clip"]})
    done = run_sweep(config, {"seed": [*SEEDS]}, str(folder / "seeds"), Where(1))
  except (SettingError, NonFiniteLoss) as error:
    return found | {"failed": str(error).partition(" Last good checkpoint")[0]}
  return found | {"seeds": by_seed(done, "top1")}


def values(own: Mapping[str, Any] | None) -> dict[int, float] | None:
  """Returns a cell's means by seed; None where one is missing."""
  seeds = (own or {}).get("seeds", {})
  found = {int(seed): one.get("mean") for seed, one in seeds.items()}
  return found if found and None not in found.values() else None


def text(own: Mapping[str, Any] | None, first: bool) -> str:
  """Returns a cell as the page shows it."""
  if own is None:
    return "–"
  if (by_seed := values(own)) is None:
    return "diverged" if "diverge" in own.get("failed", "diverge") or own.get("seeds") else "does not go"
  over = over_seeds(by_seed.values())
  return f"{'**' if first else ''}{100 * over.mean:.1f} ± {100 * (over.half or 0):.1f}{'**' if first else ''}"


def write(rows: Mapping[str, Any], methods: Sequence[str]) -> None:
  """Writes the page's tables and the picture."""
  at = {name: read_task(CELLS, name, methods) for name in CONDITIONS}
  cells = [own for of in at.values() for own in of.values()]
  at = {NONE: {one: rows[one] for one in methods}, **at}
  compared = {
    name: {one: by for one, own in of.items() if (by := values(own)) is not None} for name, of in at.items()
  }
  groups = {name: with_the_best(own) for name, own in compared.items() if len(own) > 1}
  lines = [f"| method | {' | '.join(COLUMNS)} |", f"|{'---|' * (len(COLUMNS) + 1)}"]
  for one in methods:
    shown = [text(at[name].get(one), name in groups and one in groups[name].first) for name in COLUMNS]
    lines.append(f"| {one} | {' | '.join(shown)} |")
  lines += [
    "",
    "| condition | methods | first group | points that could be seen | Kendall's τ |",
    f"|{'---|' * 5}",
  ]
  for name, group in groups.items():
    beside = MANY if name == PRIVATE else NONE
    both = [one for one in compared[name] if one in compared[beside]]
    means = [[np.mean([*compared[which][one].values()]) for one in both] for which in (beside, name)]
    tau = "–" if name == beside or len(both) < 2 else f"{kendalltau(*means).statistic:.2f} with {beside}"
    margin = "–" if group.margin is None else f"{100 * group.margin:.1f}"
    lines.append(f"| {name} | {len(compared[name])} | {', '.join(group.first)} | {margin} | {tau} |")
  reasons = [
    f"- `{one}`, {name}: {own['failed']}"
    for name, of in at.items()
    for one, own in of.items()
    if "failed" in own
  ]
  command = "python benchmarks/leaderboard/conditions.py --data_dir=DATA --runs=RUNS"
  lines += ["", *reasons, "", made(command, cells)]
  write_tables(PAGE, "\n".join(lines))
  draw(compared, {name: set(own.first) for name, own in groups.items()}, methods)


def draw(
  compared: Mapping[str, Mapping[str, Mapping[int, float]]], first: Mapping[str, set[str]],
  methods: Sequence[str],
) -> None:  # fmt: skip
  """Draws the means as a heat map: a row a method, a column a condition, the first groups in bold."""
  grid = np.full((len(methods), len(COLUMNS)), np.nan)
  for j, name in enumerate(COLUMNS):
    for i, one in enumerate(methods):
      if one in compared[name]:
        grid[i, j] = 100 * np.mean([*compared[name][one].values()])
  figure = Figure(figsize=(7.5, 1.6 + 0.3 * len(methods)), layout="constrained")
  ax = figure.subplots()
  image = ax.imshow(grid, aspect="auto", cmap="viridis")
  low, high = image.get_clim()
  for (i, j), value in np.ndenumerate(grid):
    known, bold = not np.isnan(value), methods[i] in first.get(COLUMNS[j], ())
    color = "#777777" if not known else "black" if value > (low + high) / 2 else "white"
    ax.text(
      j, i, f"{value:.1f}" if known else "–", ha="center", va="center", color=color, fontsize=9,
      fontweight="bold" if bold else "normal",
    )  # fmt: skip
  ax.set_xticks(range(len(COLUMNS)), COLUMNS)
  ax.set_yticks(range(len(methods)), methods)
  ax.tick_params(length=0)
  ax.spines[:].set_visible(False)
  figure.colorbar(image, ax=ax, label="top-1 (%), mean over the clients")
  figure.suptitle("MNIST, two shards a client; bold: not told apart from the best of the column", fontsize=10)
  save(figure, PICTURE)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data_dir", default="")
  parser.add_argument("--runs", type=Path, default=Path("runs/leaderboard_conditions"))
  parser.add_argument("--minutes", type=float, default=150.0)
  parser.add_argument("--methods", default="")
  parser.add_argument("--only", default="")
  parser.add_argument("--draw", action="store_true")
  args = parser.parse_args()
  fh.prepare_cpu(1)
  board, begin = read_board(ROOT / "configs" / "leaderboard.py"), time.monotonic()
  rows = read_task(RAW / "leaderboard", TASK, board.names())
  methods = chosen_methods(rows)
  asked = [one for one in args.methods.split(",") if one] or methods
  if unknown := [one for one in asked if one not in methods]:
    parser.error(f"--methods {','.join(unknown)}: not among the methods of this page, {', '.join(methods)}.")
  for one in [] if args.draw else asked:
    for name in args.only.split(",") if args.only else CONDITIONS:
      late = time.monotonic() - begin > 60.0 * args.minutes
      if not late and read_raw(CELLS, Row(name, one)) is None:
        config = board.config(Row(TASK, one))
        found = cell(rows[one], config, name, args.runs / f"{name}-{one}", args.data_dir)
        write_raw(CELLS, Row(name, one), found)
  write(rows, methods)


if __name__ == "__main__":
  main()
