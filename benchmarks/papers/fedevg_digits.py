"""Measures on digits what FedEvg's synthetic set is worth, beside FedCVAE and FedCGAN, with ablations.

    python benchmarks/papers/fedevg_digits.py [--seeds 10] [--ablation_seeds 3] [--alphas 1 0.01]
      [--only NAME ...] [--missing] [--sets FOLDER] [--out docs/results]

The data are scikit-learn's digits (8 x 8), divided among K = 10 clients by Dirichlet(α). All clients take
part in each of T = 200 rounds. The server keeps ten synthetic examples a class; the energy is an MLP
64-256-256-10, B = 32, one local epoch. FedCVAE and FedCGAN are perceptrons with as many hidden units, and
have the same rounds, epochs and batches. The seeds of a setting are one program.

Downstream accuracy: TwoNN is trained to convergence on the synthetic set alone, by five judges (other initial
parameters), and tested on all clients' test rows, top-1. "real" is the same with ten real training examples a
class ("20 real a class" with more), different ones for each judge. Diversity: the mean distance within a
class over that of the ten real examples, once between pixels and once between the 128 features of a
classifier trained on the real training rows, which does not count noise as diversity. All of them see
pixels kept in [0, 1]. When all methods that the picture shows have run, the script draws the first seed's
sets.

Results are added to OUT/raw/fedevg_digits.json row by row, each with its commit and date; --missing skips
the rows that the file has. Ablations change one setting of "β from 1" (the thesis has β from 10). Settings
beyond the thesis are in fedevg_settings.py. One more is defined here, repulsion between learnt features: the
last hidden units of a TwoNN trained on all training rows of the first seed's clients. No server has those, so
its figures are an upper bound for what learnt features could give.
"""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

import fedjax_het as fh
from benchmarks.papers.fedevg_settings import BEYOND, repulsive
from benchmarks.provenance import PAGES, place, provenance
from fedjax_het.clients.generative import fedcgan, fedcvae
from fedjax_het.data.scale import as_read
from fedjax_het.methods import METHODS
from fedjax_het.metrics.seeds import over_seeds
from fedjax_het.models.zoo.generative import cgan_mlp, cvae_mlp
from fedjax_het.studies.downstream import downstream, within_class_distance
from fedjax_het.studies.features import classifier_features

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROUNDS, CLIENTS, CLASSES, PER_CLASS, JUDGES = 200, 10, 10, 10, 5
LABELS = np.repeat(np.arange(CLASSES), PER_CLASS)
REAL = {"real": PER_CLASS, "20 real a class": 20, "50 real a class": 50}
LEARNT = {f"repulsion between learnt features, τ = {tau}, β from 1": tau for tau in (0.3, 1)}
DRAWN = ("as the thesis: β from 10, signed, fresh", "β from 1")
SHOWN = ("FedCVAE", "FedCGAN", *DRAWN)
FROM_1 = {"step_size": 1.0}
SETTINGS = {  # client's, server's
  "as the thesis: β from 10, signed, fresh": ({}, {}),
  "β from 1": ({}, FROM_1),
  "β from 1, λ = 1": ({"lam": 1.0}, FROM_1),
  "β from 1, five local epochs": ({"epochs": 5}, FROM_1),
}
ABLATIONS = {
  "raw energies": ({"energy": "raw"}, FROM_1),
  "persistent classifiers": ({"persistent": True}, FROM_1),
  "gradients not clipped": ({"clip": None}, FROM_1),
  "pixels not bounded": ({"bounded": False}, {**FROM_1, "bounded": False}),
  "no chains, R = 0": ({"chain_steps": 0}, FROM_1),
  "λ = 0": ({"lam": 0.0}, FROM_1),
  "server noise δ = 0.1": ({}, {**FROM_1, "noise": 0.1}),
  "β constant": ({}, {**FROM_1, "last_step_size": 1.0}),
  "last layer not normalised": ({"spectral": False}, FROM_1),
}


BASELINES = {
  "FedCVAE": (fedcvae, cvae_mlp((8, 8, 1), CLASSES)),
  "FedCVAE, likeliest variance": (fedcvae, cvae_mlp((8, 8, 1), CLASSES, beta=None)),
  "FedCVAE, variance ½": (fedcvae, cvae_mlp((8, 8, 1), CLASSES, beta=None, variance=0.5)),
  "FedCGAN": (fedcgan, cgan_mlp((8, 8, 1), CLASSES)),
}


def rows_of(data: fh.data.FederatedData, part: str) -> tuple[np.ndarray, np.ndarray]:
  """All clients' images in [0, 1] and labels."""
  index = getattr(data, part).rows()
  return as_read(np.asarray(data.x)[index], data.scale), np.asarray(data.y)[index]


def judge(key, x, y, test):
  """Downstream top-1 on the test rows."""
  model = fh.models.two_nn((8, 8, 1))
  params, _ = downstream(key, model, x, y)
  return (model.apply(params, test[0]).argmax(1) == test[1]).mean()


def real_examples(data: fh.data.FederatedData, rng: np.random.Generator, per_class: int) -> jax.Array:
  """Random real training examples, class after class."""
  x, y = rows_of(data, "train")
  pick = [rng.choice(np.flatnonzero(y == c), per_class, replace=False) for c in range(CLASSES)]
  return jnp.asarray(x[np.concatenate(pick)])


trial = jax.jit(judge)


def labels_of(x) -> np.ndarray:
  """Of a set with as many examples a class, class after class."""
  return np.repeat(np.arange(CLASSES), len(x) // CLASSES)


def apart(sets) -> np.ndarray:
  """Mean distance within a class, by seed."""
  return np.array([float(within_class_distance(jnp.asarray(x), labels_of(x), CLASSES).mean()) for x in sets])


def interval(values: np.ndarray) -> dict[str, float]:
  """Mean and the half-width of its 95 % interval (Student's t)."""
  found = over_seeds(values)
  return {"mean": found.mean, "half": np.nan if found.half is None else found.half}


class Split:
  """Ten clients' digits for each seed at one α, their judges, and ten real examples a class beside.

  Attributes:
    federations: the data of each seed.
    seeds: the runs' keys.
    spread: mean distance within a class of ten real examples, the first judge's, by seed, between pixels.
    far: the same between features.
  """

  def __init__(self, source: fh.data.Source, alpha: float, count: int, first: int = 0):
    self.federations, self._numbers = [], range(first, first + count)
    for seed in self._numbers:
      key = jax.random.key(seed)
      parts = fh.data.dirichlet(jax.random.fold_in(key, 0), source.y, num_clients=CLIENTS, alpha=alpha)
      self.federations.append(
        fh.federate(source.x, source.y, parts, jax.random.fold_in(key, 1), num_classes=CLASSES)
      )
    self._tests = [rows_of(data, "test") for data in self.federations]
    keys = jax.random.split(jax.random.key(7 + first), count)
    self.seeds = jnp.stack([jax.random.fold_in(jax.random.key(seed), 2) for seed in self._numbers])
    self._judges = [keys] + [jax.vmap(lambda k: jax.random.fold_in(k, j))(keys) for j in range(1, JUDGES)]  # noqa: B023
    x, y = rows_of(self.federations[0], "train")
    self._features = classifier_features(jax.random.key(5), np.asarray, x, y, CLASSES)
    real = self.real(PER_CLASS)[0]
    self.spread, self.far = apart(real), self.apart(real)

  def real(self, per_class: int) -> list:
    """Real examples, by judge, then seed."""
    return [
      [
        real_examples(data, np.random.default_rng([seed, j] if j else seed), per_class)
        for seed, data in zip(self._numbers, self.federations)
      ]
      for j in range(JUDGES)
    ]

  def learnt(self):
    """A TwoNN's last hidden units, which learnt on the first seed's training rows."""
    model = fh.models.two_nn((8, 8, 1))
    learn = jax.jit(lambda key, x, y: downstream(key, model, x, y))
    params, _ = learn(jax.random.key(6), *rows_of(self.federations[0], "train"))
    layers = [params[f"fc{i}"] for i in (1, 2)]

    def of(x):
      h = x.reshape(len(x), -1)
      for layer in layers:
        h = jax.nn.relu(h @ layer["kernel"] + layer["bias"])
      return h

    return of

  def apart(self, sets) -> np.ndarray:
    """Mean distance within a class between features, by seed."""
    return apart([self._features.of(np.asarray(x)) for x in sets])

  def worth(self, draws) -> dict:
    """Top-1 by the first judge over the seeds, and each judge's mean; `draws` by judge, then seed."""
    top = np.array(
      [[float(trial(*given[:2], labels_of(given[1]), given[2])) for given in zip(*own)]
       for own in zip(self._judges, draws, [self._tests] * JUDGES)]
    )  # fmt: skip
    return {"downstream": interval(top[0]), "tops": top[0].tolist(), "judges": top.mean(axis=1).tolist()}

  def row(self, made, rounds: int, count: int) -> tuple[dict, np.ndarray]:
    """What a method's synthetic sets of the first `count` seeds are worth, and the sets."""
    algorithm, synthetic = made
    started = time.perf_counter()
    result = fh.sweep(
      lambda: algorithm, seeds=self.seeds[:count], data=self.federations[:count], rounds=rounds,
      cohort_size=CLIENTS,
    )  # fmt: skip
    seconds = time.perf_counter() - started
    sets = jnp.clip(jax.vmap(synthetic)(result.state.broadcast.params), 0.0, 1.0)
    return self.worth([sets] * JUDGES) | {
      "diversity": interval(apart(sets) / self.spread[:count]),
      "feature diversity": interval(self.apart(sets) / self.far[:count]), "seeds": count, "seconds": seconds,
    }, np.asarray(sets)  # fmt: skip


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--seeds", type=int, default=10)
  parser.add_argument("--first", type=int, default=0, help="the first seed; names of others than 0 say it")
  parser.add_argument("--rounds", type=int, default=ROUNDS)
  parser.add_argument("--ablation_seeds", type=int, default=3, help="0: no ablations")
  parser.add_argument("--alphas", type=float, nargs="*", default=[1.0, 0.01])
  parser.add_argument("--only", nargs="*", help="methods and settings, in this order; all by default")
  parser.add_argument("--missing", action="store_true", help="only rows that the JSON has of fewer seeds")
  parser.add_argument("--sets", type=Path, help="a folder in which the synthetic sets are kept")
  parser.add_argument("--out", type=Path, default=PAGES, help="the folder of raw/ and images/")
  args = parser.parse_args()
  fh.prepare_cpu()
  path, grids = place(args.out, "fedevg_digits.json"), {}
  results = json.loads(path.read_text())["results"] if path.exists() else {}
  about = {"rounds": args.rounds, **provenance()}

  def full(name: str, alpha: float) -> str:
    return f"{name}, {f'seeds from {args.first}, ' if args.first else ''}α = {alpha}"

  def keep(name: str, alpha: float, row: dict) -> None:
    results[full(name, alpha)] = row | about
    print(f"α = {alpha}: {name}: {json.dumps(row, ensure_ascii=False)}", flush=True)
    command = {"command": "python benchmarks/papers/fedevg_digits.py"}
    path.write_text(json.dumps(command | {"results": results}, indent=2, ensure_ascii=False) + "\n")

  def wanted(name: str, alpha: float, count: int) -> bool:
    had = results.get(full(name, alpha), {}).get("seeds", 0)
    return count > (had if args.missing else 0) and (not args.only or name in args.only)

  source = fh.data.load("digits")
  splits = {alpha: Split(source, alpha, args.seeds, args.first) for alpha in args.alphas}
  for name, per_class in REAL.items():
    for alpha, split in splits.items():
      if wanted(name, alpha, args.seeds):
        keep(name, alpha, split.worth(split.real(per_class)) | {"seeds": args.seeds})
  methods = BASELINES | SETTINGS | ABLATIONS | BEYOND
  for name in args.only or [*methods, *LEARNT]:
    if name in REAL:
      continue
    settings = methods.get(name)
    count = args.ablation_seeds if name in ABLATIONS else args.seeds
    for alpha, split in splits.items():
      if wanted(name, alpha, count):
        if name in LEARNT:
          settings = {}, repulsive(float(LEARNT[name]), space=split.learnt())
        made = baseline(*settings) if name in BASELINES else fedevg(args.rounds, *settings)
        row, sets = split.row(made, args.rounds, count)
        keep(name, alpha, row)
        grids[name, alpha] = sets[0].reshape(CLASSES, -1, 8, 8)[:, :PER_CLASS]
        if args.sets:
          args.sets.mkdir(parents=True, exist_ok=True)
          np.save(args.sets / f"{name}, α = {alpha}.npy", sets[0])
  print(table(results, args.alphas))
  shown = {(name, alpha) for name in SHOWN for alpha in (1.0, 0.01)}
  if shown <= set(grids):
    draw(grids, place(args.out, "fedevg_digits.png"))


def table(results: dict[str, dict], alphas: list[float]) -> str:
  """What has run of real examples and beyond the thesis: top-1 in percent, diversity by pixels, features."""
  rows = ["| | seeds |" + "".join(f" α = {alpha:g}: downstream | pixels | features |" for alpha in alphas)]
  rows.append("|---" * (2 + 3 * len(alphas)) + "|")
  known = dict.fromkeys(name.rpartition(", α = ")[0] for name in results)
  for name in (name for name in known if name in BEYOND or name in REAL or name in LEARNT):
    found = [results.get(f"{name}, α = {alpha}") for alpha in alphas]
    if any(found):
      cells = [cell for own in found for cell in (figures(own) if own else ["not run", "", ""])]
      rows.append(f"| {name} | {max(own.get('seeds', 0) for own in found if own)} | {' | '.join(cells)} |")
  return "\n".join(rows)


def figures(row: dict) -> list[str]:
  """The three cells of one α."""
  top, apart = row["downstream"], [row.get(part) for part in ("diversity", "feature diversity")]
  return [f"{100 * top['mean']:.1f} ± {100 * top['half']:.1f}"] + [
    f"{own['mean']:.2f}" if own else "" for own in apart
  ]


def fedevg(rounds: int, client: dict, server: dict):
  """(algorithm, its broadcast as a synthetic set)."""
  spectral = client.get("spectral", True)
  client = {name: value for name, value in client.items() if name != "spectral"}
  model = fh.models.energy_mlp((8, 8, 1), CLASSES, spectral=spectral)
  part = fh.fedevg(model, **{"per_class": PER_CLASS, "batch_size": 32} | client)
  server = {"name": "sgld", **server}
  move = METHODS["server"][server.pop("name")].make({"rounds": rounds}, **server)
  return fh.federated(part, server=move), lambda params: params


def baseline(part, generator):
  """(algorithm, what its averaged generator makes)."""
  client = part(generator, batch_size=32, lr_decay=0.9 ** (1 / 10))
  return fh.federated(client), lambda params: generator.generate(params, jax.random.key(11), LABELS)


def draw(grids: dict, path: Path) -> None:
  """Some methods' synthetic sets, a class a row."""
  chosen = [(name, alpha) for alpha in (1.0, 0.01) for name in SHOWN]
  figure, axes = plt.subplots(2, len(chosen) // 2, figsize=(3.2 * len(chosen) // 2, 7))
  for ax, (name, alpha) in zip(axes.ravel(), chosen):
    framed = np.pad(grids[name, alpha], ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=0.5)
    ax.imshow(framed.transpose(0, 2, 1, 3).reshape(100, 100), cmap="gray", vmin=0, vmax=1)
    ax.set_title(f"{name.split(':')[0]}, α = {alpha}", fontsize=9)
    ax.set_axis_off()
  figure.tight_layout()
  figure.savefig(path, dpi=120)


if __name__ == "__main__":
  main()
