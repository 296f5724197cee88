"""Synchronous, over-selecting, buffered and asynchronous servers over simulated seconds.

    python benchmarks/conditions/asynchronous.py [--data digits mnist] [--spreads 0 1 2] [--out FOLDER]
      [--draw]

100 clients of a Dirichlet(0.3) partition train TwoNN with 64 units, five epochs of digits or one of MNIST,
and their speeds are log-normal with σ = SPREAD. In all four, 30 clients train at any time and the default
mixing weighs them:

synchronous      cohorts of 30
over-selection   cohorts of 23 out of 30 that are asked (1.3 times as many)
FedBuff          30 at any time, the server moves by every 5, s(τ) = 1/√(1 + τ)
FedAsync         30 at any time, the server mixes in every one, s(τ) = 1/√(1 + τ)

Each may take as many client updates. The learning rate (0.02, 0.05, 0.1, 0.2) of each, and α of FedAsync
(0.1, 0.3, 0.6), are those with which the global model of one further seed reaches the target (digits 85 %,
MNIST 92 % of the clients' test examples) first by the clock, or comes nearest. Then five fresh seeds run as
one program. A cell that OUT's raw file has is not run again. With --draw nothing is run: the picture and the
table are made of the raw file.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

import fedjax_het as fh
from benchmarks.provenance import PAGES, made, place, provenance
from fedjax_het.engine.batched_runs import Members
from fedjax_het.studies.plots import COLORS, save

ASKED, UPDATES, SEEDS, TUNING = 30, 1800, (1, 2, 3, 4, 5), 100
RATES, ALPHAS = (0.02, 0.05, 0.1, 0.2), (0.1, 0.3, 0.6)
COMMAND = "python benchmarks/conditions/asynchronous.py"
TARGETS, EPOCHS = {"digits": 0.85, "mnist": 0.92}, {"digits": 5, "mnist": 1}
METHODS = {  # name -> (uploads a round, settings of the system, asynchronous part)
  "synchronous": (ASKED, {}, None),
  "over-selection": (23, {"over_selection": 1.3}, None),
  "FedBuff": (5, {}, lambda alpha: fh.asynchronous.fedbuff(5, ASKED)),
  "FedAsync": (1, {}, lambda alpha: fh.asynchronous.fedasync(ASKED, alpha=alpha)),
}  # fmt: skip


def federation(name: str) -> fh.data.FederatedData:
  source, key = fh.data.load(name), jax.random.key(0)
  keys = jax.random.split(key)
  parts = fh.data.partition(keys[0], "dirichlet", source.y, 100, alpha=0.3, min_size=5)
  return fh.federate(source.x, source.y, parts, keys[1], num_classes=10)


def courses(name: str, method: str, spread: float, settings: dict[str, list[float]], seeds: list[int]) -> Any:
  """(simulated seconds, accuracy of the global model), each [members, evaluations], at equal updates."""
  data = federation(name)
  each, timing, part = METHODS[method]
  shape = (8, 8, 1) if name == "digits" else (28, 28, 1)

  def make(lr, alpha):
    client = fh.fedavg(fh.models.make("two_nn", shape, 10, hidden=64), lr=lr, epochs=EPOCHS[name])
    system = fh.system.lognormal(sigma=spread, link_sigma=spread, **timing)
    return fh.federated(client, system=system, asynchronous=None if part is None else part(alpha))

  engine = Members(make, data, settings, len(seeds), each)
  keys = [jax.random.key(seed) for seed in seeds]
  state = engine.init(jax.numpy.stack(keys))
  rounds = UPDATES // (ASKED if method == "over-selection" else each)
  every, took, values = rounds // 30, [[0.0] for _ in seeds], []
  each_alone = [make(**{key: value[m] for key, value in settings.items()}) for m in range(len(seeds))]
  clocks = [fh.Clock(own, data, each, key) for own, key in zip(each_alone, keys)]
  for _ in range(30):
    state, infos = engine.advance(state, every)
    for course, clock, own in zip(took, clocks, engine.split(infos)):
      course.append(course[-1] + float(clock.rounds(own).sum()))
    found = engine.evaluate(state).global_["top1"]
    weights = np.asarray(data.test.size) / np.asarray(data.test.size).sum()
    values.append((np.nan_to_num(found) * weights).sum(-1))
  return np.array(took)[:, 1:], np.array(values).T


def reached(clock: np.ndarray, values: np.ndarray, target: float) -> np.ndarray:
  """The simulated seconds until a target, [members]; infinite where it is not reached."""
  return np.where(
    (values >= target).any(1), clock[np.arange(len(clock)), (values >= target).argmax(1)], np.inf
  )


def cell(name: str, method: str, spread: float) -> dict[str, Any]:
  """One cell: the tuned settings, and the five seeds' courses."""
  alphas = ALPHAS if method == "FedAsync" else (1.0,)
  grid = [(lr, alpha) for lr in RATES for alpha in alphas]
  settings = {"lr": [lr for lr, _ in grid], "alpha": [alpha for _, alpha in grid]}
  clock, values = courses(name, method, spread, settings, [TUNING] * len(grid))
  first = reached(clock, values, TARGETS[name])
  best = int(np.argmin(first)) if np.isfinite(first).any() else int(values.max(1).argmax())
  lr, alpha = grid[best]
  clock, values = courses(name, method, spread, {"lr": [lr] * 5, "alpha": [alpha] * 5}, [*SEEDS])
  return {
    "lr": lr, "alpha": alpha, "seconds": clock.round(1).tolist(), "accuracy": values.round(4).tolist(),
    "to_target": [None if np.isinf(own) else float(own) for own in reached(clock, values, TARGETS[name])],
    "tuning": [None if np.isinf(own) else float(own) for own in first],
    "by": provenance(),
  }  # fmt: skip


def draw(found: dict[str, Any], out: Path) -> None:
  """Draws the courses, and prints the table of seconds to the target over those of synchronous rounds."""
  names = sorted({key.split(":")[0] for key in found})
  spreads = sorted({float(key.split(":")[2]) for key in found})
  figure = Figure(figsize=(3.4 * len(spreads), 2.9 * len(names)), layout="constrained")
  panels = figure.subplots(len(names), len(spreads), squeeze=False)
  for row, name in zip(panels, names):
    for axes, spread in zip(row, spreads):
      axes.set_visible(any(f"{name}:{method}:{spread:g}" in found for method in METHODS))
      for colour, method in zip(COLORS, METHODS):
        if (own := found.get(f"{name}:{method}:{spread:g}")) is None:
          continue
        clock, values = np.array(own["seconds"]) / 60, 100 * np.array(own["accuracy"])
        axes.plot(np.median(clock, 0), values.mean(0), color=colour, label=method)
        axes.fill_between(
          np.median(clock, 0), values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0
        )
      axes.axhline(100 * TARGETS[name], color="#888888", linewidth=0.8, linestyle=":")
      axes.set_title(f"{'MNIST' if name == 'mnist' else name}, σ = {spread:g}", fontsize=10)
      axes.set_xscale("log")
      axes.set_xlabel("simulated minutes")
      axes.spines[["top", "right"]].set_visible(False)
      axes.set_ylim(100 * TARGETS[name] - 35, 100)
    row[0].set_ylabel("top-1 of the global model (%)")
  panels[0][0].legend(frameon=False, fontsize=8, loc="lower right")
  save(figure, place(out, "asynchronous.png"))
  place(out, "asynchronous.md").write_text(
    "\n".join([TEXT, *rows(found), "", made(COMMAND, found.values()), ""])
  )


TEXT = """# Servers that wait and servers that do not

One hundred clients of a Dirichlet(0.3) partition train TwoNN with 64 units, five epochs of digits or one of
MNIST, and their speeds, of computing and of transmitting, are log-normal with σ. Thirty clients train at
any time: cohorts of 30; over-selection, 23 of 30 that are asked; FedBuff, whose server moves by every 5
updates; FedAsync, whose server mixes in every model; the last two with s(τ) = 1/√(1 + τ). Each server has as
many client updates (1,800), and the learning rate, of four, and α, of three, with which a further seed
reached the target first by the [clock](../time.md).

![Accuracy over simulated minutes](images/asynchronous.png)

The target is 85 % of all test examples of digits, and 92 % of MNIST's. Figures are medians over five seeds,
with their range; the last column is a seed's synchronous time over its own. Lines are the seeds' means,
bands their range ([asynchronous.json](raw/asynchronous.json)).

With equal speeds FedBuff reaches both targets later than synchronous rounds. With σ = 1 and 2 each of the
three others is several times as fast as they, and FedBuff and FedAsync, which are not told apart, faster
than over-selection: what was published of FedBuff under stragglers is found. 0.02 is the least of the
four learning rates, so that MNIST's synchronous rounds and FedBuff may do better with a smaller one.
"""


def rows(found: dict[str, Any]) -> list[str]:
  """The table of the page."""
  lines = [
    "| data, σ | server | learning rate | simulated minutes to the target | times as fast as synchronous |",
    "|---|---|---|---|---|",
  ]
  for name in TARGETS:
    for spread in sorted({float(key.split(":")[2]) for key in found if key.startswith(name)}):
      plain = to_target(found.get(f"{name}:synchronous:{spread:g}"))
      for method in METHODS:
        if (own := found.get(f"{name}:{method}:{spread:g}")) is None:
          continue
        alpha = f", α {own['alpha']:g}" if method == "FedAsync" else ""
        took = to_target(own)
        with np.errstate(invalid="ignore"):
          ratio = plain / took
        minutes = in_words(took / 60, ".1f", f"{np.isfinite(took).sum()} of 5 seeds reach it")
        fast = in_words(ratio, ".2f", "")
        lines.append(f"| {name}, {spread:g} | {method} | {own['lr']:g}{alpha} | {minutes} | {fast} |")
  return lines


def to_target(own: dict[str, Any] | None) -> np.ndarray:
  """Simulated seconds until a cell's seeds reach the target, [5]; infinite where they do not."""
  return np.array([np.inf if one is None else one for one in own["to_target"]] if own else [np.inf] * 5)


def in_words(values: np.ndarray, form: str, otherwise: str) -> str:
  """The median with the range of the seeds, if all are finite."""
  if not np.isfinite(values).all():
    return otherwise
  return f"{np.median(values):{form}} ({values.min():{form}} – {values.max():{form}})"


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data", nargs="*", choices=TARGETS, default=[*TARGETS])
  parser.add_argument("--spreads", nargs="*", type=float, default=[0.0, 1.0, 2.0])
  parser.add_argument("--out", type=Path, default=PAGES)
  parser.add_argument("--draw", action="store_true", help="draw what is there")
  args = parser.parse_args()
  path = place(args.out, "asynchronous.json")
  found = json.loads(path.read_text()) if path.exists() else {}
  fh.prepare_cpu()
  for name in () if args.draw else args.data:
    for spread in args.spreads:
      for method in METHODS:
        key = f"{name}:{method}:{spread:g}"
        if key not in found:
          found[key] = cell(name, method, spread)
          path.write_text(json.dumps(found, indent=1) + "\n")
          print(key, found[key]["lr"], found[key]["alpha"], found[key]["to_target"], flush=True)
  draw(found, args.out)


if __name__ == "__main__":
  main()
