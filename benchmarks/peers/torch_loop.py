"""Client steps a second of federated averaging as one writes it by hand: a PyTorch loop over the clients.

Runs inside `benchmarks/.envs/pfl_research` (see `envs.py`) and prints one JSON line. Every combination of the
settings given is timed one after another in this process and the fastest is the result; the others stay in
"tried". With --processes N as many processes do all the work each at the same time; their rates are added.

    benchmarks/.envs/pfl_research/bin/python benchmarks/peers/torch_loop.py --model two_nn \
      --threads 1 2 --optimizers loop fused
"""

import functools
import json
import subprocess
import sys
import time

import torch
from torch import nn
from torch_classifiers import CLASSIFIERS, SHAPES
from work import add_ways, arguments, fastest


def measure(args, x, y, threads, optimizer):
  """Seconds that `args.rounds` rounds take after `args.warmup` rounds, and the parameters at the end."""
  torch.set_num_threads(threads)
  torch.manual_seed(args.seed)
  model = CLASSIFIERS[args.model]()
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
          nn.functional.cross_entropy(model(x[client, rows]), y[client, rows]).backward()
          sgd.step()
      with torch.no_grad():
        for t, p in zip(total, model.parameters()):
          t += p / args.cohort
    center = total
  seconds = time.perf_counter() - started
  return seconds, sum(p.numel() for p in center), all(torch.isfinite(p).all().item() for p in center)


def main():
  parser = arguments(__doc__, SHAPES)
  add_ways(parser, "fused")
  parser.add_argument("--processes", type=int, default=1)
  args = parser.parse_args()
  if args.processes > 1:
    command = [sys.executable, *sys.argv, "--processes", "1"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(args.processes)]
    lines = [json.loads(process.communicate()[0].splitlines()[-1]) for process in running]
    rate = sum(line["client_steps_per_second"] for line in lines)
    finite = all(line["finite"] for line in lines)
    line = lines[0] | {"client_steps_per_second": rate, "finite": finite, "processes": lines}
    print(json.dumps(line), flush=True)
    return

  torch.manual_seed(args.seed)
  x = torch.rand(args.clients, args.samples, *SHAPES[args.model])
  y = torch.randint(10, (args.clients, args.samples))
  found = fastest(args, functools.partial(measure, args, x, y))
  line = {"peer": "PyTorch", "version": torch.__version__, "model": args.model, **found}
  print(json.dumps(line), flush=True)


if __name__ == "__main__":
  main()
