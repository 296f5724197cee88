"""Times a round of clients of unequal sizes on one device: one at a time, grouped by size, and in lanes.

    taskset -c 0 python benchmarks/speed/lanes_timed.py [--turns 3] [--out docs/results/raw/lanes_timed.json]

The work is TwoNN, one epoch of B = 10 with momentum and weight decay, parameters averaged by the clients'
sizes. All ways take the same steps of the same clients, and the script checks that their averages agree:

  one at a time   a loop over clients without a wasted step, which is what the engine does on a CPU,
  grouped         `--client_batch=n`: n clients of similar size in lockstep, until the longest ends,
  lanes           n clients in lockstep; when one ends, its lane adds the result to its sum and starts the
                  next client, the longest first, from the received parameters.

Sizes are log-normal (σ = 1), a cohort of 20, 30,000 examples in all. Figures are milliseconds a round, the
medians of the turns' best; `steps` counts steps in lockstep, and `ms a step` is that of n clients.
"""

import argparse
import heapq
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import fedjax_het as fh
from benchmarks.provenance import RAW, provenance
from fedjax_het.clients.objective import loss_gradient, momentum_sgd
from fedjax_het.local import Batch

BATCH, COHORT, EXAMPLES, REPEATS = 10, 20, 30_000, 5
PyTree = Any


def queues(steps: np.ndarray, lanes: int) -> list[list[int]]:
  """The clients of each lane in turn, the longest first to whichever is free."""
  ends, found = [(0, lane) for lane in range(lanes)], [[] for _ in range(lanes)]
  for client in np.argsort(-steps):
    end, lane = ends[0]
    heapq.heapreplace(ends, (end + int(steps[client]), lane))
    found[lane].append(int(client))
  return found


class Round:
  """The work of a round, in each way."""

  def __init__(self) -> None:
    rng = np.random.default_rng(0)
    shares = np.exp(rng.normal(size=COHORT))
    self.sizes = np.maximum(1, np.floor(shares / shares.sum() * EXAMPLES)).astype(int)
    self.steps = -(-self.sizes // BATCH)
    self.starts = np.cumsum(self.sizes) - self.sizes
    self.x = jnp.asarray(rng.integers(0, 256, (self.sizes.sum() + BATCH, 28, 28, 1)), jnp.uint8)
    self.y = jnp.asarray(rng.integers(0, 10, len(self.x)), jnp.int32)
    self.model = fh.models.two_nn()
    self.optimizer = momentum_sgd()(1e-3)
    self.first = self.model.init(jax.random.key(0))
    self.shares = (self.sizes / self.sizes.sum()).astype(np.float32)

  def step(self, params: PyTree, momenta: PyTree, client: jax.Array, s: jax.Array) -> tuple[PyTree, PyTree]:
    """Step s of a client; after its last one nothing changes."""
    sizes, starts = jnp.asarray(self.sizes), jnp.asarray(self.starts)
    rows = starts[client] + s * BATCH + jnp.arange(BATCH)
    weight = (s * BATCH + jnp.arange(BATCH) < sizes[client]).astype(jnp.float32)
    batch = Batch(self.x[rows].astype(jnp.float32) / 255, self.y[rows], weight, jax.random.key(0))
    _, gradient, _ = loss_gradient(self.model, params, (), batch)
    updates, momenta = self.optimizer.update(gradient, momenta, params)
    return optax.apply_updates(params, updates), momenta

  def begin(self, lanes: int) -> tuple[PyTree, PyTree]:
    """Parameters and momenta of so many clients."""
    many = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (lanes, *leaf.shape)), self.first)
    return many, jax.vmap(self.optimizer.init)(many)

  def one_at_a_time(self) -> PyTree:
    """A loop over the clients."""

    def client(i: jax.Array, total: PyTree) -> PyTree:
      work = self.first, self.optimizer.init(self.first)
      walked, _ = lax.fori_loop(0, jnp.asarray(self.steps)[i], lambda s, own: self.step(*own, i, s), work)
      return jax.tree.map(lambda all_, own: all_ + jnp.asarray(self.shares)[i] * own, total, walked)

    return lax.fori_loop(0, COHORT, client, jax.tree.map(jnp.zeros_like, self.first))

  def grouped(self, lanes: int) -> PyTree:
    """Groups of similar size, each until its longest client ends."""
    order = np.argsort(-self.steps)
    filled = np.pad(order, (0, -COHORT % lanes), mode="edge").reshape(-1, lanes)
    weights = np.where(np.arange(filled.size) < COHORT, self.shares[filled.ravel()], 0).reshape(filled.shape)
    steps = jnp.asarray(self.steps)

    def group(g: jax.Array, total: PyTree) -> PyTree:
      clients = jnp.asarray(filled)[g]

      def lockstep(s: jax.Array, work: PyTree) -> PyTree:
        def own(params, momenta, client):
          after = self.step(params, momenta, client, s)
          return jax.tree.map(lambda a, b: jnp.where(s < steps[client], a, b), after, (params, momenta))

        return jax.vmap(own)(*work, clients)

      walked, _ = lax.fori_loop(0, steps[clients].max(), lockstep, self.begin(lanes))
      own = jnp.asarray(weights, jnp.float32)[g]
      return jax.tree.map(lambda all_, some: all_ + jnp.tensordot(own, some, 1), total, walked)

    return lax.fori_loop(0, len(filled), group, jax.tree.map(jnp.zeros_like, self.first))

  def lanes(self, lanes: int) -> PyTree:
    """Lanes that pick up the next client."""
    lists = queues(self.steps, lanes)
    length = max(int(self.steps[own].sum()) for own in lists)
    client, s, last = (np.zeros((length, lanes), int) for _ in range(3))
    for lane, own in enumerate(lists):
      t = 0
      for k in own:
        client[t : t + self.steps[k], lane], s[t : t + self.steps[k], lane] = k, np.arange(self.steps[k])
        t += int(self.steps[k])
        last[t - 1, lane] = 1
    plan = tuple(jnp.asarray(own) for own in (client, s, last))
    fresh = self.begin(lanes)

    def lockstep(t: jax.Array, carry: PyTree) -> PyTree:
      work, total = carry
      clients, steps, ends = (own[t] for own in plan)
      work = jax.vmap(self.step)(*work, clients, steps)

      def pick_up(work: PyTree, total: PyTree) -> tuple[PyTree, PyTree]:
        own = ends * jnp.asarray(self.shares)[clients]
        total = jax.tree.map(lambda all_, some: all_ + jnp.tensordot(own, some, 1), total, work[0])
        anew = jax.tree.map(
          lambda some, new: jnp.where(ends.reshape(-1, *[1] * (some.ndim - 1)) == 1, new, some), work, fresh
        )
        return anew, total

      return lax.cond(ends.any(), pick_up, lambda *same: same, work, total)

    zeros = jax.tree.map(jnp.zeros_like, self.first)
    return lax.fori_loop(0, length, lockstep, (fresh, zeros))[1]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--turns", type=int, default=3)
  parser.add_argument("--out", type=Path, default=RAW / "lanes_timed.json")
  args = parser.parse_args()
  work = Round()
  total, longest = int(work.steps.sum()), -np.sort(-work.steps)
  ways: dict[str, tuple[int, Callable[[], PyTree]]] = {"one at a time": (total, work.one_at_a_time)}
  for n in (4, 10):
    lockstep = int(sum(longest[i] for i in range(0, COHORT, n)))
    ways[f"{n} grouped"] = lockstep, lambda n=n: work.grouped(n)
    lane = max(int(work.steps[own].sum()) for own in queues(work.steps, n))
    ways[f"{n} lanes"] = lane, lambda n=n: work.lanes(n)
  programs = {name: jax.jit(way) for name, (_, way) in ways.items()}
  found = {name: jax.block_until_ready(program()) for name, program in programs.items()}
  for own in found.values():
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), own, found["one at a time"])
  best: dict[str, list[float]] = {name: [] for name in ways}
  for _ in range(args.turns):
    for name, program in programs.items():
      took = []
      for _ in range(REPEATS):
        started = time.perf_counter()
        jax.block_until_ready(program())
        took.append(1000 * (time.perf_counter() - started))
      best[name].append(round(min(took), 2))
  rows = {
    name: {"steps": ways[name][0], "ms": own, "ms a step": round(statistics.median(own) / ways[name][0], 4)}
    for name, own in best.items()
  }
  print("| | steps in lockstep | ms a round | ms a step |\n|---|---|---|---|")
  for name, row in rows.items():
    print(f"| {name} | {row['steps']:,} | {statistics.median(row['ms']):.0f} | {row['ms a step']:.3f} |")
  args.out.write_text(json.dumps(provenance() | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
  main()
