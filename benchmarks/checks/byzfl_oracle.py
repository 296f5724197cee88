"""Compares robust aggregations and attacks with those of byzfl 0.0.11.

    python benchmarks/checks/byzfl_oracle.py [--python PYTHON] [--out docs/results]

byzfl runs in an environment of its own (`benchmarks/.envs/byzfl`, or the one of PYTHON), in float64 on the
same updates; ours is compiled, in float32. A cohort has S = 5, 11, 20 or 50 clients with 1,000 numbers each,
the first S - m honest and m = ⌊S/4⌋ with large values; five draws of each size. A figure is the largest
|ours - byzfl's| of all coordinates over the largest |byzfl's|, for the worst draw. Three definitions differ,
and are brought together: byzfl's Krum(f + 1) counts the S - f - 2 neighbours of Blanchard et al. that ours
counts at f; its geometric median starts at 0, and receives the updates less their mean; its ALIE is
μ + τ s with the sample's deviation s, and receives τ = -z √((h - 1)/h) for h honest clients. multi-Krum and
Bulyan are not compared: at f + 1 byzfl's multi-Krum averages one upload less than ours, and it has no Bulyan.
The script writes OUT/raw/byzfl_oracle.json and prints the table.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import fedjax_het as fh

fh.prepare_cpu()

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from benchmarks.peers import envs  # noqa: E402
from benchmarks.provenance import PAGES, place, provenance  # noqa: E402
from fedjax_het.engine.dishonest import forged  # noqa: E402

SIZES, DRAWS, NUMBERS = (5, 11, 20, 50), 5, 1000
SMOOTHING, STEPS, RADIUS, SCALE, Z = 0.1, 3, 2.0, 0.5, 1.5


def cohorts() -> dict[str, dict[str, Any]]:
  """Each cohort's updates, float32 [S, D], and the settings of byzfl's rules."""
  found = {}
  for size in SIZES:
    for draw in range(DRAWS):
      rng = np.random.default_rng([size, draw])
      liars = size // 4
      updates = rng.normal(size=NUMBERS) + 0.5 * rng.normal(size=(size, NUMBERS))
      updates[size - liars :] = 5.0 * rng.normal(size=(liars, NUMBERS))
      found[f"{size} {draw}"] = dict(
        updates=updates.astype(np.float32), honest=size - liars, trim=liars, smoothing=SMOOTHING,
        steps=STEPS, radius=RADIUS, f=(size - 3) // 2, scale=SCALE, z=Z,
      )  # fmt: skip
  return found


def ours(updates: np.ndarray, honest: int, trim: int, f: int) -> dict[str, np.ndarray]:
  """Returns what the library makes of a cohort's updates, float32 [S, D], by the name of the rule."""
  size, key = len(updates), jax.random.key(0)
  even, broadcast = jnp.full(size, 1.0 / size), fh.Message(jnp.zeros(updates.shape[1]))
  liars, everybody = jnp.arange(size) >= honest, jnp.ones(size, bool)

  def combined(part: fh.Aggregation, state: Any = None, uploads: np.ndarray = updates) -> Any:
    state = part.init(broadcast) if state is None else state
    combine = jax.jit(part.combine)  # type: ignore[arg-type]
    return combine(key, state, even, fh.Message(jnp.asarray(uploads)), broadcast, everybody)

  sent_by = fh.Message(jnp.asarray(updates))

  def sent(attack: fh.Attack) -> np.ndarray:
    call = jax.jit(lambda uploads: forged(attack, key, uploads, liars, broadcast, everybody, True))
    return call(sent_by).params[-1]

  def krum() -> np.ndarray:
    def mix(uploads: fh.Message) -> jax.Array:
      ids = jnp.arange(size)
      losses, ones = lambda: jnp.zeros(size), jnp.ones(size, jnp.int32)
      feedback = fh.Feedback(ids, ones, jnp.int32(0), losses, lambda: uploads, broadcast)
      return fh.mixing.krum(f).update((), feedback)[0]

    return np.asarray(jax.jit(mix)(sent_by)) @ updates

  clipping = fh.aggregation.centered_clipping(RADIUS, iterations=2)
  first, state = combined(clipping)
  return {
    "median": combined(fh.aggregation.median())[0].params,
    "trimmed_mean": combined(fh.aggregation.trimmed_mean(trim / size))[0].params,
    "geometric_median": combined(fh.aggregation.geometric_median(STEPS, SMOOTHING))[0].params,
    "centered_clipping": first.params,
    "centered_clipping, next round": combined(clipping, state, updates[::-1].copy())[0].params,
    "krum": krum(),
    "ipm": sent(fh.attacks.ipm(scale=SCALE)),
    "mimic": sent(fh.attacks.mimic()),
    "alie": sent(fh.attacks.alie(z=Z)),
  }


def of_byzfl(given: dict[str, dict[str, Any]], python: Path) -> dict[str, np.ndarray]:
  script = envs.PEERS / "byzfl_rules.py"
  with tempfile.TemporaryDirectory() as folder:
    files = [str(Path(folder) / name) for name in ("in.npz", "out.npz")]
    flat = {f"{name}/{key}": value for name, own in given.items() for key, value in own.items()}
    np.savez(files[0], **flat)
    subprocess.run([str(python), str(script), *files], check=True)
    return dict(np.load(files[1]))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--python", type=Path, help="of an environment that has byzfl")
  parser.add_argument("--out", type=Path, default=PAGES, help="the folder of raw/")
  args = parser.parse_args()
  given = cohorts()
  theirs = of_byzfl(given, args.python or envs.ensure("byzfl"))
  found: dict[str, dict[int, float]] = {}
  for name, own in given.items():
    size = int(name.split()[0])
    made = ours(*(own[key] for key in ("updates", "honest", "trim", "f")))
    for rule, vector in made.items():
      other = theirs[f"{name}/{rule}"]
      away = float(np.abs(np.asarray(vector, np.float64) - other).max() / np.abs(other).max())
      by_size = found.setdefault(rule, {})
      by_size[size] = max(by_size.get(size, 0.0), away)
  report = {**provenance(), "byzfl": "0.0.11", "draws": DRAWS, "numbers": NUMBERS, "largest": found}
  place(args.out, "byzfl_oracle.json").write_text(json.dumps(report, indent=1) + "\n")
  print(
    "| rule | " + " | ".join(f"S = {size}" for size in SIZES) + " |", "|---|" + "---|" * len(SIZES), sep="\n"
  )
  for rule, by_size in found.items():
    print(f"| {rule} | {' | '.join(f'{by_size[size]:.1e}' for size in SIZES)} |")


if __name__ == "__main__":
  main()
