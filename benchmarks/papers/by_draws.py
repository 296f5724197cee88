"""Prints a run's last figures by how often each client was in a cohort.

    python benchmarks/papers/by_draws.py RUN [--out FILE.json]

RUN is the workdir of a run of a method that keeps a model for each client; the figures tell how much a
personalised model depends on the number of rounds that its client took part in. Cohorts depend on the run's
key alone, so the script draws them again and trains nothing. For each number of draws it gives the mean of
each metric over the clients, in percent where the metric is a share.
"""

import argparse
import json
from pathlib import Path

import jax
import numpy as np

from benchmarks.provenance import provenance
from fedjax_het.engine.cohort import cohort_of

METRICS = ("personalized/top1", "personalized/top5", "global/top1", "global/top5")


def cohorts_of(config: dict, clients: int) -> np.ndarray:
  """The cohorts of all rounds, [T, S]."""
  run_key = jax.random.fold_in(jax.random.key(config["seed"]), 2)  # as `experiment.build` has it
  key = jax.random.split(run_key, 3)[2]  # as `engine.state.first_state` has it
  return np.stack([cohort_of(key, t, clients, config["cohort_size"]) for t in range(config["rounds"])])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("run", type=Path)
  parser.add_argument("--out", type=Path)
  args = parser.parse_args()
  figures = np.load(args.run / "clients.npz")
  found = {name: 100 * figures[name] for name in METRICS if name in figures.files}
  clients = len(next(iter(found.values())))
  cohorts = cohorts_of(json.loads((args.run / "config.json").read_text()), clients)
  last = json.loads((args.run / "metrics.jsonl").read_text().splitlines()[-1])["mixing"]["cohort"]
  if sorted(last) != sorted(cohorts[-1].tolist()):
    raise SystemExit(f"the last cohort of the run was {last}, and {cohorts[-1]} is drawn here")
  count = np.bincount(cohorts.ravel(), minlength=clients)
  groups = {"never": count == 0, "once": count == 1, "twice or more": count > 1, "at least once": count > 0}
  rows = {
    name: {"clients": int(own.sum())} | {m: round(float(one[own].mean()), 2) for m, one in found.items()}
    for name, own in groups.items()
    if own.any()
  }  # fmt: skip
  print(f"| drawn | clients | {' | '.join(found)} |\n|{'---|' * (2 + len(found))}")
  for name, row in rows.items():
    print(f"| {name} | {' | '.join(str(value) for value in row.values())} |")
  if args.out:
    args.out.write_text(json.dumps(provenance() | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
  main()
