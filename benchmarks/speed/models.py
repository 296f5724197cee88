"""Measures client steps a second of every model, beside a plain loop of PyTorch and pfl-research.

    python benchmarks/speed/models.py [--models resnet9 vgg9] [--turns 3]
      [--out docs/results/raw/models.json]
    python benchmarks/speed/models.py --table                            prints the rows of --out as Markdown
    python benchmarks/speed/models.py --small --out /tmp/models.json     few steps, to try the script

The work is FedAvg's local training as users run it: a cohort of 4 clients a round on all cores, batches of 10
random examples, SGD with momentum 0.9 and weight decay 1e-4 (PyTorch's is fused), one epoch of 6 steps. The
library's turn is one call that was compiled before. PyTorch runs peers/torch_models.py in an environment that
peers/envs.py makes (or --torch PYTHON), in three ways: one thread, a thread a core, and a process a core with
one thread each, whose rates are added though nothing is averaged between them. pfl-research runs
peers/pfl_models.py in the same three ways, and its processes share a cohort. The fastest way of a peer
counts. All take turns; medians over the turns and of the turns' ratios are shown. Models are the published
ones (torchvision's, timm's, transformers', or the authors'), and the script checks that both sides have the
same number of parameters; VGG-11 has a quarter of the width, text encoders have two layers of 128. Rows of
other models in the file stay. Each row has its commit, date and machine, and how busy other processes kept
it.
"""

import argparse
import json
import os
import statistics
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import fedjax_het as fh

fh.prepare_cpu()

import jax  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.peers.envs import ensure  # noqa: E402
from benchmarks.provenance import RAW, ROOT, provenance  # noqa: E402
from benchmarks.speed.speed import busy  # noqa: E402

COHORT, STEPS, BATCH = 4, 6, 10
PEERS = {"pytorch": "torch_models.py", "pfl_research": "pfl_models.py"}
SGD = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}  # the papers', and of peers/torch_models.py


class DoesNotRun(RuntimeError):
  """A peer ended with an error."""


class Case(NamedTuple):
  """A model, and the examples that it is given.

  Attributes:
    shape: of one example.
    classes: number of labels.
    options: of the model.
    kind: "images", "series", "tokens", or "texts", which have several arrays of the shape.
    vocabulary: number of tokens.
    name: of the model, where the row's is another.
  """

  shape: tuple[int, ...]
  classes: int
  options: Mapping[str, Any] = MappingProxyType({})
  kind: str = "images"
  vocabulary: int = 0
  name: str = ""

  @property
  def every(self) -> bool:
    """Whether every position has a label."""
    return self.options.get("positions") == "every"


CIFAR, TINY, TEXT = ((32, 32, 3), 10), ((64, 64, 3), 200), ((64,), 3)
ENCODER = {"width": 128, "layers": 2, "heads": 2, "dropout": 0.0}
WORDS = {"vocabulary": 10_000, "embedding": 200, "positions": "every"}
CASES = {
  "two_nn": Case((28, 28, 1), 10),
  "two_cnn": Case(*CIFAR),
  "simple_cnn": Case(*CIFAR),
  "leaf_cnn": Case((84, 84, 3), 10),
  "femnist_cnn": Case((28, 28, 1), 62),
  "resnet9": Case(*CIFAR),
  "resnet18": Case(*TINY),
  "resnet20": Case(*CIFAR),
  "mobilenet": Case(*TINY),
  "mobilenet_v2": Case(*TINY),
  "mobilenet_v3_small": Case(*TINY),
  "vgg9": Case((28, 28, 1), 62),
  "vgg11": Case(*CIFAR, {"width": 16, "dropout": 0.0}),
  "squeezenet": Case(*TINY),
  "efficientnet_b0": Case(*TINY, {"drop_path": 0.0}),
  "efficientnet_lite0": Case(*TINY, {"dropout": 0.0, "drop_path": 0.0}),
  "mobilevit": Case(*TINY, {"dropout": 0.0}),
  "m5": Case((16_000,), 35, kind="series"),
  "stacked_lstm": Case((80,), 80, kind="tokens", vocabulary=80),
  "stacked_lstm_words": Case((10,), 10_000, WORDS, "tokens", 10_000, "stacked_lstm"),
  "bert": Case(*TEXT, ENCODER, "texts", 30_522),
  "distilbert": Case(*TEXT, ENCODER, "texts", 30_522),
}


def drawn(case: Case, count: int) -> tuple[Any, np.ndarray, Any]:
  """So many random examples and labels, and the shape of an example as the model wants it."""
  rng = np.random.default_rng(0)
  y = rng.integers(0, case.classes, (count, *(case.shape if case.every else ())), np.int32)
  if case.kind == "images":
    return rng.integers(0, 256, (count, *case.shape), np.uint8), y, case.shape
  if case.kind == "series":
    return rng.normal(size=(count, *case.shape)).astype(np.float32), y, case.shape
  tokens = rng.integers(1, case.vocabulary, (count, *case.shape), np.int32)
  if case.kind == "tokens":
    return tokens, y, case.shape
  texts = {"tokens": tokens, "mask": np.ones_like(tokens), "types": np.zeros_like(tokens)}
  return texts, y, {name: case.shape for name in texts}


class Ours:
  """A model's engine, compiled: steps a second of a turn."""

  def __init__(self, name: str, rounds: int, steps: int):
    case, count = CASES[name], 2 * COHORT
    x, y, shape = drawn(case, BATCH * steps * count)
    parts = np.split(np.arange(len(y)), count)
    task = fh.tasks.next_token() if case.every else None
    data = fh.federate(
      x, y, parts, jax.random.key(0), num_classes=case.classes, task=task, test_fraction=0.0
    )  # fmt: skip
    model = fh.models.make(case.name or name, shape, case.classes, **case.options)
    assert isinstance(model, fh.models.Model)
    model = model if task is None else model._replace(task=task)
    self.parameters = fh.models.count_parameters(jax.eval_shape(model.init, jax.random.key(0)))
    client = fh.fedavg(model, epochs=1, batch_size=BATCH, **SGD)
    self.engine, self.rounds = fh.Engine(fh.federated(client), data, COHORT), rounds
    started = time.perf_counter()
    self.state, _ = self.engine.advance(self.engine.init(jax.random.key(1)), 1)
    self.compile = time.perf_counter() - started

  def turn(self) -> float:
    started = time.perf_counter()
    self.state, infos = self.engine.advance(self.state, self.rounds)
    return int(infos.clients.steps.sum()) / (time.perf_counter() - started)


def theirs(
  python: Path, script: str, name: str, rounds: int, steps: int, cores: int
) -> dict[str, list[dict]]:
  """What a script of `peers` printed for each way of using the cores.

  Raises:
    DoesNotRun: the peer does not take the model.
  """
  case = CASES[name]
  own = [
    str(ROOT / "benchmarks" / "peers" / script), name, f"--shape={','.join(map(str, case.shape))}",
    f"--classes={case.classes}", f"--clients={COHORT}", f"--steps={steps}", f"--batch={BATCH}",
    f"--rounds={rounds}", f"--kind={case.kind}", f"--vocabulary={case.vocabulary}",
    *(["--every"] if case.every else []),
  ]  # fmt: skip
  found = {}
  for way, processes, threads in (("one thread", 1, 1), ("threads", 1, cores), ("processes", cores, 1)):
    command = [str(python), *own, f"--threads={threads}"]
    if script == "pfl_models.py" and processes > 1:  # they share a cohort
      torchrun = ["-m", "torch.distributed.run", "--nproc_per_node", str(processes)]
      command, processes = [str(python), *torchrun, *command[1:]], 1
    env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    started = [
      subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
      for _ in range(processes)
    ]
    printed = [process.communicate() for process in started]
    if any(process.returncode for process in started):
      raise DoesNotRun(f"{' '.join(command)}: {printed[0][1].strip().splitlines()[-1]}")
    found[way] = [json.loads(text.splitlines()[-1]) for text, _ in printed]
  return found


def measured(python: Path, name: str, turns: int, rounds: int, steps: int) -> dict[str, Any]:
  """A model's row."""
  cores, others = os.cpu_count() or 1, busy()
  ours = Ours(name, rounds, steps)
  work = {"cores": cores, "cohort": COHORT, "steps": steps, "batch": BATCH, "rounds": rounds, **SGD}
  rates: list[float] = []
  peers: dict[str, dict[str, list[float]]] = {peer: {} for peer in PEERS}
  refused: dict[str, str] = {}
  for _ in range(turns):
    rates.append(ours.turn())
    for peer, script in PEERS.items():
      try:
        found = theirs(python, script, name, rounds, steps, cores) if peer not in refused else {}
      except DoesNotRun as error:
        if peer == "pytorch":
          raise
        refused[peer], found = str(error), {}
      for way, printed in found.items():
        assert all(one["parameters"] == ours.parameters for one in printed), (name, printed, ours.parameters)
        peers[peer].setdefault(way, []).append(sum(one["steps_per_second"] for one in printed))
  row = {
    **provenance(), "work": work, "busy_before": others, "parameters": ours.parameters,
    "compile_s": ours.compile, "ours": rates, **peers, "refused": refused,
  }  # fmt: skip
  best, ratios = against(row, "pytorch")
  return row | {"fastest": best, "ratios": ratios, "ratio": statistics.median(ratios)}


def against(row: dict[str, Any], peer: str) -> tuple[str, list[float]]:
  """A peer's fastest way, and the turns' ratios over it; nothing where it was not measured."""
  ways = row.get(peer) or {}
  if not ways:
    return "", []
  best = max(ways, key=lambda way: statistics.median(ways[way]))
  return best, [own / other for own, other in zip(row["ours"], ways[best])]


def table(rows: dict[str, dict[str, Any]]) -> str:
  """The rows as Markdown, the slowest beside PyTorch first."""
  columns = ["", "steps a second", "range", "PyTorch", "ratio", "range", "over pfl-research", "range"]
  lines = [f"| {' | '.join([*columns, 'compile, s'])} |", "|---" * (len(columns) + 1) + "|"]
  for name, row in sorted(rows.items(), key=lambda pair: pair[1]["ratio"]):
    own = sorted(row["ours"])
    cells = [f"`{name}`", f"{statistics.median(own):.1f}", f"{own[0]:.1f} – {own[-1]:.1f}"]
    cells.append(f"{statistics.median(row['pytorch'][row['fastest']]):.1f}, {row['fastest']}")
    for peer in PEERS:
      ratios = sorted(against(row, peer)[1])
      cells += (
        [f"{statistics.median(ratios):.2f}", f"{ratios[0]:.2f} – {ratios[-1]:.2f}"] if ratios else ["", ""]
      )
    lines.append(f"| {' | '.join([*cells, format(row['compile_s'], '.0f')])} |")
  return "\n".join(lines)


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--models", nargs="*", choices=CASES, default=[*CASES])
  parser.add_argument("--turns", type=int, default=3)
  parser.add_argument("--rounds", type=int, default=4, help="a turn")
  parser.add_argument("--small", action="store_true")
  parser.add_argument("--table", action="store_true", help="measure nothing, show what --out holds")
  parser.add_argument(
    "--torch", help="Python of an environment that has PyTorch, torchvision, timm and transformers"
  )
  parser.add_argument("--out", type=Path, default=RAW / "models.json")
  args = parser.parse_args()
  rows: dict[str, dict[str, Any]] = json.loads(args.out.read_text())["models"] if args.out.exists() else {}
  if args.table:
    print(table(rows))
    return
  turns, rounds, steps = (1, 1, 1) if args.small else (args.turns, args.rounds, STEPS)
  python = Path(args.torch) if args.torch else ensure("torch_models")
  for name in args.models:
    row = rows[name] = measured(python, name, turns, rounds, steps)
    text = f"{statistics.median(row['ours']):9.2f} steps/s, PyTorch ({row['fastest']}), ratio"
    print(f"{name:20} {text} {row['ratio']:.2f}", flush=True)
    args.out.write_text(json.dumps({"models": rows}, indent=1) + "\n")


if __name__ == "__main__":
  main()
