"""Measures the time that each mixing part adds to a round, on two cores.

    python benchmarks/speed/mixing_cost.py [--out docs/results/raw/mixing_cost.json]

1. AAggFF-D's update alone with K = 1.5 million clients and a cohort of 1,500.
2. Seconds a round of FedAvg with static mixing, with static mixing that asks for the losses (one forward pass
   over the cohort's training data), and with each other mixing. Clients have 480 random images, batches of
   10 and one epoch of TwoNN. The cohort is all 11 clients of a federation of 11, or 5 of 100. Rounds of the
   kinds take turns.
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
import jax.numpy as jnp  # noqa: E402

from benchmarks.provenance import RAW  # noqa: E402
from fedjax_het.parts import Feedback, Message  # noqa: E402

EXAMPLES, TURNS, ROUNDS = 600, 5, 20


def million_and_a_half() -> dict[str, float]:
  """Milliseconds of AAggFF-D's update, and the bytes that it holds."""
  clients, size = 1_500_000, 1500
  rng = np.random.default_rng(0)
  cohort = jnp.asarray(rng.choice(clients, size, replace=False), jnp.int32)
  part = fh.mixing.aaggff_d("weibull")

  def step(state, losses):
    given = Feedback(cohort, jnp.ones(size), jnp.int32(0), lambda: losses, lambda: Message(()), Message(()))
    return part.update(state, given)

  losses = jnp.asarray(rng.gamma(1.0, size=size), jnp.float32)
  state = part.init(jnp.ones(clients, jnp.int32))
  compiled = jax.jit(step, donate_argnums=0).lower(state, losses).compile()
  times = []
  for _ in range(50):
    started = time.perf_counter()
    _, state = jax.block_until_ready(compiled(state, losses))
    times.append(1e3 * (time.perf_counter() - started))
  memory = compiled.memory_analysis()
  held = memory.temp_size_in_bytes + memory.output_size_in_bytes
  return {"median_ms": float(np.median(times)), "max_ms": max(times[1:]), "bytes_a_client": held / clients}


def federation(num_clients: int) -> fh.data.FederatedData:
  rng = np.random.default_rng(0)
  rows = num_clients * EXAMPLES
  x = rng.integers(0, 256, (rows, 28, 28, 1), dtype=np.uint8)
  parts = np.split(np.arange(rows), num_clients)
  return fh.federate(x, rng.integers(0, 10, rows), parts, jax.random.key(0), num_classes=10)


def rounds(num_clients: int, cohort: int, mixings: dict) -> dict[str, float]:
  """Median milliseconds a round of each mixing."""
  data = federation(num_clients)
  client = fh.fedavg(fh.models.two_nn(), lr=0.01, epochs=1, batch_size=10, momentum=0.0, weight_decay=0.0)
  engines = {name: fh.Engine(fh.federated(client, part), data, cohort) for name, part in mixings.items()}
  states = {name: engine.init(jax.random.key(1)) for name, engine in engines.items()}
  times: dict[str, list[float]] = {name: [] for name in mixings}
  for turn in range(TURNS + 1):
    for name, engine in engines.items():
      started = time.perf_counter()
      states[name], _ = engine.advance(states[name], ROUNDS)
      if turn:
        times[name].append(1e3 * (time.perf_counter() - started) / ROUNDS)
  return {name: float(np.median(values)) for name, values in times.items()}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--out", type=Path, default=RAW / "mixing_cost.json")
  args = parser.parse_args()
  mix = fh.mixing
  common = {
    "static": mix.static(), "static, losses asked": mix.observed(mix.static()), "afl": mix.afl(),
    "qffl": mix.qffl(), "term": mix.term(), "propfair": mix.propfair(), "fedmgda": mix.fedmgda(),
    "aaggff_d": mix.aaggff_d(),
  }  # fmt: skip
  record: dict = {"aaggff_d, K = 1,500,000, S = 1,500": million_and_a_half()}
  print(record, flush=True)
  for num_clients, cohort in ((11, 11), (100, 5)):
    parts = common | ({"aaggff_s": mix.aaggff_s()} if cohort == num_clients else {})
    found = rounds(num_clients, cohort, parts)
    record[f"ms a round, K = {num_clients}, S = {cohort}"] = found
    for name, value in found.items():
      print(
        f"K={num_clients:<4} S={cohort:<3} {name:<22} {value:8.2f} ms a round,"
        f" {value / found['static']:.3f} x static, {value / found['static, losses asked']:.3f} x with losses",
        flush=True,
      )
  record |= {
    "command": "python benchmarks/speed/mixing_cost.py", "date": str(datetime.date.today()),
    "machine": f"{platform.machine()}, {len(jax.devices())} CPU devices", "jax": jax.__version__,
  }  # fmt: skip
  args.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
  main()
