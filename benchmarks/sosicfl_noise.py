"""What noise on the label counts does to SosicFL's regions, and to its accuracy.

    python benchmarks/sosicfl_noise.py [--dataset mnist --data_dir DATA] [--out FILE.json]

Cells of configs/sosicfl_2.py, digits by default: K = 20 clients of about 72 training images, T = 100;
splits 2fold and dir, three seeds. Counts with Laplace noise of scale 1/ε, for several ε as one program,
beside counts as they are, and FedAvg, which has no regions. "agreement" is the adjusted Rand index of the
clusters with those of the counts as they are: 1 where all clients are grouped alike, 0 as by chance.
Accuracies are of the last round, means over the clients, then over the seeds, with the sample std over the
seeds. Runs are kept in --runs and not repeated. Prints the table as Markdown, and writes the JSON.
"""

import argparse
import json
import statistics
from pathlib import Path

import fedjax_het as fh

fh.prepare_cpu()

from provenance import ROOT, provenance  # noqa: E402
from sklearn.metrics import adjusted_rand_score  # noqa: E402

from fedjax_het.experiment.build import build, prepared_of  # noqa: E402
from fedjax_het.experiment.sweep import run_sweep  # noqa: E402
from fedjax_het.tables.paper import read_table  # noqa: E402

EPSILONS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03)
SEEDS = (0, 1, 2)


def config_of(args: argparse.Namespace, split: str, algorithm: str, **changes):
  config = read_table(ROOT / "configs" / "sosicfl_2.py").get_config(
    f"dataset={args.dataset},split={split},algorithm={algorithm}"
  )
  config.data_dir = args.data_dir
  if args.rounds:
    config.rounds = args.rounds
  for name, value in changes.items():
    config.algorithm[name] = value
  return config


def agreement(args: argparse.Namespace, split: str, epsilon: float) -> list[float]:
  """Of each seed's clusters with those of the counts as they are."""
  found = []
  for seed in SEEDS:
    config = config_of(args, split, "sosicfl")
    config.seed = seed
    built = build(config)
    config.algorithm.epsilon = epsilon
    noisy = prepared_of(config, built.data, built.algorithm.client.task)["regions"]
    found.append(float(adjusted_rand_score(built.prepared["regions"].clusters, noisy.clusters)))
  return found


def accuracies(summaries: list[dict]) -> dict[str, list[float]]:
  """Model -> top-1 of each seed, in percent."""
  of = {"local": "personalized", "global": "global"}
  return {
    name: [100 * own["metrics"][model]["top1"]["mean"] for own in summaries] for name, model in of.items()
  }


def spread(values: list[float], digits: int = 1) -> str:
  return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--dataset", default="digits")
  parser.add_argument("--data_dir", default="")
  parser.add_argument("--rounds", type=int, default=0, help="instead of the table's")
  parser.add_argument("--runs", type=Path, default=Path("runs/sosicfl_noise"))
  parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "sosicfl_noise.json")
  args = parser.parse_args()
  report: dict = {**provenance(), "dataset": args.dataset, "seeds": SEEDS, "rows": []}
  print("| split | counts | agreement | local top-1 (%) | global top-1 (%) |\n|---|---|---|---|---|")

  def add(split: str, counts: str, summaries: list[dict], same: list[float] | None = None) -> None:
    row = {"split": split, "counts": counts, "agreement": same, **accuracies(summaries)}
    report["rows"].append(row)
    text = spread(same, 2) if same else "–"
    print(f"| {split} | {counts} | {text} | {spread(row['local'])} | {spread(row['global'])} |", flush=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")

  for split in ("2fold", "dir"):

    def swept(name: str, config, split=split, **grid) -> list[dict]:
      folder = str(args.runs / f"{args.dataset},{split},{name}")
      return run_sweep(config, {**grid, "seed": list(SEEDS)}, folder)

    config = config_of(args, split, "sosicfl")
    report["rounds"], report["num_clients"] = config.rounds, config.num_clients
    add(split, "none: FedAvg", swept("fedavg", config_of(args, split, "fedavg")))
    add(split, "as they are", swept("clean", config), [1.0] * len(SEEDS))
    noisy = swept(
      "noisy", config_of(args, split, "sosicfl", epsilon=1.0), **{"algorithm.epsilon": list(EPSILONS)}
    )
    for number, epsilon in enumerate(EPSILONS):
      own = noisy[number * len(SEEDS) : (number + 1) * len(SEEDS)]
      add(split, f"ε = {epsilon:g}", own, agreement(args, split, epsilon))


if __name__ == "__main__":
  main()
