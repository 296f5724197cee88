"""Compares fair mixing methods across devices: MNIST, Dirichlet(0.01), 1,000 clients, ten seeds.

    python benchmarks/papers/fair_device.py [--methods FedAvg "FedMGDA+, ε = 0.5"] [--out docs/results]

A run has 500 rounds with 5 clients each, and all seeds of a method are one program. Every seed has another
partition, split and initial model. Methods share these, so their differences are paired. Strengths (q, λ,
...) are those that AAggFF's authors chose most often across devices. OUT/raw/fair_device.json holds every
seed's figures, and methods that are not run again keep theirs. The script rewrites the table at the end of
OUT/fair_device.md and leaves the text above it alone.
"""

import argparse
import datetime
import json
from pathlib import Path

import numpy as np

import fedjax_het as fh

fh.prepare_cpu()

import jax  # noqa: E402

from benchmarks.papers.fair_silo import COMMIT, commits, compact, describe, difference  # noqa: E402
from benchmarks.provenance import PAGES, place  # noqa: E402
from fedjax_het.metrics.fairness import summarize  # noqa: E402

CLIENTS, ALPHA, COHORT = 1000, 0.01, 5
METHODS = {
  "FedAvg": fh.mixing.static,
  "uniform": fh.mixing.uniform,
  "q-FFL, q = 0.1": lambda: fh.mixing.qffl(q=0.1),
  "q-FFL, q = 1": lambda: fh.mixing.qffl(q=1.0),
  "TERM, λ = 0.1": lambda: fh.mixing.term(lam=0.1),
  "TERM, λ = 1": lambda: fh.mixing.term(lam=1.0),
  "FedMGDA+, ε = 0.5": lambda: fh.mixing.fedmgda(epsilon=0.5),
  "FedMGDA+, ε = 1": lambda: fh.mixing.fedmgda(epsilon=1.0),
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
  parser.add_argument("--out", type=Path, default=PAGES, help="the folder of the page and of raw/")
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
  kept = place(args.out, "fair_device.json")
  record = json.loads(kept.read_text()) if kept.exists() else {}
  for name in args.methods:
    result = fh.sweep(
      lambda: fh.federated(client, METHODS[name]()),  # noqa: B023
      seeds=jax.vmap(lambda key: jax.random.fold_in(key, 2))(keys),
      data=data,
      rounds=args.rounds,
      cohort_size=COHORT,
    )
    of_seeds = [summarize(of_seed) for of_seed in result.history[args.rounds].global_["top1"]]
    record[name] = {
      **{key: np.round([of_seed[key] for of_seed in of_seeds], 6).tolist() for key in of_seeds[0]},
      **spread_of(result.state.mixing, result.infos.coefficients[0]), **COMMIT,
    }  # fmt: skip
    print(name, {key: round(value, 4) for key, value in of_seeds[0].items()}, flush=True)
    kept.write_text(compact(record))
  write(args, record)


def spread_of(state, coefficients: np.ndarray) -> dict[str, list[float]]:
  """Of seed 0: the range of K p at the end, for AAggFF-D, and of S p in nine of ten visits of all rounds."""
  around = np.quantile(COHORT * coefficients, [0.05, 0.95]).round(3).tolist()
  if not hasattr(state, "p"):
    return {"S p": around}
  p = CLIENTS * np.asarray(state.p[0])
  return {"S p": around, "K p": [round(float(p.min()), 3), round(float(p.max()), 3)]}


def write(args: argparse.Namespace, record: dict) -> None:
  """The page's table, out of the record."""
  base = next(iter(METHODS))

  def figure(name: str, key: str) -> np.ndarray:
    return 100 * np.array(record[name][key])

  lines = [
    "| mixing | mean top-1 | worst 10 % | best 10 % | Gini x 100 | worst 10 % less "
    f"{base} [95 %] | Gini less {base} [95 %] | mean less {base} [95 %] | S p | K p |",
    "|---|---|---|---|---|---|---|---|---|---|",
  ]
  for name in (name for name in METHODS if name in record):
    cells = [describe(figure(name, key)) for key in ("mean", "worst10", "best10", "gini")]
    cells += [
      "–" if name == base else difference(figure(name, key), figure(base, key))
      for key in ("worst10", "gini", "mean")
    ]
    cells += [
      "{:.2f} to {:.2f}".format(*record[name][key]) if key in record[name] else "–" for key in ("S p", "K p")
    ]
    lines.append(f"| {name} | {' | '.join(cells)} |")
  print("\n".join(lines))
  page = place(args.out, "fair_device.md")
  prose = (
    page.read_text().split("\n| mixing |")[0].rstrip() if page.exists() else "# Fair mixing across devices"
  )
  when = f"{datetime.date.today()}, JAX {jax.__version__}"
  command = f"python benchmarks/papers/fair_device.py --seeds {args.seeds} --rounds {args.rounds}"
  command += f" --lr {args.lr} --epochs {args.epochs} --batch {args.batch}"
  lines += ["", f"Command: `{command}`, {when}, commits {', '.join(sorted(commits(record)))} (each row's own "
            "in [fair_device.json](raw/fair_device.json))."]  # fmt: skip
  page.write_text(prose + "\n\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
  main()
