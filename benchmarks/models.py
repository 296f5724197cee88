"""Client steps a second of every convolutional model, beside a plain loop of PyTorch.

    python benchmarks/models.py [--models resnet9 vgg9] [--turns 3] [--out docs/results/models.json]
    python benchmarks/models.py --small --out /tmp/models.json       few steps, to try the script

FedAvg's local training as users run it: a cohort of 4 clients a round on all cores, batches of 10 random
images, plain SGD, one epoch of 6 steps. Ours is one compiled call a turn, compiled before. PyTorch's is
`peers/torch_models.py` in an environment that `peers/envs.py` makes (or --torch PYTHON), three ways: one
thread, a thread a core, and a process a core of one thread each; the fastest counts. Ours and PyTorch's take
turns; medians over the turns are shown. Models are the published ones (torchvision's, timm's, or the
authors'), of as many parameters on both sides, which is checked; VGG-11 has a quarter of the width.
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from pathlib import Path

import fedjax_het as fh

fh.prepare_cpu()

import jax  # noqa: E402
import numpy as np  # noqa: E402
from peers.envs import ensure  # noqa: E402
from provenance import ROOT, provenance  # noqa: E402

COHORT, STEPS, BATCH = 4, 6, 10
CIFAR, TINY = ((32, 32, 3), 10), ((64, 64, 3), 200)
CASES = {  # shape and classes, and options
  "resnet9": (*CIFAR, {}),
  "resnet18": (*TINY, {}),
  "resnet20": (*CIFAR, {}),
  "mobilenet": (*TINY, {}),
  "mobilenet_v2": (*TINY, {}),
  "mobilenet_v3_small": (*TINY, {}),
  "vgg9": ((28, 28, 1), 62, {}),
  "vgg11": (*CIFAR, {"width": 16, "dropout": 0.0}),
  "squeezenet": (*TINY, {}),
  "efficientnet_b0": (*TINY, {"drop_path": 0.0}),
  "efficientnet_lite0": (*TINY, {"dropout": 0.0, "drop_path": 0.0}),
  "mobilevit": (*TINY, {"dropout": 0.0}),
}


class Ours:
  """A model's engine, compiled: steps a second of a turn."""

  def __init__(self, name: str, rounds: int, steps: int):
    shape, classes, options = CASES[name]
    rng, rows, count = np.random.default_rng(0), BATCH * steps, 2 * COHORT
    x, y = rng.integers(0, 256, (rows * count, *shape), np.uint8), rng.integers(0, classes, rows * count)
    parts = np.split(np.arange(rows * count), count)
    data = fh.federate(x, y, parts, jax.random.key(0), num_classes=classes, test_fraction=0.0)
    model = fh.models.make(name, shape, classes, **options)
    self.parameters = fh.models.count_parameters(jax.eval_shape(model.init, jax.random.key(0)))
    client = fh.fedavg(model, epochs=1, batch_size=BATCH, lr=0.01)
    self.engine, self.rounds = fh.Engine(fh.federated(client), data, COHORT), rounds
    started = time.perf_counter()
    self.state, _ = self.engine.advance(self.engine.init(jax.random.key(1)), 1)
    self.compile = time.perf_counter() - started

  def turn(self) -> float:
    started = time.perf_counter()
    self.state, infos = self.engine.advance(self.state, self.rounds)
    return int(infos.clients.steps.sum()) / (time.perf_counter() - started)


def theirs(python: Path, name: str, rounds: int, steps: int, cores: int) -> dict[str, list[dict]]:
  """What each way of using the cores printed."""
  shape, classes, _ = CASES[name]
  script = ROOT / "benchmarks" / "peers" / "torch_models.py"
  command = [
    str(python), str(script), name, f"--shape={','.join(map(str, shape))}", f"--classes={classes}",
    f"--clients={COHORT}", f"--steps={steps}", f"--batch={BATCH}", f"--rounds={rounds}",
  ]  # fmt: skip
  found = {}
  for way, processes, threads in (("one thread", 1, 1), ("threads", 1, cores), ("processes", cores, 1)):
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    started = [
      subprocess.Popen([*command, f"--threads={threads}"], stdout=subprocess.PIPE, text=True, env=env)
      for _ in range(processes)
    ]
    printed = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
      raise SystemExit(f"{' '.join(command)} failed")
    found[way] = [json.loads(text) for text in printed]
  return found


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--models", nargs="*", choices=CASES, default=[*CASES])
  parser.add_argument("--turns", type=int, default=3)
  parser.add_argument("--rounds", type=int, default=4, help="a turn")
  parser.add_argument("--small", action="store_true")
  parser.add_argument("--torch", help="Python of an environment that has PyTorch, torchvision and timm")
  parser.add_argument("--out", default=str(ROOT / "docs" / "results" / "models.json"))
  args = parser.parse_args()
  turns, rounds, steps = (1, 1, 1) if args.small else (args.turns, args.rounds, STEPS)
  python = Path(args.torch) if args.torch else ensure("torch_models")
  cores, rows = os.cpu_count() or 1, {}
  for name in args.models:
    ours = Ours(name, rounds, steps)
    row = {"parameters": ours.parameters, "compile_s": ours.compile, "ours": [], "pytorch": {}}
    for _ in range(turns):
      row["ours"].append(ours.turn())
      for way, printed in theirs(python, name, rounds, steps, cores).items():
        assert all(one["parameters"] == ours.parameters for one in printed), (name, printed, ours.parameters)
        row["pytorch"].setdefault(way, []).append(sum(one["steps_per_second"] for one in printed))
    way, best = max(
      ((way, statistics.median(each)) for way, each in row["pytorch"].items()), key=lambda pair: pair[1]
    )
    own = statistics.median(row["ours"])
    row["ratio"] = own / best
    print(f"{name:20} {own:9.2f} steps/s, PyTorch ({way}) {best:9.2f}: {row['ratio']:.2f}", flush=True)
    rows[name] = row
  record = {**provenance(), "cores": cores, "cohort": COHORT, "steps": steps, "batch": BATCH, "models": rows}
  Path(args.out).write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
  main()
