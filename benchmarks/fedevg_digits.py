"""FedEvg on digits: what its synthetic set is worth, several seeds as one program, and what settings do.

    python benchmarks/fedevg_digits.py [--seeds 10] [--ablation_seeds 3] [--alphas 1 0.01] [--only NAME ...]

scikit-learn's digits (8 x 8), K = 10 clients by Dirichlet(α), all in every round, ten synthetic examples a
class, T = 200, an energy MLP 64-256-256-10, B = 32, one local epoch. Downstream: TwoNN trained to the end
on the synthetic set alone, top-1 on all clients' test rows, by five judges (other initial parameters);
"real" is the same with ten real training examples a class, other ones for each judge. Diversity: mean
distance within a class, over that of the ten real ones, between pixels and between the 128 features of a
classifier trained on the real training rows, to which noise is no diversity. FedCVAE and FedCGAN are
perceptrons with as many hidden units, the same rounds, epochs and batches. All yardsticks see pixels kept
in [0, 1]. The first seed is drawn, for which drawn methods that --only leaves out run once. What is
measured joins what docs/results/fedevg_digits.json holds, row by row with its commit and date. Ablations
change one setting of "β from 1" (β from 10 is the thesis's).
"""

import argparse
import json
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
from provenance import provenance

import fedjax_het as fh
from fedjax_het.clients.fedevg import labels_of
from fedjax_het.clients.generative import fedcgan, fedcvae
from fedjax_het.data.scale import as_read
from fedjax_het.models.generative import cgan_mlp, cvae_mlp
from fedjax_het.yardsticks.downstream import downstream, within_class_distance
from fedjax_het.yardsticks.features import classifier_features

matplotlib.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
ROUNDS, CLIENTS, CLASSES, PER_CLASS, JUDGES = 200, 10, 10, 10, 5
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
  "FedCVAE, variance ½": (fedcvae, cvae_mlp((8, 8, 1), CLASSES, variance=0.5)),
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


def real_examples(data: fh.data.FederatedData, rng: np.random.Generator) -> jax.Array:
  """Ten random real training examples a class, class after class."""
  x, y = rows_of(data, "train")
  pick = [rng.choice(np.flatnonzero(y == c), PER_CLASS, replace=False) for c in range(CLASSES)]
  return jnp.asarray(x[np.concatenate(pick)])


def interval(values: np.ndarray) -> dict[str, float]:
  """Mean and the half-width of its 95 % interval (Student's t)."""
  from scipy import stats

  half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
  return {"mean": float(values.mean()), "half": float(half)}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--seeds", type=int, default=10)
  parser.add_argument("--rounds", type=int, default=ROUNDS)
  parser.add_argument("--ablation_seeds", type=int, default=3, help="0: no ablations")
  parser.add_argument("--alphas", type=float, nargs="*", default=[1.0, 0.01])
  parser.add_argument("--only", nargs="*", help="names of methods and settings; all by default")
  parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
  args = parser.parse_args()
  fh.prepare_cpu()
  source = fh.data.load("digits")
  labels = labels_of(CLASSES, PER_CLASS)
  trial = jax.jit(judge)
  about = {"rounds": args.rounds, **provenance()}
  report, grids = {}, {}
  for alpha in args.alphas:
    federations = []
    for seed in range(args.seeds):
      key = jax.random.key(seed)
      parts = fh.data.dirichlet(jax.random.fold_in(key, 0), source.y, num_clients=CLIENTS, alpha=alpha)
      federations.append(
        fh.federate(source.x, source.y, parts, jax.random.fold_in(key, 1), num_classes=CLASSES)
      )
    tests = [rows_of(data, "test") for data in federations]
    keys = jax.random.split(jax.random.key(7), args.seeds)
    seeds = jnp.stack([jax.random.fold_in(jax.random.key(seed), 2) for seed in range(args.seeds)])
    judges = [keys] + [jax.vmap(lambda k: jax.random.fold_in(k, j))(keys) for j in range(1, JUDGES)]  # noqa: B023

    def worth(draws, judges=judges, tests=tests):
      """Top-1 by the first judge over the seeds, and each judge's mean; `draws` by judge, then seed."""
      top = np.array(
        [[float(trial(*given[:2], labels, given[2])) for given in zip(*own)]
         for own in zip(judges, draws, [tests] * JUDGES)]
      )  # fmt: skip
      return {"downstream": interval(top[0]), "judges": top.mean(axis=1).tolist()}

    draws = [
      [
        real_examples(data, np.random.default_rng([seed, j] if j else seed))
        for seed, data in enumerate(federations)
      ]
      for j in range(JUDGES)
    ]
    real = draws[0]
    spread = np.array([float(within_class_distance(x, labels, CLASSES).mean()) for x in real])
    x, y = rows_of(federations[0], "train")
    features = classifier_features(jax.random.key(5), np.asarray, x, y, CLASSES)

    def apart(sets, features=features):
      own = [features.of(np.asarray(x)) for x in sets]
      return np.array([float(within_class_distance(x, labels, CLASSES).mean()) for x in own])

    far = apart(real)
    report[f"real, α = {alpha}"] = worth(draws) | about
    print(f"α = {alpha}: real examples {report[f'real, α = {alpha}']}", flush=True)
    methods = {name: baseline(*made) for name, made in BASELINES.items()}
    methods |= {
      name: fedevg(args.rounds, *settings)
      for name, settings in (SETTINGS | (ABLATIONS if args.ablation_seeds else {})).items()
    }
    for name, (algorithm, synthetic) in methods.items():
      wanted = not args.only or name in args.only
      if not wanted and name not in DRAWN:
        continue
      count = args.ablation_seeds if name in ABLATIONS else args.seeds if wanted else 1
      started = time.perf_counter()
      result = fh.sweep(
        lambda: algorithm,  # noqa: B023
        seeds=seeds[:count], data=federations[:count], rounds=args.rounds, cohort_size=CLIENTS,
      )  # fmt: skip
      seconds = time.perf_counter() - started
      sets = jnp.clip(jax.vmap(synthetic)(result.state.broadcast.params), 0.0, 1.0)
      grids[name, alpha] = np.asarray(sets[0]).reshape(CLASSES, PER_CLASS, 8, 8)
      if not wanted:
        continue
      distance = np.array([float(within_class_distance(x, labels, CLASSES).mean()) for x in sets])
      report[f"{name}, α = {alpha}"] = worth([sets] * JUDGES) | {
        "diversity": interval(distance / spread[:count]),
        "feature diversity": interval(apart(sets) / far[:count]), "seeds": count, "seconds": seconds,
      } | about  # fmt: skip
      print(f"α = {alpha}: {name}: {json.dumps(report[f'{name}, α = {alpha}'])}", flush=True)
    path = args.out / "fedevg_digits.json"
    if path.exists():
      report = json.loads(path.read_text())["results"] | report
    command = {"command": "python benchmarks/fedevg_digits.py"}
    path.write_text(json.dumps(command | {"results": report}, indent=2, ensure_ascii=False) + "\n")
  shown = {(name, alpha) for name in SHOWN for alpha in (1.0, 0.01)}
  if shown <= set(grids):
    draw(grids, args.out / "fedevg_digits.png")


def fedevg(rounds: int, client: dict, server: dict):
  """(algorithm, its broadcast as a synthetic set)."""
  spectral = client.get("spectral", True)
  client = {name: value for name, value in client.items() if name != "spectral"}
  model = fh.models.energy_mlp((8, 8, 1), CLASSES, spectral=spectral)
  part = fh.fedevg(model, per_class=PER_CLASS, batch_size=32, **client)
  return fh.federated(part, server=fh.server.sgld(rounds, **server)), lambda params: params


def baseline(part, generator):
  """(algorithm, what its averaged generator makes)."""
  labels = labels_of(CLASSES, PER_CLASS)
  client = part(generator, batch_size=32, lr_decay=0.9 ** (1 / 10))
  return fh.federated(client), lambda params: generator.generate(params, jax.random.key(11), labels)


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
