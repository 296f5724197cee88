"""Accuracy against ε for DP-FedAvg with a fixed and an adaptive clip, and for banded noise.

    python benchmarks/privacy/accuracy_epsilon.py [--data digits mnist] [--rounds 100] [--seeds 5]
      [--out FOLDER] [--draw]

MNIST has K = 1,000 clients with equal shares of shuffled rows, digits K = 300; δ = K^-1.1. A client takes one
pass over its rows. In expectation a tenth of the clients takes part in a round:

fixed clip     Poisson cohorts, fresh noise
adaptive clip  likewise, and the clip follows the median of the clients' lengths
banded noise   ten blocks of clients in turns (`cyclic`), ten bands

The first two are private between sets of clients that differ in one client more or less, and are amplified by
sampling. The last is private between sets in which one client is another, at twice the clip, without
amplification, so that its noise is the larger. "without noise" is the same with an infinite clip.

For each way and ε the clip (0.1, 0.3, 1.0, 3.0) and the local learning rate (0.03, 0.1, 0.3, 1.0) are those
with the best accuracy of one further seed, on the validation parts: this choice is not paid for in ε,
with any of the ways. All settings of a way are one program, and then all ε and seeds. Accuracy is that of the
global model on the test rows of all clients. A cell that the raw file has is not run again; with --draw
nothing is run, and page and picture are made of the raw file.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import fedjax_het as fh
from benchmarks.provenance import PAGES, made, place, provenance
from fedjax_het.engine.batched_runs import Members
from fedjax_het.engine.evaluate import Evaluation
from fedjax_het.studies.plots import COLORS, save

CLIENTS = {"digits": 300, "mnist": 1000}
SHAPES = {"digits": (8, 8, 1), "mnist": (28, 28, 1)}
TARGETS, CLIPS, RATES, BLOCKS, TUNING = (
  (1.0, 2.0, 4.0, 8.0, 16.0),
  (0.1, 0.3, 1.0, 3.0),
  (0.03, 0.1, 0.3, 1.0),
  10,
  100,
)
WAYS = {  # name -> (participation, settings of the aggregation)
  "fixed clip": (fh.participation.poisson, {}),
  "adaptive clip": (fh.participation.poisson, {"quantile": 0.5}),
  "banded noise": (
    lambda: fh.participation.cyclic(blocks=BLOCKS), {"correlation": "banded", "bands": BLOCKS},
  ),
}  # fmt: skip
PLAIN = "without noise"
COMMAND = "python benchmarks/privacy/{} --data_dir=DATA"


def federation(name: str, clients: int, data_dir: str) -> fh.data.FederatedData:
  source, keys = fh.data.load(name, data_dir), jax.random.split(jax.random.key(0))
  parts = fh.data.partition(keys[0], "iid", source.y, clients)
  return fh.federate(
    source.x, source.y, parts, keys[1], num_classes=10, test_fraction=0.2, valid_fraction=0.2
  )


def accuracies(
  data: fh.data.FederatedData, name: str, way: str, rounds: int, members: list[dict[str, float]],
  seeds: list[int],
) -> dict[str, np.ndarray]:  # fmt: skip
  """Accuracy of the global model on the validation and the test rows of all clients, each [members]."""
  size = max(data.num_clients // BLOCKS, 1)
  cohorts, settings = WAYS.get(way, WAYS["fixed clip"])
  own = {"rounds": rounds, **settings} if way in WAYS else {}

  def make(lr: float, clip: float, noise_multiplier: float) -> fh.Algorithm:
    model = fh.models.make("logistic_regression", SHAPES[name], 10)
    part = fh.aggregation.gaussian(clip, noise_multiplier, **own)
    client = fh.fedavg(model, lr=lr, epochs=1)
    return fh.federated(client, fh.mixing.uniform(), participation=cohorts(), aggregation=part)

  values = {key: [member[key] for member in members] for key in members[0]}
  engine = Members(make, data, values, len(members), size)
  state = engine.init(jnp.stack([jax.random.key(seed) for seed in seeds]))
  for first in range(0, rounds, 50):
    state, _ = engine.advance(state, min(50, rounds - first))
  return {part: on_all(engine.evaluate(state, part), data, part) for part in ("valid", "test")}


def on_all(found: Evaluation, data: fh.data.FederatedData, part: str) -> np.ndarray:
  """Accuracy of the global model on a part's rows of all clients, each [members]."""
  weights = np.asarray(getattr(data, part).size, np.float64)
  assert found.global_ is not None
  return (np.nan_to_num(found.global_["top1"]) * weights).sum(-1) / weights.sum()


def noise(data: fh.data.FederatedData, way: str, rounds: int, epsilon: float) -> float:
  """The noise multiplier of a way for a target."""
  cohorts, settings = WAYS[way]
  size = max(data.num_clients // BLOCKS, 1)
  sampling = cohorts().sampled(data.num_clients, size)
  return fh.aggregation.multiplier_of({**settings, "epsilon": epsilon}, sampling, rounds)


def cells(name: str, way: str, args: argparse.Namespace) -> dict[str, Any]:
  """All cells of a way, by ε: the chosen settings, the noise and each seed's accuracy."""
  data = federation(name, args.clients or CLIENTS[name], args.data_dir)
  rounds, fresh = args.rounds, list(range(1, args.seeds + 1))
  targets = list(args.epsilons) if way in WAYS else [math.inf]
  z = {target: noise(data, way, rounds, target) if way in WAYS else 0.0 for target in targets}
  clips = CLIPS if way in WAYS else (math.inf,)
  grid = [(target, lr, clip) for target in targets for lr in RATES for clip in clips]
  members = [{"lr": lr, "clip": clip, "noise_multiplier": z[target]} for target, lr, clip in grid]
  tried = accuracies(data, name, way, rounds, members, [TUNING] * len(members))["valid"]
  best = {}
  for target in targets:
    here = [i for i, own in enumerate(grid) if own[0] == target]
    best[target] = members[max(here, key=lambda i: tried[i])]
  order = [(target, seed) for target in targets for seed in fresh]
  found = accuracies(data, name, way, rounds, [best[t] for t, _ in order], [seed for _, seed in order])
  return {
    f"{name}:{way}:{target:g}": {
      "lr": best[target]["lr"], "clip": None if math.isinf(best[target]["clip"]) else best[target]["clip"],
      "noise_multiplier": z[target], "epsilon": None if math.isinf(target) else target,
      "delta": fh.privacy.default_delta(data.num_clients), "clients": data.num_clients, "rounds": rounds,
      "accuracy": [round(float(v), 4) for v, own in zip(found["test"], order) if own[0] == target],
      "by": provenance(),
    }
    for target in targets
  }  # fmt: skip


TEXT = """# Accuracy against ε

DP-FedAvg of a logistic regression, T = {rounds} rounds of one local pass, B = 10, momentum 0.9, weight
decay 1e-4, a tenth of the clients in a round in expectation, δ = K^-1.1; digits have K = 300 clients,
MNIST K = 1,000, with equal shares of shuffled rows. Accuracy in % of the global model after the last
round on the test rows of all clients together, mean ± standard deviation over {seeds} seeds, run as one
program; in brackets the noise multiplier z, clip C and local learning rate. C and the rate are the best
of 4 × 4 by the validation rows of one further seed, which [costs privacy that no ε here
counts](../privacy.md#what-is- guaranteed-and-to-whom).

**The rows are guarantees of different kinds.** Fixed and adaptive clip draw Poisson cohorts, and ε is
between sets of clients that differ in one client more or less. Banded noise (ten bands) has ten blocks
of clients in turns, and ε is between sets in which one client is another, at twice the clip and without
amplification, which is what such an order allows.

![Accuracy over ε, lines the mean and bands the range of the seeds](images/accuracy_epsilon.png)

"""
BESIDE = """
## Beside pfl-research

The same federations, models, first parameters, z, C and learning rates, in our engine and in the
simulator of pfl-research {version}, each with its own clip and noise ([pfl_dp.json](raw/pfl_dp.json)).
Both draw cohorts of exactly K/10 clients, since that simulator has no Poisson cohorts, so that column
"ε" names the settings by the table above and is not what these runs have. Rounds a second are medians
over ten seeds of single runs on the same two cores, without compiling and evaluation: pfl-research with
the better of one and two threads, one seed after another; ours likewise, and with all seeds as one
program, whose rounds are counted of all seeds together.

"""

COLUMNS = (
  "data, ε", "accuracy, pfl-research", "accuracy, ours", "difference, ± its standard error",
  "rounds a second, pfl-research", "ours", "ours, seeds together", "ours / pfl-research",
)  # fmt: skip


def row(cell: dict[str, Any]) -> str:
  values = 100 * np.array(cell["accuracy"])
  found = f"{values.mean():.1f} ± {values.std(ddof=1):.1f}"
  clip = "" if cell["clip"] is None else f"z {cell['noise_multiplier']:.2f}, C {cell['clip']:g}, "
  return f"{found} ({clip}{cell['lr']:g})"


def beside(found: dict[str, Any]) -> list[str]:
  """Returns the lines of the section with the figures of `pfl_dp.py`."""
  lines = [BESIDE.strip("\n").format(version=next(iter(found.values()))["pfl"][0]["version"]), ""]
  lines += [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
  for key, cell in found.items():
    peer, own = (100 * np.array(one["accuracy"]) for one in (cell["pfl"][0], cell["ours"]))
    error = math.sqrt(peer.var(ddof=1) / len(peer) + own.var(ddof=1) / len(own))
    theirs = max(float(np.median(one["rounds_per_second"])) for one in cell["pfl"])
    ours = float(np.median(cell["ours"]["rounds_per_second"]))
    name, epsilon = key.split(":")
    columns = [
      f"{title(name)}, {epsilon}", f"{peer.mean():.1f} ± {peer.std(ddof=1):.1f}",
      f"{own.mean():.1f} ± {own.std(ddof=1):.1f}", f"{own.mean() - peer.mean():+.1f} ± {error:.1f}",
      f"{theirs:.1f}", f"{ours:.0f}", f"{cell['ours']['rounds_per_second_together']:.0f}",
      f"{ours / theirs:.0f}",
    ]  # fmt: skip
    lines.append(f"| {' | '.join(columns)} |")
  return [*lines, "", made(COMMAND.format("pfl_dp.py"), found.values())]


def title(name: str) -> str:
  return "MNIST" if name == "mnist" else name


def draw(found: dict[str, Any], peers: dict[str, Any], out: Path) -> None:
  """Writes the picture and the page.

  Args:
    found: the cells.
    peers: those of `pfl_dp.py`; {} leaves its section out.
    out: the folder of images/.
  """
  names = [name for name in CLIENTS if any(key.startswith(f"{name}:") for key in found)]
  figure = Figure(figsize=(4.2 * len(names), 3.2), layout="constrained")
  some = next(iter(found.values()))
  lines = [TEXT.format(rounds=some["rounds"], seeds=len(some["accuracy"]))]
  for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names):
    own = {key: cell for key, cell in found.items() if key.startswith(f"{name}:")}
    targets = sorted({cell["epsilon"] for cell in own.values() if cell["epsilon"] is not None})
    delta = next(iter(own.values()))["delta"]
    lines += [f"| {title(name)}, δ = {delta:.2g} | {' | '.join(f'ε = {t:g}' for t in targets)} |"]
    lines += ["|---|" + "---|" * len(targets)]
    for colour, way in zip(COLORS, WAYS):
      there = {t: own[key] for t in targets if (key := f"{name}:{way}:{t:g}") in own}
      if not there:
        continue
      values = 100 * np.array([cell["accuracy"] for cell in there.values()])
      axes.plot(list(there), values.mean(1), marker="o", color=colour, label=way)
      axes.fill_between(list(there), values.min(1), values.max(1), color=colour, alpha=0.15, linewidth=0)
      lines.append(f"| {way} | {' | '.join(row(there[t]) if t in there else '–' for t in targets)} |")
    if plain := own.get(f"{name}:{PLAIN}:inf"):
      axes.axhline(100 * np.mean(plain["accuracy"]), color="#888888", linestyle=":", label=PLAIN)
      lines += ["", f"Without noise and clip, Poisson cohorts: {row(plain)}."]
    lines.append("")
    axes.set_xscale("log", base=2)
    axes.set_xticks(targets, [f"{t:g}" for t in targets])
    axes.set_xlabel("ε")
    axes.set_title(title(name), fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylabel("top-1 of the global model (%)")
  figure.axes[0].legend(frameon=False, fontsize=8)
  save(figure, place(out, "accuracy_epsilon.png"))
  by = made(COMMAND.format("accuracy_epsilon.py"), found.values())
  lines += [f"[accuracy_epsilon.json](raw/accuracy_epsilon.json). {by}"]
  lines += ["", *beside(peers)] if peers else []
  place(out, "privacy.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data", nargs="+", default=list(CLIENTS), choices=list(CLIENTS))
  parser.add_argument("--ways", nargs="+", default=[*WAYS, PLAIN], choices=[*WAYS, PLAIN])
  parser.add_argument("--epsilons", nargs="+", type=float, default=TARGETS)
  parser.add_argument("--rounds", type=int, default=100)
  parser.add_argument("--seeds", type=int, default=5)
  parser.add_argument("--clients", type=int, help="K of every data set")
  parser.add_argument("--data_dir", default="data")
  parser.add_argument("--out", type=Path, default=PAGES, help="the folder of raw/ and images/")
  parser.add_argument("--draw", action="store_true")
  args = parser.parse_args()
  fh.prepare_cpu()
  path = place(args.out, "accuracy_epsilon.json")
  found = json.loads(path.read_text()) if path.exists() else {}
  for name in () if args.draw else args.data:
    for way in args.ways:
      wanted = [f"{name}:{way}:{t:g}" for t in (args.epsilons if way in WAYS else [math.inf])]
      if all(key in found for key in wanted):
        continue
      found |= cells(name, way, args)
      path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
      print(name, way, {key.split(":")[2]: found[key]["accuracy"] for key in wanted}, flush=True)
  peers = place(args.out, "pfl_dp.json")
  draw(found, json.loads(peers.read_text()) if peers.exists() else {}, args.out)


if __name__ == "__main__":
  main()
