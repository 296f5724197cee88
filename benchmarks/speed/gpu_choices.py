"""Times the choices that the library makes on an accelerator against those that it makes on a CPU.

    python benchmarks/speed/gpu_choices.py [--turns 3] [--out FILE.jsonl]
    JAX_PLATFORMS=cpu python benchmarks/speed/gpu_choices.py --small       toy size, to try the script

updates   whole rounds with momentum and weight decay, with updates in any order against updates that wait for
          one another (`objective.leaves_barrier`): milliseconds a round of one epoch of 48 steps, or of five
          epochs for the workload of pfl-research's benchmark, see gpu.py
windows   a convolution's value and both gradients in a compiled loop, with windows gathered by places against
          windows from slices (`convolution._windows`): microseconds, for a stack of clients with kernels of
          their own
products  whole rounds with momentum and weight decay, with a kernel's gradient as one product against a sum
          of outer products (`product._of_rows`): milliseconds a round of one epoch of 48 steps

All programs are compiled first and then take turns. Each prints a line of JSON with the times of both choices
and the ratio of their medians.
"""

import argparse
import functools
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
from jax import lax

import fedjax_het as fh
from benchmarks.speed import gpu
from fedjax_het.clients import apfl, objective, pfedme, sgd, superfed
from fedjax_het.models.layers import convolution, product

RUNS = (
  ("two_nn", "fedavg", 5), ("two_nn", "superfed_mm", 5), ("two_cnn", "fedavg", 5),
  ("two_cnn", "superfed_mm", 5), ("small_cnn", "fedavg", 50),
)  # fmt: skip
LAYERS = (  # images, pixels a side, kernel, inputs, features, padding
  (10, 32, 5, 3, 32, 1), (10, 16, 5, 32, 64, 1), (10, 30, 3, 32, 64, 0), (64, 32, 3, 64, 64, 1),
)  # fmt: skip
UPDATES = {"as they come": lambda updates: updates, "waiting": objective.leaves_barrier}
PRODUCTS = {"product": lambda residuals, g: (g @ residuals[1].T, residuals[0].T @ g)}
OF_PRODUCTS = (("two_nn", "fedavg", 5), ("two_nn", "fedavg", 20), ("two_cnn", "fedavg", 5))
WINDOWS = {"places": convolution._by_places, "slices": convolution._by_slices}


def set_updates(way: Callable) -> None:
  for module in (apfl, pfedme, sgd, superfed):
    module.updates_barrier = way  # type: ignore[attr-defined]


def as_sum(residuals: tuple, g: jax.Array) -> tuple:
  """A kernel's gradient as a sum of outer products, see `product._backward`."""
  x, kernel = residuals
  own = product.value_barrier(g)
  first, *rest = (x[b, :, None] * own[b, None, :] for b in range(len(x)))
  return g @ kernel.T, sum(rest, start=first)


def set_product(way: Callable) -> None:
  product._of_rows.defvjp(product._forward, way)


def set_windows(way: Callable) -> None:
  convolution._windows = way


def of_round(args, name: str, method: str, size: int) -> Callable[[], float]:
  """Milliseconds of a round."""
  each = 40 if args.small else 480
  if name == "small_cnn":
    client, data = gpu.local(gpu.small_cnn(), 0.1), gpu.clients(1000, 50, (32, 32, 3))
  else:
    client = getattr(fh, method)(getattr(fh.models, name)(gpu.SHAPES[name]), epochs=1)
    data = gpu.clients(100, each, gpu.SHAPES[name])
  timer = gpu.rounds(args, gpu.engine(client, data, size), jax.random.key(0), lambda own: {"ms": 1e3 * own})()
  return lambda: timer()["ms"]


def of_layer(
  args, stack: int, batch: int, side: int, kernel: int, inputs: int, features: int, padding: int
) -> Callable[[], float]:
  """Microseconds of a layer's value and gradients."""
  loop, keys = 4 if args.small else 40, jax.random.split(jax.random.key(0))
  x = jax.random.normal(keys[0], (stack, batch, side, side, inputs))
  weights = jax.random.normal(keys[1], (stack, kernel, kernel, inputs, features)) / kernel / inputs**0.5

  def step(_, carry):
    y, back = jax.vjp(jax.vmap(lambda x, k: convolution.conv2d(x, k, padding, "patches")), *carry)
    return jax.tree.map(lambda own, gradient: own - 1e-9 * gradient, carry, back(y))

  run = jax.jit(lambda *carry: lax.fori_loop(0, loop, step, carry))
  jax.block_until_ready(run(x, weights))
  return lambda: 1e6 / gpu.per_second(lambda: run(x, weights), args.seconds) / loop


def cases(args) -> Iterator[tuple[dict[str, Any], Callable, dict[str, Callable], Callable[[], Callable]]]:
  """What is timed, what sets a way, the ways, and what makes it ready."""
  for name, method, size in OF_PRODUCTS[:1] if args.small else OF_PRODUCTS:
    fields = {"measure": "products", "model": name, "method": method, "cohort": size}
    ways = {**PRODUCTS, "sum": as_sum}
    yield fields, set_product, ways, functools.partial(of_round, args, name, method, size)
  for name, method, size in RUNS[:1] if args.small else RUNS:
    fields = {"measure": "updates", "model": name, "method": method, "cohort": size}
    yield fields, set_updates, UPDATES, functools.partial(of_round, args, name, method, size)
  for stack in (2,) if args.small else (5, 50):
    for layer in LAYERS[:2] if args.small else LAYERS:
      if stack * layer[0] < 1000:
        names = ("images", "side", "kernel", "inputs", "features", "padding")
        fields = {"measure": "windows", "stack": stack, **dict(zip(names, layer))}
        yield fields, set_windows, WINDOWS, functools.partial(of_layer, args, stack, *layer)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--out", type=Path, help="also write the lines here")
  parser.add_argument("--small", action="store_true", help="toy sizes, for a CPU")
  parser.add_argument("--seconds", type=float, default=0.25, help="time of one measurement at least")
  parser.add_argument("--turns", type=int, default=3)
  parser.add_argument("--only", nargs="*", default=["updates", "windows", "products"], help="what to time")
  args = parser.parse_args()
  device, lines = jax.devices()[0], []
  print(json.dumps({"device": device.device_kind, "platform": device.platform, "jax": jax.__version__}))
  for fields, choose, ways, ready in cases(args):
    if fields["measure"] not in args.only:
      continue
    timers = {}
    for name, way in ways.items():
      choose(way)
      timers[name] = ready()
    lines.append((fields, timers))
  for fields, timers in lines:
    times = {name: [] for name in timers}
    for _ in range(args.turns):
      for name, timer in timers.items():
        times[name].append(timer())
    ours, theirs = (statistics.median(own) for own in times.values())
    text = json.dumps(fields | {"times": times, "ratio": ours / theirs})
    print(text, flush=True)
    if args.out:
      with args.out.open("a") as file:
        file.write(text + "\n")


if __name__ == "__main__":
  main()
