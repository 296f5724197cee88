"""Client steps a second of federated averaging as one writes it by hand: a PyTorch loop over the clients.

Runs inside `.envs/pfl_research` (see `envs.py`) and prints one JSON line. Every combination of the settings
given is timed one after another in this process and the fastest is the result; the others stay in "tried".

    .envs/pfl_research/bin/python peers/torch_loop.py --model two_nn --threads 1 2 --optimizers loop fused
"""

import argparse
import itertools
import json
import time

import torch
from pfl_research import SHAPES, small_cnn, two_cnn, two_nn


def measure(args, x, y, threads, optimizer):
  """Seconds that `args.rounds` rounds take after `args.warmup` rounds, and the model at the end."""
  torch.set_num_threads(threads)
  torch.manual_seed(args.seed)
  model = {"two_nn": two_nn, "two_cnn": two_cnn, "small_cnn": small_cnn}[args.model]()
  center = [p.detach().clone() for p in model.parameters()]
  for number in range(args.warmup + args.rounds):
    if number == args.warmup:
      started = time.perf_counter()
    total = [torch.zeros_like(p) for p in center]
    for client in torch.randperm(args.clients)[: args.cohort].tolist():
      with torch.no_grad():
        for p, c in zip(model.parameters(), center):
          p.copy_(c)
      sgd = torch.optim.SGD(
        model.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay,
        fused=optimizer == "fused",
      )  # fmt: skip
      for _ in range(args.epochs):
        for rows in torch.randperm(args.samples).split(args.batch):
          sgd.zero_grad()
          model.loss(x[client, rows], y[client, rows]).backward()
          sgd.step()
      with torch.no_grad():
        for t, p in zip(total, model.parameters()):
          t += p / args.cohort
    center = total
  return time.perf_counter() - started, center


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
  parser.add_argument("--warmup", type=int, default=2, help="rounds before the clock starts")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="PyTorch threads to try")
  parser.add_argument("--optimizers", nargs="+", choices=("loop", "fused"), default=["fused"])
  args = parser.parse_args()

  torch.manual_seed(args.seed)
  x = torch.rand(args.clients, args.samples, *SHAPES[args.model])
  y = torch.randint(10, (args.clients, args.samples))
  steps = args.rounds * args.cohort * args.epochs * -(-args.samples // args.batch)
  tried = []
  for threads, optimizer in itertools.product(args.threads, args.optimizers):
    seconds, center = measure(args, x, y, threads, optimizer)
    finite = all(torch.isfinite(p).all().item() for p in center)
    row = {"client_steps_per_second": steps / seconds, "seconds": seconds, "threads": threads}
    tried.append(row | {"optimizer": optimizer, "finite": finite})
  best = max(tried, key=lambda row: row["client_steps_per_second"])
  line = {
    "peer": "PyTorch", "version": torch.__version__, "model": args.model,
    "parameters": sum(p.numel() for p in center), "steps": steps, **best, "tried": tried,
  }  # fmt: skip
  print(json.dumps(line), flush=True)


if __name__ == "__main__":
  main()
