"""Draws time.png, the picture of docs/time.md: accuracy over rounds and over simulated time, on digits.

python docs/images/time.py
"""

from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure

import fedjax_het as fh
from fedjax_het.studies.plots import COLORS, save

HERE = Path(__file__).parent
CLIENTS, COHORT, ROUNDS, EVERY, SEEDS = 100, 20, 60, 2, 3
SPEEDS = dict(sigma=1.5, step_seconds=0.25)
SHOWN = {"plain": {}, "deadline of 5 s": {"deadline": 5.0}, "over-selection 1.3": {"over_selection": 1.3}}


def main() -> None:
  """Trains three seeds of each, and draws the means with the range of the seeds."""
  source = fh.data.load("digits")
  figure = Figure(figsize=(9.6, 3.4), layout="constrained")
  panels = figure.subplots(1, 2, sharey=True)
  for colour, (name, timing) in zip(COLORS, SHOWN.items()):
    times, values = [], []
    for seed in range(SEEDS):
      keys = jax.random.split(jax.random.key(seed), 3)
      parts = fh.data.partition(keys[0], "dirichlet", source.y, CLIENTS, alpha=0.5, min_size=1)
      data = fh.federate(source.x, source.y, parts, keys[1], num_classes=10)
      client = fh.fedavg(fh.models.make("two_nn", (8, 8, 1), 10, hidden=64), lr=0.05, epochs=5)
      algorithm = fh.federated(client, system=fh.system.lognormal(**SPEEDS, **timing))
      run = dict(rounds=ROUNDS, cohort_size=COHORT, key=keys[2], eval_every=EVERY)
      result = fh.run(algorithm, data, **run, progress=False)
      took = np.cumsum(fh.Clock(algorithm, data, COHORT, keys[2]).rounds(result.infos))
      times.append(took[EVERY - 1 :: EVERY] / 60)
      values.append([100 * own["metrics"]["global"]["top1"]["mean"] for own in result.history])
    rounds = np.arange(EVERY, ROUNDS + 1, EVERY)
    for axes, x in zip(panels, (rounds, np.mean(times, axis=0))):
      axes.plot(x, np.mean(values, axis=0), color=colour, label=name)
      axes.fill_between(
        x, np.min(values, axis=0), np.max(values, axis=0), color=colour, alpha=0.13, linewidth=0
      )
  for axes, label in zip(panels, ("round", "simulated minutes")):
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)
  panels[1].set_xscale("log")
  panels[1].set_xticks(ticks := [0.2, 1, 5, 20], [*map(str, ticks)])
  panels[0].set_ylabel("top-1 of the global model (%)")
  panels[0].legend(frameon=False, loc="lower right")
  save(figure, HERE / "time.png")


if __name__ == "__main__":
  main()
