"""Milliseconds per client step of local training, by model, convolution and way of mapping over clients.

The loop is the engine's: each client takes STEPS SGD steps in a `fori_loop`, gathering its batch by index
from one flat uint8 array; clients run under `jax.vmap`, `lax.map`, or `lax.map` in batches.

    python benchmarks/convolution.py [--models two_nn two_cnn] [--methods patches lax] [--momentum 0.9]
"""

import argparse
import math
import time

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_het import models

CLIENTS, STEPS, BATCH, EXAMPLES = 5, 48, 10, 6000


def local_training(model, x, y, momentum, weight_decay):
  """(key, params) -> (params, loss): STEPS steps of SGD on rows drawn by index."""

  def loss(params, rows):
    images = x[rows].astype(jnp.float32) / 255.0
    logits = jax.nn.log_softmax(model.apply(params, images))
    return -jnp.take_along_axis(logits, y[rows][:, None], axis=1).mean()

  def train(key, params):
    order = jax.random.randint(key, (STEPS, BATCH), 0, len(x))

    def step(i, carry):
      params, velocity, total = carry
      value, grads = jax.value_and_grad(loss)(params, order[i])
      if weight_decay:
        grads = jax.tree.map(lambda g, p: g + weight_decay * p, grads, params)
      if momentum:
        velocity = grads = jax.tree.map(lambda v, g: momentum * v + g, velocity, grads)
      return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), velocity, total + value

    velocity = jax.tree.map(jnp.zeros_like, params) if momentum else ()
    params, _, total = lax.fori_loop(0, STEPS, step, (params, velocity, 0.0))
    return params, total / STEPS

  return train


def over_clients(train, how):
  """Maps `train` over clients by "vmap", "map", or "map/n" (n clients at a time)."""
  if how == "vmap":
    return jax.vmap(train)
  batch_size = int(how.split("/")[1]) if "/" in how else None
  return lambda keys, params: lax.map(lambda a: train(*a), (keys, params), batch_size=batch_size)


def prepare(model, shape, how, momentum=0.0, weight_decay=0.0):
  """A function that trains all clients once and waits for the result, compiled."""
  key = jax.random.key(0)
  x = jax.random.randint(key, (EXAMPLES, *shape), 0, 256).astype(jnp.uint8)
  y = jax.random.randint(key, (EXAMPLES,), 0, 10)
  keys = jax.random.split(key, CLIENTS)
  params = jax.vmap(model.init)(keys)

  def run(keys, params, x, y):
    return over_clients(local_training(model, x, y, momentum, weight_decay), how)(keys, params)

  compiled = jax.jit(run).lower(keys, params, x, y).compile()
  return lambda: jax.block_until_ready(compiled(keys, params, x, y))


def matmul_peak(size=1024, times=10):
  """GFLOP/s of a square float32 product."""
  a = jax.random.normal(jax.random.key(0), (size, size)) / size**0.5
  product = jax.jit(lambda a: lax.fori_loop(0, times, lambda _, b: a @ b, a))
  product(a).block_until_ready()
  best = min(timed(lambda: product(a).block_until_ready())[0] for _ in range(5))
  return 2e-9 * size**3 * times / best


def timed(run):
  """(wall, processor) seconds of one call."""
  wall, processor = time.perf_counter(), time.process_time()
  run()
  return time.perf_counter() - wall, time.process_time() - processor


def step_gflop(model, shape):
  """GFLOP of one step: forward, and the gradients of kernels and of all inputs but the first; no Winograd."""
  layers = jax.eval_shape(model.init, jax.random.key(0))
  pixels, side = [], shape[0]
  for kernel in (layer["kernel"] for layer in layers.values()):
    if len(kernel.shape) == 4:
      side = side + 2 - kernel.shape[0] + 1
      pixels.append((math.prod(kernel.shape), side**2))
      side = (side + 2) // 2
    elif len(kernel.shape) == 2:
      pixels.append((math.prod(kernel.shape), 1))
  products = [2 * BATCH * size * count for size, count in pixels]
  return 1e-9 * (3 * sum(products) - products[0])


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--models", nargs="*", default=["two_nn", "two_cnn"])
  parser.add_argument("--methods", nargs="*", default=["auto", "patches"])
  parser.add_argument("--how", nargs="*", default=["vmap", "map", "map/2"])
  parser.add_argument("--momentum", type=float, default=0.0)
  parser.add_argument("--weight-decay", type=float, default=0.0)
  parser.add_argument("--repeats", type=int, default=5)
  args = parser.parse_args()
  arms = {}
  for name in args.models:
    shape = (32, 32, 3) if name == "two_cnn" else (28, 28, 1)
    for method in args.methods if name == "two_cnn" else ["-"]:
      model = models.make(name, shape, 10, **({"conv": method} if name == "two_cnn" else {}))
      for how in args.how:
        run = prepare(model, shape, how, args.momentum, args.weight_decay)
        arms[name, method, how] = (run, step_gflop(model, shape))
  peak = matmul_peak()
  print(f"square product {peak:.0f} GFLOP/s; best of {args.repeats} interleaved repeats")
  times = {arm: [timed(run)] for arm, (run, _) in arms.items()}  # the first warms up, and may win
  for _ in range(args.repeats):
    for arm, (run, _) in arms.items():
      times[arm].append(timed(run))
  for arm, (_, gflop) in arms.items():
    wall, processor = (1e3 * min(column) / (CLIENTS * STEPS) for column in zip(*times[arm]))
    share = gflop / (wall * 1e-3) / peak
    print(
      "{:8} {:9} {:6}".format(*arm), f"{wall:8.3f} ms, processor {processor:8.3f} ms, {share:4.0%} of peak"
    )


if __name__ == "__main__":
  main()
