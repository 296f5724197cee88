"""Milliseconds per client step of local training, by model, convolution and way of mapping over clients.

The loop is the engine's: each client takes STEPS SGD steps in a `fori_loop`, gathering its batch by index from
one flat uint8 array; clients run under `jax.vmap`, `lax.map`, or `lax.map` in batches.

    python benchmarks/convolution.py [--models two_nn two_cnn] [--methods patches lax] [--momentum 0.9]
"""

import argparse
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


def measure(model, shape, how, momentum=0.0, weight_decay=0.0, repeats=3):
  """(milliseconds per client step, seconds to compile, mean loss)."""
  key = jax.random.key(0)
  x = jax.random.randint(key, (EXAMPLES, *shape), 0, 256).astype(jnp.uint8)
  y = jax.random.randint(key, (EXAMPLES,), 0, 10)
  keys = jax.random.split(key, CLIENTS)
  params = jax.vmap(model.init)(keys)
  run = jax.jit(
    lambda keys, params, x, y: over_clients(local_training(model, x, y, momentum, weight_decay), how)(
      keys, params
    )
  )
  start = time.perf_counter()
  compiled = run.lower(keys, params, x, y).compile()
  compiling = time.perf_counter() - start
  best = float("inf")
  for _ in range(repeats):
    start = time.perf_counter()
    _, loss = jax.block_until_ready(compiled(keys, params, x, y))
    best = min(best, time.perf_counter() - start)
  return 1e3 * best / (CLIENTS * STEPS), compiling, float(loss.mean())


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--models", nargs="*", default=["two_nn", "two_cnn"])
  parser.add_argument("--methods", nargs="*", default=["patches"])
  parser.add_argument("--how", nargs="*", default=["vmap", "map", "map/2"])
  parser.add_argument("--momentum", type=float, default=0.0)
  parser.add_argument("--weight-decay", type=float, default=0.0)
  args = parser.parse_args()
  for name in args.models:
    shape = (32, 32, 3) if name == "two_cnn" else (28, 28, 1)
    for method in args.methods if name == "two_cnn" else [None]:
      model = models.make(name, shape, 10, **({"conv": method} if method else {}))
      for how in args.how:
        ms, compiling, loss = measure(model, shape, how, args.momentum, args.weight_decay)
        print(
          f"{name:8} {method or '-':8} {how:6} {ms:8.3f} ms  compile {compiling:5.1f} s  loss {loss:.4f}",
          flush=True,
        )


if __name__ == "__main__":
  main()
