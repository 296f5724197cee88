"""Measures what noise on the label counts does to SosicFL's regions and accuracy, and what regions are worth.

    python benchmarks/papers/sosicfl_noise.py [--dataset mnist --data_dir DATA] [--splits dir]
      [--epsilons 1.0] [--rounds T] [--out FILE.json]

The runs are cells of configs/sosicfl_2.py, on digits by default: K = 20 clients of about 72 training images,
T = 100, splits 2fold, 5fold and dir, three seeds. Regions are computed from the true counts, from counts with
Laplace noise of scale 1/ε for several ε, and from the true counts dealt among the clients at random, which
carry no information about a client. All are one program, beside FedAvg, which has no regions. "agreement" is
the adjusted Rand index of the clusters with those of the true counts: 1 if all clients are grouped alike, 0
on average for random groups. Accuracies are of the last round, as means over the clients, then over the
seeds, with the sample standard deviation over the seeds. The script writes the JSON and prints the table.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import fedjax_het as fh
from fedjax_het.config.plan import plan

fh.prepare_cpu()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from sklearn.metrics import adjusted_rand_score  # noqa: E402

from benchmarks.provenance import RAW, ROOT, provenance  # noqa: E402
from fedjax_het.config.algorithm import algorithm_maker  # noqa: E402
from fedjax_het.engine.batched_runs import Members  # noqa: E402
from fedjax_het.engine.run import chunks  # noqa: E402
from fedjax_het.experiment.build import build  # noqa: E402
from fedjax_het.tables.paper import read_table  # noqa: E402

AS_THEY_ARE, DEALT = "as they are", "as they are, regions dealt at random"
SEEDS = (0, 1, 2)


def config_of(args: argparse.Namespace, split: str, algorithm: str, seed: int = 0) -> Any:
  table = read_table(ROOT / "configs" / "sosicfl_2.py")
  config = table.get_config(f"dataset={args.dataset},split={split},algorithm={algorithm},seed={seed}")
  config.data_dir, config.rounds = args.data_dir, args.rounds or config.rounds
  return config


def accuracies(args: argparse.Namespace, split: str, algorithm: str, variants: tuple) -> tuple[list, list]:
  """Of each variant and seed: the clusters, if any; and {"local", "global"}, top-1 in percent."""
  members, prepared = [], []
  for variant in variants:
    for seed in SEEDS:
      config = config_of(args, split, algorithm, seed)
      if isinstance(variant, float):
        config.algorithm.epsilon = variant
      members.append(build(plan(config)))
      prepared.append(members[-1].prepared)
      if variant == DEALT:
        order, own = np.random.default_rng(seed).permutation(config.num_clients), prepared[-1]["regions"]
        dealt = {name: getattr(own, name)[order] for name in ("centers", "points", "clusters")}
        prepared[-1] = {"regions": own._replace(**dealt)}
  values = {}
  if prepared[0]:
    values = {"prepared": jax.tree.map(lambda *own: np.stack([np.asarray(leaf) for leaf in own]), *prepared)}
  make, data = (
    algorithm_maker(plan(config_of(args, split, algorithm)), members[0].model),
    [own.data for own in members],
  )
  engine = Members(make, data, values, len(members), config.cohort_size, seeds=len(members))
  for chunk in chunks(engine, engine.init(jnp.stack([own.key for own in members])), config.rounds, None):
    print(f"{split}, {algorithm}: round {engine.rounds_done(chunk.state)} of {config.rounds}", flush=True)
  assert chunk.evaluations is not None
  tests = [own.test for own in engine.split(chunk.evaluations)]
  tops = [(own.personalized["top1"][:, 0], own.global_["top1"]) for own in tests]
  found = [dict(zip(("local", "global"), (100 * float(np.mean(own)) for own in both))) for both in tops]
  return [own["regions"].clusters if own else None for own in prepared], found


def row(split: str, counts: str, found: list[dict], same: list[float] | None) -> dict:
  return {"split": split, "counts": counts, "agreement": same} | {
    name: [own[name] for own in found] for name in ("local", "global")
  }


def table(rows: list[dict]) -> str:
  """As Markdown."""

  def spread(values: list[float] | None, digits: int = 1) -> str:
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}" if values else "–"

  lines = ["| split | counts | agreement | local top-1 (%) | global top-1 (%) |", "|---|---|---|---|---|"]
  for own in rows:
    cells = spread(own["agreement"], 2), spread(own["local"]), spread(own["global"])
    lines.append(f"| {own['split']} | {own['counts']} | {' | '.join(cells)} |")
  return "\n".join(lines)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--dataset", default="digits")
  parser.add_argument("--data_dir", default="")
  parser.add_argument("--rounds", type=int, default=0, help="instead of the table's")
  parser.add_argument("--splits", nargs="*", default=["2fold", "5fold", "dir"])
  parser.add_argument("--epsilons", nargs="*", type=float, default=[3.0, 1.0, 0.3, 0.1])
  parser.add_argument("--out", type=Path)
  args = parser.parse_args()
  suffix = "" if args.dataset == "digits" else f"_{args.dataset}"
  out = args.out or RAW / f"sosicfl_noise{suffix}.json"
  rounds = config_of(args, "2fold", "fedavg").rounds
  variants = (AS_THEY_ARE, *args.epsilons, DEALT)
  report: dict = {**provenance(), "dataset": args.dataset, "rounds": rounds, "seeds": SEEDS, "rows": []}
  for split in args.splits:
    _, found = accuracies(args, split, "fedavg", (AS_THEY_ARE,))
    report["rows"].append(row(split, "none: FedAvg", found, None))
    clusters, found = accuracies(args, split, "sosicfl", variants)
    count = len(SEEDS)
    for first, variant in zip(range(0, len(found), count), variants):
      own = slice(first, first + count)
      same = [adjusted_rand_score(a, b) for a, b in zip(clusters[:count], clusters[own])]
      name = f"ε = {variant:g}" if isinstance(variant, float) else variant
      report["rows"].append(row(split, name, found[own], same))
    out.write_text(json.dumps(report, indent=1) + "\n")
  print(table(report["rows"]))


if __name__ == "__main__":
  main()
