"""Splits a step of TwoNN on one core into pieces, and compares each with the least time that it can take.

    taskset -c 0 python benchmarks/speed/roofline.py [--turns 7] [--out docs/results/raw/roofline.json]

TwoNN has B = 10 with momentum and weight decay, as in the tables. Each piece is a loop of its own in one
program, and pieces take turns:

product       the machine's float32 matrix product, 1024 x 1024: the peak
triad         y <- a y + x of arrays as large as one model, which fit into the cache: 3 passes
large triad   the same of arrays as large as four models, together a little more than SuPerFed's ends,
              momenta, gradient, mixture and centre: 12 passes
gradient      the model's loss and gradient on a batch, at fixed parameters
SGD           m, θ <- from a given gradient
near          the same with a pull towards a model, as Ditto's own model and pFedMe have
outer         w - r (w - θ), pFedMe's, once a batch
mix           θ(λ) of two ends
cosine        cos² and the factors of its gradient, of two ends
both ends     eq. 2.3's two gradients, and both updates

Beside them it times whole client steps of the engine on one device: FedAvg's, SuPerFed-MM's, and what Ditto
and APFL do with a batch for both models, and pFedMe in five steps. A pass is an array of a model's size read
or written. "fewest" counts passes as if a kernel could write several arrays (SGD reads g, θ, m and writes θ,
m). "single" counts them for XLA's CPU kernels, which write one array each (m from g, θ, m; then θ from θ, m).
A piece's bound is the larger of its arithmetic at the peak and its passes at the triad's speed. "Beyond L2"
are the single passes at the large triad's speed, which holds if a step's arrays do not fit into a core's own
cache. For whole steps "single" is the sum of the pieces' bounds. "fewest" is a bound for every arrangement:
arithmetic and passes at the same time, gradients never stored, the mixture computed where it is read, cos²
carried along. Figures are microseconds, medians over the turns. The script writes a JSON file.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import fedjax_het as fh

fh.prepare_cpu(devices=1)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402

from benchmarks.provenance import RAW, provenance  # noqa: E402
from benchmarks.speed.client_steps import clients  # noqa: E402
from fedjax_het.clients import superfed  # noqa: E402
from fedjax_het.clients.objective import loss_gradient, momentum_sgd, updates_barrier  # noqa: E402
from fedjax_het.clients.sgd import proximal_gradient as kept_near  # noqa: E402
from fedjax_het.local import Batch  # noqa: E402

BATCH, LOOP, SIDE = 10, 400, 1024
PASSES = {  # (fewest, single)
  "triad": (3, 3),
  "large triad": (12, 12),
  "gradient": (2, 2),  # θ, and g
  "SGD": (5, 7),
  "near": (6, 8),
  "outer": (3, 3),
  "mix": (3, 3),
  "cosine": (2, 4),  # three dot products
  "both ends": (10, 17),  # 5 and 6 of the momenta, of g, the ends and the centre, and 3 each of the ends
}
STEPS = {  # gradients, pieces, fewest passes: products read the model or its ends, updates read and write
  "FedAvg": ("fedavg", 1, ("gradient", "SGD"), 1 + 4),
  "Ditto": ("ditto", 2, ("gradient", "SGD", "gradient", "near"), 1 + 4 + 1 + 5),
  "APFL": ("apfl", 2, ("gradient", "mix", "gradient", "SGD", "SGD"), 1 + 2 + 8),
  "pFedMe": ("pfedme", 5, ("gradient", "near") * 5 + ("outer",), 5 * (1 + 5) + 3),
  "SuPerFed-MM": ("superfed_mm", 1, ("mix", "gradient", "cosine", "both ends"), 2 + 9),
}


def pieces(model: fh.Model) -> dict[str, Callable[[], float]]:
  """Name -> seconds of one turn of the loop's body."""
  keys = jax.random.split(jax.random.key(0), 4)
  first, second, center = (model.init(key) for key in keys[:3])
  zeros, tx = jax.tree.map(jnp.zeros_like, first), momentum_sgd(0.9, 1e-4)(0.01)
  batch = Batch(jnp.ones((BATCH, 28, 28, 1)), jnp.arange(BATCH) % 10, jnp.ones(BATCH), keys[3])
  size = sum(leaf.size for leaf in jax.tree.leaves(first))

  def triad(carry):
    y, x = carry
    return 0.999 * y + x, x

  def gradient(carry):
    shift, _ = carry
    own = batch._replace(x=batch.x + 1e-6 * shift)
    loss, found, _ = loss_gradient(model, first, (), own)
    return loss, found

  def sgd(carry):
    params, state, found = carry
    updates, state = tx.update(found, state, params)
    return jax.tree.map(jnp.add, params, updates_barrier(updates)), state, found

  def near(carry):
    params, state, found, origin = carry
    params, state, _ = sgd((params, state, kept_near(origin, 0.01)(found, params)))
    return params, state, found, origin

  def outer(carry):
    return jax.tree.map(lambda w, o: w - 0.01 * (w - o), *carry), carry[1]

  def mixed(carry):
    t, one, other, _ = carry
    found = superfed.mix(one, other, jax.tree.map(lambda _: t, one))
    return t * 0.999, one, other, found

  def cosine(carry):
    t, one, other = carry
    a, b, c = superfed.cosine_squared_factors(jax.tree.map(lambda leaf: leaf + 1e-6 * t, one), other)
    return 1e-3 * (a + b + c), one, other

  def both(carry):
    t, ends, states, found, origin = carry
    one, other = ends
    gradients = (
      jax.tree.map(
        lambda g, f, l, o: (1 - t) * g + 0.01 * (f - o) + t * l - t * f, found, one, other, origin
      ),
      jax.tree.map(lambda g, f, l: t * g + t * f - t * l, found, one, other),
    )
    updates, states = zip(*map(tx.update, gradients, states, ends))
    return t * 0.999, jax.tree.map(jnp.add, ends, updates_barrier(updates)), states, found, origin

  t, state = jnp.float32(0.5), tx.init(first)
  ends, states = (first, second), (state, state)
  y, x = jnp.ones(size), jnp.full(size, 1e-3)
  large = jnp.ones(4 * size), jnp.full(4 * size, 1e-3)
  loops = {
    "triad": (triad, (y, x)),
    "large triad": (triad, large),
    "gradient": (gradient, (t, zeros)),
    "SGD": (sgd, (first, state, zeros)),
    "near": (near, (first, state, zeros, center)),
    "outer": (outer, (first, second)),
    "mix": (mixed, (t, first, second, zeros)),
    "cosine": (cosine, (t, first, second)),
    "both ends": (both, (t, ends, states, center, center)),
  }

  def timed(body: Callable, carry) -> Callable[[], float]:
    program = jax.jit(lambda carry: jax.lax.fori_loop(0, LOOP, lambda _, own: body(own), carry))
    jax.block_until_ready(program(carry))

    def seconds() -> float:
      started = time.perf_counter()
      jax.block_until_ready(program(carry))
      return (time.perf_counter() - started) / LOOP

    return seconds

  square = jnp.ones((SIDE, SIDE))
  product = jax.jit(jnp.dot)
  jax.block_until_ready(product(square, square))

  def multiplied() -> float:
    started = time.perf_counter()
    for _ in range(10):
      jax.block_until_ready(product(square, square))
    return (time.perf_counter() - started) / 10

  return {"product": multiplied} | {name: timed(*loop) for name, loop in loops.items()}


def engine_steps(model: fh.Model) -> dict[str, Callable[[], float]]:
  """Name -> seconds of a client's batch in a run on one device."""
  data = clients(20, 480)

  def timed(method: str, gradients: int) -> Callable[[], float]:
    more = {"local_epochs": 1} if method == "ditto" else {}
    client = getattr(fh, method)(model, epochs=1, batch_size=BATCH, lr=0.01, **more)
    engine = fh.Engine(fh.federated(client), data, 5)
    state, _ = engine.advance(engine.init(jax.random.key(1)), 1)

    def seconds() -> float:
      nonlocal state
      started = time.perf_counter()
      state, infos = engine.advance(state, 2)
      return (time.perf_counter() - started) * gradients / int(infos.clients.steps.sum())

    seconds()
    return seconds

  return {name: timed(method, gradients) for name, (method, gradients, *_) in STEPS.items()}


def table(found: dict) -> str:
  """Pieces and whole steps, with what they at least take; shares of the time that is measured."""
  columns = "| | µs | passes, single | bound, µs | share | beyond L2, µs | passes, fewest | bound, µs |"
  rows = [columns, "|---" * 8 + "|"]
  for name, own in found.items():
    (few, single), (least, bound) = own["passes"], own["bounds_us"]
    share = bound / own["us"]
    passes = f"{single} | {bound:.0f} | {share:.2f} | {own['beyond_us']:.0f} | {few} | {least:.0f}"
    rows.append(f"| {name} | {own['us']:.0f} | {passes} |")
  return "\n".join(rows)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--turns", type=int, default=7)
  parser.add_argument("--out", type=Path, default=RAW / "roofline.json")
  args = parser.parse_args()
  model = fh.models.two_nn((28, 28, 1), 10)
  timed = pieces(model) | engine_steps(model)
  turns: dict[str, list[float]] = {name: [] for name in timed}
  for _ in range(args.turns):
    for name, measure in timed.items():
      turns[name].append(1e6 * measure())
  about, found = summary(model, turns)
  args.out.write_text(json.dumps(about | {"found": found, "turns_us": turns}, indent=2) + "\n")
  print(
    f"peak {about['peak_gflops']:.0f} GFLOP/s, triad {about['triad_gb_a_second']:.1f} GB/s, "
    f"large {about['large_triad_gb_a_second']:.1f} GB/s",
    table(found),
    sep="\n",
  )


def summary(model: fh.Model, turns: dict[str, list[float]]) -> tuple[dict, dict[str, dict]]:
  """What the figures hold for, and each piece's and step's medians and bounds."""
  us = {name: statistics.median(own) for name, own in turns.items()}
  params = model.init(jax.random.key(0))
  size = sum(leaf.size for leaf in jax.tree.leaves(params))
  kernels = [leaf.size for leaf in jax.tree.leaves(params) if leaf.ndim == 2]
  flops = BATCH * (6 * sum(kernels) - 2 * params["fc1"]["kernel"].size)  # no gradient for the images
  peak, a_pass, beyond = 2 * SIDE**3 / us["product"], us["triad"] / 3, us["large triad"] / 12  # a µs
  found: dict[str, dict] = {}
  for name, passes in PASSES.items():
    least = flops / peak if name == "gradient" else 0.0
    bounds = [max(count * a_pass, least) for count in passes]
    found[name] = {
      "us": us[name], "passes": passes, "bounds_us": bounds, "beyond_us": passes[1] * beyond,
    }  # fmt: skip
  for name, (_, gradients, of, fewest) in STEPS.items():
    single, bound = (sum(found[piece][key][1] for piece in of) for key in ("passes", "bounds_us"))
    found[name] = {
      "us": us[name], "pieces_us": sum(us[piece] for piece in of), "passes": [fewest, single],
      "bounds_us": [max(fewest * a_pass, gradients * flops / peak), bound], "beyond_us": single * beyond,
    }  # fmt: skip
  about = {
    "command": "taskset -c 0 python benchmarks/speed/roofline.py",
    **provenance(),
    "parameters": size,
    "flops_a_gradient": flops,
    "peak_gflops": peak / 1e3,
    "triad_gb_a_second": 4 * size / a_pass / 1e3,
    "large_triad_gb_a_second": 12 * 4 * size / us["large triad"] / 1e3,
  }
  return about, found


if __name__ == "__main__":
  main()
