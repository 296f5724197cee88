"""Client steps a second of FedJAX (Google), by its own federated averaging.

Runs inside `benchmarks/.envs/fedjax_google` (see `envs.py`; FedJAX 0.0.17 does not run on today's JAX) and
prints one JSON line. Backends: "jit" trains one client after another, one dispatch a batch, and is fastest
where the process is kept on one core (its small products gain nothing from threads); "pmap" trains a client
on each of as many CPU devices as there are cores.

    benchmarks/.envs/fedjax_google/bin/python benchmarks/peers/fedjax_google.py --backend jit --threads 1
"""

import importlib.metadata
import json
import os
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import fedjax
import jax
import numpy as np
import optax
from work import arguments, client_steps


def measure(args, data):
  """Seconds that `args.rounds` rounds take after `args.warmup` rounds, and the parameters at the end."""
  model = fedjax.models.emnist.create_dense_model(only_digits=True, hidden_units=200)  # 784-200-200-10
  with fedjax.for_each_client_backend(args.backend):
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
      fedjax.model_grad(model),
      client_optimizer=fedjax.optimizers.create_optimizer_from_optax(
        optax.chain(optax.add_decayed_weights(args.weight_decay), optax.sgd(args.lr, args.momentum or None))
        if args.momentum or args.weight_decay
        else optax.sgd(args.lr)
      ),
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
  parser = arguments(__doc__, ["two_nn"])
  parser.add_argument("--backend", choices=("jit", "pmap"), default="jit")
  parser.add_argument("--threads", type=int, default=None, help="cores to use; all where not given")
  args = parser.parse_args()
  # Both are read when the first computation starts, which is later.
  cores = sorted(os.sched_getaffinity(0))[: args.threads]
  os.sched_setaffinity(0, cores)
  if args.backend == "pmap":
    flags = f"--xla_force_host_platform_device_count={len(cores)} --xla_cpu_multi_thread_eigen=false"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"

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
  steps = client_steps(args)
  seconds, parameters, finite = measure(args, data)
  line = {
    "peer": "fedjax",
    "version": importlib.metadata.version("fedjax"),
    "jax": jax.__version__,
    "model": args.model,
    "parameters": parameters,
    "steps": steps,
    "client_steps_per_second": steps / seconds,
    "seconds": seconds,
    "backend": args.backend,
    "threads": len(cores),
    "devices": jax.local_device_count(),
    "finite": finite,
  }
  print(json.dumps(line), flush=True)


if __name__ == "__main__":
  main()
