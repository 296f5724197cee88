"""Client steps a second of FedJAX (Google), by its own federated averaging.

Runs inside `.envs/fedjax_google` (see `envs.py`; FedJAX 0.0.17 does not run on today's JAX) and prints one
JSON line. Backends: "jit" trains one client after another, one dispatch a batch; "pmap" trains one client on
each of two CPU devices. Each given one is timed, and the fastest is the result.

    .envs/fedjax_google/bin/python peers/fedjax_google.py --backends jit pmap
"""

import argparse
import importlib.metadata
import json
import os
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import fedjax
import jax
import numpy as np


def measure(args, data, backend):
  """Seconds that `args.rounds` rounds take after `args.warmup` rounds, and the parameters at the end."""
  model = fedjax.models.emnist.create_dense_model(only_digits=True, hidden_units=200)  # 784-200-200-10
  with fedjax.for_each_client_backend(backend):
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
      fedjax.model_grad(model),
      client_optimizer=fedjax.optimizers.sgd(learning_rate=args.lr),
      server_optimizer=fedjax.optimizers.sgd(learning_rate=1.0),
      client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(batch_size=args.batch, num_epochs=args.epochs),
    )
    sampler = fedjax.client_samplers.UniformGetClientSampler(data, args.cohort, seed=args.seed)
    state = algorithm.init(model.init(jax.random.PRNGKey(args.seed)))
    for round_number in range(args.warmup + args.rounds):
      if round_number == args.warmup:
        jax.block_until_ready(state.params)
        start = time.perf_counter()
      sampler.set_round_num(round_number)
      state, _ = algorithm.apply(state, sampler.sample())
    jax.block_until_ready(state.params)
    seconds = time.perf_counter() - start
  leaves = jax.tree_util.tree_leaves(state.params)
  return seconds, sum(leaf.size for leaf in leaves), all(bool(np.isfinite(leaf).all()) for leaf in leaves)


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--model", choices=("two_nn",), default="two_nn")
  parser.add_argument("--clients", type=int, default=100)
  parser.add_argument("--samples", type=int, default=480)
  parser.add_argument("--cohort", type=int, default=5)
  parser.add_argument("--batch", type=int, default=10)
  parser.add_argument("--epochs", type=int, default=1)
  parser.add_argument("--lr", type=float, default=0.01)
  parser.add_argument("--rounds", type=int, default=20, help="timed rounds")
  parser.add_argument("--warmup", type=int, default=2, help="rounds before the clock starts, at least 1")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--backends", nargs="+", choices=("jit", "pmap"), default=["jit"])
  args = parser.parse_args()
  if "pmap" in args.backends:  # read when the first computation starts
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"

  rng = np.random.default_rng(args.seed)
  data = fedjax.InMemoryFederatedData(
    {
      str(client): {
        "x": rng.random((args.samples, 28, 28, 1), np.float32),
        "y": rng.integers(0, 10, args.samples, np.int32),
      }
      for client in range(args.clients)
    }
  )
  steps = args.rounds * args.cohort * args.epochs * -(-args.samples // args.batch)
  tried = []
  for backend in args.backends:
    seconds, parameters, finite = measure(args, data, backend)
    tried.append(
      {"client_steps_per_second": steps / seconds, "seconds": seconds, "backend": backend, "finite": finite}
    )
  line = {
    "peer": "fedjax",
    "version": importlib.metadata.version("fedjax"),
    "jax": jax.__version__,
    "model": args.model,
    "parameters": parameters,
    "steps": steps,
    "threads": len(os.sched_getaffinity(0)),
    "devices": jax.local_device_count(),
    **max(tried, key=lambda row: row["client_steps_per_second"]),
    "tried": tried,
  }
  print(json.dumps(line), flush=True)


if __name__ == "__main__":
  main()
