"""Compares two commits bit for bit: a digest of a short run of every row of devices.md.

    python benchmarks/checks/bits.py --out /tmp/before.json            # in a checkout of the commit before
    python benchmarks/checks/bits.py --out /tmp/after.json --against /tmp/before.json

A row is a composition of parts on digits, as `devices.rows` lists them, trained for five rounds on two
devices. Its digest covers the broadcast, the states of the server, the mixing and the clients, the cohorts,
the mixing coefficients, the training losses, and the metrics of an evaluation of every client. Digests of two
commits are comparable only on one machine with one version of JAX. With --against the script prints the rows
that differ and exits with 1 if there are any. --resume keeps the rows that the file of --out has. With
--earlier_epochs the second local training of Ditto, FedRep and SosicFL+ has the number of epochs that was its
default before commit 5597ca1, see `methods.OwnEpochs`; today's default is that of the first.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.checks import devices
from benchmarks.provenance import provenance
from fedjax_het.methods import METHODS


def digest(tree: Any) -> str:
  """A digest of the shapes, dtypes and bytes of a tree's leaves, in order; keys count by their raw data."""
  found = hashlib.sha256()
  for leaf in jax.tree.leaves(tree):
    if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    found.update(f"{array.shape} {array.dtype}".encode())
    found.update(np.ascontiguousarray(array).tobytes())
  return found.hexdigest()[:16]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
  parser.add_argument("--against", type=Path, help="the JSON file of another commit")
  parser.add_argument("--resume", action="store_true", help="keep the rows of --out, and run the others")
  parser.add_argument("--earlier_epochs", action="store_true", help="defaults of methods before 5597ca1")
  args = parser.parse_args()
  report: dict = {**provenance(), "rows": {}}
  if args.resume and args.out.exists():
    report["rows"] = json.loads(args.out.read_text())["rows"]
  for name, parts, kind, cohort in devices.rows():
    row = f"{name}, {kind}, cohort {cohort}"
    if row in report["rows"]:
      continue
    own = METHODS["algorithm"][parts[0]].own_epochs if args.earlier_epochs else {}
    engine = devices.small(parts, kind, cohort, **{field: each.before for field, each in own.items()})(2)
    state, infos = engine.advance(engine.init(jax.random.key(1)), devices.ROUNDS)
    judged = engine.evaluate(state)
    report["rows"][row] = {
      "state": digest(state._asdict()),
      "rounds": digest([infos.cohort, infos.coefficients, infos.clients.loss]),
      "metrics": digest([judged.personalized, judged.global_]),
    }
    print(row, report["rows"][row]["state"], flush=True)
    args.out.write_text(json.dumps(report, indent=1) + "\n")
  if args.against:
    before = json.loads(args.against.read_text())["rows"]
    differ = [row for row in before if report["rows"].get(row) != before[row]]
    print(f"{len(differ)} of {len(before)} rows differ", *differ, sep="\n")
    sys.exit(bool(differ))


if __name__ == "__main__":
  main()
