"""Runs cells of the papers' tables at fewer rounds, and with the images at hand, as two cores can do them.

    taskset -c 0 python benchmarks/papers/shortened.py --runs=RUNS --data_dir=DATA GROUP ... [--only TEXT]
    python benchmarks/papers/shortened.py

A group is a part of a table, one seed a cell, with the settings that `GROUPS` changes. A run that is complete
in RUNS is not repeated, and a stopped one continues. --only selects the group's parts that contain TEXT, so
that several processes may share it; a call without it, which then finds all runs complete, keeps the figures.
They are what `reproduce` puts into its table.csv, in docs/results/raw/shortened/GROUP.csv, and the tables of
docs/results/shortened.md are made of them.

SosicFL's table 3 has ImageNet's weights of SqueezeNet, of DATA/weights, which gpu_data.py changes. Table 5
is counted from the runs of tables 2 and 3.
"""

import argparse
import csv
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu_data import RGB, write_red_first
from benchmarks.gpu_entries import WEIGHTS
from benchmarks.provenance import PAGES, RAW, ROOT, made, provenance, write_tables
from fedjax_het.tables.paper import read_table

PAGE, FIGURES = PAGES / "shortened.md", RAW / "shortened"


class Group(NamedTuple):
  """A part of a table with changed settings.

  Attributes:
    table: the name of its configuration.
    where: keys that select cells, a text for each part of the group.
    keys: the columns that tell its cells apart, beside the method.
    about: what is changed, for the reader.
    flags: the flags that change it.
    runs: the group whose runs these are; its own by default.
  """

  table: str
  where: tuple[str, ...]
  keys: tuple[str, ...]
  about: str
  flags: tuple[str, ...]
  runs: str = ""


def shorter(rounds: int, every: int) -> tuple[str, ...]:
  """Flags of a run of so many rounds, judged every so many."""
  return f"--config.rounds={rounds}", f"--config.eval_every={every}", "--config.late_evaluations=0"


def of_splits(keys: str, common: str = "algorithm=fedavg|fedprox|sosicfl") -> tuple[str, ...]:
  """SosicFL's cells with a printed figure: at 2-Fold the paper has no methods with own models."""
  own = "algorithm=ditto|sosicfl_plus"
  splits = (("2fold", common), ("5fold", common), ("5fold", own), ("dir", common), ("dir", own))
  return tuple(f"{keys},split={split},{methods}" for split, methods in splits)


METHODS = "fedavg|fedprox|scaffold|lg_fedavg", "fedper|fedrep|apfl|ditto", "superfed_mm|superfed_lm"
COMPARED = "algorithm=fedavg|sosicfl"  # table 5 has no FedProx
TWO_FOLD = "dataset=tiny_imagenet,split=2fold"  # the other splits, an hour a core each, were not run
SQUEEZED, TINY = (*shorter(16, 1), *WEIGHTS), "75 of the 550 images of each class"
GROUPS = {
  "sosicfl_3_cifar10": Group(
    "sosicfl_3", of_splits("dataset=cifar10"), ("split",), "T = 16 instead of 500", SQUEEZED
  ),
  "sosicfl_3_clusters": Group(
    "sosicfl_3", ("dataset=cifar10,split=dir,algorithm=sosicfl",), ("split",),
    "T = 16 instead of 500, five clusters instead of ten", (*SQUEEZED, "--config.algorithm.clusters=5"),
  ),
  "sosicfl_5_cifar10": Group(
    "sosicfl_5", of_splits("dataset=cifar10,model=squeezenet", COMPARED), ("split",), "the runs of table 3",
    SQUEEZED, "sosicfl_3_cifar10",
  ),
  "sosicfl_2_tiny": Group(
    "sosicfl_2", (f"{TWO_FOLD},algorithm=fedavg|fedprox|sosicfl",), ("split",),
    f"T = 16 instead of 500, {TINY}", shorter(16, 2),
  ),
  "sosicfl_5_tiny": Group(
    "sosicfl_5", (f"{TWO_FOLD},model=mobilenet_v2,{COMPARED}",), ("split",), "the runs of table 2",
    shorter(16, 2), "sosicfl_2_tiny",
  ),
  "table_3_10_tiny": Group(
    "table_3_10", ("dataset=tiny_imagenet,server=sgd", "dataset=tiny_imagenet,server=adam|yogi|adagrad"), (),
    f"T = 500 instead of 2,000, {TINY}", shorter(500, 50),
  ),
  "table_2_6_cifar10": Group(
    "table_2_6", tuple(f"dataset=cifar10,noise=pair,ratio=0.4,algorithm={own}" for own in METHODS),
    ("noise", "ratio"), "T = 16 instead of 500", shorter(16, 16),
  ),
}  # fmt: skip


def run(name: str, runs: Path, data_dir: str, only: str) -> None:
  """Runs a group's cells, one program after another; keeps the table if `only` leaves none out."""
  group, rows = GROUPS[name], []
  folder = runs / (group.runs or name)
  if {*WEIGHTS} <= {*group.flags} and not (runs / "weights" / RGB).exists():
    write_red_first(Path(data_dir), runs)
  flags = [flag.replace("{DATA}", str(runs)) for flag in group.flags]
  for part in (part for part in group.where if only in part):
    table = f"--table=configs/{group.table}.py", f"--where={part}"
    command = ["-m", "fedjax_het.reproduce", *table, f"--workdir={folder}", f"--data_dir={data_dir}"]
    if subprocess.run([sys.executable, *command, *flags], cwd=ROOT).returncode:
      raise SystemExit(f"{name}: stopped or failed; the same call goes on from there.")
    rows += read_rows(folder / "table.csv")
  if not only:
    FIGURES.mkdir(exist_ok=True)
    with (FIGURES / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
      by = provenance()
      writer = csv.DictWriter(file, [*rows[0], *by], lineterminator="\n")
      writer.writeheader()
      writer.writerows(row | by for row in rows)


def read_rows(path: Path) -> list[dict[str, str]]:
  """The lines of a CSV; [] where there is none."""
  if not path.exists():
    return []
  with path.open(newline="", encoding="utf-8") as file:
    return list(csv.DictReader(file))


def tables() -> Iterator[str]:
  """The page's tables: our figure, and behind it the paper's at its own size."""
  by = []
  for name, group in GROUPS.items():
    rows = [row for row in read_rows(FIGURES / f"{name}.csv") if row["paper"]]
    if not rows:
      continue
    by += [{"by": {name: row[name] for name in provenance()}} for row in rows]
    title = read_table(ROOT / "configs" / f"{group.table}.py").title.partition(":")[0]
    metrics = [*dict.fromkeys(row["metric"] for row in rows)]
    yield f"### {title}: {group.about}\n\n[{name}.csv](raw/shortened/{name}.csv)\n"
    columns = [*group.keys, "method", *metrics]
    yield f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
    cells = dict.fromkeys(tuple(row[key] for key in (*group.keys, "method")) for row in rows)
    for cell in cells:
      own = {row["metric"]: row for row in rows if cell == tuple(row[key] for key in (*group.keys, "method"))}
      yield f"| {' | '.join([*cell, *(figure(own.get(metric)) for metric in metrics)])} |"
    yield ""
  yield made("python benchmarks/papers/shortened.py --runs=RUNS --data_dir=DATA GROUP", by)


def figure(row: dict[str, str] | None) -> str:
  """Our figure and the paper's, as the page shows them."""
  if row is None:
    return "–"
  missing = "not reached" if "not reached" in row["missing"] else row["missing"]
  ours = f"{float(row['ours']):.2f}" if row["ours"] else missing or "–"
  return f"{ours} ({row['paper']})"


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
  parser.add_argument("--runs", type=Path, default=Path("runs/shortened"))
  parser.add_argument("--data_dir", default="")
  parser.add_argument("--only", default="")
  args = parser.parse_args()
  if unknown := [name for name in args.groups if name not in GROUPS]:
    parser.error(f"{', '.join(unknown)}: the groups are {', '.join(GROUPS)}.")
  runs = args.runs.resolve()
  for name in args.groups:
    run(name, runs, args.data_dir, args.only)
  write_tables(PAGE, "\n".join(tables()))


if __name__ == "__main__":
  main()
