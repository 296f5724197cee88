"""FedEvg, FedCVAE and FedCGAN on MNIST at 32 x 32, of the same local work, judged by networks of full width.

    python benchmarks/fedevg_mnist.py --data DATA --runs RUNS [--rounds 20] [--steps 8] [--judge_seeds 2] \
      [--methods fedevg "repulsion, τ = β = 1" ...]

Cells of configs/table_4_2.py with narrow networks, few rounds and few local steps a round, as a machine
without an accelerator can run them: each method takes the same number of local steps. What a cell
synthesises, and ten random real training images a class beside it, is then judged:

TwoNN       three times, on all clients' test parts and the whole official test set, with the distances, by
            `yardsticks.synthetic.worth`
ResNet-10   of the thesis's width, `judge_seeds` times from fresh parameters (and from other real images), at
            most `passes` passes of Adam; top-1 on `judged` random official test images, the same for all

Beside the three, --methods takes any name of fedevg_settings.py, which is FedEvg with these settings.
Runs continue where they stopped; what docs/results/fedevg_mnist.json holds is not judged again.
"""

import argparse
import json
import re
import sys
from pathlib import Path

import jax
import numpy as np
from fedevg_settings import BEYOND
from ml_collections import ConfigDict
from provenance import provenance

import fedjax_het as fh
from fedjax_het.data.scale import as_read
from fedjax_het.experiment.build import build
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.experiment.where import Where
from fedjax_het.yardsticks.downstream import Images, downstream
from fedjax_het.yardsticks.synthetic import as_many, worth

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))
from configs import table_4_2  # noqa: E402

METHODS, CLASSES, PER_CLASS, BLOCK = ("fedevg", "fedcvae", "fedcgan"), 10, 10, 100
YARDSTICKS = {"model": {"name": "two_nn"}, "seeds": 3, "features": "classifier"}


def config_of(args: argparse.Namespace, method: str, alpha: float) -> ConfigDict:
  """A cell, whose launched run judges in no time: `main` judges."""
  client, server = BEYOND.get(method, ({}, {}))
  cell = f"dataset=mnist,alpha={alpha},algorithm={'fedevg' if server else method},width={args.width}"
  config = table_4_2.get_config(f"{cell},rounds={args.rounds},steps={args.steps}")
  config.data_dir, config.eval_every = str(args.data), max(1, args.rounds // 2)
  config.downstream = ConfigDict({"model": {"name": "two_nn"}, "steps": 1})
  if server:
    config.algorithm = ConfigDict({**config.algorithm, **client})
    config.server = ConfigDict(server)
  elif method != "fedevg":
    config.model.width = 2 * args.width
  return config


def verdict(seed: int, x: np.ndarray, y: np.ndarray, test: Images, passes: int) -> dict[str, float]:
  """Top-1 of a ResNet-10 that learns from (x, y) alone, and its last training loss."""
  model = fh.models.resnet10((32, 32, 1), CLASSES, spectral=False)
  learn = jax.jit(lambda key, x, y: downstream(key, model, x, y, steps=passes))
  params, loss = learn(jax.random.key(seed), x, y)
  apply = jax.jit(model.apply)
  blocks = (slice(i, i + BLOCK) for i in range(0, len(test[1]), BLOCK))
  hits = [np.asarray(apply(params, test[0][own])).argmax(1) == test[1][own] for own in blocks]
  return {"top1": float(np.concatenate(hits).mean()), "loss": float(loss)}


def table(results: dict[str, dict]) -> str:
  """A row a synthetic set: top-1 in percent, by seed where there are several; then the distances."""
  head = "| set | ResNet-10 by seed | loss | TwoNN, official | clients | Fréchet | kernel | within a class |"
  rows = [head, "|---" * 8 + "|"]
  for name, found in results.items():
    judged = [verdict for label, verdict in found.items() if label.startswith("ResNet-10")]
    seen, own = found["yardsticks"], found["yardsticks"]["downstream"]
    cells = [
      name,
      ", ".join(f"{100 * verdict['top1']:.1f}" for verdict in judged),
      f"{max((verdict['loss'] for verdict in judged), default=float('nan')):.3f}",
      ", ".join(f"{100 * trial['official']:.1f}" for trial in own["seeds"]),
      f"{100 * own['local']['mean']:.1f} ± {100 * own['local']['std']:.1f}",
      f"{seen['frechet']:.1f}",
      f"{seen['kernel']:.2f}",
      f"{seen['within_class_distance']['synthetic']:.2f}",
    ]
    rows.append(f"| {' | '.join(cells)} |")
  return "\n".join(rows)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data", type=Path, required=True, help="holds mnist/")
  parser.add_argument("--runs", type=Path, required=True, help="where the launched runs are kept")
  parser.add_argument("--rounds", type=int, default=20)
  parser.add_argument("--steps", type=int, default=8)
  parser.add_argument("--width", type=int, default=8, help="of clients' ResNet-10; generators have twice it")
  parser.add_argument("--alphas", type=float, nargs="*", default=[1.0, 0.01])
  parser.add_argument("--methods", nargs="*", default=METHODS)
  parser.add_argument("--judge_seeds", type=int, default=2)
  parser.add_argument("--passes", type=int, default=40)
  parser.add_argument("--judged", type=int, default=1000)
  parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
  args = parser.parse_args()
  path = args.out / "fedevg_mnist.json"
  results = json.loads(path.read_text())["results"] if path.exists() else {}
  sizes = ("rounds", "steps", "width", "passes", "judged")
  about = {
    "command": "python benchmarks/fedevg_mnist.py --data DATA --runs RUNS",
    **provenance(),
    **{name: getattr(args, name) for name in sizes},
  }  # fmt: skip

  def keep(name: str, found: dict) -> None:
    results.setdefault(name, {}).update(found)
    print(f"{name}: {json.dumps(found)}", flush=True)
    path.write_text(json.dumps(about | {"results": results}, indent=2, ensure_ascii=False) + "\n")

  sets = {}
  for alpha in args.alphas:
    for method in args.methods:
      slug = re.sub(r"\W+", "_", method)
      config, workdir = config_of(args, method, alpha), args.runs / f"{slug}_{alpha}"
      run_experiment(config, str(workdir), Where(devices=1))
      with np.load(max((workdir / "samples").glob("[0-9]*.npz"))) as file:
        own = file["x"], file["y"]
      name = f"{method}, α = {alpha}"
      sets[name] = [own] * args.judge_seeds
      if "yardsticks" not in results.get(name, {}):
        built = build(config)
        keep(name, {"yardsticks": worth(YARDSTICKS, built.source, built.data, built.key, *own)})
  experiment = build(config_of(args, "fedevg", args.alphas[0]))
  if "yardsticks" not in results.get("real", {}):
    first = results[f"{args.methods[0]}, α = {args.alphas[0]}"]["yardsticks"]
    spread = {"synthetic": first["within_class_distance"]["real"]}
    keep("real", {"yardsticks": first["real"] | {"within_class_distance": spread}})
  rows = experiment.data.train.rows()
  train = np.asarray(experiment.data.x)[rows], np.asarray(experiment.data.y)[rows]
  labels = np.repeat(np.arange(CLASSES), PER_CLASS)
  drawn = [as_many(np.random.default_rng(seed), train, labels) for seed in range(args.judge_seeds)]
  sets["real"] = [(as_read(x, experiment.source.scale), y) for x, y in drawn]
  asked = np.random.default_rng(0).permutation(len(experiment.source.y_test))[: args.judged]
  test = as_read(experiment.source.x_test[asked], experiment.source.scale), experiment.source.y_test[asked]
  for seed in range(args.judge_seeds):
    for name, own in sets.items():
      if (label := f"ResNet-10, seed {seed}") not in results.get(name, {}):
        keep(name, {label: verdict(seed, *own[seed], test, args.passes)})
  print(table(results))


if __name__ == "__main__":
  main()
