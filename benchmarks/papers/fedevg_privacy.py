"""Measures what FedEvg's uploads reveal of a client's training examples, and accuracy with private uploads.

    python benchmarks/papers/fedevg_privacy.py [--only NAME ...] [--seeds 3] [--rounds 200]
      [--out docs/results]

The data are digits by Dirichlet(1); the energy is an MLP 64-256-256-10, with ten synthetic examples a class
and β from 1.

Membership. Ten clients train for one or for twenty local passes a round. The candidates of a client are its
own training examples (members) and its own test examples (not members), both from one distribution. Each
score is given as AUROC, as the mean over clients, by seed:
upload   the sum over `looks` evenly spaced rounds of `membership.pull_towards`, which a server can
         compute from the client's upload (e·∇E, e) at the synthetic set. The client is not asked for anything
         at the candidates.
asked e  the sum over these rounds of log e at the candidates, which a server learns if it puts them among the
         synthetic examples: sgn f(x)[y] with signed weights, f(x)[y] with raw ones, apart from its cut
asked ∇E the same of -‖∇E(x)‖. (Neither of the two includes that the client would then train on the candidates
         as it does on synthetic examples.)
model    f(x)[y] of the client's classifier after the last of these rounds. The classifier never leaves the
         client; this is what somebody who had it would know.
Each score has a control: the same candidates scored by the next client's upload and classifier, which saw
neither part. It shows how far a client's test part differs from its training part by chance.

Private uploads. A hundred clients take part in every round, each with weight 1/100 and even weights of its
examples. A client shortens the ∇E of all M examples to an L2 norm of C = 1, and normal noise of standard
deviation z C/100 is added to the sum. z is the smallest for which T rounds of the Gaussian mechanism are (ε,
δ)-private with δ = 1e-3, between a client's uploads and none (dp-accounting's exact accountant: pip install
-e '.[privacy]'). Clients are small, so they take 20 passes a round. Downstream accuracy is that of
benchmarks/papers/fedevg_digits.py, on all clients' test rows.
"""

import argparse
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_het as fh
from benchmarks.papers.fedevg_digits import CLASSES, LABELS, PER_CLASS, interval, rows_of, trial
from benchmarks.papers.membership import pull_towards
from benchmarks.provenance import PAGES, place, provenance
from fedjax_het.clients.energies import energy_gradient
from fedjax_het.metrics.classification import auroc
from fedjax_het.parts import Context

KINDS = {
  "signed": {},
  "raw, cap 2": {"energy": "raw", "cap": 2.0},
  "raw": {"energy": "raw"},
  "centred, cap 2": {"energy": "centred", "cap": 2.0},
  "signed, 20 passes": {"epochs": 20},
  "raw, 20 passes": {"energy": "raw", "epochs": 20},
  "raw, cap 2, 20 passes": {"energy": "raw", "cap": 2.0, "epochs": 20},
}
SCORES = ("upload", "asked e", "asked ∇E", "model")
NORM, DELTA, CROWD = 1.0, 1e-3, 100
EPSILONS = {
  "private, no noise": None,
  "private, ε = 100": 100.0,
  "private, ε = 30": 30.0,
  "private, ε = 10": 10.0,
  "private, ε = 3": 3.0,
  "private, ε = 1": 1.0,
}


def federation(source: fh.data.Source, seed: int, clients: int) -> fh.data.FederatedData:
  """Digits by Dirichlet(1)."""
  key = jax.random.key(seed)
  parts = fh.data.dirichlet(jax.random.fold_in(key, 0), source.y, num_clients=clients, alpha=1.0)
  return fh.federate(source.x, source.y, parts, jax.random.fold_in(key, 1), num_classes=CLASSES)


def energy_model() -> fh.Model:
  return fh.models.energy_mlp((8, 8, 1), CLASSES)


def membership(
  data: fh.data.FederatedData, seed: int, kind: dict, rounds: int, looks: int
) -> dict[str, float]:
  """AUROC of each score, mean over clients."""
  model, signed = energy_model(), kind.get("energy", "signed") == "signed"
  part = functools.partial(fh.fedevg, model, per_class=PER_CLASS, batch_size=32, **kind)
  algorithm = fh.federated(part(), server=fh.server.sgld(rounds, step_size=1.0))
  engine = fh.Engine(algorithm, data, data.num_clients)
  state, data = engine.init(jax.random.key(seed)), jax.tree.map(jnp.asarray, data)
  keeps = part(persistent=True)  # the same local training, which hands over its classifier too

  @jax.jit
  def look(broadcast, round, client):
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(99 + seed), round), client)
    context = Context(client, round, data.num_clients, data.num_clients)
    first = model.init(jax.random.split(key)[0])
    upload, params, _ = keeps.update(key, broadcast, first, data.clients(client), context)
    return upload, params

  @jax.jit
  def scores(broadcast, upload, params, x, y):
    gradient, own = energy_gradient(model, params, x, y)
    return {
      "upload": pull_towards(x, y, broadcast.params, LABELS, upload.params),
      "asked e": jnp.sign(own) if signed else own,
      "asked ∇E": -jnp.sqrt((gradient**2).sum(range(1, gradient.ndim))),
      "model": own,
    }

  examples = [
    [rows_of_client(data, part, client) for part in ("train", "test")] for client in range(data.num_clients)
  ]
  both = [tuple(np.concatenate(pair) for pair in zip(*parts)) for parts in examples]
  longest = max(len(y) for _, y in both)
  filled = [tuple(np.resize(own, (longest, *own.shape[1:])) for own in pair) for pair in both]  # one compile
  everybody = range(data.num_clients)
  sums = {(name, shift): [0.0] * len(both) for name in SCORES for shift in (0, 1)}
  done = 0
  for stop in np.linspace(rounds // looks, rounds, looks).astype(int) - 1:
    if stop > done:
      state, _ = engine.advance(state, int(stop - done))
      done = int(stop)
    broadcast = jax.tree.map(jnp.asarray, jax.device_get(state.broadcast))
    looked = [look(broadcast, jnp.int32(done), jnp.int32(client)) for client in everybody]
    for shift in (0, 1):
      for client in everybody:
        seen = looked[(client + shift) % len(looked)]
        count = len(both[client][1])
        for name, own in scores(broadcast, *seen, *filled[client]).items():
          before = 0.0 if name == "model" else sums[name, shift][client]
          sums[name, shift][client] = before + np.asarray(own)[:count]
  member = [np.repeat([1, 0], [len(train[1]), len(test[1])]) for train, test in examples]

  def area(each: list) -> float:
    """Mean over clients."""
    own = [float(auroc(jnp.asarray(s), m, np.ones(len(m), bool))) for s, m in zip(each, member)]
    return float(np.nanmean(own))

  return {name + ", control" * shift: area(own) for (name, shift), own in sums.items()}


def rows_of_client(data: fh.data.FederatedData, part: str, client: int) -> tuple[np.ndarray, np.ndarray]:
  """A client's images in [0, 1] and labels."""
  size = int(getattr(data, part).size[client])
  x, y = data.clients(jnp.int32(client), part).take(jnp.arange(size))
  return np.asarray(x), np.asarray(y)


def multiplier(epsilon: float, rounds: int) -> float:
  """The least z at which T = `rounds` Gaussian mechanisms, together one of z/√T, are (ε, DELTA)-private."""
  from dp_accounting import get_sigma_gaussian

  return rounds**0.5 * get_sigma_gaussian(epsilon, DELTA)


def private(source: fh.data.Source, epsilon: float | None, seeds: int, rounds: int) -> dict:
  """Downstream accuracy with clipped and noised uploads, and the noise."""
  z = 0.0 if epsilon is None else multiplier(epsilon, rounds)
  client = fh.fedevg(
    energy_model(), per_class=PER_CLASS, batch_size=32, epochs=20, energy="even", upload_norm=NORM
  )
  server = fh.server.particles(
    rounds, rms=1.0, step_size=0.05, last_step_size=0.0005, temperature=0.0,
    signal_noise=z * NORM / CROWD,
  )  # fmt: skip
  algorithm = fh.federated(client, fh.mixing.uniform(), server)
  federations = [federation(source, seed, CROWD) for seed in range(seeds)]
  result = fh.sweep(lambda: algorithm, seeds=range(seeds), data=federations, rounds=rounds, cohort_size=CROWD)
  sets = np.asarray(result.state.broadcast.params)
  tops = [
    float(trial(jax.random.key(7 + seed), x, LABELS, rows_of(data, "test")))
    for seed, (x, data) in enumerate(zip(sets, federations))
  ]
  return {
    "downstream": interval(np.array(tops)),
    "tops": tops,
    "multiplier": z,
    "epsilon": epsilon,
    "delta": DELTA,
  }


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--seeds", type=int, default=3)
  parser.add_argument("--rounds", type=int, default=200)
  parser.add_argument("--looks", type=int, default=10)
  parser.add_argument(
    "--only", nargs="*", help="of the kinds of weights and the private rows; all by default"
  )
  parser.add_argument("--out", type=Path, default=PAGES, help="the folder of raw/")
  args = parser.parse_args()
  fh.prepare_cpu()
  path = place(args.out, "fedevg_privacy.json")
  results = json.loads(path.read_text())["results"] if path.exists() else {}
  about = {"rounds": args.rounds, "seeds": args.seeds, **provenance()}
  source = fh.data.load("digits")

  def keep(name: str, found: dict) -> None:
    results[name] = found | about
    print(f"{name}: {json.dumps(found)}", flush=True)
    command = {"command": "python benchmarks/papers/fedevg_privacy.py"}
    path.write_text(json.dumps(command | {"results": results}, indent=2, ensure_ascii=False) + "\n")

  for name, kind in KINDS.items():
    if not args.only or name in args.only:
      each = [
        membership(federation(source, seed, 10), seed, kind, args.rounds, args.looks)
        for seed in range(args.seeds)
      ]
      keep(name, {score: [own[score] for own in each] for score in each[0]})
  for name, epsilon in EPSILONS.items():
    if not args.only or name in args.only:
      keep(name, private(source, epsilon, args.seeds, args.rounds))


if __name__ == "__main__":
  main()
