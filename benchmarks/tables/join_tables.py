"""Updates a table.csv of `reproduce` with later ones, where the earlier runs no longer exist.

    python benchmarks/tables/join_tables.py EARLIER.csv LATER.csv [LATER.csv ...]
      --out docs/results/raw/NAME.csv

A line of a later file that has a figure of ours replaces the earlier line of the same cell and metric. Lines
keep the order of the first file, which should have all cells; lines that it lacks come last.
"""

import argparse
import csv
from pathlib import Path

OURS = "ours"  # the first column of figures; those before it tell the cell


def read(path: Path) -> tuple[list[str], dict[tuple[str, ...], dict[str, str]]]:
  """The columns of a table.csv, and its lines by their cells."""
  with path.open(newline="") as file:
    reader = csv.DictReader(file)
    columns = list(reader.fieldnames or [])
    cell = columns[: columns.index(OURS)]
    return columns, {tuple(line[name] for name in cell): line for line in reader}


def joined(paths: list[Path]) -> tuple[list[str], list[dict[str, str]]]:
  """The columns, and the lines of all files, the later ones' figures first.

  Raises:
    SystemExit: the files are not of one table.
  """
  columns, lines = read(paths[0])
  for path in paths[1:]:
    others, later = read(path)
    if others != columns:
      raise SystemExit(f"{path} has other columns than {paths[0]}: join files of one table.")
    lines |= {cell: line for cell, line in later.items() if line[OURS] or cell not in lines}
  return columns, list(lines.values())


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("tables", nargs="+", type=Path)
  parser.add_argument("--out", type=Path, required=True)
  args = parser.parse_args()
  columns, lines = joined(args.tables)
  with args.out.open("w", newline="") as file:
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
  print(f"{sum(bool(line[OURS]) for line in lines)} of {len(lines)} lines of {args.out} have a figure.")


if __name__ == "__main__":
  main()
