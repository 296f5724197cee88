"""Client steps a second of fluke, by its own FedAVG or SuPerFed, without evaluation; clients in memory.

Runs inside `benchmarks/.envs/fluke` (see `envs.py`) and prints one JSON line. fluke imports torchvision,
whose import wants two operators that builds apart from PyTorch's own index lack; none is used, so they are
declared here.

    benchmarks/.envs/fluke/bin/python benchmarks/peers/fluke_bench.py --model two_nn \
      --threads 1 --algorithm superfed
"""

import importlib.metadata
import json
import time

import torch
from torch import nn
from torch_classifiers import two_nn
from work import arguments, client_steps

LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
  if not hasattr(torch.ops.torchvision, _name):
    LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.algorithms.superfed import SuPerFed  # noqa: E402
from fluke.data import FastDataLoader  # noqa: E402
from fluke.evaluation import ClassificationEval  # noqa: E402


class Dealt:
  """Clients' random examples, as fluke asks for them."""

  def __init__(self, args):
    x, y = torch.rand(args.clients, args.samples, 1, 28, 28), torch.randint(10, (args.clients, args.samples))
    self.loaders = [
      FastDataLoader(*own, num_labels=10, batch_size=args.batch, shuffle=True) for own in zip(x, y)
    ]
    self.num_classes = 10

  def assign(self, n_clients, batch_size):
    return (self.loaders, [None] * n_clients), None


def main():
  parser = arguments(__doc__, ["two_nn"])
  parser.add_argument("--algorithm", choices=("fedavg", "superfed"), default="fedavg")
  parser.add_argument("--threads", type=int, default=1)
  args = parser.parse_args()
  torch.set_num_threads(args.threads)
  torch.manual_seed(args.seed)
  environment = FlukeENV()
  environment.set_seed(args.seed)
  environment.set_device("cpu")
  environment.set_inmemory(True)
  environment.set_evaluator(ClassificationEval(1, 10))
  environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)

  client = DDict(
    batch_size=args.batch, local_epochs=args.epochs, loss=nn.CrossEntropyLoss,
    optimizer=DDict(name="SGD", lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay),
    scheduler=DDict(name="StepLR", step_size=1, gamma=1.0),
  )  # fmt: skip
  kind = FedAVG
  if args.algorithm == "superfed":  # λ drawn from the first round on
    kind, client = SuPerFed, DDict(**client, mode="mm", start_mix=0, mu=0.01, nu=2.0)
    client.model = two_nn()
  model = two_nn()
  run = kind(args.clients, Dealt(args), DDict(client=client, server=DDict(weighted=True), model=model))
  share = args.cohort / args.clients
  if args.warmup:
    run.run(args.warmup, share, finalize=False)
  started = time.perf_counter()
  run.run(args.rounds, share, finalize=False)
  seconds = time.perf_counter() - started
  steps = client_steps(args)
  line = {
    "peer": "fluke",
    "version": importlib.metadata.version("fluke-fl"),
    "torch": torch.__version__,
    "algorithm": args.algorithm,
    "model": args.model,
    "parameters": sum(p.numel() for p in model.parameters()),
    "steps": steps,
    "client_steps_per_second": steps / seconds,
    "seconds": seconds,
    "threads": args.threads,
    "finite": all(torch.isfinite(p).all().item() for p in run.server.model.parameters()),
  }
  print(json.dumps(line), flush=True)


if __name__ == "__main__":
  main()
