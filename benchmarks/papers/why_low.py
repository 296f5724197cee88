"""Separates two candidate causes of the papers' low baselines on MNIST: the rate's decay, the shards' deal.

    python benchmarks/papers/why_low.py --runs=DIR [--run [GROUP ...]] [--data_dir=DATA]

The thesis decays the learning rate by 1 % a round and deals shards at random; the authors' commands leave
their code's decay of 0.1 % and its round-robin deal. A group is a method, K and a deal, for example
fedavg_100_random: a sweep over seeds 1, 2, 3 and both decays, judged every five rounds, on table 2.3's MNIST.
--run starts the named groups, or all, one after another; a group whose sweep is complete in DIR is skipped,
and a stopped sweep continues. After each group, and also without --run, the groups that DIR holds replace
their own in docs/results/raw/why_low.json. The tables of docs/results/why_low.md are made from that file,
and so is a picture of FedAvg's courses once it has both deals at K = 100. --list prints the groups and their
commands. A figure is top-1 in percent.
"""

import argparse
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.provenance import PAGES, place
from benchmarks.table_2_3_runs import launch, printed
from fedjax_het.studies.plots import save

PAGE = PAGES / "why_low.md"
START, END = "<!-- tables: begin -->", "<!-- tables: end -->"
ALGORITHMS = {"fedavg": "FedAvg", "fedprox": "FedProx", "scaffold": "SCAFFOLD"}
CLIENTS, DEALS, DECAYS, SEEDS = (100, 500, 50), ("random", "round_robin"), (0.99, 0.999), (1, 2, 3)
GROUPS = [f"{name}_{k}_{deal}" for k in CLIENTS for name in ALGORITHMS for deal in DEALS]


def command(group: str) -> list[str]:
  """The launcher's command for a group, in a folder RUNS."""
  name, clients, deal = group.split("_", 2)
  return [
    "python", "-m", "fedjax_het.run",
    f"--config=configs/table_2_3.py:dataset=mnist,clients={clients},algorithm={name}",
    "--config.eval_every=5",
    f"--config.partition.deal={deal}",
    f"--sweep.seed={','.join(map(str, SEEDS))}",
    f"--sweep.local.lr_decay={','.join(map(str, DECAYS))}",
    f"--workdir=RUNS/{group}",
  ]  # fmt: skip


def course(member: Path) -> list[list[float]]:
  """[round, mean over clients, std over clients] of every judged round, in percent."""
  lines = [json.loads(line) for line in (member / "metrics.jsonl").read_text().splitlines()]
  judged = [(line["round"], line["metrics"]["personalized"]["top1"]) for line in lines if "metrics" in line]
  return [[t, round(100 * top1["mean"], 3), round(100 * top1["std"], 3)] for t, top1 in judged]


def collect(runs: Path, kept: dict[str, Any]) -> None:
  """Puts the courses of the complete sweeps of `runs` into `kept`."""
  for group in GROUPS:
    if (runs / group / "sweep.json").exists():
      members = {member.name: course(member) for member in sorted((runs / group / "members").iterdir())}
      about = json.loads((runs / f"{group}.json").read_text())
      kept[group] = about | {"command": " ".join(command(group)), "members": members}


def member_of(kept: dict[str, Any], group: str, seed: int, decay: float) -> np.ndarray:
  """The course of one member, [judged rounds, 3]."""
  wanted = {f"seed={seed}", f"local.lr_decay={decay}"}
  return next(np.array(c) for name, c in kept[group]["members"].items() if set(name.split(",")) == wanted)


def late(rows: np.ndarray) -> np.ndarray:
  """The rows of a course, [judged rounds, 3], whose round t is in its last fifth, t > 0.8 T."""
  return rows[rows[:, 0] > 0.8 * rows[-1, 0]]


def lates(kept: dict[str, Any], group: str, decay: float) -> list[np.ndarray]:
  """Each seed's judged rounds of the last fifth, [judged rounds, 3]."""
  return [late(member_of(kept, group, seed, decay)) for seed in SEEDS]


def ranges(courses: Iterable[np.ndarray]) -> str:
  """Each seed's lowest, mean and highest of the means over clients, and their std over the judged rounds."""
  means = [rows[:, 1] for rows in courses]
  return "; ".join(f"{own.min():.1f}, {own.mean():.1f}, {own.max():.1f}, {own.std():.1f}" for own in means)


def as_low(rows: np.ndarray, paper: float) -> str:
  """In how many judged rounds, [judged rounds, 3], the mean is at most the paper's, and their stds' range."""
  stds = rows[rows[:, 1] <= paper, 2]
  ends = dict.fromkeys(f"{end:.1f}" for end in (stds.min(), stds.max())) if len(stds) else {}
  return f"{len(stds)} of {len(rows)}" + (f" ({' to '.join(ends)})" if ends else "")


def table(kept: dict[str, Any], clients: int) -> list[str]:
  """One row a method, decay and deal: three seeds' late ranges, and their last rounds."""
  lines = [
    "| method | decay a round | deal | last fifth: lowest, mean, highest, std over rounds; by seed"
    " | of its rounds with at most the paper's mean (std over clients)"
    " | round 500 (std over clients); by seed | paper |",
    "|---|---|---|---|---|---|---|",
  ]
  for name, decay, deal in itertools.product(ALGORITHMS, DECAYS, DEALS):
    if (group := f"{name}_{clients}_{deal}") not in kept:
      continue
    courses = lates(kept, group, decay)
    ends = [member_of(kept, group, seed, decay)[-1] for seed in SEEDS]
    last = "; ".join(f"{mean:.2f} ({std:.1f})" for _, mean, std in ends)
    paper = printed()[name, clients]
    lines.append(
      f"| {ALGORITHMS[name]} | {100 * (1 - decay):.2g} % | {deal.replace('_', '-')} | {ranges(courses)}"
      f" | {as_low(np.concatenate(courses), paper.mean)} | {last} | {paper.mean:.2f} ({paper.std:.2f}) |"
    )
  return lines


def effects(kept: dict[str, Any], clients: int) -> list[str]:
  """Each cause alone and both: the change of the late std over rounds; [] before both deals ran."""
  lines = []
  for name, shown in ALGORITHMS.items():
    groups = [f"{name}_{clients}_{deal}" for deal in DEALS]
    if any(group not in kept for group in groups):
      continue
    stds = [[np.array([rows[:, 1].std() for rows in lates(kept, g, d)]) for d in DECAYS] for g in groups]
    (base, decayed), (dealt, both) = stds
    changes = decayed - base, dealt - base, both - base, both - decayed - dealt + base
    cells = [f"{c.mean():+.2f} ({c.min():+.2f} to {c.max():+.2f})" for c in changes]
    lines.append(f"| {shown} | {' | '.join(cells)} |")
  head = [
    "", "Change of the std over the rounds of the last fifth, against 1 % and random (mean of three seeds,"
    " their range):", "",
    "| method | decay alone | deal alone | both | what both add to the sum of the two |",
    "|---|---|---|---|---|",
  ]  # fmt: skip
  return [*head, *lines] if lines else []


def picture(kept: dict[str, Any]) -> None:
  """The courses of FedAvg at K = 100: a panel a deal, two decays, three seeds, the thesis's figure."""
  groups = [f"fedavg_100_{deal}" for deal in DEALS]
  if any(group not in kept for group in groups):
    return
  figure = Figure(figsize=(11, 4), layout="constrained")
  axes = figure.subplots(1, 2, sharey=True)
  for axis, group in zip(axes, groups, strict=True):
    for decay, color in zip(DECAYS, ("C0", "C1"), strict=True):
      for seed in SEEDS:
        rows = member_of(kept, group, seed, decay)
        label = f"learning rate × {decay} a round" if seed == SEEDS[0] else None
        axis.plot(rows[:, 0], rows[:, 1], color=color, linewidth=0.9, alpha=0.8, label=label)
    axis.axhline(printed()["fedavg", 100].mean, color="0.3", linestyle=":", label="the thesis, table 2.3")
    axis.axvspan(400, 500, color="0.93", zorder=0)
    dealt = "at random" if group.endswith("random") else "round-robin"
    axis.set(title=f"shards dealt {dealt}", xlabel="round", ylim=(60, 100))
  axes[0].set_ylabel("FedAvg, top-1 in percent, mean over 100 clients")
  figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
  save(figure, place(PAGES, "why_low.png"))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--runs", type=Path, default=Path("runs/why_low"))
  parser.add_argument("--run", nargs="*", choices=GROUPS, metavar="GROUP")
  parser.add_argument("--list", action="store_true")
  parser.add_argument("--data_dir", default="")
  options = parser.parse_args()
  if options.list:
    print("\n".join(f"{group}: {' '.join(command(group))}" for group in GROUPS))
    return
  raw = place(PAGES, "why_low.json")
  kept = json.loads(raw.read_text()) if raw.exists() else {}
  flags = [f"--config.data_dir={Path(options.data_dir).resolve()}"] if options.data_dir else []
  wanted = [] if options.run is None else options.run or GROUPS
  for group in [*wanted, None]:
    if group and not (options.runs / group / "sweep.json").exists():
      launch(command(group)[1:], group, options.runs, flags)
    collect(options.runs, kept)
    raw.write_text(json.dumps({group: kept[group] for group in GROUPS if group in kept}) + "\n")
    found = sorted({int(group.split("_")[1]) for group in kept})
    tables = ["\n".join([f"### K = {k}", "", *table(kept, k), *effects(kept, k)]) for k in found]
    text = PAGE.read_text()
    before, after = text.partition(START)[0], text.partition(END)[2]
    PAGE.write_text(f"{before}{START}\n\n" + "\n\n".join(tables) + f"\n\n{END}{after}")
    picture(kept)


if __name__ == "__main__":
  main()
