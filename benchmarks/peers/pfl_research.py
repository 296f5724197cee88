"""Client steps a second of pfl-research (Apple): its FederatedAveraging and SimulatedBackend on PyTorch.

Runs inside `benchmarks/.envs/pfl_research` (see `envs.py`) and prints one JSON line. Every combination of the
settings given is timed one after another in this process and the fastest is the result; the others stay in
"tried".

    benchmarks/.envs/pfl_research/bin/python benchmarks/peers/pfl_research.py --model two_nn \
      --threads 1 2 --optimizers loop fused

pfl-research can also split a cohort over processes: `torchrun --nproc_per_node 2 pfl_research.py ...`.
"""

import functools
import importlib.metadata
import json
import logging

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl_clock import Clock
from torch import nn
from torch_classifiers import CLASSIFIERS, SHAPES
from work import add_ways, arguments, fastest


class Classifier(nn.Sequential):
  """Layers with the two functions that pfl-research asks of a model."""

  def loss(self, x, y):
    return nn.functional.cross_entropy(self(x), y)

  @torch.no_grad()
  def metrics(self, x, y):
    loss = nn.functional.cross_entropy(self(x), y, reduction="sum")
    return {"loss": Weighted(loss.item(), len(y))}


def measure(args, data, threads, optimizer):
  """Seconds that `args.rounds` rounds take after `args.warmup` rounds, and the parameters at the end."""
  torch.set_num_threads(threads)
  np.random.seed(args.seed)  # noqa: NPY002 (what pfl-research samples cohorts with)
  torch.manual_seed(args.seed)
  module = Classifier(*CLASSIFIERS[args.model]())
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
  parser = arguments(__doc__, SHAPES)
  add_ways(parser, "loop")
  args = parser.parse_args()
  logging.disable(logging.WARNING)

  rng = np.random.default_rng(args.seed)
  shape, device = (args.samples, *SHAPES[args.model]), pytorch_ops.get_default_device()

  def on_device(values):
    return torch.from_numpy(values).to(device)

  data = [  # made once: a data set keeps its batches, so that rounds to come find them ready
    PyTorchTensorDataset(
      (on_device(rng.random(shape, np.float32)), on_device(rng.integers(0, 10, args.samples))),
      user_id=str(user),
    )
    for user in range(args.clients)
  ]
  found = fastest(args, functools.partial(measure, args, data))
  context = pytorch_ops.distributed
  if context.global_rank == 0:
    line = {
      "peer": "pfl-research",
      "version": importlib.metadata.version("pfl"),
      "torch": torch.__version__,
      "model": args.model,
      "processes": context.world_size,
      **found,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
  main()
