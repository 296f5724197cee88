"""Evaluates runs with label noise on clean test labels and on test labels with the same noise.

    python benchmarks/papers/noisy_tests.py RUN [RUN ...]

RUN is the workdir of a run with `label_noise`. The script evaluates its last checkpoint as the run does, and
again with the test rows' labels drawn from the same transition by a separate key. SuPerFed's authors evaluate
in the second way, since their code puts noise on all labels before it splits them. Figures are top-1 in
percent, as means over the clients, and are added to docs/results/raw/noisy_tests.json.
"""

import argparse
import dataclasses
import json
from pathlib import Path

import jax
import numpy as np

import fedjax_het as fh
from benchmarks.papers.ended import ended
from benchmarks.provenance import RAW, provenance
from fedjax_het.data.label_noise import LABEL_NOISES, label_noise
from fedjax_het.engine.lambda_selection import Evaluations, pick
from fedjax_het.experiment.build import engine_of
from fedjax_het.program.where import Where


def judged(folder: Path) -> dict[str, float]:
  """Top-1 of the clients' models at the common λ of the clean labels, mean over the clients."""
  config, experiment, engine, state = ended(folder)
  noise = {name: value for name, value in config.label_noise.items() if name != "name"}
  transition = LABEL_NOISES[config.label_noise.name](experiment.data.num_classes, **noise)
  rows, y = experiment.data.test.rows(), np.array(experiment.data.y)
  y[rows] = label_noise(jax.random.key(12), y[rows], transition)
  noisy = experiment._replace(data=dataclasses.replace(experiment.data, y=y))
  clean = engine.evaluate(state)
  column = pick(Evaluations(clean)).column
  other = engine_of(noisy, Where()).evaluate(state)
  return {
    name: 100 * float(np.mean(found.personalized["top1"][:, column]))
    for name, found in (("clean", clean), ("noisy", other))
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("runs", nargs="+", type=Path)
  parser.add_argument("--out", type=Path, default=RAW / "noisy_tests.json")
  args = parser.parse_args()
  fh.prepare_cpu()
  results = json.loads(args.out.read_text())["results"] if args.out.exists() else []
  for folder in args.runs:
    config = json.loads((folder / "config.json").read_text())
    about = {name: config[name] for name in ("dataset", "label_noise", "rounds", "seed")}
    about |= {"algorithm": config["algorithm"]["name"]}
    results = [own for own in results if not about.items() <= own.items()]
    results.append(about | judged(folder) | provenance())
    print(json.dumps(results[-1]), flush=True)
  made = {"command": "python benchmarks/papers/noisy_tests.py RUN ..."}
  args.out.write_text(json.dumps(made | {"results": results}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
  main()
