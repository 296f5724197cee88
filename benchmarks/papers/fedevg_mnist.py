"""Compares FedEvg, FedCVAE and FedCGAN on MNIST at 32 x 32 with equal local work, judged at full width.

    python benchmarks/papers/fedevg_mnist.py --data DATA --runs RUNS [--seeds 0 1 2] [--rounds 20]
      [--steps 8] [--methods fedevg "repulsion, τ = 1, β from 1" ...] [--out docs/results]

The runs are cells of configs/table_4_2.py with narrow networks, few rounds and few local steps a round, so
that a machine without an accelerator can run them. Each method takes the same number of local steps. A seed
determines the whole run: partition, parameters and draws. Two kinds of judges train on what a run
synthesises, and on as many random real training images for comparison:

TwoNN       three times, tested on all clients' test parts and on the whole official test set, with the
            distances, by `studies.synthetic.worth`
ResNet-10   of the thesis's width, --judges times, with the initial parameters of seeds s, s + 100, s + 200
            and so on for a run of seed s, for at most --passes passes of Adam; top-1 on --judged random
            official test images, the same for all. --passes 0 leaves it out.

Beside the three methods, --methods takes any name of fedevg_settings.py, which is FedEvg with these settings.
Runs continue where they stopped, and verdicts that OUT/raw/fedevg_mnist.json holds are not computed again.
Sets made with other --rounds, --steps or --width than the defaults have these in their names and are runs of
their own. Each verdict keeps its commit, date and machine under `about`; a verdict of TwoNN has those of the
run (until commit 9ae5fef a set had those of its last verdict alone).
"""

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

import fedjax_het as fh
from benchmarks.papers.fedevg_settings import BEYOND
from benchmarks.provenance import PAGES, place, provenance
from configs import table_4_2
from fedjax_het.config.plan import plan
from fedjax_het.data.scale import as_read
from fedjax_het.experiment.build import build
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.program.where import Where
from fedjax_het.studies.downstream import Images, downstream
from fedjax_het.studies.features import in_blocks
from fedjax_het.studies.synthetic import as_many, worth

METHODS, CLASSES, PER_CLASS = ("fedevg", "fedcvae", "fedcgan"), 10, 10
SIZES = {"rounds": (20, "T"), "steps": (8, "steps"), "width": (8, "width")}  # default, and what a name says
YARDSTICKS = {"model": {"name": "two_nn"}, "seeds": 3, "features": "classifier"}


def config_of(args: argparse.Namespace, method: str, alpha: float, seed: int) -> ConfigDict:
  """A cell, whose launched run judges in no time: `main` judges."""
  client, server = BEYOND.get(method, ({}, {}))
  cell = f"dataset=mnist,alpha={alpha},algorithm={'fedevg' if server else method},width={args.width}"
  config = table_4_2.get_config(f"{cell},rounds={args.rounds},steps={args.steps},seed={seed}")
  config.data_dir, config.eval_every = str(args.data), max(1, args.rounds // 2)
  config.downstream = ConfigDict({"model": {"name": "two_nn"}, "steps": 1})
  if server:
    config.algorithm = ConfigDict({**config.algorithm, **client})
    config.server = ConfigDict(server)
  elif method != "fedevg":
    config.model.width = 2 * args.width
  return config


def name_of(args: argparse.Namespace, method: str, alpha: float, seed: int) -> str:
  """Such as "fedevg, α = 1.0, T = 60, seed 0"."""
  other = [
    f"{said} = {getattr(args, size)}" for size, (usual, said) in SIZES.items() if getattr(args, size) != usual
  ]
  return ", ".join([method, f"α = {alpha}", *other, f"seed {seed}"])


def real_name(count: int, seed: int) -> str:
  """Of so many real examples a class."""
  return f"real, {f'{count} a class, ' if count != PER_CLASS else ''}seed {seed}"


def judge(test: Images, passes: int) -> Callable[[int, Images], tuple[float, float]]:
  """(seed, examples) -> top-1 of a ResNet-10 that learns from them alone, and its last training loss."""
  model = fh.models.resnet10((32, 32, 1), CLASSES, spectral=False)
  learn = jax.jit(lambda key, x, y: downstream(key, model, x, y, steps=passes))
  apply = jax.jit(model.apply)

  def verdict(seed: int, own: Images) -> tuple[float, float]:
    params, loss = learn(jax.random.key(seed), *own)
    logits = in_blocks(lambda x: apply(params, x))(test[0])
    return float((logits.argmax(1) == test[1]).mean()), float(loss)

  return verdict


def table(results: dict[str, dict]) -> str:
  """A row a synthetic set: top-1 in percent, TwoNN's of each trial; then the distances."""
  head = "| set | ResNet-10 | loss | TwoNN, official | clients | Fréchet | kernel | within a class |"
  rows = [head, "|---" * 8 + "|"]
  for name, found in results.items():
    judged, seen = found.get("ResNet-10"), found["yardsticks"]
    own = seen["downstream"]
    cells = [
      name,
      ", ".join(f"{100 * top:.1f}" for top in judged["top1"]) if judged else "not run",
      f"{max(judged['loss']):.3f}" if judged else "",
      ", ".join(f"{100 * trial['official']:.1f}" for trial in own["seeds"]),
      f"{100 * own['local']['mean']:.1f} ± {100 * own['local']['std']:.1f}",
      f"{seen['frechet']:.1f}",
      f"{seen['kernel']:.2f}",
      f"{seen['within_class_distance']['synthetic']:.2f}",
    ]
    rows.append(f"| {' | '.join(cells)} |")
  return "\n".join(rows)


def summary(results: dict[str, dict]) -> str:
  """A row a method and α: each judge's top-1 in percent, mean over the seeds ± their sample std.

  Of several verdicts on a seed's set the mean is taken first.
  """
  rows = ["| | seeds | ResNet-10 | TwoNN, official | clients |", "|---" * 5 + "|"]
  names = dict.fromkeys(name.rpartition(", seed")[0] for name in results)
  for name in names:
    own = [found for label, found in results.items() if label.rpartition(", seed")[0] == name]
    tops = [
      [float(np.mean(found["ResNet-10"]["top1"])) for found in own if "ResNet-10" in found],
      [found["yardsticks"]["downstream"]["official"] for found in own],
      [found["yardsticks"]["downstream"]["local"]["mean"] for found in own],
    ]
    rows.append(f"| {name} | {len(own)} | {' | '.join(map(over, tops))} |")
  return "\n".join(rows)


def over(values: list[float]) -> str:
  """Mean ± sample std in percent."""
  if len(values) < 2:
    return ", ".join(f"{100 * value:.1f}" for value in values) or "not run"
  return f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f}"


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data", type=Path, required=True, help="holds mnist/")
  parser.add_argument("--runs", type=Path, required=True, help="where the launched runs are kept")
  for size, (usual, _) in SIZES.items():
    note = "of clients' ResNet-10; generators have twice it" if size == "width" else None
    parser.add_argument(f"--{size}", type=int, default=usual, help=note)
  parser.add_argument("--alphas", type=float, nargs="*", default=[1.0, 0.01])
  parser.add_argument("--methods", nargs="*", default=METHODS)
  parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
  parser.add_argument("--passes", type=int, default=40)
  parser.add_argument("--judges", type=int, default=1, help="verdicts of ResNet-10 a set")
  parser.add_argument("--judged", type=int, default=1000)
  parser.add_argument("--out", type=Path, default=PAGES, help="the folder of raw/")
  args = parser.parse_args()
  path = place(args.out, "fedevg_mnist.json")
  results = json.loads(path.read_text())["results"] if path.exists() else {}
  origin = provenance()
  about = {
    "yardsticks": {**origin, **{size: getattr(args, size) for size in SIZES}},
    "ResNet-10": {**origin, "passes": args.passes, "judged": args.judged},
  }
  command = {"command": "python benchmarks/papers/fedevg_mnist.py --data DATA --runs RUNS"}

  def keep(name: str, part: str, found: dict) -> None:
    results.setdefault(name, {})[part] = found | {"about": about[part]}
    print(f"{name}: {json.dumps(found)}", flush=True)
    path.write_text(json.dumps(command | {"results": results}, indent=2, ensure_ascii=False) + "\n")

  sets = {}
  for seed in args.seeds:
    for alpha in args.alphas:
      for method in args.methods:
        name = name_of(args, method, alpha, seed)
        config, workdir = config_of(args, method, alpha, seed), args.runs / re.sub(r"[^\w.]+", "_", name)
        run_experiment(config, str(workdir), Where(devices=1))
        with np.load(max((workdir / "samples").glob("[0-9]*.npz"))) as file:
          own = file["x"], file["y"]
        sets[name] = seed, own
        if "yardsticks" not in results.get(name, {}):
          built = build(plan(config))
          found = worth(YARDSTICKS, built.source, built.data, built.key, *own)
          keep(name, "yardsticks", found)
          real = real_name(len(own[1]) // CLASSES, seed)
          if "yardsticks" not in results.get(real, {}):
            spread = {"synthetic": found["within_class_distance"]["real"]}
            keep(real, "yardsticks", found["real"] | {"within_class_distance": spread})
  if args.passes:
    judge_all(args, sets, results, keep)
  print(table(results), summary(results), sep="\n\n")


def judge_all(args: argparse.Namespace, sets: dict, results: dict[str, dict], keep: Callable) -> None:
  """ResNet-10's verdicts on each set, (seed, examples) by name, and on real ones, where they are missing."""
  sets = dict(sets)
  for seed in args.seeds:
    built = build(plan(config_of(args, args.methods[0], args.alphas[0], seed)))
    source, rows = built.source, built.data.train.rows()
    train = np.asarray(built.data.x)[rows], np.asarray(built.data.y)[rows]
    x, y = as_many(np.random.default_rng(seed), train, np.repeat(np.arange(CLASSES), PER_CLASS))
    sets[real_name(PER_CLASS, seed)] = seed, (as_read(x, source.scale), y)
  asked = np.random.default_rng(0).permutation(len(source.y_test))[: args.judged]
  verdict = judge((as_read(source.x_test[asked], source.scale), source.y_test[asked]), args.passes)
  for trial in range(args.judges):
    for name, (seed, own) in sets.items():
      found = results.get(name, {}).get("ResNet-10", {"top1": [], "loss": []})
      if len(found["top1"]) <= trial:
        top, loss = verdict(seed + 100 * trial, own)
        keep(name, "ResNet-10", {"top1": [*found["top1"], top], "loss": [*found["loss"], loss]})


if __name__ == "__main__":
  main()
