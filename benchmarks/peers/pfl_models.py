"""Client steps a second of a PyTorch model in pfl-research, as a line of JSON; called by `models.py`.

    benchmarks/.envs/torch_models/bin/python benchmarks/peers/pfl_models.py NAME --shape 32,32,3 \
      --classes 10 --clients 4 --steps 6 --batch 10 --rounds 2 --threads 1

Its FederatedAveraging and SimulatedBackend; the models and the work are those of `torch_models.py`. All
clients of a round are a cohort, examples are tensors made once, and metrics are asked for before round 0
alone. With `torchrun --nproc_per_node 2` a cohort is split over processes.
"""

import functools
import json
import logging

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
from torch_models import MODELS, arguments, drawn

WARMUP = 2  # rounds before the clock starts


class Classifier(nn.Module):
  """A model with the two functions that pfl-research asks of one; texts come as three tensors and labels."""

  def __init__(self, model):
    super().__init__()
    self.model = model

  def losses(self, *batch, reduction):
    *x, y = batch
    x = x[0] if len(x) == 1 else dict(zip(("tokens", "mask", "types"), x))
    logits = self.model(x).flatten(0, -2)
    return nn.functional.cross_entropy(logits, y.flatten(), reduction=reduction)

  def loss(self, *batch):
    return self.losses(*batch, reduction="mean")

  @torch.no_grad()
  def metrics(self, *batch):
    return {"loss": Weighted(self.losses(*batch, reduction="sum").item(), batch[-1].numel())}


def main():
  args = arguments(__doc__).parse_args()
  logging.disable(logging.WARNING)
  torch.set_num_threads(args.threads)
  torch.manual_seed(0)
  module = Classifier(MODELS[args.name](args.classes).train())
  count = args.steps * args.batch
  every = args.shape if args.every else ()

  def client(user):
    x = drawn(args.kind, (count,), args.shape, args.vocabulary)
    own = [*x.values()] if isinstance(x, dict) else [x]
    return PyTorchTensorDataset((*own, torch.randint(args.classes, (count, *every))), user_id=str(user))

  data = [client(user) for user in range(args.clients)]
  dataset = FederatedDataset(data.__getitem__, get_user_sampler("minimize_reuse", list(range(args.clients))))
  model = PyTorchModel(
    module,
    local_optimizer_create=functools.partial(torch.optim.SGD, momentum=0.9, weight_decay=1e-4, fused=True),
    central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
  )
  clock = Clock()
  FederatedAveraging().run(
    NNAlgorithmParams(
      central_num_iterations=WARMUP + args.rounds,
      evaluation_frequency=WARMUP + args.rounds + 1,
      train_cohort_size=args.clients,
      val_cohort_size=0,
    ),
    SimulatedBackend(training_data=dataset, val_data=dataset),
    model,
    NNTrainHyperParams(local_batch_size=args.batch, local_num_epochs=1, local_learning_rate=0.01),
    NNEvalHyperParams(local_batch_size=None),
    callbacks=[clock],
    send_metrics_to_platform=False,
  )
  if pytorch_ops.distributed.global_rank == 0:
    seconds = clock.times[-1] - clock.times[WARMUP - 1]
    parameters = sum(value.numel() for value in module.parameters())
    steps = args.rounds * args.clients * args.steps
    print(json.dumps({"steps_per_second": steps / seconds, "parameters": parameters}), flush=True)


if __name__ == "__main__":
  main()
