"""Measures whether FedEvg and FedCVAE cover all modes of eight Gaussians when each client has one mode.

    python benchmarks/papers/fedevg_gaussians.py [--seeds 5] [--labels 8 2] [--only NAME ...] [--missing]
      [--out docs/results]

Each of eight clients has 400 points of standard deviation 0.2 around one point of a circle of radius 2 (the
limit α -> 0). 200 points are synthesised. There are two tasks: one label for each mode, and two labels, so
that the four modes of a label are at four different clients.

A mode is covered if at least a quarter of its fair share of the synthetic points is within three standard
deviations and has its label. The distance is the energy distance to 4,000 fresh points of the true mixture,
label by label (zero for equal distributions); "real" is the distance of 200 fresh points. A mode's spread is
computed from the points that are nearest to it among those of its label: their root mean square distance from
their own mean along a coordinate, over the true standard deviation. "widest" and "narrowest" are over modes
and seeds.

Energies are perceptrons on 64 Fourier features of long waves, because perceptrons on the two coordinates are
too slow to learn that there is nothing beyond the data. FedCVAE sees coordinates mapped to [0, 1]. The seeds
of a setting are one program. When all settings have run, the script draws the first seed's points. Results
are added to OUT/raw/fedevg_gaussians.json row by row, each with its commit and date.
"""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from scipy.spatial.distance import cdist

import fedjax_het as fh
from benchmarks.provenance import PAGES, place, provenance
from fedjax_het.models.zoo.generative import cvae_mlp

matplotlib.use("Agg")
from matplotlib import pyplot as plt

MODES, POINTS, SYNTHETIC, DEVIATION = 8, 400, 200, 0.2
ANGLES = 2 * np.pi * np.arange(MODES) / MODES
CENTRES = 2.0 * np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1)
ROUNDS, EPOCHS, WAVES, FREQUENCY, SPAN = 150, 4, 32, 0.08, 3.0
CLIENT = dict(
  chain_step_size=0.03, chain_noise=0.03, batch_size=64, epochs=EPOCHS, lr=3e-3, lr_decay=1.0, bounded=False
)
SERVER = dict(step_size=0.1, last_step_size=1e-3, noise=0.01, bounded=False)


def mixture(rng: np.random.Generator, count: int, labels: int) -> tuple[np.ndarray, np.ndarray]:
  """(points, labels), mode after mode."""
  mode = np.repeat(np.arange(MODES), count // MODES)
  x = CENTRES[mode] + DEVIATION * rng.normal(size=(len(mode), 2))
  return x.astype(np.float32), (mode % labels).astype(np.int32)


def covered(x: np.ndarray, y: np.ndarray, labels: int) -> int:
  """How many modes have a quarter of their share of the points with their label."""
  near = cdist(x, CENTRES) < 3 * DEVIATION
  own = y[:, None] == np.arange(MODES) % labels
  return int(((near & own).sum(0) >= len(x) / MODES / 4).sum())


def spread(x: np.ndarray, y: np.ndarray, labels: int) -> np.ndarray:
  """Each mode's root mean square distance from its points' mean along a coordinate, over the true one."""
  far = cdist(x, CENTRES) + 1e9 * (y[:, None] != np.arange(MODES) % labels)
  own = [x[far.argmin(1) == mode] for mode in range(MODES)]
  found = [((points - points.mean(0)) ** 2).mean() ** 0.5 if len(points) > 1 else np.nan for points in own]
  return np.array(found) / DEVIATION


def energy_distance(x: np.ndarray, y: np.ndarray, real: np.ndarray, real_y: np.ndarray, labels: int) -> float:
  """Mean over the labels of 2 E|X - Y| - E|X - X'| - E|Y - Y'|."""
  found = []
  for c in range(labels):
    a, b = x[y == c], real[real_y == c]
    found.append(2 * cdist(a, b).mean() - cdist(a, a).mean() - cdist(b, b).mean())
  return float(np.mean(found))


def spread_out(model):
  """A generator of [0, 1] for coordinates in [-SPAN, SPAN]."""
  losses = {
    part: lambda params, x, y, weight, key, loss=loss: loss(params, (x / SPAN + 1.0) / 2.0, y, weight, key)
    for part, loss in model.losses.items()
  }
  generate = lambda params, key, y: SPAN * (2.0 * model.generate(params, key, y) - 1.0)  # noqa: E731
  return model._replace(losses=losses, generate=generate, bounded=False)


def algorithms(labels: int) -> dict[str, fh.Algorithm]:
  """What is compared."""
  per_class = SYNTHETIC // labels
  perceptron = fh.models.energy_mlp((2 * WAVES,), labels, hidden=128)
  waves = FREQUENCY * np.random.default_rng(5).normal(size=(2, WAVES)).astype(np.float32)

  def apply(params, x):
    angle = 2 * np.pi * x @ waves
    return perceptron.apply(params, jnp.concatenate([jnp.cos(angle), jnp.sin(angle)], axis=1))

  model = perceptron._replace(apply=apply, shape=(2,))

  def evg(server=fh.server.sgld(ROUNDS, **SERVER), **changes):  # noqa: B008
    client = fh.fedevg(model, per_class=per_class, **{**CLIENT, **changes})
    return fh.federated(client, server=server)

  def moved(**settings):
    return fh.server.particles(
      ROUNDS, pixels="free", noise=0.0, step_size=0.05, last_step_size=0.01, **settings
    )

  cvae = fh.fedcvae(
    spread_out(cvae_mlp((2,), labels, latent=4, hidden=128, beta=None)), per_class=per_class, batch_size=64,
    epochs=EPOCHS, lr_decay=0.98,
  )  # fmt: skip
  return {
    "FedEvg, signed": evg(),
    "FedEvg, raw": evg(energy="raw"),
    "raw, Langevin at T = 0.4": evg(moved(temperature=0.0, heat=0.4, last_heat=0.4), energy="raw"),
    "raw, repulsion": evg(moved(temperature=1.0), energy="raw"),
    "raw capped at 3, Langevin at T = 0.4": evg(
      moved(temperature=0.0, heat=0.4, last_heat=0.4), energy="raw", cap=3.0
    ),
    "FedCVAE": fh.federated(cvae),
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--seeds", type=int, default=5)
  parser.add_argument("--labels", type=int, nargs="*", default=[MODES, 2])
  parser.add_argument("--only", nargs="*", help="names of methods; all by default")
  parser.add_argument("--missing", action="store_true", help="only what the JSON does not have the spread of")
  parser.add_argument("--out", type=Path, default=PAGES, help="the folder of raw/ and images/")
  args = parser.parse_args()
  fh.prepare_cpu()
  path, clouds = place(args.out, "fedevg_gaussians.json"), {}
  report = json.loads(path.read_text())["results"] if path.exists() else {}
  about = {**provenance(), "seeds": args.seeds}
  for labels in args.labels:
    federations, tests = [], []
    for seed in range(args.seeds):
      rng = np.random.default_rng(seed)
      x, y = mixture(rng, MODES * POINTS, labels)
      parts = np.split(np.arange(len(y)), MODES)
      federations.append(fh.federate(x, y, list(parts), jax.random.key(seed), num_classes=labels))
      tests.append(mixture(rng, 4000, labels))
    fresh = [mixture(np.random.default_rng(100 + s), SYNTHETIC, labels) for s in range(args.seeds)]
    for name, algorithm in {"real": None, **algorithms(labels)}.items():
      had = "widest" in report.get(f"{labels} labels: {name}", {})
      if (args.only and name not in args.only) or (args.missing and had):
        continue
      sets = fresh if algorithm is None else trained(algorithm, federations)
      report[f"{labels} labels: {name}"] = row(sets, tests, labels) | about
      clouds[labels, name] = sets[0]
      print(f"{labels} labels: {name}: {report[f'{labels} labels: {name}']}", flush=True)
      command = {"command": "python benchmarks/papers/fedevg_gaussians.py"}
      path.write_text(json.dumps(command | {"results": report}, indent=2, ensure_ascii=False) + "\n")
  print(table(report))
  if all((labels, name) in clouds for labels in (MODES, 2) for name in algorithms(2)):
    draw(clouds, place(args.out, "fedevg_gaussians.png"))


def table(report: dict[str, dict]) -> str:
  """A row a method with two labels: modes, fewest, distance, spread."""
  rows = [
    "| two labels, four modes each | covered | fewest | distance | spread, median | narrowest | widest |"
  ]
  rows.append("|---" * 7 + "|")
  for name, own in report.items():
    if name.startswith("2 labels: ") and "widest" in own:
      spreads = " | ".join(f"{own[part]:.2f}" for part in ("spread", "narrowest", "widest"))
      cells = f"{own['modes']:.1f} | {own['fewest']} | {own['distance']:.3f} | {spreads}"
      rows.append(f"| {name.removeprefix('2 labels: ')} | {cells} |")
  return "\n".join(rows)


def trained(algorithm: fh.Algorithm, federations: list) -> list:
  """Each seed's synthetic set after a run."""
  result = fh.sweep(
    lambda: algorithm, seeds=range(len(federations)), data=federations, rounds=ROUNDS, cohort_size=MODES
  )
  make = jax.vmap(lambda broadcast: algorithm.client.studies.synthesize(jax.random.key(3), broadcast))
  return list(zip(*map(np.asarray, make(result.state.broadcast))))


def row(sets: list, tests: list, labels: int) -> dict[str, float]:
  """What is reported of a method's sets, one a seed."""
  counts = np.array([covered(x, y, labels) for x, y in sets])
  distances = np.array([energy_distance(x, y, *test, labels) for (x, y), test in zip(sets, tests)])
  spreads = np.array([spread(x, y, labels) for x, y in sets])
  return {
    "modes": float(counts.mean()), "fewest": int(counts.min()),
    "distance": float(distances.mean()), "distance_std": float(distances.std(ddof=1)),
    "spread": float(np.nanmedian(spreads)), "narrowest": float(np.nanmin(spreads)),
    "widest": float(np.nanmax(spreads)),
  }  # fmt: skip


def draw(clouds: dict, path: Path) -> None:
  """A row a task, a column a method."""
  names = list(dict.fromkeys(name for _, name in clouds))
  figure, axes = plt.subplots(2, len(names), figsize=(2.6 * len(names), 5.6), layout="constrained")
  for row, labels in zip(axes, (MODES, 2)):
    for ax, name in zip(row, names):
      x, y = clouds[labels, name]
      for centre in CENTRES:
        ax.add_patch(plt.Circle(centre, 3 * DEVIATION, fill=False, color="#999999", linewidth=0.8))
      ax.scatter(*x.T, c=y, cmap="tab10" if labels > 2 else "coolwarm", s=6)
      ax.set(xlim=(-3.5, 3.5), ylim=(-3.5, 3.5), aspect="equal", xticks=[], yticks=[])
      ax.set_title(f"{name}\n{labels} labels: {covered(x, y, labels)} of 8 modes", fontsize=9)
  figure.savefig(path, dpi=130)


if __name__ == "__main__":
  main()
