"""Client steps a second of Flower: its FedAvg and its simulation engine, a PyTorch loop in its clients.

Runs inside `benchmarks/.envs/flower` (see `envs.py`) and prints one JSON line. Each of Ray's actors has
--threads cores, as many PyTorch threads and all clients' examples, made once.

    benchmarks/.envs/flower/bin/python benchmarks/peers/flower.py --model two_nn --threads 1
"""

import functools
import importlib
import importlib.metadata
import json
import logging
import os
import pathlib
import time
import warnings
from typing import ClassVar

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from torch_classifiers import two_nn
from work import arguments, client_steps


@functools.cache
def examples(clients, samples, seed, threads):
  """All clients' examples; a process makes them once."""
  torch.set_num_threads(threads)
  torch.manual_seed(seed)
  return torch.rand(clients, samples, 1, 28, 28), torch.randint(10, (clients, samples))


def client_app(args):
  """A client: an epoch of SGD on its own examples."""
  app = ClientApp()

  @app.train()
  def train(message, context):
    x, y = examples(args.clients, args.samples, args.seed, args.threads)
    client = int(context.node_config["partition-id"])
    model = two_nn()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    sgd = torch.optim.SGD(
      model.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay, fused=True
    )
    for _ in range(args.epochs):
      for rows in torch.randperm(args.samples).split(args.batch):
        sgd.zero_grad()
        nn.functional.cross_entropy(model(x[client, rows]), y[client, rows]).backward()
        sgd.step()
    reply = {
      "arrays": ArrayRecord(model.state_dict()),
      "metrics": MetricRecord({"num-examples": args.samples}),
    }
    return Message(content=RecordDict(reply), reply_to=message)

  return app


class Clocked(FedAvg):
  """FedAvg that reads the clock after every round."""

  times: ClassVar[list[float]] = []

  def aggregate_train(self, server_round, replies):
    found = super().aggregate_train(server_round, replies)
    self.times.append(time.perf_counter())
    return found


def main():
  parser = arguments(__doc__, ["two_nn"])
  parser.add_argument("--threads", type=int, default=1, help="of an actor")
  args = parser.parse_args()
  warnings.filterwarnings("ignore")
  logging.disable(logging.WARNING)
  cores = len(os.sched_getaffinity(0))
  torch.manual_seed(args.seed)
  server, end = ServerApp(), {}

  @server.main()
  def serve(grid, context):
    strategy = Clocked(
      fraction_train=args.cohort / args.clients, fraction_evaluate=0.0, min_train_nodes=args.cohort,
      min_evaluate_nodes=0, min_available_nodes=args.clients,
    )  # fmt: skip
    first = ArrayRecord(two_nn().state_dict())
    end["arrays"] = strategy.start(grid, first, num_rounds=args.warmup + args.rounds).arrays

  run_simulation(
    server, client_app(args), args.clients,
    backend_config={
      "client_resources": {"num_cpus": args.threads, "num_gpus": 0.0},
      "init_args": {"num_cpus": cores},
    },
  )  # fmt: skip
  seconds = Clocked.times[-1] - Clocked.times[args.warmup - 1]
  steps = client_steps(args)
  model = end["arrays"].to_torch_state_dict().values()
  line = {
    "peer": "Flower",
    "version": importlib.metadata.version("flwr"),
    "torch": torch.__version__,
    "model": args.model,
    "parameters": sum(p.numel() for p in model),
    "steps": steps,
    "client_steps_per_second": steps / seconds,
    "seconds": seconds,
    "processes": cores // args.threads,
    "threads": args.threads,
    "finite": bool(model) and all(torch.isfinite(p).all().item() for p in model),
  }
  print(json.dumps(line), flush=True)


if __name__ == "__main__":  # Ray's actors import the client from here
  here = str(pathlib.Path(__file__).resolve().parent)
  os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
  importlib.import_module("flower").main()
