"""Measures milliseconds a client step by model, form of convolution and way of mapping over clients.

    python benchmarks/speed/convolution.py [--models two_nn two_cnn] [--methods patches lax] [--momentum 0.9]
    python benchmarks/speed/convolution.py --forms [--clients 5] [--batch 10] [--out FILE.json]

The loop is like the engine's: each client takes STEPS SGD steps in a `fori_loop` and gathers its batch by
index from one flat uint8 array. Clients run under `jax.vmap`, `lax.map`, or `lax.map` in batches. With
--forms the script times single layers in each form instead, value and gradients, for stacked clients: the
library's forms, XLA's own convolution, and PyTorch's, client by client with a thread a core, if PyTorch is
installed.
"""

import argparse
import json
import math
import pathlib
import time

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.provenance import provenance
from fedjax_het import models
from fedjax_het.models.layers.strided_convolution import convolve, depthwise

CLIENTS, STEPS, BATCH, EXAMPLES = 5, 48, 10, 6000
FORMS = {  # an example's shape, the kernel's (1 input a group: depthwise), stride, padding, dilation
  "3x3": ((16, 16, 64), (3, 3, 64, 64), 1, 1, 1),
  "3x3, stride 2": ((32, 32, 64), (3, 3, 64, 128), 2, 1, 1),
  "7x7, stride 2, RGB": ((64, 64, 3), (7, 7, 3, 64), 2, 3, 1),
  "1x1": ((16, 16, 64), (1, 1, 64, 128), 1, 0, 1),
  "1x1, stride 2": ((32, 32, 64), (1, 1, 64, 128), 2, 0, 1),
  "3x3, dilation 2": ((16, 16, 64), (3, 3, 64, 64), 1, 2, 2),
  "depthwise 3x3": ((32, 32, 96), (3, 3, 1, 96), 1, 1, 1),
  "depthwise 3x3, stride 2": ((32, 32, 96), (3, 3, 1, 96), 2, 1, 1),
  "depthwise 5x5": ((16, 16, 240), (5, 5, 1, 240), 1, 2, 1),
  "series 80, stride 4": ((8000, 1), (80, 1, 64), 4, 0, 1),
  "series 3": ((500, 64), (3, 64, 64), 1, 1, 1),
}


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


def form_of_ours(shape, kernel, stride, padding, dilation, method, clients, batch):
  """A function of nothing: value and gradients of all clients' layers, compiled."""

  def layer(x, k):
    if kernel[-2] == 1 < shape[-1] and method != "lax":
      return depthwise(x, k, stride, padding, dilation)
    groups = shape[-1] if kernel[-2] == 1 < shape[-1] else 1
    if method != "lax":
      return convolve(x, k, stride, padding, dilation)
    axes, names = len(shape) - 1, ("NWC", "WIO", "NWC") if len(shape) == 2 else ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(
      x, k, (stride,) * axes, [(padding, padding)] * axes, rhs_dilation=(dilation,) * axes,
      dimension_numbers=names, feature_group_count=groups,
    )  # fmt: skip

  def both(x, k):
    y, back = jax.vjp(layer, x, k)
    return back(y)

  keys = jax.random.split(jax.random.key(0))
  x = jax.random.normal(keys[0], (clients, batch, *shape))
  k = jax.random.normal(keys[1], (clients, *kernel)) / math.prod(kernel[:-1]) ** 0.5
  compiled = jax.jit(jax.vmap(both)).lower(x, k).compile()
  return lambda: jax.block_until_ready(compiled(x, k))


def form_of_pytorch(shape, kernel, stride, padding, dilation, clients, batch):
  """The same by PyTorch, one client after another; None where it is not installed."""
  try:
    import torch
  except ImportError:
    return None
  axes = len(shape) - 1
  convolution = torch.nn.functional.conv1d if axes == 1 else torch.nn.functional.conv2d
  groups = shape[-1] if kernel[-2] == 1 < shape[-1] else 1
  x = torch.randn(clients, batch, shape[-1], *shape[:-1], requires_grad=True)
  k = torch.randn(clients, kernel[-1], kernel[-2], *kernel[:-2], requires_grad=True)

  def run():
    x.grad = k.grad = None
    for own, weight in zip(x, k):
      y = convolution(own, weight, None, stride, padding, dilation, groups)
      y.backward(y.detach())

  return run


def time_forms(args):
  """Prints, and writes, milliseconds a client's layer by form, best of interleaved repeats."""
  ways = {
    "ours": lambda form: form_of_ours(*form, "auto", args.clients, args.batch),
    "lax.conv": lambda form: form_of_ours(*form, "lax", args.clients, args.batch),
    "PyTorch": lambda form: form_of_pytorch(*form, args.clients, args.batch),
  }
  rows = []
  for name, form in FORMS.items():
    runs = {way: run for way, make in ways.items() if (run := make(form)) is not None}
    best = dict.fromkeys(runs, math.inf)
    for _ in range(args.repeats + 1):
      for way, run in runs.items():
        best[way] = min(best[way], timed(run)[0])
    row = {way: 1e3 * seconds / args.clients for way, seconds in best.items()}
    print(f"{name:24}", "   ".join(f"{way} {milliseconds:8.3f} ms" for way, milliseconds in row.items()))
    rows.append({"form": name, "milliseconds": row})
  if args.out:
    record = {**provenance(), "clients": args.clients, "batch": args.batch, "forms": rows}
    pathlib.Path(args.out).write_text(json.dumps(record, indent=2) + "\n")


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--models", nargs="*", default=["two_nn", "two_cnn"])
  parser.add_argument("--methods", nargs="*", default=["auto", "patches"])
  parser.add_argument("--how", nargs="*", default=["vmap", "map", "map/2"])
  parser.add_argument("--momentum", type=float, default=0.0)
  parser.add_argument("--weight-decay", type=float, default=0.0)
  parser.add_argument("--repeats", type=int, default=5)
  parser.add_argument("--forms", action="store_true", help="single layers in each form")
  parser.add_argument("--clients", type=int, default=CLIENTS)
  parser.add_argument("--batch", type=int, default=BATCH)
  parser.add_argument("--out", help="with --forms, a JSON of the figures")
  args = parser.parse_args()
  if args.forms:
    return time_forms(args)
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
