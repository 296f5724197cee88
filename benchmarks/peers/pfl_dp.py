"""DP-FedAvg of pfl-research (Apple) on a federation in a file: accuracy and rounds a second.

Runs inside `benchmarks/.envs/pfl_research`; `benchmarks/privacy/pfl_dp.py` starts it and describes the
file. Its own simulator, clip and noise: `SimulatedBackend` with a `CentrallyAppliedPrivacyMechanism` of a
`GaussianMechanism`, whose clip is of each user's update and whose noise is added to their sum. Prints one
JSON line: the accuracy of the model of each seed on all test rows, and each seed's rounds a second after
the first two rounds.

    benchmarks/.envs/pfl_research/bin/python benchmarks/peers/pfl_dp.py FILE.npz --clip 0.3 \
      --noise_multiplier 1.2 --lr 0.1
"""

import argparse
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
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from pfl_clock import Clock
from torch import nn

WARM_UP = 2


class LogisticRegression(nn.Linear):
  """A dense layer with the two functions that pfl-research asks of a model."""

  def loss(self, x, y):
    return nn.functional.cross_entropy(self(x), y)

  @torch.no_grad()
  def metrics(self, x, y):
    return {"loss": Weighted(nn.functional.cross_entropy(self(x), y, reduction="sum").item(), len(y))}


def cohorts(clients, size, rng):
  """A sampler of users whose every `size` draws are distinct."""
  while True:
    yield from rng.choice(clients, size, replace=False)


def run(args, data, users, start, seed):
  """The accuracy on all test rows, and rounds a second."""
  np.random.seed(seed)  # noqa: NPY002 (what pfl-research draws with)
  torch.manual_seed(seed)
  module = LogisticRegression(data["x"].shape[1], 10)
  with torch.no_grad():
    module.weight.copy_(torch.from_numpy(start[0].T))
    module.bias.copy_(torch.from_numpy(start[1]))
  model = PyTorchModel(
    module,
    local_optimizer_create=functools.partial(
      torch.optim.SGD, momentum=args.momentum, weight_decay=args.weight_decay
    ),
    central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
  )
  draws = cohorts(len(users), args.cohort, np.random.default_rng(seed))

  def rows_of(user):
    """A user's rows in a new order, each time that it is drawn."""
    order = torch.randperm(len(users[user][1]))
    return PyTorchTensorDataset(tuple(values[order] for values in users[user]), user_id=str(user))

  dataset = FederatedDataset(rows_of, functools.partial(next, draws))
  clock = Clock()
  mechanism = GaussianMechanism(args.clip, args.noise_multiplier)
  FederatedAveraging().run(
    NNAlgorithmParams(
      central_num_iterations=args.rounds,
      evaluation_frequency=args.rounds + 1,
      train_cohort_size=args.cohort,
      val_cohort_size=0,
    ),
    SimulatedBackend(dataset, dataset, postprocessors=[CentrallyAppliedPrivacyMechanism(mechanism)]),
    model,
    NNTrainHyperParams(local_batch_size=args.batch, local_num_epochs=1, local_learning_rate=args.lr),
    NNEvalHyperParams(local_batch_size=None),
    callbacks=[clock],
    send_metrics_to_platform=False,
  )
  with torch.no_grad():
    found = module(torch.from_numpy(data["test_x"])).argmax(1).numpy()
  seconds = clock.times[-1] - clock.times[WARM_UP - 1]
  return float((found == data["test_y"]).mean()), (args.rounds - WARM_UP) / seconds


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("file")
  parser.add_argument("--clip", type=float, required=True)
  parser.add_argument("--noise_multiplier", type=float, required=True)
  parser.add_argument("--lr", type=float, required=True)
  parser.add_argument("--momentum", type=float, default=0.9)
  parser.add_argument("--weight_decay", type=float, default=1e-4)
  parser.add_argument("--cohort", type=int, default=100)
  parser.add_argument("--batch", type=int, default=10)
  parser.add_argument("--rounds", type=int, default=100)
  parser.add_argument("--threads", type=int, default=1)
  args = parser.parse_args()
  logging.disable(logging.WARNING)
  torch.set_num_threads(args.threads)
  data = dict(np.load(args.file))
  ends = np.cumsum(data["sizes"])
  users = [
    (torch.from_numpy(x), torch.from_numpy(y))
    for x, y in zip(np.split(data["x"], ends[:-1]), np.split(data["y"], ends[:-1]))
  ]
  found = [
    run(args, data, users, start, seed)
    for seed, *start in zip(data["seeds"], data["kernels"], data["biases"])
  ]
  line = {
    "version": importlib.metadata.version("pfl"),
    "torch": torch.__version__,
    "threads": args.threads,
    "accuracy": [round(own, 4) for own, _ in found],
    "rounds_per_second": [round(own, 3) for _, own in found],
  }
  print(json.dumps(line), flush=True)


if __name__ == "__main__":
  main()
