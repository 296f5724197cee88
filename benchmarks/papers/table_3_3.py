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
PRINTED = {
  "weibull": (0.05, 1.00, 0.19),
  "frechet": (0.01, 0.65, 0.11),
  "gumbel": (0.12, 0.76, 0.18),
  "exponential": (0.21, 0.90, 0.37),
  "logistic": (0.32, 0.79, 0.37),
  "normal": (0.22, 0.90, 0.29),
}
FIELDS = ("cdf", "loss", "ours", "of_rounded", "thesis")


def rows() -> list[dict[str, float | str]]:
  """A row for each printed figure: the distribution function, the loss, our response, and the thesis's."""
  found = []
  for cdf, printed in PRINTED.items():
    ours = np.asarray(respond(jnp.asarray(LOSSES), cdf), np.float64)
    rounded = np.asarray(CDFS[cdf](jnp.asarray(QUOTIENTS)), np.float64)
    for loss, own, other, theirs in zip(LOSSES, ours, rounded, printed):
      found.append(dict(zip(FIELDS, (cdf, loss, round(float(own), 5), round(float(other), 5), theirs))))
  return found


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
  for cdf in PRINTED:
    own = [row for row in found if row["cdf"] == cdf]
    print(f"| {cdf} | {' | '.join('{ours:.3f} ({thesis:.2f})'.format(**row) for row in own)} |")
  off = max(abs(float(row["of_rounded"]) - float(row["thesis"])) for row in found)
  print(f"largest difference of the rounded quotients' responses: {off:.5f}")
  print(", ".join(f"{name} {value}" for name, value in provenance().items()))


if __name__ == "__main__":
  main()
