"""Counts the steps in lockstep of a device that trains n clients of unequal sizes at once, in three ways.

    python benchmarks/speed/lanes.py [--data DATA] [--out docs/results/raw/lanes.json]

Nothing is trained. Client k of a cohort takes t_k = ⌈n_k / B⌉ steps an epoch. A device that maps over n
clients takes these numbers of steps in lockstep:

  as they come   Σ of the largest t_k of each group of n clients, in the cohort's order,
  grouped        the same with the cohort sorted by size, which is `--client_batch=n`,
  lanes          the length of the longest of n lanes, where a lane picks up the next client, the longest
                 first, when its own has ended; the engine has no such mode.

The least possible is Σ t_k / n, and figures are means over 300 cohorts, relative to it. Sizes are log-normal
(σ = 1, 100 clients of MNIST, as in ragged.py), those of the writers in the FEMNIST files at hand, and those
of CelebA and Speech Commands. For these two, table 3.5 gives only the number of clients and the mean and
deviation of the sizes; they are drawn from a gamma distribution with these, and four fifths of a client's
examples train.
"""

import argparse
import heapq
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

import fedjax_het as fh
from benchmarks.provenance import RAW, provenance

COHORTS = 300


def gamma(rng: np.random.Generator, clients: int, mean: float, deviation: float) -> np.ndarray:
  """So many training sizes of clients whose sizes have this mean and deviation."""
  shape = (mean / deviation) ** 2
  return np.maximum(1, np.round(0.8 * rng.gamma(shape, mean / shape, clients))).astype(int)


def log_normal(rng: np.random.Generator) -> np.ndarray:
  """Those of `ragged.py`."""
  shares = np.exp(rng.normal(size=100))
  return np.maximum(1, np.floor(shares / shares.sum() * 60_000)).astype(int)


def in_order(steps: np.ndarray, lanes: int) -> int:
  """Steps in lockstep of groups in the order given."""
  return sum(int(steps[i : i + lanes].max()) for i in range(0, len(steps), lanes))


def grouped(steps: np.ndarray, lanes: int) -> int:
  """The same of groups of similar length."""
  return in_order(np.sort(steps)[::-1], lanes)


def picking_up(steps: np.ndarray, lanes: int) -> int:
  """The longest of the lanes, each of which takes the longest client left when it is free."""
  ends = [0] * lanes
  for own in np.sort(steps)[::-1]:
    heapq.heapreplace(ends, ends[0] + int(own))
  return max(ends)


WAYS: dict[str, Callable[[np.ndarray, int], int]] = {
  "as_they_come": in_order, "grouped": grouped, "lanes": picking_up
}  # fmt: skip


def counted(rng: np.random.Generator, steps: np.ndarray, cohort: int, lanes: int) -> dict[str, float]:
  """Each way's steps in lockstep over the least possible, means over cohorts."""
  drawn = [rng.choice(steps, cohort, replace=False) for _ in range(COHORTS)]
  least = [own.sum() / lanes for own in drawn]
  return {
    name: round(float(np.mean([way(own, lanes) for own in drawn]) / np.mean(least)), 3)
    for name, way in WAYS.items()
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data", default="", help="the folder of the data sets; default: $FEDJAX_HET_DATA")
  parser.add_argument("--out", type=Path, default=RAW / "lanes.json")
  args = parser.parse_args()
  rng = np.random.default_rng(0)
  writers = np.unique(np.asarray(fh.data.load("femnist", args.data).groups), return_counts=True)[1]
  cases = [
    ("log-normal", log_normal(rng), 10, (20, 100)),
    ("FEMNIST, writers at hand", np.maximum(1, (0.8 * writers).astype(int)), 10, (5, 100)),
    ("CelebA, gamma", gamma(rng, 9343, 21.44, 7.63), 20, (5, 100)),
    ("Speech Commands, gamma", gamma(rng, 2005, 42.24, 36.69), 20, (5, 100)),
  ]
  rows = []
  for name, sizes, batch, cohorts in cases:
    steps = -(-sizes // batch)
    for cohort in cohorts:
      for lanes in (4, 10, 32):
        if lanes < cohort:
          row = {"sizes": name, "clients": len(sizes), "batch": batch, "cohort": cohort, "at_once": lanes}
          rows.append(row | counted(rng, steps, cohort, lanes))
          print(json.dumps(rows[-1]), flush=True)
  command = "python benchmarks/speed/lanes.py"
  args.out.write_text(json.dumps(provenance() | {"command": command, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
  main()
