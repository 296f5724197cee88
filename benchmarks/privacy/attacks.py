"""What an attacker gets of clients with record-level privacy, beside ε: digits, ten clients.

taskset -c 0 python benchmarks/privacy/attacks.py [--shadows 12] [--out docs/results]

Membership inference by loss and by LiRA, of the global and of the clients' own models: for each noise level
`shadows` runs, which divide each client's rows into halves otherwise, all levels in one program. Gradient
inversion of an upload of one image, with a picture. 12 minutes on one core beside other programs.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import jax
import numpy as np
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import fedjax_het as fh
from benchmarks.provenance import PAGES, place, provenance
from fedjax_het.privacy import records as ledger
from fedjax_het.privacy.membership import attack_figures, lira
from fedjax_het.studies.inversion import attacked
from fedjax_het.studies.membership import shadows

CLIENTS, ROUNDS, BATCH, CLIP = 10, 20, 16, 1.0
LOCAL = {"lr": 0.3, "momentum": 0.0, "weight_decay": 0.0, "epochs": 2, "batch_size": BATCH}
NOISE = (0.0, 0.5, 1.0, 2.0, 4.0)
INVERTED = (0.0, 0.003, 0.03, 0.3)  # of one image, whose gradient the noise is beside
SHAPE = (8, 8, 1)


def model():
  return fh.models.two_nn(SHAPE, 10, hidden=64)


def private(noise):
  return fh.federated(
    fh.ditto(model(), lam=0.1, **LOCAL, dp_clip=CLIP, dp_noise_multiplier=noise, dp_block=BATCH)
  )


def plain(lam):
  return fh.federated(fh.ditto(model(), lam=lam, **LOCAL))


def divided(source, count: int):
  """The same rows of each client, half of them for training, by one key a run."""
  parts = fh.data.partition(jax.random.key(0), "dirichlet", source.y, CLIENTS, alpha=1.0)
  return [
    fh.federate(source.x, source.y, parts, jax.random.key(s), num_classes=10, test_fraction=0.5)
    for s in range(count)
  ]


def levels(source, count: int) -> list[dict]:
  """A row for each noise level: ε, accuracy's stand-in, and both attacks on both models."""
  data, keys = divided(source, count), jax.random.split(jax.random.key(1), count)
  given = dict(rounds=ROUNDS, cohort_size=CLIENTS, devices=1)
  found = {None: shadows(plain, data, keys, settings={"lam": [0.1] * count}, **given)}
  many = [own for _ in NOISE for own in data]
  repeated = jax.random.wrap_key_data(np.tile(jax.random.key_data(keys), (len(NOISE), 1)))
  all_of = shadows(private, many, repeated, settings={"noise": np.repeat(NOISE, count).tolist()}, **given)
  found |= {z: all_of[i * count : (i + 1) * count] for i, z in enumerate(NOISE)}
  return [row(z, runs, data[0]) for z, runs in found.items()]


def row(z: float | None, runs: list, data) -> dict:
  sizes = np.asarray(data.train.size)
  delta = ledger.default_delta(sizes)
  own = {"noise_multiplier": z, "clip": None if z is None else CLIP, "epsilon": None, "delta": delta}
  if z:
    records = private(z).client.studies.records
    own["epsilon"] = ledger.spread(records, sizes, np.full(CLIENTS, ROUNDS), delta).largest
    own["most_tpr_1"] = float(min(1.0, np.exp(own["epsilon"]) * 0.01 + delta))
  for which in ("global", "personalized"):
    seen = [run[which] for run in runs]
    by_loss = [attack_figures(run.score[run.member], run.score[~run.member]) for run in seen]
    own[which] = {
      # φ > 0 is a right answer of more than half of the probability.
      "trained": float(np.mean([(run.score[run.member] > 0).mean() for run in seen])),
      "tested": float(np.mean([(run.score[~run.member] > 0).mean() for run in seen])),
      "loss": {name: float(np.mean([each[name] for each in by_loss])) for name in by_loss[0]},
      "lira": lira(seen),
    }
  return own


def inversions(source, count: int = 4):
  """Uploads of one image each of some clients, inverted: noise -> [Found]."""
  data, found = divided(source, 1)[0], {}
  for z in (None, *INVERTED):
    own = {} if z is None else {"dp_clip": CLIP, "dp_noise_multiplier": z}
    algorithm = fh.federated(fh.fedavg(model(), **{**LOCAL, "epochs": 1, "batch_size": 1}, **own))
    state = fh.Engine(algorithm, data, CLIENTS, devices=1).init(jax.random.key(2))
    found[z] = [
      attacked(jax.random.key(3), algorithm, model(), data, state, client=i, steps=1000) for i in range(count)
    ]
  return found


def draw(found, path: Path) -> None:
  columns = [("client's", [own.images[0] for own in found[None]])]
  for z, each in found.items():
    name = "no clip" if z is None else f"z = {z:g}"
    psnr = np.mean([own.psnr for own in each])
    columns.append((f"{name}\n{psnr:.0f} dB", [own.made[0] for own in each]))
  figure = Figure(figsize=(1.25 * len(columns), 5.4), layout="constrained")
  for c, (title, images) in enumerate(columns):
    for r, image in enumerate(images):
      axes = figure.add_subplot(len(images), len(columns), r * len(columns) + c + 1)
      axes.imshow(image.squeeze(), cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
      axes.set(xticks=[], yticks=[])
      if r == 0:
        axes.set_title(title, fontsize=9)
  figure.savefig(path, dpi=110)


def line(own: dict) -> str:
  """A row of the page's table."""
  z, epsilon = own["noise_multiplier"], own["epsilon"]
  first = "no clip" if z is None else f"{z:g}"
  cells = [first, "∞" if epsilon is None else f"{epsilon:.1f}"]
  for which in ("global", "personalized"):
    side = own[which]
    cells += [f"{100 * side['tested']:.0f} %", f"{100 * side['loss']['auc']:.1f}"]
    cells += [f"{100 * side['lira']['auc']:.1f} ± {100 * side['lira']['std']:.1f}"]
    cells += [f"{100 * side['lira']['tpr_1']:.1f} %", f"{100 * side['lira']['tpr_01']:.1f} %"]
  most = own.get("most_tpr_1", 1.0)
  return "| " + " | ".join([*cells, f"{100 * most:.0f} %"]) + " |"


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--shadows", type=int, default=12, help="runs of a noise level")
  parser.add_argument("--out", type=Path, default=PAGES, help="folder of the figures")
  asked = parser.parse_args()
  begun, source = time.perf_counter(), fh.data.load("digits")
  found = inversions(source)
  draw(found, place(asked.out, "attacks_on_privacy.png"))
  inverted = [
    {"noise_multiplier": z, "psnr": float(np.mean([own.psnr for own in each])),
     "mse": float(np.mean([own.mse for own in each]))} for z, each in found.items()
  ]  # fmt: skip
  rows = levels(source, asked.shadows)
  kept = {
    "provenance": provenance(), "seconds": time.perf_counter() - begun, "shadows": asked.shadows,
    "clients": CLIENTS, "rounds": ROUNDS, "local": LOCAL, "levels": rows, "inversion": inverted,
  }  # fmt: skip
  place(asked.out, "attacks_on_privacy.json").write_text(json.dumps(kept, indent=1) + "\n")
  print(*(line(own) for own in rows), sep="\n")
  print(*(f"inversion {own['noise_multiplier']}: {own['psnr']:.1f} dB" for own in inverted), sep="\n")


if __name__ == "__main__":
  main()
