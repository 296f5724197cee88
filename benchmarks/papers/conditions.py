"""Measures accuracy against bits sent, against the share of attackers, and against dropout.

    python benchmarks/papers/conditions.py --dataset digits [--only compression attacks dropout]
    python benchmarks/papers/conditions.py --dataset mnist --data_dir DATA
    python benchmarks/papers/conditions.py --page

K = 100 clients with digits, or with 10,000 images of MNIST, Dirichlet(1), equally many rows each; cohorts of
20, uniform mixing, a perceptron with two hidden layers, plain SGD for one epoch a round. A seed has a
partition, a split, initial models, cohorts and attackers of its own, which all settings share; the five seeds
and all settings that are values are one program. Figures are the global model's top-1 on the clients' own
test rows after the last round, as the mean over the (honest) clients.

compression: top_k, random_k, quantize and sign at several strengths, and nothing; bytes are those of all
uploads of the run. attacks: sign_flip, alie, ipm and label_flip at their defaults by five aggregations and by
the share of attackers, up to 40 %. dropout: FedAvg and SCAFFOLD, whose uploads are lost with a probability of
0 to 90 %. Each part is written to docs/results/raw/conditions.json when it is done, and the others stay.
--page writes the tables of docs/results/conditions.md and the pictures, and trains nothing.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fedjax_het as fh

fh.prepare_cpu()

import jax  # noqa: E402

from benchmarks.papers.conditions_page import pictures, tables  # noqa: E402
from benchmarks.provenance import PAGES, place, provenance, write_tables  # noqa: E402
from fedjax_het.experiment.traffic import traffic  # noqa: E402
from fedjax_het.program.machine import default_cache, keep_programs  # noqa: E402

CLIENTS, COHORT, ALPHA, SEEDS = 100, 20, 1.0, (0, 1, 2, 3, 4)
RADIUS = (
  0.4  # of centred clipping: about the honest updates' median distance from their mean after ten rounds
)


class Task(NamedTuple):
  """What is trained on the first `examples` of a data set's training images."""

  hidden: int
  lr: float
  batch_size: int
  rounds: int
  examples: int
  attackers: tuple[float, ...]


TASKS = {
  "digits": Task(64, 0.1, 5, 50, 1797, (0.0, 0.1, 0.2, 0.3, 0.4)),
  "mnist": Task(32, 0.2, 20, 30, 10_000, (0.0, 0.2, 0.4)),
}
SHARES = (0.01, 0.03, 0.1, 0.3)
BITS = (2, 3, 4, 8)
ATTACKS = {
  "sign_flip": fh.attacks.sign_flip, "alie": fh.attacks.alie, "ipm": fh.attacks.ipm,
  "label_flip": fh.attacks.label_flip,
}  # fmt: skip
AGGREGATIONS: dict[str, Callable[[], fh.Aggregation]] = {
  "mean": fh.aggregation.mean, "median": fh.aggregation.median,
  "trimmed_mean": lambda: fh.aggregation.trimmed_mean(share=0.3),
  "geometric_median": fh.aggregation.geometric_median,
  "centered_clipping": lambda: fh.aggregation.centered_clipping(radius=RADIUS),
}  # fmt: skip
DROPOUTS = tuple(round(0.1 * i, 1) for i in range(10))


class Program(NamedTuple):
  """Runs that are one program: what it is called, how its algorithm is made, and the values that vary."""

  about: dict[str, Any]
  make: Callable[..., fh.Algorithm]
  grid: dict[str, tuple[float, ...]]


def compression(client: fh.ClientUpdate) -> Iterator[Program]:
  def sent(*transforms: fh.Upload) -> fh.Algorithm:
    return fh.federated(client, fh.mixing.uniform(), uploads=transforms)

  yield Program({"transform": "none"}, sent, {})
  for sparse in (fh.uploads.top_k, fh.uploads.random_k):
    make = lambda share, sparse=sparse: sent(sparse(share=share))  # noqa: E731
    yield Program({"transform": sparse.__name__}, make, {"share": SHARES})
  for bits in BITS:
    make = lambda bits=bits: sent(fh.uploads.quantize(bits=bits))  # noqa: E731
    yield Program({"transform": "quantize", "bits": bits}, make, {})
  yield Program({"transform": "sign"}, lambda: sent(fh.uploads.sign()), {})


def attacks(client: fh.ClientUpdate, shares: tuple[float, ...]) -> Iterator[Program]:
  for attack, forged in ATTACKS.items():
    for name, aggregation in AGGREGATIONS.items():

      def make(share, forged=forged, aggregation=aggregation):
        return fh.federated(
          client, fh.mixing.uniform(), attack=forged(share=share), aggregation=aggregation()
        )

      yield Program({"attack": attack, "aggregation": name}, make, {"share": shares})


def dropout(client: fh.ClientUpdate, scaffold: fh.ClientUpdate) -> Iterator[Program]:
  for name, own in (("fedavg", client), ("scaffold", scaffold)):

    def make(dropout, own=own):
      lost = fh.participation.available(probability=1.0, dropout=dropout)
      return fh.federated(own, fh.mixing.uniform(), participation=lost)

    yield Program({"algorithm": name}, make, {"dropout": DROPOUTS})


def programs(part: str, task: Task, source: Any) -> Iterator[Program]:
  model = fh.models.two_nn(source.x.shape[1:], source.num_classes, hidden=task.hidden)
  local: dict[str, Any] = dict(lr=task.lr, epochs=1, batch_size=task.batch_size)
  client = fh.fedavg(model, momentum=0.0, weight_decay=0.0, **local)
  if part == "dropout":
    return dropout(client, fh.scaffold(model, momentum=0.0, weight_decay=0.0, **local))
  return attacks(client, task.attackers) if part == "attacks" else compression(client)


def data_of(source: Any, examples: int) -> list[fh.data.FederatedData]:
  """The clients' data of each seed."""
  found = []
  for seed in SEEDS:
    deal, split = jax.random.split(jax.random.fold_in(jax.random.key(seed), 1))
    parts = fh.data.dirichlet(deal, source.y[:examples], CLIENTS, ALPHA, balance=True)
    found.append(fh.federate(source.x, source.y, parts, split, num_classes=source.num_classes))
  return found


def rows(program: Program, data: list[fh.data.FederatedData], rounds: int) -> Iterator[dict[str, Any]]:
  """One row for each combination of the program's values: each seed's top-1, None where it diverged."""
  result = fh.sweep(
    program.make, program.grid, SEEDS, data=data, rounds=rounds, cohort_size=COHORT, progress=False
  )
  found: dict[tuple, dict[str, Any]] = {}
  for member, metrics in zip(result.members, result.metrics):
    values = {name: member[name] for name in program.grid}
    own = found.setdefault(tuple(values.values()), {**program.about, **values, "top1": []})
    top1 = metrics["global"]["top1"]["mean"]
    own["top1"].append(None if np.isnan(top1) else round(100 * top1, 3))
    if "transform" in own:
      own["bytes"] = rounds * traffic(program.make(**values), data[0], COHORT)["up"]
  yield from found.values()


def as_text(record: dict[str, Any]) -> str:
  """The record as JSON with a row a line."""
  text = json.dumps(record, indent=1)
  one_line = lambda row: re.sub(r"\s+", " ", row[0]).replace("[ ", "[").replace(" ]", "]")  # noqa: E731
  return re.sub(r"\{[^{}]*\}", one_line, text) + "\n"


def measure(dataset: str, data_dir: str, part: str, rounds: int) -> dict[str, Any]:
  source, task = fh.data.load(dataset, data_dir), TASKS[dataset]
  task = task._replace(rounds=rounds or task.rounds)
  data, found = data_of(source, task.examples), []
  for program in programs(part, task, source):
    for row in rows(program, data, task.rounds):
      print(json.dumps(row), flush=True)
      found.append(row)
  return {**provenance(), **task._asdict(), "rows": found}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--dataset", choices=[*TASKS], default="digits")
  parser.add_argument("--data_dir", default="", help="the folder that has mnist/")
  parser.add_argument("--only", nargs="*", default=["compression", "attacks", "dropout"], metavar="PART")
  parser.add_argument("--rounds", type=int, default=0, help="instead of the data set's")
  parser.add_argument("--page", action="store_true", help="write tables and pictures of what was measured")
  parser.add_argument("--out", type=Path, default=PAGES, help="the folder of the page and of raw/")
  args = parser.parse_args()
  keep_programs(default_cache())
  raw, page = place(args.out, "conditions.json"), place(args.out, "conditions.md")
  for part in () if args.page else args.only:
    own = measure(args.dataset, args.data_dir, part, args.rounds)
    record = json.loads(raw.read_text()) if raw.exists() else {}
    record.setdefault(args.dataset, {})[part] = own
    raw.write_text(as_text(record))
  if args.page:
    record = json.loads(raw.read_text())
    pictures(record, args.out)
    write_tables(page, tables(record))


if __name__ == "__main__":
  main()
