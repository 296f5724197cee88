"""Computes table 3.3 of the thesis: responses of three losses by each distribution function.

    python benchmarks/papers/table_3_3.py [--out FOLDER]

The losses are 0.01, 0.10 and 0.02. The thesis divides them by their mean, rounds the quotients to two
digits (0.23, 2.31, 0.46), and maps these. The script maps the unrounded quotients, as training does, and the
rounded ones, and writes both beside the printed figures: table_3_3.csv into FOLDER/raw, and the page's table
to the terminal.
"""

import argparse
import csv
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from benchmarks.provenance import PAGES, place, provenance
from fedjax_het.mixing.responses import CDFS, respond

LOSSES, QUOTIENTS = (0.01, 0.10, 0.02), (0.23, 2.31, 0.46)
PROSE = Path(__file__).with_name("printed_in_prose.csv")
FIELDS = ("cdf", "loss", "ours", "of_rounded", "thesis")


def rows() -> list[dict[str, float | str]]:
  """A row for each printed figure: the distribution function, the loss, our response, and the thesis's."""
  found = []
  for cdf, printed in printed_responses().items():
    ours = np.asarray(respond(jnp.asarray(LOSSES), cdf), np.float64)
    rounded = np.asarray(CDFS[cdf](jnp.asarray(QUOTIENTS)), np.float64)
    for loss, own, other, theirs in zip(LOSSES, ours, rounded, printed):
      found.append(dict(zip(FIELDS, (cdf, loss, round(float(own), 5), round(float(other), 5), theirs))))
  return found


def printed_responses() -> dict[str, list[float]]:
  """The thesis's responses of `LOSSES`, by distribution function."""
  found: dict[str, dict[float, float]] = {}
  with PROSE.open(newline="", encoding="utf-8") as file:
    for row in csv.DictReader(file):
      if row["place"] == "table 3.3":
        loss = float(row["setting"].removeprefix("loss="))
        found.setdefault(row["method"].lower(), {})[loss] = float(row["mean"])
  return {cdf: [own[loss] for loss in LOSSES] for cdf, own in found.items()}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--out", type=Path, default=PAGES)
  args = parser.parse_args()
  found = rows()
  with place(args.out, "table_3_3.csv").open("w", newline="") as file:
    writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
  print("| distribution function | F = 0.01 | 0.10 | 0.02 |\n|---|---|---|---|")
  for cdf in printed_responses():
    own = [row for row in found if row["cdf"] == cdf]
    print(f"| {cdf} | {' | '.join('{ours:.3f} ({thesis:.2f})'.format(**row) for row in own)} |")
  off = max(abs(float(row["of_rounded"]) - float(row["thesis"])) for row in found)
  print(f"largest difference of the rounded quotients' responses: {off:.5f}")
  print(", ".join(f"{name} {value}" for name, value in provenance().items()))


if __name__ == "__main__":
  main()
