"""DP-FedAvg beside pfl-research's on the same federation: accuracy of ten seeds, and rounds a second.

    python benchmarks/privacy/pfl_dp.py [--data digits mnist] [--epsilons 1 4] [--data_dir DATA]
      [--out FOLDER]

The federations, rounds, models, batches, momentum (0.9) and weight decay (1e-4) are those of
`accuracy_epsilon.py`; clip, noise multiplier and learning rate of an ε are those that its raw file has
for a fixed clip, and it has to be run before. Both here draw cohorts of a fixed size, K / 10, without
replacement, which pfl-research and we have in common (its simulator has no Poisson cohorts), so that ε is
another than there. Both start from the same parameters, clip each update as one vector, add noise of
deviation z C to the sum and divide by the size of the cohort. Cohorts, noise and the orders of a client's
rows are other draws.

Rounds a second are of single runs, without evaluation and compiling, the systems in turns: pfl-research
with one and with two threads, of which the better counts, and ours on as many CPU devices as there are
cores; and ours with the ten seeds as one program, rounds of all seeds together. The page of
`accuracy_epsilon.py` shows the figures; this script writes pfl_dp.json.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_het as fh
from benchmarks.peers.envs import ensure
from benchmarks.privacy.accuracy_epsilon import CLIENTS, SHAPES, federation, on_all
from benchmarks.provenance import PAGES, ROOT, place, provenance
from fedjax_het.data.scale import scale_of
from fedjax_het.engine.batched_runs import Members

SEEDS = tuple(range(1, 11))


def algorithm(name: str, own: dict[str, Any]) -> fh.Algorithm:
  client = fh.fedavg(fh.models.make("logistic_regression", SHAPES[name], 10), lr=own["lr"], epochs=1)
  part = fh.aggregation.gaussian(own["clip"], own["noise_multiplier"])
  return fh.federated(client, fh.mixing.uniform(), aggregation=part)


def engine(name: str, data: fh.data.FederatedData, own: dict[str, Any]) -> Members:
  return Members(lambda: algorithm(name, own), data, {}, len(SEEDS), data.num_clients // 10)


def keys() -> jax.Array:
  return jnp.stack([jax.random.key(seed) for seed in SEEDS])


def exported(name: str, data: fh.data.FederatedData, own: dict[str, Any], file: Path) -> None:
  """Writes rows as float32, client after client, and the first parameters of each seed."""
  start = engine(name, data, own).init(keys()).broadcast.params
  kernel, bias = (next(leaf for leaf in jax.tree.leaves(start) if leaf.ndim == n) for n in (3, 2))
  rows = {part: getattr(data, part).rows() for part in ("train", "test")}
  x, y = np.asarray(data.x), np.asarray(data.y)
  x = x.reshape(len(x), -1).astype(np.float32) * np.float32(scale_of(data.x, data.scale) or 1.0)
  np.savez(
    file, x=x[rows["train"]], y=y[rows["train"]].astype(np.int64), sizes=np.asarray(data.train.size),
    test_x=x[rows["test"]], test_y=y[rows["test"]],
    seeds=np.array(SEEDS), kernels=np.asarray(kernel), biases=np.asarray(bias),
  )  # fmt: skip


def ours(name: str, data: fh.data.FederatedData, own: dict[str, Any], rounds: int) -> dict[str, Any]:
  size, single = data.num_clients // 10, []
  for seed in SEEDS:
    one = fh.Engine(algorithm(name, own), data, size)
    state, _ = one.advance(one.init(jax.random.key(seed)), rounds)  # compiles, too
    jax.block_until_ready(state.broadcast)
    began = time.perf_counter()
    state, _ = one.advance(state, rounds)
    jax.block_until_ready(state.broadcast)
    single.append(rounds / (time.perf_counter() - began))
  together = engine(name, data, own)
  state, _ = together.advance(together.init(keys()), rounds)
  found = on_all(together.evaluate(state, "test"), data, "test")
  began = time.perf_counter()
  state, _ = together.advance(state, rounds)
  jax.block_until_ready(state.broadcast)
  seconds = time.perf_counter() - began
  return {
    "accuracy": [round(float(v), 4) for v in found],
    "rounds_per_second": [round(own_rate, 2) for own_rate in single],
    "rounds_per_second_together": round(len(SEEDS) * rounds / seconds, 2),
    "devices": len(jax.devices()),
  }  # fmt: skip


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data", nargs="+", default=list(CLIENTS), choices=list(CLIENTS))
  parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 4.0])
  parser.add_argument("--data_dir", default="data")
  parser.add_argument("--out", type=Path, default=PAGES, help="the folder of raw/")
  args = parser.parse_args()
  fh.prepare_cpu()
  chosen = json.loads(place(args.out, "accuracy_epsilon.json").read_text())
  path = place(args.out, "pfl_dp.json")
  found = json.loads(path.read_text()) if path.exists() else {}
  python = ensure("pfl_research")
  for name in args.data:
    data = federation(name, CLIENTS[name], args.data_dir)
    for epsilon in args.epsilons:
      key, own = f"{name}:{epsilon:g}", chosen[f"{name}:fixed clip:{epsilon:g}"]
      if key in found:
        continue
      with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "federation.npz"
        exported(name, data, own, file)
        peers = []
        for threads in (1, 2):
          command = [
            str(python), str(ROOT / "benchmarks" / "peers" / "pfl_dp.py"), str(file),
            "--clip", str(own["clip"]), "--noise_multiplier", str(own["noise_multiplier"]),
            "--lr", str(own["lr"]), "--cohort", str(data.num_clients // 10),
            "--rounds", str(own["rounds"]), "--threads", str(threads),
          ]  # fmt: skip
          done = subprocess.run(command, check=True, capture_output=True, text=True)
          peers.append(json.loads(done.stdout.splitlines()[-1]))
      settings = {of: own[of] for of in ("clip", "lr", "noise_multiplier", "rounds", "clients")}
      found[key] = {
        **settings, "pfl": peers, "ours": ours(name, data, own, own["rounds"]), "by": provenance()
      }  # fmt: skip
      path.write_text(json.dumps(found, indent=1) + "\n")
      print(key, json.dumps(found[key]), flush=True)


if __name__ == "__main__":
  main()
