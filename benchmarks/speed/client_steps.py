"""Measures each method's client step beside FedAvg's and its bytes a round, and a 4 x 4 grid as one program.

    python benchmarks/speed/client_steps.py [--turns 7] [--only steps] [--out docs/results]
    python benchmarks/speed/client_steps.py --small --out /tmp/small        toy sizes, to try the script

1. All eleven methods of table 2.3 at its settings: B = 10, SGD with momentum 0.9 and weight decay 1e-4,
   TwoNN, 100 clients with 480 random images, cohort 5, one local epoch (one more for Ditto's own model and
   FedRep's body); SuPerFed with L = 0. Methods take turns. A step's time is a turn's time over its client
   steps as the method counts them; a visit's time is that of one client's local training. Ratios to FedAvg
   are within a turn, and medians over the turns are shown. Bytes are those that the method would send in one
   round.
2. SuPerFed-MM on digits, μ in {0, 0.01, 0.1, 1} x ν in {0, 1, 2, 5}: the grid of figure 2.3 as one program,
   and each cell as a run of its own, compiled again for each, which takes μ and ν as values as launched runs
   do. The largest difference of a final parameter shows whether both give the same result.
3. SosicFL with 2, 3 and 10 endpoints, SosicFL-All and SosicFL+ with 2, and Ditto, beside FedAvg on SimpleCNN
   at 32 x 32 x 3: B = 50, momentum 0.5, ten clients with 400 random images, cohort 2,
   one local epoch; one more epoch for an own model.

The script writes OUT/raw/client_steps.json and the page OUT/client_steps.md. --only measures one part again
and keeps the others.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import fedjax_het as fh

fh.prepare_cpu()

import jax  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.provenance import PAGES, place, provenance  # noqa: E402
from fedjax_het.engine.batched_runs import Members  # noqa: E402
from fedjax_het.engine.sweep import grid_of  # noqa: E402
from fedjax_het.experiment.traffic import traffic  # noqa: E402
from fedjax_het.methods import CLIENTS  # noqa: E402

METHODS = (
  "fedavg", "fedprox", "scaffold", "lg_fedavg", "fedper", "fedrep", "apfl", "pfedme", "ditto", "superfed_mm",
  "superfed_lm",
)  # fmt: skip
LOCAL = {"epochs": 1, "batch_size": 10, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}
ONCE = {"body_epochs": 1, "local_epochs": 1, "start_round": 0}
GRID = {"mu": [0.0, 0.01, 0.1, 1.0], "nu": [0.0, 1.0, 2.0, 5.0]}
HEAD = (
  "| method | step, µs | min – max | x FedAvg's | min – max | visit, ms | x FedAvg's | up, kB | down, kB |",
  "|---|---|---|---|---|---|---|---|---|",
)
STEPS = """
Medians of {turns} turns, with ranges, in which the methods take their places one after another. TwoNN
(199,210 parameters), 100 clients of 480 images, cohort 5, B = 10, one epoch of SGD with momentum 0.9 and
weight decay 1e-4, a device a core; bytes of a round.

A step is one gradient step as the method counts them, the wall time over all clients' steps; a visit is one
client's local training: an epoch of 48 batches, and what a method does beside (FedRep's body, Ditto's own
model, pFedMe's inner steps). "x FedAvg's" is the median of the turns' ratios, not the ratio of the medians.
FedRep's body and Ditto's own model have one epoch here, as the rest; the tables give them five beside
FedAvg's ten.
"""
SIMPLICES = """
SimpleCNN (1,068,298 parameters), ten clients of 400 images, cohort 2, B = 50 (8 batches), momentum
0.5; {turns} turns.
"""
GRIDS = """
The runs' seconds have {cells} compilations; launched runs, which differ in numbers alone, find the first
one's program in a cache. With one of {alone:.1f} s they would be {once:.0f} s, {over:.1f} times the one
program's; of training alone it is {train:.1f} times. One turn.
"""


def clients(count: int, each: int, shape: tuple[int, ...] = (28, 28, 1)) -> fh.data.FederatedData:
  """Random images, all for training."""
  rng, rows = np.random.default_rng(0), count * each
  x, y = rng.integers(0, 256, (rows, *shape), np.uint8), rng.integers(0, 10, rows)
  parts = np.split(np.arange(rows), count)
  return fh.federate(x, y, parts, jax.random.key(0), num_classes=10, test_fraction=0.0)


def steps(
  turns: int, rounds: int, data: fh.data.FederatedData, cohort: int, parts: dict[str, fh.ClientUpdate]
) -> dict[str, dict]:
  """Name -> microseconds a step and a visit, their ratios to FedAvg's, and bytes a round."""
  engines, states, found = {}, {}, {}
  for name, client in parts.items():
    algorithm = fh.federated(client)
    engines[name] = fh.Engine(algorithm, data, cohort)
    states[name], _ = engines[name].advance(engines[name].init(jax.random.key(1)), 1)
    sent = traffic(algorithm, data, cohort)
    found[name] = {"step_us": [], "visit_us": [], **{f"bytes_{way}": value for way, value in sent.items()}}
  for turn in range(turns):
    for name, engine in engines.items():
      started = time.perf_counter()
      states[name], infos = engine.advance(states[name], rounds)
      seconds = time.perf_counter() - started
      assert np.isfinite(infos.clients.loss).all(), name
      found[name]["step_us"].append(1e6 * seconds / int(infos.clients.steps.sum()))
      found[name]["visit_us"].append(1e6 * seconds / (rounds * cohort))
    print(f"turn {turn + 1} of {turns}", flush=True)
  for row in found.values():
    for what in ("step", "visit"):
      own, base = row[f"{what}_us"], found["fedavg"][f"{what}_us"]
      row[f"{what}_of_fedavg"] = [a / b for a, b in zip(own, base)]
  return found


def of_table_2_3(hidden: int) -> dict[str, fh.ClientUpdate]:
  """Its methods, around TwoNN."""
  model = fh.models.two_nn(hidden=hidden)
  return {name: CLIENTS[name].make({"model": model, **LOCAL, **ONCE}) for name in METHODS}


def of_simplices(count: int, hidden: int) -> dict[str, fh.ClientUpdate]:
  """FedAvg, Ditto and SosicFL's of some numbers of endpoints for so many clients, around SimpleCNN."""
  offered = {"model": fh.models.simple_cnn(hidden=hidden), **LOCAL, **ONCE, "batch_size": 50, "momentum": 0.5}
  found = {name: CLIENTS[name].make(offered) for name in ("fedavg", "ditto")}
  counts = np.random.default_rng(1).integers(1, 50, (count, 10))
  for name, endpoints in (
    *(("sosicfl", m) for m in (2, 3, 10)), ("sosicfl_all", 2), ("sosicfl_plus", 2),
  ):  # fmt: skip
    regions = CLIENTS[name].prepare({"endpoints": endpoints}, counts)
    found[f"{name}, {endpoints} endpoints"] = CLIENTS[name].make({**offered, **regions})
  return found


def grid(values: dict[str, list[float]], rounds: int, hidden: int) -> dict:
  """Seconds of the grid as one program and as runs, their ratio, and how far the results are apart."""
  source = fh.data.load("digits")
  keys = jax.random.split(jax.random.key(0), 3)
  parts = fh.data.dirichlet(keys[0], source.y, num_clients=20, alpha=0.1)
  data = fh.federate(source.x, source.y, parts, keys[1], num_classes=source.num_classes)
  model, cohort = fh.models.two_nn(shape=(8, 8, 1), hidden=hidden), 5

  def make(mu, nu):
    return fh.federated(fh.superfed(model, mu=mu, nu=nu, start_round=2 * rounds // 5, epochs=2, lr=0.05))

  def trained(engine, key):
    state, done = engine.init(key), 0
    while done < rounds:
      count = min(100, rounds - done)
      state, _ = engine.advance(state, count)
      done += count
    return state, engine.evaluate(state), engine.seconds

  cells = grid_of(values)
  columns = {name: [cell[name] for cell in cells] for name in values}
  started = time.perf_counter()
  together = Members(make, data, columns, len(cells), cohort, seeds=1)
  state, evaluation, spent = trained(together, jax.numpy.stack([keys[2]] * len(cells)))
  one = time.perf_counter() - started
  started, apart, alone = time.perf_counter(), {"parameter": 0.0, "top1": 0.0}, []
  for cell, own, judged in zip(cells, together.split(state), together.split(evaluation)):
    single, seen, seconds = trained(fh.Engine(make, data, cohort, settings=cell), keys[2])
    alone.append(seconds)
    print(f"cell {len(alone)} of {len(cells)}", flush=True)
    pairs = zip(*(jax.tree.leaves((s.broadcast, s.clients)) for s in (own, single)))
    apart["parameter"] = max(apart["parameter"], *(float(abs(np.subtract(a, b)).max()) for a, b in pairs))
    moved = np.abs(judged.personalized["top1"] - seen.personalized["top1"])
    apart["top1"] = max(apart["top1"], float(np.nanmax(moved)))
  runs = time.perf_counter() - started
  return {
    "cells": len(cells), "rounds": rounds, "one_program_s": one, "runs_s": runs, "runs_over_one": runs / one,
    "compile": [spent.compile, sum(own.compile for own in alone)],
    "train": [spent.train, sum(own.train for own in alone)], "largest_difference": apart,
  }  # fmt: skip


def page(report: dict, command: str) -> str:
  """The tables, as Markdown."""
  found = report["steps"]
  lines = [
    "# Client steps, and a grid as one program", "",
    f"`{command}` on {report['machine']}, JAX {report['jax']}, {report['date']}, commit {report['commit']}",
    "([every turn](raw/client_steps.json)).",
    STEPS.format(turns=report["turns"]),
    *HEAD,
  ]  # fmt: skip
  lines += rows(found)
  if own := report.get("simplices"):
    lines += [
      "", "## Simplices on SimpleCNN", "",
      f"`{command} --only simplices` on {own['machine']}, {own['date']}, commit {own['commit']}.",
      SIMPLICES.format(turns=own["turns"]),
      *HEAD, *rows(own["steps"]),
    ]  # fmt: skip
  own = {**{name: report[name] for name in ("machine", "date", "commit")}, **report["grid"]}
  alone, train = own["compile"][1] / own["cells"], own["train"][1] / own["train"][0]
  once = own["runs_s"] - own["compile"][1] + alone
  over = once / own["one_program_s"]
  lines += [
    "", f"## (μ, ν), {own['cells']} cells, {own['rounds']} rounds", "",
    f"`{command} --only grid` on {own['machine']}, {own['date']}, commit {own['commit']}.", "",
    "| | one program | runs of their own |", "|---|---|---|",
    f"| seconds in all | {own['one_program_s']:.1f} | {own['runs_s']:.1f} ({own['runs_over_one']:.2f} x) |",
    *(f"| {what}, s | {own[what][0]:.1f} | {own[what][1]:.1f} |" for what in ("compile", "train")), "",
    GRIDS.format(cells=own["cells"], alone=alone, once=once, over=over, train=train),
    f"Largest difference of a parameter {own['largest_difference']['parameter']:.2g}, of a client's top-1 "
    f"{own['largest_difference']['top1']:.2g}.",
  ]  # fmt: skip
  return "\n".join(lines) + "\n"


def rows(found: dict[str, dict]) -> list[str]:
  """A line a method."""
  median, lines = statistics.median, []
  for name, row in found.items():
    us, ratios = row["step_us"], row["step_of_fedavg"]
    sent = (f"{row[f'bytes_{way}'] / 1e3:,.0f}" for way in ("up", "down"))
    lines.append(
      f"| {name} | {median(us):,.0f} | {min(us):,.0f} – {max(us):,.0f}"
      f" | {median(ratios):.2f} | {min(ratios):.2f} – {max(ratios):.2f}"
      f" | {median(row['visit_us']) / 1e3:,.1f} | {median(row['visit_of_fedavg']):.2f} | {' | '.join(sent)} |"
    )
  return lines


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--turns", type=int, default=7)
  parser.add_argument("--rounds", type=int, default=10, help="of a method's turn")
  parser.add_argument("--grid_rounds", type=int, default=200)
  parser.add_argument("--only", choices=("steps", "grid", "simplices"), help="keep what else the report has")
  parser.add_argument("--small", action="store_true", help="toy sizes")
  parser.add_argument("--out", type=Path, default=PAGES, help="the folder of the page and of raw/")
  args = parser.parse_args()
  size = (4, 20, 2, 4) if args.small else (100, 480, 5, 200)
  if args.small:
    args.turns, args.rounds, args.grid_rounds = 1, 1, 2
  count, each, cohort, hidden = size
  raw = place(args.out, "client_steps.json")
  report = json.loads(raw.read_text()) if args.only else {}
  if args.only in (None, "steps"):
    data, parts = clients(count, each), of_table_2_3(hidden)
    report |= {
      **provenance(),
      "turns": args.turns,
      "steps": steps(args.turns, args.rounds, data, cohort, parts),
    }
  if args.only in (None, "grid"):
    values = {name: own[:2] if args.small else own for name, own in GRID.items()}
    report["grid"] = {**provenance(), **grid(values, args.grid_rounds, 4 if args.small else 64)}
  if args.only in (None, "simplices"):
    data, parts = (
      clients(10, 50 if args.small else 400, (32, 32, 3)),
      of_simplices(10, 4 if args.small else 64),
    )
    found = steps(args.turns, min(args.rounds, 3), data, 2, parts)
    report["simplices"] = {**provenance(), "turns": args.turns, "steps": found}
  raw.write_text(json.dumps(report, indent=1) + "\n")
  text = page(report, "python benchmarks/speed/client_steps.py")
  place(args.out, "client_steps.md").write_text(text)
  print(text)


if __name__ == "__main__":
  main()
