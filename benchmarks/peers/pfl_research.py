"""Client steps a second of pfl-research (Apple): its FederatedAveraging and SimulatedBackend on PyTorch.

Runs inside `.envs/pfl_research` (see `envs.py`) and prints one JSON line. Every combination of the settings
given is timed one after another in this process and the fastest is the result; the others stay in "tried".

    .envs/pfl_research/bin/python peers/pfl_research.py --model two_nn --threads 1 2 --optimizers loop fused

pfl-research can also split a cohort over processes: `torchrun --nproc_per_node 2 pfl_research.py ...`.
"""

import argparse
import functools
import importlib.metadata
import itertools
import json
import logging
import time

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn

SHAPES = {"two_nn": (1, 28, 28), "two_cnn": (3, 32, 32), "small_cnn": (3, 32, 32)}


class Classifier(nn.Sequential):
  """Layers with the two functions that pfl-research asks of a model."""

  def loss(self, x, y):
    return nn.functional.cross_entropy(self(x), y)

  @torch.no_grad()
  def metrics(self, x, y):
    loss = nn.functional.cross_entropy(self(x), y, reduction="sum")
    return {"loss": Weighted(loss.item(), len(y))}


def two_nn():
  """784-200-200-10 with ReLU; 199,210 parameters."""
  return Classifier(
    nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
  )


def two_cnn():
  """Two 5 x 5 convolutions and two dense layers; 1,664,970 parameters on 32 x 32 x 3.

  ReLU follows the maximum, with which it commutes: the cheaper order, the same function.
  """
  return Classifier(
    nn.Conv2d(3, 32, 5, padding=1), nn.MaxPool2d(2, padding=1), nn.ReLU(),
    nn.Conv2d(32, 64, 5, padding=1), nn.MaxPool2d(2, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10),
  )  # fmt: skip


def small_cnn():
  """The small CNN of pfl-research's CIFAR-10 benchmark, without its dropout."""
  return Classifier(
    nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(14 * 14 * 64, 128), nn.ReLU(), nn.Linear(128, 10),
  )  # fmt: skip


class Clock(TrainingProcessCallback):
  """Reads the clock after every round."""

  def __init__(self):
    self.times = []

  def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
    self.times.append(time.perf_counter())
    return False, Metrics()


def measure(args, data, threads, optimizer):
  """Seconds that `args.rounds` rounds take after `args.warmup` rounds, and the parameters at the end."""
  torch.set_num_threads(threads)
  np.random.seed(args.seed)  # noqa: NPY002 (what pfl-research samples cohorts with)
  torch.manual_seed(args.seed)
  module = {"two_nn": two_nn, "two_cnn": two_cnn, "small_cnn": small_cnn}[args.model]()
  model = PyTorchModel(
    module,
    local_optimizer_create=functools.partial(
      torch.optim.SGD, momentum=args.momentum, weight_decay=args.weight_decay, fused=optimizer == "fused"
    ),
    central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
  )
  dataset = FederatedDataset(data.__getitem__, get_user_sampler("random", list(range(args.clients))))
  clock = Clock()
  FederatedAveraging().run(
    NNAlgorithmParams(
      central_num_iterations=args.warmup + args.rounds,
      evaluation_frequency=args.warmup + args.rounds + 1,  # only before round 0, which is warm-up
      train_cohort_size=args.cohort,
      val_cohort_size=0,
    ),
    SimulatedBackend(training_data=dataset, val_data=dataset),
    model,
    NNTrainHyperParams(
      local_batch_size=args.batch, local_num_epochs=args.epochs, local_learning_rate=args.lr
    ),
    NNEvalHyperParams(local_batch_size=None),
    callbacks=[clock],
    send_metrics_to_platform=False,
  )
  finite = all(torch.isfinite(p).all().item() for p in module.parameters())
  return clock.times[-1] - clock.times[args.warmup - 1], sum(p.numel() for p in module.parameters()), finite


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--model", choices=sorted(SHAPES), default="two_nn")
  parser.add_argument("--clients", type=int, default=100)
  parser.add_argument("--samples", type=int, default=480)
  parser.add_argument("--cohort", type=int, default=5)
  parser.add_argument("--batch", type=int, default=10)
  parser.add_argument("--epochs", type=int, default=1)
  parser.add_argument("--lr", type=float, default=0.01)
  parser.add_argument("--momentum", type=float, default=0.0)
  parser.add_argument("--weight_decay", type=float, default=0.0)
  parser.add_argument("--rounds", type=int, default=20, help="timed rounds")
  parser.add_argument("--warmup", type=int, default=2, help="rounds before the clock starts, at least 1")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="PyTorch threads to try")
  parser.add_argument("--optimizers", nargs="+", choices=("loop", "fused"), default=["loop"])
  args = parser.parse_args()
  logging.disable(logging.WARNING)

  rng = np.random.default_rng(args.seed)
  shape = (args.samples, *SHAPES[args.model])
  data = [  # made once: a data set keeps its batches, so that rounds to come find them ready
    PyTorchTensorDataset(
      (torch.from_numpy(rng.random(shape, np.float32)), torch.from_numpy(rng.integers(0, 10, args.samples))),
      user_id=str(user),
    )
    for user in range(args.clients)
  ]
  steps = args.rounds * args.cohort * args.epochs * -(-args.samples // args.batch)
  tried = []
  for threads, optimizer in itertools.product(args.threads, args.optimizers):
    seconds, parameters, finite = measure(args, data, threads, optimizer)
    tried.append(
      {
        "client_steps_per_second": steps / seconds,
        "seconds": seconds,
        "threads": threads,
        "optimizer": optimizer,
        "finite": finite,
      }
    )
  best = max(tried, key=lambda row: row["client_steps_per_second"])
  context = pytorch_ops.distributed
  if context.global_rank == 0:
    line = {
      "peer": "pfl-research",
      "version": importlib.metadata.version("pfl"),
      "torch": torch.__version__,
      "model": args.model,
      "parameters": parameters,
      "steps": steps,
      "processes": context.world_size,
      **best,
      "tried": tried,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
  main()
