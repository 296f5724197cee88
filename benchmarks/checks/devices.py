"""Runs every method on 1, 2, 4 and 8 devices and compares cohorts, losses and parameters.

    python benchmarks/checks/devices.py [--only NAME,...] [--mnist DATA] [--out FOLDER] [--resume] [--page]

The data are scikit-learn's digits, the networks small; a run has five rounds of two epochs, and its numbers
are values of the program, as in launched runs. "uniform" means 16 clients of 40 examples: a cohort of 8 puts
one, two or four clients on a device; a cohort of 5 has fewer clients than eight devices, and two or four
devices share the steps of a client. "ragged" means 20 clients by Dirichlet(0.1). "one batch" means 16 clients
of ten examples, whose loops have one trip. AAggFF-S trains all clients in every round. Devices are virtual.
--mnist adds MNIST: 50 clients with two classes each, cohorts of 8, twenty rounds of one epoch, at the
settings of configs/table_2_3.py, and the global test loss. Figures are the largest difference from one
device: relative for losses, absolute for everything else. --page also writes the tables of the page,
devices.md, whose other text stays.
"""

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

import fedjax_het as fh
from benchmarks.provenance import PAGES, place, provenance, write_tables
from fedjax_het.config.plan import plan

fh.prepare_cpu(devices=8)

import jax  # noqa: E402

from fedjax_het.conditions import CONDITIONS, SEVERAL, UNLESS_CHOSEN  # noqa: E402
from fedjax_het.config.values import numbers, with_values  # noqa: E402
from fedjax_het.experiment.build import build, engine_of  # noqa: E402
from fedjax_het.methods import METHODS, or_brought, partners  # noqa: E402
from fedjax_het.program.where import Where  # noqa: E402

COUNTS = (1, 2, 4, 8)
ROUNDS, SHAPE = 5, (8, 8, 1)
# Settings of conditions whose defaults leave nobody out, or nothing of the honest clients.
SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
  "participation": {"uniform": {"dropout": 0.2}, "available": {"spread": 0.3, "dropout": 0.1}},
  "attack": {"sign_flip": {"scale": 0.5}},
  "asynchronous": {"fedbuff": {"buffer_size": 3, "concurrency": 8}, "fedasync": {"concurrency": 8}},
  "system": {
    "constant": {"deadline": 5.0},
    "lognormal": {"deadline": 5.0, "over_selection": 1.5},
    "trace": {"deadline": 5.0},
  },
  "uploads": {"gaussian": {"std": 0.01}, "top_k": {"share": 0.1}, "random_k": {"share": 0.1}},
}
NETWORKS = {"fedevg": "energy_mlp", "fedcgan": "cgan_mlp"}  # others train the first of their kind


def data_of(kind: str) -> fh.data.FederatedData:
  source, key = fh.data.load("digits"), jax.random.key(0)
  if kind == "ragged":
    parts = fh.data.dirichlet(key, source.y, num_clients=20, alpha=0.1)
  else:
    each = {"uniform": 50, "one batch": 12}[kind]
    parts = np.split(np.random.default_rng(0).permutation(len(source.y))[: 16 * each], 16)
  return fh.federate(source.x, source.y, parts, key, num_classes=10)


def part(section: str, name: str, clients: int, **settings):
  """A small part of a method of the table, at its defaults but for `settings`; a late start is halfway."""
  method = METHODS[section][name]
  halfway = {own: ROUNDS // 2 for own in method.shares.values()}
  offered: dict = dict(rounds=ROUNDS, per_class=2, epochs=2, batch_size=10, **halfway)
  offered |= method.prepare({"endpoints": 3}, np.random.default_rng(0).integers(1, 20, (clients, 10)))
  if method.models:
    small = dict(latent=4) if method.models is fh.models.GENERATORS else {}
    network = NETWORKS.get(name, next(iter(method.models)))
    offered["model"] = method.models[network](SHAPE, hidden=16, **small)
  return method.make(offered, **settings)


def rows() -> list[tuple[str, tuple[str, ...], str, int]]:
  """(name, its parts, clients, cohort) of each row.

  Every client part; FedAvg's with all other parts; SCAFFOLD's, which has states, under every condition, whose
  name "section: name" is a fourth part.
  """
  found = []
  for name in METHODS["algorithm"]:
    parts = (name, *(names[0] for names in partners("algorithm", name).values()))
    cells = [("uniform", 8), ("uniform", 5), ("ragged", 8), ("ragged", 5)]
    cells += [("one batch", 5)] * (name == "fedavg")
    found += [(name, parts, *cell) for cell in cells]
  mixings, servers = partners("algorithm", "fedavg").values()
  for name in mixings[1:]:
    cells = [("uniform", 16), ("ragged", 20)] if name == "aaggff_s" else [("uniform", 8), ("ragged", 5)]
    found += [(f"fedavg, {name}", ("fedavg", name, servers[0]), *cell) for cell in cells]
  for name in servers[1:]:
    parts = ("fedavg", mixings[0], name)
    found += [(f"fedavg, server {name}", parts, *cell) for cell in [("uniform", 8), ("ragged", 5)]]
  for section, table in CONDITIONS.items():
    for name in table:
      if name != UNLESS_CHOSEN.get(section) or name in SETTINGS.get(section, {}):
        client = "ditto" if name == "importance" else "scaffold"  # it corrects no control variates
        mixing = "uniform" if name == "gaussian" and section == "aggregation" else mixings[0]  # or it is void
        parts = (client, mixing, servers[0], f"{section}: {name}")
        found += [(f"{client}, {section} {name}", parts, *cell) for cell in [("uniform", 8), ("ragged", 5)]]
  return found


def condition(section: str, name: str, folder: str) -> dict[str, Any]:
  """The argument of `federated` that a condition is; a trace is written to the folder."""
  settings = SETTINGS.get(section, {}).get(name, {})
  if name == "trace":
    path = Path(folder) / "trace.csv"
    of_system = (f"{i}, {(1 + i % 3) / 10}, {1000 * (1 + i)}\n" for i in range(20))
    presence = (f"{i}, {i % 3}, {ROUNDS + i}\n" for i in range(12))
    path.write_text("".join(of_system if section == "system" else presence))
    settings = {**settings, "path": str(path)}
  made = CONDITIONS[section][name].make({"rounds": ROUNDS}, **settings)
  return {section: (made,) if section in SEVERAL else made}


def small(parts: tuple[str, ...], kind: str, cohort: int, **settings) -> Callable[[int], fh.Engine]:
  """(devices) -> what trains these parts, whose numbers are the program's values, as in launched runs.

  `settings` are the client part's.
  """
  config = ConfigDict({**{section: {"name": own} for section, own in zip(METHODS, parts)}, "local": {}})
  config.algorithm.update(settings)
  data, more = data_of(kind), {}
  with tempfile.TemporaryDirectory() as folder:
    for chosen in parts[3:]:
      more |= condition(*chosen.split(": "), folder)

  def make(**values):
    own = with_values(config.to_dict(), values)
    client, *others = (part(section, clients=data.num_clients, **own[section]) for section in METHODS)
    mixing, server = (
      or_brought(client, section, name, made)
      for section, name, made in zip(("mixing", "server"), parts[1:3], others)
    )
    return fh.federated(client, mixing, server, **more)

  return lambda devices: fh.Engine(make, data, cohort, devices=devices, settings=numbers(config.to_dict()))


def mnist(name: str, data_dir: str) -> Callable[[int], fh.Engine]:
  """(devices) -> what trains a cell of table 2.3, with one epoch and 20 rounds."""
  from configs import table_2_3

  config = table_2_3.get_config(f"dataset=mnist,clients=50,algorithm={name}")
  config.data_dir, config.local.epochs, config.rounds, config.cohort_size = data_dir, 1, 20, 8
  built = build(plan(config))
  return lambda devices: engine_of(built, Where(devices=devices))


def compare(name: str, engine_on: Callable[[int], fh.Engine], kind: str, cohort: int, rounds: int,
            judged: bool = False) -> dict:  # fmt: skip
  """One row: what 2, 4 and 8 devices give beside one."""
  row: dict = {"method": name, "clients": kind, "cohort": cohort, "same_cohorts": True, "devices": {}}
  for devices in COUNTS:
    engine = engine_on(devices)
    state, infos = engine.advance(engine.init(jax.random.key(1)), rounds)
    kept = [np.asarray(leaf) for leaf in jax.tree.leaves(state._replace(key=()))]
    if judged:
      row.setdefault("global_loss", {})[devices] = float(engine.evaluate(state).global_["loss"].mean())
    if devices == 1:
      first, one = infos, kept
      continue
    row["same_cohorts"] &= bool((infos.cohort == first.cohort).all())
    row["devices"][devices] = {
      "bit_equal": all(np.array_equal(a, b) for a, b in zip(kept, one, strict=True))
      and np.array_equal(infos.clients.loss, first.clients.loss),
      "losses": apart(infos.clients.loss, first.clients.loss),
      "state": max(float(np.abs(a.astype(float) - b).max()) for a, b in zip(kept, one) if a.size),
    }
  return row


def apart(losses: np.ndarray, first: np.ndarray) -> float:
  """The largest relative difference of losses; those of absent clients are 0, and count by themselves."""
  return float((np.abs(losses - first) / np.where(first == 0, 1.0, np.abs(first))).max())


def tables(report: dict) -> str:
  """The report as Markdown."""
  cells = [own for row in report["rows"] for own in row["devices"].values()]
  unequal = sum(not own["bit_equal"] for own in cells)
  lines = [
    f"Not bit-equal: {unequal} of {len(cells)} runs.", "",
    "| method | clients, cohort | same cohorts | 2 devices | 4 devices | 8 devices |",
    "|---|---|---|---|---|---|",
  ]  # fmt: skip
  alike: dict[tuple[str, ...], list[str]] = {}  # (method, what came out) -> its clients and cohorts
  for row in report["rows"]:
    own = ("bit-equal" if cell["bit_equal"] else f"{cell['losses']:.1e}" for cell in row["devices"].values())
    found = row["method"], "yes" if row["same_cohorts"] else "NO", *own
    alike.setdefault(found, []).append(f"{row['clients']} {row['cohort']}")
  for (method, *found), of in alike.items():
    lines.append(f"| {method} | {', '.join(of)} | {' | '.join(found)} |")
  commits = ", ".join(dict.fromkeys(row["commit"] for row in report["rows"]))
  made = f"`python benchmarks/checks/devices.py --mnist DATA --page`, {report['date']}, commit {commits}"
  return "\n".join([*lines, "", f"{made}, {report['machine']}, JAX {report['jax']}."])


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--only", default="", help="methods, as the table names them; mnist; conditions")
  parser.add_argument("--mnist", default="", metavar="DATA", help="the folder that has mnist/")
  parser.add_argument("--out", type=Path, default=PAGES, help="the folder of the page and of raw/")
  parser.add_argument("--resume", action="store_true", help="keep the rows that were run, and run the others")
  parser.add_argument("--page", action="store_true", help="also write the page")
  args = parser.parse_args()
  only = set(filter(None, args.only.split(",")))
  now = provenance()
  report: dict = {**now, "rows": []}
  raw = place(args.out, "devices.json")
  if args.resume and raw.exists():
    report["rows"] = json.loads(raw.read_text())["rows"]
  done = {(row["method"], row["clients"], row["cohort"]) for row in report["rows"]}

  def add(name: str, engine_on: Callable[[int], fh.Engine], kind: str, cohort: int, *how: Any) -> None:
    if (name, kind, cohort) not in done:
      row = compare(name, engine_on, kind, cohort, *how)
      print(json.dumps(row), flush=True)
      report["rows"].append({**row, "commit": now["commit"]})
      raw.write_text(json.dumps(report, indent=1) + "\n")

  for name in ("fedavg", "superfed_mm") if args.mnist else ():
    if not only or "mnist" in only:
      add(name, mnist(name, args.mnist), "MNIST, two classes each", 8, 20, True)
  for name, parts, kind, cohort in rows():
    if not only or name in only or ("conditions" in only and len(parts) > 3):
      add(name, small(parts, kind, cohort), kind, cohort, ROUNDS)
  if args.page:
    write_tables(place(args.out, "devices.md"), tables(report))


if __name__ == "__main__":
  main()
