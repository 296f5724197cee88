"""Separates two candidate causes of the papers' low baselines on MNIST: the rate's decay, the shards' deal.

    python benchmarks/papers/why_low.py --runs=DIR [--run [GROUP ...]] [--data_dir=DATA]

The thesis decays the learning rate by 1 % a round and deals shards at random; the authors' commands leave
their code's decay of 0.1 % and its round-robin deal. A group is a method, K and a deal, for example
fedavg_100_random: a sweep over seeds 1, 2, 3 and both decays, judged every five rounds, on table 2.3's MNIST.
--run starts the named groups, or all, one after another; a group whose sweep is complete in DIR is skipped,
and a stopped sweep continues. After each group, and also without --run, the groups that DIR holds replace
their own in docs/results/raw/why_low.json; the tables of docs/results/why_low.md and the picture of the
courses are drawn from that file. --list prints the groups and their commands. A figure is top-1 in percent.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from benchmarks.provenance import PAGES, ROOT, place, provenance

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PAGE = PAGES / "why_low.md"
START, END = "<!-- tables: begin -->", "<!-- tables: end -->"
ALGORITHMS = {"fedavg": "FedAvg", "fedprox": "FedProx", "scaffold": "SCAFFOLD"}
CLIENTS, DEALS, DECAYS, SEEDS = (100, 500, 50), ("random", "round_robin"), (0.99, 0.999), (1, 2, 3)
PAPER = {  # thesis table 2.3: top-1 (std over clients), K = 50, 100, 500
  "fedavg": {50: (95.69, 2.39), 100: (89.78, 11.30), 500: (96.04, 4.74)},
  "fedprox": {50: (95.13, 2.67), 100: (93.25, 6.12), 500: (96.50, 4.52)},
  "scaffold": {50: (95.50, 2.71), 100: (90.58, 10.13), 500: (96.60, 4.26)},
}
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


def run(group: str, runs: Path, flags: list[str]) -> None:
  """Starts the launcher, and writes the commit and the machine beside its folder."""
  runs.mkdir(parents=True, exist_ok=True)
  (runs / f"{group}.json").write_text(json.dumps(provenance()))
  words = [word.replace("RUNS", str(runs.resolve())) for word in command(group)]
  subprocess.run([sys.executable, *words[1:], *flags], cwd=ROOT, check=True)


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
  """The rows of the last fifth of the rounds, t > 0.8 T."""
  return rows[rows[:, 0] > 0.8 * rows[-1, 0]]


def table(kept: dict[str, Any], clients: int) -> str:
  """One row a method, decay and deal: three seeds' late ranges, and their last rounds."""
  lines = [
    "| method | decay a round | deal | last fifth: lowest, highest, std over rounds; by seed | below 90"
    " | round 500 (std over clients); by seed | paper |",
    "|---|---|---|---|---|---|---|",
  ]
  for name, shown in ALGORITHMS.items():
    for decay in DECAYS:
      for deal in DEALS:
        group = f"{name}_{clients}_{deal}"
        if group not in kept:
          continue
        rows = [member_of(kept, group, seed, decay) for seed in SEEDS]
        ranges = "; ".join(
          f"{c.min():.1f}, {c.max():.1f}, {c.std():.1f}" for c in (late(r)[:, 1] for r in rows)
        )
        late_means = [late(r)[:, 1] for r in rows]
        below = f"{sum(int((m < 90).sum()) for m in late_means)} of {sum(map(len, late_means))}"
        last = "; ".join(f"{r[-1, 1]:.2f} ({r[-1, 2]:.1f})" for r in rows)
        paper = "{:.2f} ({:.2f})".format(*PAPER[name][clients])
        lines.append(
          f"| {shown} | {'1 %' if decay == 0.99 else '0.1 %'} | {deal.replace('_', '-')} | {ranges}"
          f" | {below} | {last} | {paper} |"
        )
  return "\n".join(lines)


def effects(kept: dict[str, Any], clients: int) -> str:
  """Each cause alone and both: the change of the late std over rounds, mean of three seeds, and its range."""
  lines = [
    "| method | decay alone | deal alone | both | what both add to the sum of the two |",
    "|---|---|---|---|---|",
  ]
  for name, shown in ALGORITHMS.items():
    if any(f"{name}_{clients}_{deal}" not in kept for deal in DEALS):
      continue

    def std(deal: str, decay: float, name: str = name) -> np.ndarray:
      rows = [member_of(kept, f"{name}_{clients}_{deal}", seed, decay) for seed in SEEDS]
      return np.array([late(r)[:, 1].std() for r in rows])

    base = std("random", 0.99)
    decay, deal, both = (
      std("random", 0.999) - base,
      std("round_robin", 0.99) - base,
      std("round_robin", 0.999) - base,
    )
    cells = [
      f"{c.mean():+.2f} ({c.min():+.2f} to {c.max():+.2f})" for c in (decay, deal, both, both - decay - deal)
    ]
    lines.append(f"| {shown} | {' | '.join(cells)} |")
  return "\n".join(lines)


def picture(kept: dict[str, Any]) -> None:
  """The courses of FedAvg at K = 100: a panel a deal, two decays, three seeds, the thesis's figure."""
  groups = [f"fedavg_100_{deal}" for deal in DEALS]
  if any(group not in kept for group in groups):
    return
  figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True, constrained_layout=True)
  for axis, group in zip(axes, groups, strict=True):
    for decay, color in zip(DECAYS, ("C0", "C1"), strict=True):
      for seed in SEEDS:
        rows = member_of(kept, group, seed, decay)
        label = f"learning rate × {decay} a round" if seed == SEEDS[0] else None
        axis.plot(rows[:, 0], rows[:, 1], color=color, linewidth=0.9, alpha=0.8, label=label)
    axis.axhline(PAPER["fedavg"][100][0], color="0.3", linestyle=":", label="the thesis, table 2.3")
    axis.axvspan(400, 500, color="0.93", zorder=0)
    axis.set(title=f"shards dealt {group.split('_', 2)[2].replace('_', '-')}", xlabel="round", ylim=(60, 100))
  axes[0].set_ylabel("FedAvg, top-1 in percent, mean over 100 clients")
  axes[1].legend(loc="lower right")
  figure.savefig(place(PAGES, "why_low.png"), dpi=110)


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
      run(group, options.runs, flags)
    collect(options.runs, kept)
    raw.write_text(json.dumps({group: kept[group] for group in GROUPS if group in kept}) + "\n")
    tables = [
      f"### K = {k}\n\n{table(kept, k)}\n\nChange of the std over the rounds of the last fifth, against 1 %"
      f" and random (mean of three seeds, their range):\n\n{effects(kept, k)}"
      for k in sorted(CLIENTS)
      if any(group.split("_")[1] == str(k) for group in kept)
    ]
    text = PAGE.read_text()
    before, after = text.partition(START)[0], text.partition(END)[2]
    PAGE.write_text(f"{before}{START}\n\n" + "\n\n".join(tables) + f"\n\n{END}{after}")
    picture(kept)


if __name__ == "__main__":
  main()
