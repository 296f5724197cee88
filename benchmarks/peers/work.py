"""The work that speed.py gives to all: arguments, how many client steps it is, the fastest way of several."""

import argparse
import itertools
from collections.abc import Callable, Sequence


def arguments(about: str | None, models: Sequence[str], rounds: int = 20) -> argparse.ArgumentParser:
  """A parser of the work's settings; the caller adds its own."""
  parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--model", choices=sorted(models), default="two_nn")
  parser.add_argument("--clients", type=int, default=100)
  parser.add_argument("--samples", type=int, default=480)
  parser.add_argument("--cohort", type=int, default=5)
  parser.add_argument("--batch", type=int, default=10)
  parser.add_argument("--epochs", type=int, default=1)
  parser.add_argument("--lr", type=float, default=0.01)
  parser.add_argument("--momentum", type=float, default=0.0)
  parser.add_argument("--weight_decay", type=float, default=0.0)
  parser.add_argument("--rounds", type=int, default=rounds, help="timed rounds")
  parser.add_argument("--warmup", type=int, default=2, help="rounds before the clock starts, at least 1")
  parser.add_argument("--seed", type=int, default=0)
  return parser


def add_ways(parser: argparse.ArgumentParser, optimizer: str) -> None:
  """The ways of PyTorch that `fastest` tries."""
  parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="PyTorch threads to try")
  parser.add_argument("--optimizers", nargs="+", choices=("loop", "fused"), default=[optimizer])


def client_steps(args: argparse.Namespace) -> int:
  """Of all timed rounds."""
  return args.rounds * args.cohort * args.epochs * -(-args.samples // args.batch)


def fastest(args: argparse.Namespace, measure: Callable[[int, str], tuple[float, int, bool]]) -> dict:
  """The fields of the fastest way, with all in "tried".

  `measure` takes threads and an optimiser, and gives seconds, the number of parameters and whether they are
  finite at the end.
  """
  tried = []
  for threads, optimizer in itertools.product(args.threads, args.optimizers):
    seconds, parameters, finite = measure(threads, optimizer)
    row = {"client_steps_per_second": client_steps(args) / seconds, "seconds": seconds, "threads": threads}
    tried.append(row | {"optimizer": optimizer, "finite": finite})
  best = max(tried, key=lambda row: row["client_steps_per_second"])
  return {"parameters": parameters, "steps": client_steps(args), **best, "tried": tried}
