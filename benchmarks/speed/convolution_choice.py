"""Times the forms of a convolution by kernel, pixels and features; `convolution.choose` follows the results.

    taskset -c 0 python benchmarks/speed/convolution_choice.py [--turns 3] [--out FILE.json]
    taskset -c 0 python benchmarks/speed/convolution_choice.py --first     images of one and three channels
    taskset -c 0 python benchmarks/speed/convolution_choice.py --lax       XLA's own convolution too
    taskset -c 0 python benchmarks/speed/convolution_choice.py --many      the same, many pixels, few channels

The script compares Winograd's form with patches: a layer's value and both gradients in a compiled loop on one
core. A layer has as many inputs as features. With stride 2 the kernel becomes one of two rows and four times
the inputs, so the layer has half as many. A network's first layer needs only the kernel's gradient. XLA's own
convolution is compared with the faster of the two, and the script says which form `choose` takes. Forms take
turns, and medians are shown.
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
from jax import lax  # noqa: E402

from benchmarks.provenance import RAW, provenance  # noqa: E402
from fedjax_het.models.layers.convolution import choose  # noqa: E402
from fedjax_het.models.layers.strided_convolution import convolve  # noqa: E402

LOOP = 10
TWO, THREE = ("winograd", "patches"), ("lax", "winograd", "patches")
Layer = tuple[int, int, int, int]  # the kernel's side, stride, C, O
IMAGES = ((10, 2), (10, 4), (20, 4), (10, 8), (10, 16))  # B, and the side of what comes out
LAYERS: list[Layer] = [
  (side, stride, features // stride, features)
  for side, stride in ((3, 1), (3, 2), (5, 1))
  for features in (16, 64, 128, 256, 512)
  if side * features < 5 * 512
]
FIRST_IMAGES = ((10, 28), (50, 32))
FIRST: list[Layer] = [
  (side, 1, inputs, features) for inputs in (1, 3) for side in (3, 5) for features in (8, 16, 32, 64)
]
LAX_IMAGES = ((10, 3), (10, 8), (10, 16), (50, 16))
LAX: list[Layer] = [
  *((3, 1, own, own) for own in (16, 24, 32, 48, 64, 96, 128, 256)),
  *((3, 1, own, 2 * own) for own in (16, 32, 64)),
  *((3, 1, 2 * own, own) for own in (32, 64)),
  *((5, 1, own, own) for own in (32, 64)),
  *((3, 2, own, 2 * own) for own in (8, 16, 24, 32, 64, 128, 256)),
]
MANY_IMAGES = ((10, 32), (10, 23), (50, 10))
MANY: list[Layer] = [
  *((3, 1, 16, features) for features in (8, 16, 32, 64)), (3, 1, 24, 24), (3, 1, 32, 16), (3, 1, 32, 64),
  (3, 1, 48, 48), (5, 1, 16, 32),
]  # fmt: skip
SETS = {  # beside the one without a name
  "first": ("first layers of networks", FIRST, FIRST_IMAGES, TWO),
  "lax": ("XLA's own convolution too", LAX, LAX_IMAGES, THREE),
  "many": ("XLA's own too, layers of many pixels", MANY, MANY_IMAGES, THREE),
}


def layer(
  batch: int, side: int, kernel: int, stride: int, inputs: int, features: int, form: str, first: bool
) -> Callable[[], float]:
  """Seconds of one value with gradients, when called."""
  keys = jax.random.split(jax.random.key(0))
  x = jax.random.normal(keys[0], (batch, side * stride, side * stride, inputs))
  weights = jax.random.normal(keys[1], (kernel, kernel, inputs, features)) / kernel / inputs**0.5

  def step(_, carry):
    fixed, given = (carry[:1], carry[1:]) if first else ((), carry)
    y, back = jax.vjp(lambda *own: convolve(*fixed, *own, stride, kernel // 2, 1, form), *given)
    return *fixed, *jax.tree.map(lambda own, gradient: own - 1e-9 * gradient, given, back(y))

  program = jax.jit(lambda *carry: lax.fori_loop(0, LOOP, step, carry))
  jax.block_until_ready(program(x, weights))

  def seconds() -> float:
    started = time.perf_counter()
    jax.block_until_ready(program(x, weights))
    return (time.perf_counter() - started) / LOOP

  return seconds


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--turns", type=int, default=3)
  which = parser.add_mutually_exclusive_group()
  for name, (about, *_) in SETS.items():
    which.add_argument(f"--{name}", dest="set", action="store_const", const=name, help=about)
  parser.add_argument("--out", type=Path)
  args = parser.parse_args()
  _, layers, images, forms = SETS.get(args.set, ("", LAYERS, IMAGES, TWO))
  name = f"convolution_choice_{args.set}.json" if args.set else "convolution_choice.json"
  out = args.out or RAW / name
  columns = ["kernel, stride", "inputs C", "features O", "pixels P", *(f"{form}, ms" for form in forms)]
  columns += ["ratio", "chosen"]
  print(f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", sep="\n")
  rows = []
  for kernel, stride, inputs, features in layers:
    for batch, side in images:
      work = batch, side, kernel, stride, inputs, features
      runs = {form: layer(*work, form, args.set == "first") for form in forms}
      times: dict[str, list[float]] = {form: [] for form in forms}
      for _ in range(args.turns):
        for form, run in runs.items():
          times[form].append(1e3 * run())
      ratio = statistics.median(own / min(others) for own, *others in zip(*times.values()))
      chosen = choose((kernel, kernel, inputs, features), batch, (side, side), (stride, stride))
      rows.append(
        {
          "kernel": kernel, "stride": stride, "inputs": inputs, "features": features,
          "pixels": batch * side**2, "side": side, "ms": times, "ratio": ratio, "chosen": chosen,
        }
      )  # fmt: skip
      medians = " | ".join(f"{statistics.median(each):.2f}" for each in times.values())
      print(
        f"| {kernel}, {stride} | {inputs} | {features} | {batch} x {side} x {side} | {medians} | {ratio:.2f}"
        f" | {chosen} |", flush=True,
      )  # fmt: skip
      out.write_text(json.dumps({**provenance(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
  main()
