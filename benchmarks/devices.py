"""The same run on 1, 2, 4 and 8 devices: cohorts, losses and parameters, for every method.

    python benchmarks/devices.py [--rounds 20] [--out docs/results/devices.md]

Digits, 20 clients by Dirichlet(0.1), cohorts of 5, which 2, 4 and 8 do not divide, and of 8, which they
do (AAggFF-S: all 20); devices are virtual. Figures are the largest difference of a training loss from one
device, relative to it.
"""

import argparse
import datetime
import platform
import sys
from pathlib import Path

import numpy as np

import fedjax_het as fh

fh.prepare_cpu(devices=8)

import jax  # noqa: E402
from ml_collections import ConfigDict  # noqa: E402

from fedjax_het.experiment import quickstart  # noqa: E402
from fedjax_het.experiment.build import CLIENTS, MIXINGS, SERVERS, build  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))
from configs import table_4_2  # noqa: E402

COUNTS = (1, 2, 4, 8)


def run(changes: dict, devices: int, rounds: int) -> tuple[tuple, list[np.ndarray]]:
  name = changes.get("algorithm", {}).get("name", "")
  if name in table_4_2.MODELS:
    config = table_4_2.get_config(f"dataset=digits,alpha=1.0,clients=20,algorithm={name},rounds={rounds}")
    config.cohort_size = changes["cohort_size"]
  else:
    config = quickstart.get_config()
    with config.unlocked():
      config.update(changes, rounds=rounds)
      if name.startswith("fed"):
        config.algorithm = ConfigDict(changes["algorithm"])
  built = build(config)
  engine = fh.Engine(built.algorithm, built.data, config.cohort_size, devices=devices)
  state, infos = engine.advance(engine.init(built.key), rounds)
  return infos, [np.asarray(leaf) for leaf in jax.tree.leaves(state._replace(key=()))]


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--rounds", type=int, default=20)
  parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "devices.md")
  args = parser.parse_args()
  methods = {name: {"algorithm": {"name": name, "start": 0.5} if "super" in name else {"name": name}}
             for name in CLIENTS}  # fmt: skip
  methods |= {
    f"fedavg, {name}": {"algorithm": {"name": "fedavg"}, "mixing": {"name": name}} for name in MIXINGS
  }
  methods |= {
    f"fedavg, server {name}": {"algorithm": {"name": "fedavg"}, "server": {"name": name, "lr": 0.01}}
    for name in sorted(set(SERVERS) - {"sgld"})  # FedEvg's own
  }
  lines = [
    "| method | cohort | same cohorts | 2 devices | 4 devices | 8 devices |", "|---|---|---|---|---|---|",
  ]  # fmt: skip
  worst, unequal = 0.0, 0
  for name, changes in methods.items():
    for cohort in (20,) if "aaggff_s" in name else (5, 8):
      settings = changes | {"cohort_size": cohort}
      (one, leaves), *others = (run(settings, devices, args.rounds) for devices in COUNTS)
      same = all((infos.cohort == one.cohort).all() for infos, _ in others)
      cells = []
      for infos, own in others:
        apart = np.abs(infos.clients.loss / one.clients.loss - 1).max()
        equal = all(np.array_equal(a, b) for a, b in zip(own, leaves, strict=True))
        worst, unequal = max(worst, apart), unequal + (not equal)
        cells.append("bit-equal" if equal else f"{apart:.1e}")
      lines.append(f"| {name} | {cohort} | {'yes' if same else 'NO'} | {' | '.join(cells)} |")
      print(lines[-1], flush=True)
  text = [
    "# The same run on 1, 2, 4 and 8 devices", "",
    f"Largest relative difference of a training loss from the run on one device in {args.rounds} rounds;",
    "bit-equal: parameters, states and losses have the same bits. Digits, 20 clients, cohorts of 5 and of 8",
    f"(AAggFF-S: 20). Largest difference of all: {worst:.1e}; not bit-equal:",
    f"{unequal} of {3 * (len(lines) - 2)} runs.", "",
    *lines, "",
    f"Command: `python benchmarks/devices.py --rounds {args.rounds}`, {datetime.date.today()}, "
    f"{platform.machine()}, eight virtual CPU devices, JAX {jax.__version__}.", "",
  ]  # fmt: skip
  args.out.write_text("\n".join(text))


if __name__ == "__main__":
  main()
