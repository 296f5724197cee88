"""Fair mixing across devices: MNIST, Dirichlet(0.01), 1,000 clients, 5 a round, 500 rounds, ten seeds.

    python benchmarks/fair_device.py [--seeds 10] [--rounds 500] [--out docs/results/fair_device]

All seeds of a method are one program. Every seed is another partition, split and initial model; methods share
them, so differences are paired. Strengths (q, λ, ...) are those that AAggFF's authors chose most often.
"""

import argparse
import datetime
import json
import platform
import time
from pathlib import Path

import numpy as np

import fedjax_het as fh

fh.prepare_cpu()

import jax  # noqa: E402
from fair_silo import describe, difference  # noqa: E402

from fedjax_het.metrics.fairness import summarize  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
CLIENTS, ALPHA, COHORT = 1000, 0.01, 5
METHODS = {
  "FedAvg": fh.mixing.static,
  "uniform": fh.mixing.uniform,
  "q-FFL, q = 0.1": lambda: fh.mixing.qffl(q=0.1),
  "q-FFL, q = 1": lambda: fh.mixing.qffl(q=1.0),
  "TERM, λ = 0.1": lambda: fh.mixing.term(lam=0.1),
  "TERM, λ = 1": lambda: fh.mixing.term(lam=1.0),
  "FedMGDA+, ε = 0.5": lambda: fh.mixing.fedmgda(epsilon=0.5),
  "PropFair, M = 3": lambda: fh.mixing.propfair(3.0),
  "AAggFF-D, Weibull": lambda: fh.mixing.aaggff_d(cdf="weibull"),
  "AAggFF-D, Frechet": lambda: fh.mixing.aaggff_d(cdf="frechet"),
}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--seeds", type=int, default=10)
  parser.add_argument("--rounds", type=int, default=500)
  parser.add_argument("--lr", type=float, default=0.1)
  parser.add_argument("--epochs", type=int, default=1)
  parser.add_argument("--batch", type=int, default=20)
  parser.add_argument("--methods", nargs="*", default=list(METHODS))
  parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "fair_device")
  args = parser.parse_args()
  source = fh.data.load("mnist")
  keys = jax.vmap(jax.random.key)(np.arange(args.seeds))
  data = []
  for key in keys:
    parts = fh.data.dirichlet(
      jax.random.fold_in(key, 0), source.y, CLIENTS, alpha=ALPHA, min_size=10, balance=True
    )
    split = jax.random.fold_in(key, 1)
    data.append(fh.federate(source.x, source.y, parts, split, num_classes=source.num_classes))
  model = fh.models.two_nn(source.x.shape[1:], source.num_classes)
  client = fh.fedavg(
    model, lr=args.lr, epochs=args.epochs, batch_size=args.batch, momentum=0.0, weight_decay=0.0
  )
  reached, seconds = {}, {}
  for name in args.methods:
    started = time.time()
    result = fh.sweep(
      lambda: fh.federated(client, METHODS[name]()),  # noqa: B023
      seeds=jax.vmap(lambda key: jax.random.fold_in(key, 2))(keys),
      data=data,
      rounds=args.rounds,
      cohort_size=COHORT,
    )
    seconds[name] = time.time() - started
    top1 = result.history[args.rounds].global_["top1"]
    reached[name] = [summarize(of_seed) for of_seed in top1]
    print(name, f"{seconds[name]:.0f} s", {k: round(v, 4) for k, v in reached[name][0].items()}, flush=True)

  def figure(name: str, key: str) -> np.ndarray:
    return 100 * np.array([of_seed[key] for of_seed in reached[name]])

  base = args.methods[0]
  head = ["mean", "worst10", "best10", "gini"]
  lines = [
    "| mixing | mean top-1 | worst 10 % | best 10 % | Gini x 100 | worst 10 % less "
    f"{base} [95 %] | Gini less {base} [95 %] | mean less {base} [95 %] | s |",
    "|---|---|---|---|---|---|---|---|---|",
  ]
  for name in args.methods:
    cells = [describe(figure(name, key)) for key in head]
    cells += [
      "–" if name == base else difference(figure(name, key), figure(base, key))
      for key in ("worst10", "gini", "mean")
    ]
    lines.append(f"| {name} | {' | '.join(cells)} | {seconds[name]:.0f} |")
  print("\n".join(lines))
  args.out.parent.mkdir(parents=True, exist_ok=True)
  args.out.with_suffix(".json").write_text(json.dumps(reached))
  command = f"python benchmarks/fair_device.py --seeds {args.seeds} --rounds {args.rounds} --lr {args.lr}"
  args.out.with_suffix(".md").write_text(
    "\n".join(lines)
    + f"\n\nCommand: `{command} --epochs {args.epochs} --batch {args.batch}`, {datetime.date.today()}, "
    + f"{platform.machine()}, JAX {jax.__version__}.\n"
  )


if __name__ == "__main__":
  main()
