"""Measures one run of the library: client steps a second, seconds to start, share of the peak.

    python benchmarks/speed/ours.py --model two_nn --algorithm fedavg    steps a second, as one JSON line
    python benchmarks/speed/ours.py --model two_cnn --peak               also the matrix product's peak
    python benchmarks/speed/ours.py --start --cache DIR                  seconds until two rounds are done

speed.py and before_after.py start this script in a process for each run. It uses one CPU device a core unless
--devices says otherwise.
"""

import json
import os
import time
from functools import partial

from benchmarks.peers.work import arguments, client_steps

IMAGE = {"two_nn": (28, 28, 1), "two_nn_64": (28, 28, 1), "two_cnn": (32, 32, 3)}
ALGORITHMS = ("fedavg", "superfed_mm", "superfed_lm")


def layers(model: str) -> list[tuple[int, int, int]]:
  """(m, k, n) of one example's matrix products, m x k by k x n: positions, receptive field, outputs."""
  if model.startswith("two_nn"):
    width = 64 if model == "two_nn_64" else 200
    return [(1, 784, width), (1, width, width), (1, width, 10)]
  # 32 -conv5, padding 1-> 30 -pool2, padding 1-> 16 -conv5, padding 1-> 14 -pool-> 8 -adaptive-> 7
  return [(30 * 30, 25 * 3, 32), (14 * 14, 25 * 32, 64), (1, 7 * 7 * 64, 512), (1, 512, 10)]


def flops_per_step(model: str, batch: int) -> int:
  """Multiplications and additions that one SGD step needs, whatever way it is computed.

  A layer's forward product is 2 B m k n; its weights' gradient and its input's gradient are as much each,
  and the first layer needs no gradient of its input: 2 B (3 Σ m k n - m₁ k₁ n₁). Biases, ReLU, pooling, loss
  and update (under 1 %) are left out.
  """
  products = [m * k * n for m, k, n in layers(model)]
  return 2 * batch * (3 * sum(products) - products[0])


def matmul_peak(size: int = 2048, repeats: int = 12) -> float:
  """FLOP/s of float32 products [size, size]: the best of one over all cores and of one on each device."""
  import jax
  import jax.numpy as jnp
  from jax.sharding import NamedSharding
  from jax.sharding import PartitionSpec as P

  from fedjax_het.engine.placement import AXIS, client_mesh

  mesh = client_mesh()
  one = jax.random.normal(jax.random.key(0), (1, size, size))
  each = jax.device_put(jnp.repeat(one, mesh.size, axis=0), NamedSharding(mesh, P(AXIS)))
  best = 0.0
  for a in (one, each):
    product = jax.jit(lambda a: a @ a)
    jax.block_until_ready(product(a))
    for _ in range(repeats):
      start = time.perf_counter()
      jax.block_until_ready(product(a))
      best = max(best, a.shape[0] * 2 * size**3 / (time.perf_counter() - start))
  return best


def make_engine(args):
  """(engine, key) of the benchmark's work."""
  import jax
  import numpy as np

  from fedjax_het import models
  from fedjax_het.clients.sgd import fedavg
  from fedjax_het.clients.superfed import superfed
  from fedjax_het.data.federate import federate
  from fedjax_het.engine.engine import Engine
  from fedjax_het.federated import federated

  make = {"two_nn": models.two_nn, "two_nn_64": partial(models.two_nn, hidden=64), "two_cnn": models.two_cnn}
  model = make[args.model](IMAGE[args.model])
  settings = dict(
    lr=args.lr, epochs=args.epochs, batch_size=args.batch, momentum=args.momentum,
    weight_decay=args.weight_decay,
  )  # fmt: skip
  if args.algorithm == "fedavg":
    client = fedavg(model, **settings)
  else:
    granularity = {"superfed_mm": "model", "superfed_lm": "layer"}[args.algorithm]
    client = superfed(model, granularity=granularity, **settings)  # λ drawn from the first round on
  rng = np.random.default_rng(args.seed)
  count = args.clients * args.samples
  data = federate(
    rng.integers(0, 256, (count, *IMAGE[args.model]), np.uint8),
    rng.integers(0, 10, count),
    np.split(np.arange(count), args.clients),
    jax.random.key(args.seed),
    num_classes=10,
    test_fraction=0.0,
  )
  return Engine(federated(client), data, args.cohort, client_batch=args.client_batch), jax.random.key(
    args.seed
  )


def speed(args) -> dict:
  """Times `args.rounds` rounds in one chunk, after `args.warmup` rounds by the same compiled program."""
  import jax
  import numpy as np

  from fedjax_het.models import count_parameters

  engine, key = make_engine(args)
  state, _ = engine.advance(engine.init(key), args.warmup)
  start = time.perf_counter()
  state, infos = engine.advance(state, args.rounds)
  seconds = time.perf_counter() - start
  steps = int(infos.clients.steps.sum())
  expected = client_steps(args)
  if steps != expected:
    raise SystemExit(f"The engine reports {steps} client steps, the work is {expected}.")
  rate = steps / seconds
  line = {
    "algorithm": args.algorithm,
    "model": args.model,
    "parameters": count_parameters(state.broadcast.params),
    "client_steps_per_second": rate,
    "seconds": seconds,
    "steps": steps,
    "compile_seconds": engine.seconds.compile,
    "finite": bool(np.isfinite(infos.clients.loss).all()),
    "devices": jax.local_device_count(),
    "threads": len(os.sched_getaffinity(0)),
  }
  if args.peak:
    peak = matmul_peak()
    flops = flops_per_step(args.model, args.batch)
    line |= {"flops_per_step": flops, "matmul_peak_flops": peak, "share_of_peak": flops * rate / peak}
  return line


def start(args) -> dict:
  """Seconds until a process has compiled the run and finished its first two rounds."""
  engine, key = make_engine(args)
  engine.advance(engine.init(key), 2)
  line = {"algorithm": args.algorithm, "model": args.model, "compile_seconds": engine.seconds.compile}
  if args.started is not None:
    line["ready_seconds"] = time.time() - args.started
  return line


def main():
  parser = arguments(__doc__, IMAGE, rounds=40)
  parser.add_argument("--algorithm", choices=ALGORITHMS, default="fedavg")
  parser.add_argument("--devices", type=int, default=len(os.sched_getaffinity(0)), help="CPU devices")
  parser.add_argument("--client-batch", type=int, default=None, help="clients a device trains at once")
  parser.add_argument("--peak", action="store_true", help="also measure the matrix product's peak")
  parser.add_argument("--start", action="store_true", help="measure the start instead of the speed")
  parser.add_argument("--cache", help="folder of JAX's persistent compilation cache")
  parser.add_argument("--started", type=float, help="time.time() when this process was started")
  args = parser.parse_args()

  os.environ.setdefault("JAX_PLATFORMS", "cpu")
  import jax

  from fedjax_het.engine.cpu import prepare_cpu

  prepare_cpu(args.devices)
  if args.cache:
    jax.config.update("jax_compilation_cache_dir", args.cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
  line = start(args) if args.start else speed(args)
  print(json.dumps({"peer": "fedjax_het", "jax": jax.__version__} | line), flush=True)


if __name__ == "__main__":
  main()
