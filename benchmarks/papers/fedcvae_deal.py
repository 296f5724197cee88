"""Compares the deal of rows by the code of FedEvg's authors with ours: FedCVAE, MNIST at 32 x 32, K = 100.

    taskset -c 0 python benchmarks/papers/fedcvae_deal.py --data DATA [--deals code ...] [--alphas 0.01 ...]
      [--width 16] [--rounds 100] [--judge two_nn] [--seed 0] [--out docs/results]

The settings are those of configs/table_4_2.py with 100 clients and `protocol=thesis`, ten of them in a round.
A row is of one seed; rows that OUT/raw/fedcvae_deal.json holds are not run again. The deals:

library   `dirichlet` with `balance`: N/K rows a client, each row of one client, as in the table's runs
code      the deal of the authors' code (src/loaders/split.py, "diri"): a client draws N/K labels from its own
          Dirichlet(α u), u ~ U(0, 1)^C, once more if they are all of one class, leaves out classes of five
          rows or fewer, and draws again until it counts N/K. Of a class it takes the first rows of a list,
          and these replace the list, which so only shrinks: later clients get the same few rows
mended    the same, but the rest of the list stays: each row is of one client, and who comes when a class is
          used up has fewer; clients of five rows or fewer are left out
shards S  S shards of the sorted rows a client, `pathological`, whatever α
"""

import argparse
import json
from pathlib import Path

import numpy as np

import fedjax_het as fh

fh.prepare_cpu()

import jax  # noqa: E402

from benchmarks.provenance import PAGES, place, provenance  # noqa: E402
from configs.table_4_2 import get_config  # noqa: E402
from fedjax_het.models.zoo.generative import cvae_conv  # noqa: E402
from fedjax_het.studies.synthetic import worth  # noqa: E402

CLIENTS, CLASSES, LEAST, EVALUATIONS = 100, 10, 5, 20
CELL = get_config(f"dataset=mnist,clients={CLIENTS},algorithm=fedcvae,protocol=thesis")
JUDGES = {"two_nn": {"name": "two_nn"}, "resnet10": CELL.downstream.model.to_dict()}
DEALS = ("library", "code", "mended", "shards 1", "shards 2", "shards 3", "shards 5", "shards 10")
Rows = list[np.ndarray]


def of_code(labels: np.ndarray, alpha: float, rng: np.random.Generator, keep_rest: bool = False) -> Rows:
  """Row numbers of each client as the authors' code deals them; with `keep_rest` each row goes to one."""
  lists, asked = [np.flatnonzero(labels == label) for label in range(CLASSES)], len(labels) // CLIENTS
  clients = []
  for _ in range(CLIENTS):
    own, counted = [np.zeros(0, int)], 0
    while counted < asked:
      shares = rng.dirichlet(alpha * rng.uniform(size=CLASSES))
      if not np.isfinite(shares).all():  # all ten gamma variates were below the smallest number
        continue
      counts = rng.multinomial(asked, shares)
      if np.sum(counts > 0) < 2:
        continue
      counts *= counts > LEAST
      for label in np.flatnonzero(counts):
        taken, rest = np.split(lists[label], [counts[label]])
        own.append(taken)
        lists[label] = rest if keep_rest else taken
      counted += counts.sum()
    clients.append(np.concatenate(own))
  return clients


def dealt(deal: str, labels: np.ndarray, alpha: float, seed: int) -> Rows:
  """Row numbers of each client."""
  kind, _, shards = deal.partition(" ")
  if kind == "shards":
    key, count = jax.random.key(seed), int(shards)
    return list(fh.data.pathological(key, labels, CLIENTS, shards_per_client=count))
  if kind == "library":
    return list(fh.data.dirichlet(jax.random.key(seed), labels, CLIENTS, alpha=alpha, balance=True))
  return of_code(labels, alpha, np.random.default_rng(seed), keep_rest=kind == "mended")


def row(deal: str, alpha: float, args: argparse.Namespace) -> dict:
  """What a deal is like, and what FedCVAE's synthetic examples are worth under it."""
  source = fh.data.load("mnist", args.data, resize=32)
  rows = [own for own in dealt(deal, np.asarray(source.y), alpha, args.seed) if len(own) > LEAST]
  flat, sizes = np.concatenate(rows), [len(own) for own in rows]
  parts = np.split(np.arange(len(flat)), np.cumsum(sizes)[:-1])  # copies, where a row is in several clients
  key, split = jax.random.split(jax.random.key(args.seed))
  data = fh.federate(
    source.x[flat], source.y[flat], parts, split, num_classes=CLASSES, test_fraction=0.2, scale=source.scale
  )
  model = cvae_conv((32, 32, 1), CLASSES, width=args.width)
  client = fh.fedcvae(model, lr_decay=CELL.local.lr_decay)
  every = max(1, args.rounds // EVALUATIONS)
  found = fh.run(
    fh.federated(client),
    data,
    rounds=args.rounds,
    cohort_size=CELL.cohort_size,
    key=key,
    eval_every=every,
    devices=1,
  )
  assert client.studies.synthesize is not None
  x, y = client.studies.synthesize(jax.random.key(args.seed), found.state.broadcast)
  settings = {"model": JUDGES[args.judge], "seeds": CELL.downstream.seeds, "features": "classifier"}
  return {
    "clients": len(rows), "rows of a client": quantiles(sizes), "distinct rows": len(np.unique(flat)),
    "classes of a client": quantiles([len(np.unique(source.y[own])) for own in rows]),
    "nearest": [
      [line["round"], round(line["metrics"]["global"]["top1"]["mean"], 4)] for line in found.history
    ],
    "worth": worth(settings, source, data, key, np.asarray(x), np.asarray(y), tell=print),
  }  # fmt: skip


def quantiles(values: list[int]) -> list[float]:
  """Smallest, median and largest."""
  return [float(value) for value in np.quantile(values, (0.0, 0.5, 1.0))]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data", required=True, help="holds mnist/")
  parser.add_argument("--deals", nargs="*", choices=DEALS, default=DEALS)
  parser.add_argument("--alphas", type=float, nargs="*", default=[1.0, 0.01])
  parser.add_argument("--width", type=int, default=16)
  parser.add_argument("--rounds", type=int, default=100)
  parser.add_argument("--judge", choices=JUDGES, default="two_nn")
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--out", type=Path, default=PAGES, help="the folder of raw/")
  args = parser.parse_args()
  path = place(args.out, "fedcvae_deal.json")
  kept = json.loads(path.read_text()) if path.exists() else {}
  for alpha in args.alphas:
    for deal in args.deals:
      what = deal if deal.startswith("shards") else f"{deal}, α = {alpha}"
      name = f"{what}, width {args.width}, T = {args.rounds}, {args.judge}, seed {args.seed}"
      if name in kept:
        continue
      kept[name] = row(deal, alpha, args) | {"by": provenance()}
      lines = ",\n".join(f" {json.dumps(own, ensure_ascii=False)}: {json.dumps(kept[own])}" for own in kept)
      path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
      found = {own: value for own, value in kept[name].items() if own != "worth"}
      judged = kept[name]["worth"]["downstream"]
      print(name, found, judged["local"], judged["official"], flush=True)


if __name__ == "__main__":
  main()
