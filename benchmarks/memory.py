"""Memory and time of SuPerFed with a state for each of many clients.

    python benchmarks/memory.py --clients 10000      one JSON line; run it also with --clients 100

SuPerFed-MM on TwoNN (199,210 parameters a client's state), 40 examples a client, cohort 5, B = 10, one epoch.
Peak memory is the process's resident set at its largest, by the operating system.
"""

import argparse
import json
import resource
import time

import jax
import numpy as np

import fedjax_het as fh


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--clients", type=int, default=10_000)
  parser.add_argument("--rounds", type=int, default=100)
  args = parser.parse_args()
  fh.prepare_cpu()
  rng, each = np.random.default_rng(0), 40
  rows = args.clients * each
  data = fh.federate(
    rng.integers(0, 256, (rows, 28, 28, 1), np.uint8), rng.integers(0, 10, rows),
    np.split(np.arange(rows), args.clients), jax.random.key(0), num_classes=10, test_fraction=0.0,
  )  # fmt: skip
  client = fh.superfed(fh.models.two_nn((28, 28, 1)), epochs=1, batch_size=10, lr=0.01)
  engine = fh.Engine(fh.federated(client), data, 5)

  def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9

  before = peak()
  state = engine.init(jax.random.key(0))
  after_init = peak()
  state, _ = engine.advance(state, args.rounds)
  started = time.perf_counter()
  state, _ = engine.advance(state, args.rounds)
  seconds = time.perf_counter() - started
  states = sum(leaf.nbytes for leaf in jax.tree.leaves(state.clients)) / 1e9
  print(
    json.dumps(
      {
        "clients": args.clients,
        "data_gb": data.x.nbytes / 1e9,
        "states_gb": states,
        "peak_before_gb": before,
        "peak_after_init_gb": after_init,
        "peak_gb": peak(),
        "milliseconds_a_round": 1e3 * seconds / args.rounds,
        "devices": engine.mesh.size,
      }
    )
  )


if __name__ == "__main__":
  main()
