"""Measures memory and time with very many clients, with a state for each (SuPerFed-MM) and without (FedAvg).

    python benchmarks/speed/memory.py [--methods superfed_mm fedavg] [--clients 100 1000 10000]
      [--device_states 64]

The model is TwoNN; a client's state is its 199,210 parameters. Cohort 5, B = 10, one epoch. Each measurement
is a process of its own. Its peak memory is the largest resident set that the operating system reports. With
states on a disk it is the largest part of the resident set that does not belong to files, sampled every 20
ms, since the system takes back pages of files when it likes. The expected memory is that of 100 clients plus,
for each further client, its state once, unless states are on a disk, and its examples, on the host and, if
they are not streamed, on each device. If twice the examples are more, which are needed while they are laid
out, that counts. Results are added to docs/results/raw/memory.json.
"""

import argparse
import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

import fedjax_het as fh
from benchmarks.provenance import RAW, provenance

OUT = RAW / "memory.json"


def federation(clients: int, examples: int) -> fh.data.FederatedData:
  """Random images of 28 x 28, so many a client, all to train on."""
  rng, rows = np.random.default_rng(0), clients * examples
  return fh.federate(
    rng.integers(0, 256, (rows, 28, 28, 1), np.uint8), rng.integers(0, 10, rows),
    np.arange(rows).reshape(clients, examples), jax.random.key(0), num_classes=10, test_fraction=0.0,
  )  # fmt: skip


def measured(method: str, clients: int, args: argparse.Namespace) -> dict:
  """What one process takes."""
  fh.prepare_cpu()
  data = federation(clients, args.examples)
  part = {"superfed_mm": fh.superfed, "fedavg": fh.fedavg}[method]
  client = part(fh.models.two_nn((28, 28, 1)), epochs=1, batch_size=10, lr=0.01)
  held = args.device_states if method == "superfed_mm" else None
  engine = fh.Engine(
    fh.federated(client), data, 5, device_rows=args.device_rows, device_states=held,
    states_folder=args.states_folder,
  )  # fmt: skip
  largest = watched() if args.states_folder else None

  def peak() -> float:
    if largest:
      return largest() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9

  before = peak()
  state = engine.init(jax.random.key(0))
  after_init = peak()
  state, _ = engine.advance(state, args.rounds)
  started = time.perf_counter()
  state, _ = engine.advance(state, args.rounds)
  seconds = time.perf_counter() - started
  return {
    "method": method, "clients": clients, "examples": args.examples, "device_rows": args.device_rows,
    "device_states": held, "on_disk": bool(args.states_folder), "data_gb": data.x.nbytes / 1e9,
    "states_gb": sum(leaf.nbytes for leaf in jax.tree.leaves(state.clients)) / 1e9,
    "peak_before_gb": before, "peak_after_init_gb": after_init, "peak_gb": peak(),
    "milliseconds_a_round": 1e3 * seconds / args.rounds, "devices": engine.mesh.size,
  }  # fmt: skip


def watched() -> Callable[[], int]:
  """A function that gives the largest number of bytes so far of the process's memory that is not of files."""
  seen = [0]

  def look() -> None:
    while True:
      status = Path("/proc/self/status").read_text()
      seen[0] = max(seen[0], int(status.partition("RssAnon:")[2].split()[0]) * 1024)
      time.sleep(0.02)

  threading.Thread(target=look, daemon=True).start()
  return lambda: seen[0]


def setting(row: dict) -> tuple:
  """What was measured: a later figure of the same takes the place of an earlier one."""
  names = "method", "clients", "examples", "device_rows", "device_states", "on_disk", "devices"
  return tuple(row.get(name, False) for name in names)


def expected(row: dict, base: dict) -> float:
  """Peak memory in GB: while the data are laid out, when they are there twice, or in the rounds."""
  copies = 1 + (row["devices"] if row["device_rows"] is None else 0)
  more = {part: row[part] - base[part] for part in ("data_gb", "states_gb")}
  more["states_gb"] *= not row["on_disk"]
  laid_out = base["peak_before_gb"] + 2 * more["data_gb"]
  return max(laid_out, base["peak_gb"] + copies * more["data_gb"] + more["states_gb"])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--methods", nargs="+", default=["superfed_mm", "fedavg"])
  parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000, 10_000])
  parser.add_argument("--examples", type=int, default=40, help="of each client")
  parser.add_argument("--rounds", type=int, default=100)
  parser.add_argument("--device_rows", type=int)
  parser.add_argument("--device_states", type=int)
  parser.add_argument("--states_folder", help="a folder on a disk for the states, with --device_states")
  parser.add_argument("--one", action="store_true", help="measure the first in this process, and print it")
  args = parser.parse_args()
  if args.one:
    print(json.dumps(measured(args.methods[0], args.clients[0], args)))
    return
  rows = json.loads(OUT.read_text())["rows"] if OUT.exists() else []
  for method in args.methods:
    base = None
    for clients in sorted({100, *args.clients}):
      own = [sys.executable, __file__, "--one", "--methods", method, "--clients", str(clients)]
      for name in ("examples", "rounds", "device_rows", "device_states", "states_folder"):
        own += [] if getattr(args, name) is None else [f"--{name}", str(getattr(args, name))]
      row = json.loads(subprocess.run(own, capture_output=True, text=True, check=True).stdout)
      base = base or row
      row |= {"expected_gb": expected(row, base), **provenance()}
      rows = [other for other in rows if setting(other) != setting(row)] + [row]
      print(json.dumps(row), flush=True)
      command = "python benchmarks/speed/memory.py"
      OUT.write_text(json.dumps({"command": command, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
  main()
