"""Collects the figures of finished runs in one small JSON file, and keeps those of runs that are gone.

    python benchmarks/tables/run_figures.py DIR --out docs/results/raw/NAME.json [--about TEXT]

DIR is the workdir of runs, or of a table of `python -m fedjax_het.reproduce`. Each finished run gets a row,
named by its folder: its rounds, clients, client steps and seconds; the mean over the clients, the spread and
the worst tenth of every metric; the headline and the figures of the cohorts over the rounds; a common λ where
the method has one; what its synthetic examples are worth, if it makes any; and each start with its commit,
date and machine. A row of the same name in NAME.json is replaced, the others stay. --about is a text for the
reader of the file, such as the command.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from fedjax_het.workdir.folder import Workdir, read_json_lines, read_record, read_starts

KEPT = ("mean", "std", "worst10", "best10", "gap")


def rounded(tree: Any) -> Any:
  """Floats of a tree to six digits."""
  if isinstance(tree, dict):
    return {name: rounded(value) for name, value in tree.items()}
  if isinstance(tree, list):
    return [rounded(value) for value in tree]
  return float(f"{tree:.6g}") if isinstance(tree, float) else tree


def starts(folder: Path) -> list[dict[str, Any]]:
  """A run's starts: commit, day and machine."""
  names = ("commit", "date", "machine", "devices", "jax")
  return [{name: start.get(name) for name in names} for start in read_starts(folder)]


def figures(run: Workdir, summary: dict[str, Any]) -> dict[str, Any]:
  """A run's row."""
  headline = next(iter(summary["metrics"]["personalized"]))
  lines = read_json_lines(run.metrics_path)
  course = [
    [row["round"], *(row["metrics"][model][headline]["mean"] for model in summary["metrics"])]
    for row in lines
  ]
  of_cohorts = [row.get("cohort", {}) for row in lines]
  names = dict.fromkeys(name for own in of_cohorts for name in own)
  cohort = {name: [own.get(name) for own in of_cohorts] for name in names}
  metrics = {
    model: {
      metric: {name: value for name, value in spread.items() if name in KEPT}
      for metric, spread in own.items()
    }
    for model, own in summary["metrics"].items()
  }
  about = ("algorithm", "mixing", "dataset", "rounds", "num_clients", "client_steps", "seconds", "best")
  row = {name: summary[name] for name in about if name in summary} | {"metrics": metrics}
  row.get("best", {}).pop("course", None)
  if "lambda" in summary:
    row["lambda"] = {name: summary["lambda"][name] for name in ("common", "grid", "mean")}
  row |= {"synthetic": summary["synthetic"]} if "synthetic" in summary else {}
  row |= {"cohort": cohort} if cohort else {}
  return rounded(
    row | {"course": {"of": ["round", *summary["metrics"]], headline: course}, "starts": starts(run.root)}
  )


def collect(folder: Path, out: Path, about: str = "") -> dict[str, Any]:
  """Writes the rows of a folder's finished runs into a file, and returns all rows of it."""
  kept = json.loads(out.read_text()) if out.exists() else {}
  rows = kept.get("runs", {})
  for path in sorted(folder.rglob("summary.json")):
    summary = read_record(path)
    if summary is not None and "metrics" in summary:
      name = str(path.parent.relative_to(folder))
      rows[folder.name if name == "." else name] = figures(Workdir(path.parent), summary)
  lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(rows[name])}" for name in sorted(rows))
  told = json.dumps(about or kept.get("about", ""), ensure_ascii=False)
  out.write_text(f'{{\n "about": {told},\n "runs": {{\n{lines}\n }}\n}}\n')
  return rows


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("folder", type=Path)
  parser.add_argument("--out", type=Path, required=True)
  parser.add_argument("--about", default="")
  args = parser.parse_args()
  print(f"{len(collect(args.folder, args.out, args.about))} runs in {args.out}")


if __name__ == "__main__":
  main()
