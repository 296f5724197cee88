"""Candidate causes of the papers' low baselines on CIFAR-10, each changed alone, at T = 100.

    taskset -c 0 python benchmarks/papers/why_low_cifar10.py --runs=RUNS --data_dir=DATA RUN ...
    python benchmarks/papers/why_low_cifar10.py [--runs=RUNS]

A run is METHOD.VARIANT.SEED, for example lg_fedavg.head2.0: table 2.3's cell of CIFAR-10 with 100 clients,
for 100 rounds instead of 500, with what `VARIANTS` changes. The learning rate decays by the round whatever T
is, so that these are the first 100 rounds of the table's runs. `library` changes nothing; `authors` changes
all four: the network without biases on images of 28 pixels, the head of the last three layers where a method
has one, a decay of 0.1 % a round and shards dealt round-robin.

A run that is complete in RUNS is not repeated, a stopped one continues; several processes may share RUNS. The
complete runs of RUNS replace their own in docs/results/raw/why_low_cifar10.json, of which the tables of
docs/results/why_low_cifar10.md and its picture are made; without RUN that is all that is done.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.papers.why_low import as_low, course, late, ranges
from benchmarks.provenance import PAGES, RAW, made, place, write_tables
from benchmarks.table_2_3_runs import launch, printed
from configs.table_2_3 import HEADED
from fedjax_het.studies.plots import save

PAGE, NAME = PAGES / "why_low_cifar10.md", "why_low_cifar10"
ROUNDS = 100
METHODS = {"fedavg": "FedAvg", "lg_fedavg": "LG-FedAvg", "fedrep": "FedRep", "ditto": "Ditto"}
SLOW, DEALT = "--config.local.lr_decay=0.999", "--config.partition.deal=round_robin"
VARIANTS: dict[str, tuple[str, str, tuple[str, ...]]] = {  # name -> words, keys of the cell, flags
  "library": ("as in table 2.3", "", ()),
  "decay": ("decay 0.1 %", "", (SLOW,)),
  "deal": ("shards round-robin", "", (DEALT,)),
  "decay_deal": ("decay 0.1 %, shards round-robin", "", (SLOW, DEALT)),
  "head2": ("head of two layers", ",head=2", ()),
  "code": ("the code's network", ",network=code", ()),
  "code_head3": ("the code's network, head of three layers", ",network=code,head=3", ()),
  "authors": ("all of the authors' code", ",network=code", (SLOW, DEALT)),
}


def command(run: str, rounds: int = ROUNDS) -> list[str]:
  """The launcher's command of a run, in a folder RUNS."""
  method, variant, seed = run.split(".")
  _, keys, flags = VARIANTS[variant]
  if variant == "authors" and method in HEADED:
    keys += ",head=3"
  return [
    "python", "-m", "fedjax_het.run",
    f"--config=configs/table_2_3.py:dataset=cifar10,clients=100,algorithm={method},seed={seed}{keys}",
    f"--config.rounds={rounds}", *flags, f"--workdir=RUNS/{run}",
  ]  # fmt: skip


def variants(method: str) -> list[str]:
  """The variants that a method has."""
  return [name for name in VARIANTS if "head" not in name or method in HEADED]


def known(text: str) -> str:
  """A run's name, checked."""
  method, variant, seed = text.split(".") if text.count(".") == 2 else ("", "", "")
  if method not in METHODS or variant not in variants(method) or not seed.isdigit():
    raise argparse.ArgumentTypeError(
      f"{text!r} is no METHOD.VARIANT.SEED; methods: {', '.join(METHODS)}; variants: {', '.join(VARIANTS)}, "
      f"whose heads only {' and '.join(name for name in METHODS if name in HEADED)} have."
    )
  return text


def collect(runs: Path, kept: dict[str, Any]) -> None:
  """Puts the complete runs of `runs` into `kept`."""
  for folder in (path.parent for path in runs.glob("*/summary.json")):
    by = json.loads((runs / f"{folder.name}.json").read_text())
    kept[folder.name] = {"by": by, "command": " ".join(command(folder.name)), "course": course(folder)}


def of(kept: dict[str, Any], method: str, variant: str) -> dict[int, np.ndarray]:
  """The courses of a method's variant by seed, [judged rounds, 3]."""
  runs = {run: run.split(".") for run in kept}
  found = {int(seed): run for run, (own, name, seed) in runs.items() if (own, name) == (method, variant)}
  return {seed: np.array(kept[found[seed]]["course"]) for seed in sorted(found)}


def of_table(method: str) -> tuple[np.ndarray, float | None]:
  """Table 2.3's run of seed 0: its course, [judged rounds, 2], and its std over clients, if it was kept.

  Of a method without a run of 100 rounds it is the beginning of its longer one.
  """
  kept, cell = json.loads((RAW / "table_2_3_cifar10.json").read_text())["runs"], f"algorithm={method},seed=0"
  for rounds in (ROUNDS, 500):
    run = kept.get(f"T={rounds}/dataset=cifar10,clients=100,{cell}")
    if run:
      break
  rows = np.array([[t, 100 * mean] for t, mean, *_ in run["course"]["top1"] if t <= ROUNDS])
  std = 100 * run["metrics"]["personalized"]["top1"]["std"] if run["rounds"] == ROUNDS else None
  return rows, std


def tables(kept: dict[str, Any]) -> Iterator[str]:
  """A table a method: table 2.3's run, then a row a variant."""
  for method, shown in shown_of(kept).items():
    (rows, std), paper = of_table(method), printed("cifar10")[method, 100]
    mean = rows[-1, 1]
    yield (
      f"### {shown}\n\n| | seeds | round {ROUNDS} (std over clients); by seed"
      " | last fifth: lowest, mean, highest, std over rounds; by seed | of its rounds with"
      f" at most the thesis's mean (std over clients) | round {ROUNDS} less the first row, same seeds |"
      "\n|---|---|---|---|---|---|"
    )
    first = f"{mean:.2f}" + (f" ({std:.2f})" if std else "")
    yield f"| [table 2.3's run](table_2_3.md#cifar-10-of-100-clients) | 0 | {first} | – | – | |"
    base = {0: mean} | {seed: rows[-1, 1] for seed, rows in of(kept, method, "library").items()}
    for variant, (words, _, _) in VARIANTS.items():
      courses = of(kept, method, variant)
      if not courses:
        continue
      last = "; ".join(f"{rows[-1, 1]:.2f} ({rows[-1, 2]:.2f})" for rows in courses.values())
      lates = [late(rows) for rows in courses.values()]
      low = as_low(np.concatenate(lates), paper.mean)
      less = "; ".join(f"{rows[-1, 1] - base[seed]:+.2f}" for seed, rows in courses.items() if seed in base)
      yield f"| {words} | {', '.join(map(str, courses))} | {last} | {ranges(lates)} | {low} | {less or '–'} |"
    yield f"| the thesis, T = 500 | | {paper.mean:.2f} ({paper.std:.2f}) | | | |\n"
  yield made(f"python benchmarks/papers/{NAME}.py --runs=RUNS --data_dir=DATA RUN", kept.values())
  yield f"\nCourses, commands and machines: [{NAME}.json](raw/{NAME}.json)."


def shown_of(kept: dict[str, Any]) -> dict[str, str]:
  """The methods that have a run."""
  there = {run.partition(".")[0] for run in kept}
  return {method: shown for method, shown in METHODS.items() if method in there}


def picture(kept: dict[str, Any]) -> None:
  """The courses: a panel a method, a colour a variant, a line a seed."""
  methods = shown_of(kept)
  columns = min(2, len(methods))
  lines = -(-len(methods) // columns)
  figure = Figure(figsize=(5.5 * columns, 4 * lines), layout="constrained")
  axes = figure.subplots(lines, columns, sharex=True, squeeze=False).flat
  for axis, (method, shown) in zip(axes, methods.items(), strict=False):
    for index, (variant, (words, _, _)) in enumerate(VARIANTS.items()):
      for number, rows in enumerate(of(kept, method, variant).values()):
        label = None if number else words
        axis.plot(rows[:, 0], rows[:, 1], color=f"C{index}", linewidth=1.1, label=label)
    rows, _ = of_table(method)
    axis.plot(*rows.T, "o--", color="0.3", linewidth=0.9, markersize=3, label="table 2.3's run")
    paper = printed("cifar10")[method, 100].mean
    axis.axhline(paper, color="0.3", linestyle=":", label="the thesis, T = 500")
    axis.set(title=shown)
    axis.legend(fontsize=7)
  figure.supxlabel("round")
  figure.supylabel("top-1 in percent, mean over 100 clients", fontsize=10)
  save(figure, place(PAGES, f"{NAME}.png"))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("run", nargs="*", type=known, metavar="RUN")
  parser.add_argument("--runs", type=Path, default=Path(f"runs/{NAME}"))
  parser.add_argument("--data_dir", default="")
  options = parser.parse_args()
  raw = place(PAGES, f"{NAME}.json")
  flags = [f"--config.data_dir={Path(options.data_dir).resolve()}"] if options.data_dir else []
  for run in [*options.run, None]:
    if run and not (options.runs / run / "summary.json").exists():
      launch(command(run)[1:], run, options.runs, flags)
    kept = json.loads(raw.read_text()) if raw.exists() else {}
    collect(options.runs, kept)
    kept = dict(sorted(kept.items()))
    raw.write_text(json.dumps(kept) + "\n")
  write_tables(PAGE, "\n".join(tables(kept)))
  picture(kept)


if __name__ == "__main__":
  main()
