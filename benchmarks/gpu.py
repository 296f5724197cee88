"""What the engine reaches on an accelerator, in under nine minutes.

    python benchmarks/gpu.py [--out gpu.jsonl] [--minutes 8.5]
    JAX_PLATFORMS=cpu python benchmarks/gpu.py --small        the same at toy size, to try the script

Plain SGD, B = 10, one local epoch; a line of JSON each:

peak      the float32 matrix product's FLOP/s, at XLA's default precision (TF32 on some) and highest
cohort    client steps a second of TwoNN, TwoCNN and ResNet-10 for cohorts of 5 to 100 clients with 480
          examples, convolutions as patches, Winograd and lax.conv; the share of the default peak that the
          model's arithmetic needs, by lax.conv whatever the form
seeds     seconds a round of 1, 8 and 32 runs as one program (TwoNN, cohort 5), as ratios to one; the goal is
          at most twice for 8
workload  pfl-research's CIFAR-10 benchmark: 1,000 clients x 50 examples, cohort 50, lr 0.1, 1,500 rounds,
          its small CNN without dropout; rounds a second without compiling, and beside them pfl-research's
          own where the interpreter named by --pfl has it (benchmarks/peers/pfl_research.py: the same model
          and work); the goal is ten times as many
fedevg    seconds a round of FedEvg at the thesis's size (configs/table_4_2.py: ResNet-10 with h = 64, 32 x 32
          pixels, K = 10 clients of 4,800 examples, B = 64), which times 500 is a cell of table 4.2

What a limit of time cuts short is printed as skipped.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

import fedjax_het as fh
from fedjax_het.engine.members import Members
from fedjax_het.models.layers import Conv, Dense, flatten
from fedjax_het.models.pooling import max_pool2

HERE = Path(__file__).resolve().parent
SHAPES = {"two_nn": (28, 28, 1), "two_cnn": (32, 32, 3), "resnet10": (32, 32, 3)}
CONVOLUTIONS = ("patches", "winograd", "lax")


class SmallCNN(nn.Module):
  """pfl-research's, without dropout: conv3 32 - conv3 64 - maxpool2 - dense 128 - dense 10, ReLU between."""

  conv: str = "auto"

  @nn.compact
  def __call__(self, x):
    for features in (32, 64):
      x = nn.relu(Conv(features, method=self.conv)(x))
    return Dense(10)(nn.relu(Dense(128)(flatten(max_pool2(x)))))


def small_cnn(conv: str = "auto") -> fh.Model:
  return fh.models.from_flax(SmallCNN(conv), (32, 32, 3), 10)


def clients(count: int, each: int, shape: tuple[int, ...]) -> Any:
  rng = np.random.default_rng(0)
  rows = count * each
  return fh.federate(
    rng.integers(0, 256, (rows, *shape), np.uint8), rng.integers(0, 10, rows),
    np.split(np.arange(rows), count), jax.random.key(0), num_classes=10, test_fraction=0.0,
  )  # fmt: skip


def local(model: fh.Model, lr: float = 0.01) -> fh.ClientUpdate:
  return fh.fedavg(model, lr=lr, epochs=1, batch_size=10, momentum=0.0, weight_decay=0.0)


def step_flops(model: fh.Model, batch: int) -> float:
  """FLOPs of a gradient on one batch, as XLA counts them before it optimises."""

  def loss(params, x):
    return jnp.square(model.apply(params, x)).sum()

  params = jax.eval_shape(model.init, jax.random.key(0))
  x = jax.ShapeDtypeStruct((batch, *model.shape), jnp.float32)
  return float(jax.jit(jax.grad(loss)).lower(params, x).cost_analysis()["flops"])


def timed(advance, state, rounds: int, seconds: float) -> tuple[float, Any]:
  """Seconds a round, after one warm call, over at least `seconds`."""
  state, _ = advance(state, rounds)
  started, done = time.perf_counter(), 0
  while time.perf_counter() - started < seconds:
    state, infos = advance(state, rounds)
    done += rounds
  return (time.perf_counter() - started) / done, infos


def peak(args):
  size = 512 if args.small else 8192
  a = jnp.ones((size, size), jnp.float32)
  for precision in ("default", "highest"):
    product = jax.jit(lambda a: jnp.dot(a, a, precision=precision))  # noqa: B023
    product(a).block_until_ready()
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < args.seconds:
      product(a).block_until_ready()
      count += 1
    flops = 2.0 * size**3 * count / (time.perf_counter() - started)
    args.peaks[precision] = flops
    yield {"precision": precision, "flops": flops}


def cohort(args):
  factories = {"two_nn": ("",), "two_cnn": CONVOLUTIONS, "resnet10": CONVOLUTIONS}
  each = 40 if args.small else 480
  for name, convs in factories.items():
    data = clients(10 if args.small else 100, each, SHAPES[name])
    width = {"width": 4} if name == "resnet10" and args.small else {}
    flops = step_flops(
      getattr(fh.models, name)(SHAPES[name], **width, **({"conv": "lax"} if convs[0] else {})), 10
    )
    for conv in convs:
      model = getattr(fh.models, name)(SHAPES[name], **width, **({"conv": conv} if conv else {}))
      for size in (5,) if args.small else (5, 20, 50, 100):
        engine = fh.Engine(fh.federated(local(model)), data, size)
        seconds, _ = timed(engine.advance, engine.init(jax.random.key(0)), 4, args.seconds)
        rate = size * each / 10 / seconds
        yield {
          "model": name, "conv": conv, "cohort": size, "client_steps_per_second": rate,
          "share_of_peak": rate * flops / args.peaks["default"],
          "compile_seconds": engine.seconds.compile,
        }  # fmt: skip


def seeds(args):
  data = clients(20, 40 if args.small else 480, SHAPES["two_nn"])
  model = fh.models.two_nn(SHAPES["two_nn"])
  one = None
  for count in (1, 2) if args.small else (1, 8, 32):
    engine = Members(lambda: fh.federated(local(model)), data, {}, count, 5)
    keys = jax.random.split(jax.random.key(0), count)
    seconds, _ = timed(engine.advance, engine.init(keys), 4, args.seconds)
    one = one or seconds
    yield {"seeds": count, "seconds_per_round": seconds, "ratio_to_one": seconds / one}


def workload(args):
  each, size, rounds = (20, 5, 4) if args.small else (50, 50, 1500)
  data = clients(20 if args.small else 1000, each, SHAPES["two_cnn"])
  rates: list[float] = []
  for conv in ("lax", "patches"):
    engine = fh.Engine(fh.federated(local(small_cnn(conv), 0.1)), data, size)
    state, done = engine.init(jax.random.key(0)), 0
    started, compiled = time.perf_counter(), engine.seconds.compile
    while done < rounds and time.perf_counter() - started < args.limit:
      state, _ = engine.advance(state, min(100, rounds - done))
      done += min(100, rounds - done)
    seconds = time.perf_counter() - started - (engine.seconds.compile - compiled)
    rates.append(done / seconds)
    yield {
      "peer": "fedjax_het", "conv": conv, "rounds": done, "seconds": seconds,
      "rounds_per_second": rates[-1], "compile_seconds": engine.seconds.compile,
    }  # fmt: skip
  if args.pfl:
    command = [
      args.pfl, str(HERE / "peers" / "pfl_research.py"), "--model", "small_cnn", "--samples", str(each),
      "--clients", str(data.num_clients), "--cohort", str(size), "--rounds", "2" if args.small else "20",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=args.limit)
    line = (
      json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {"failed": done.stderr[-300:]}
    )
    if "client_steps_per_second" in line:
      line["rounds_per_second"] = line["client_steps_per_second"] / (size * each / 10)
      line["ours_over_it"] = max(rates) / line["rounds_per_second"]
    yield {"peer": "pfl-research"} | line


def fedevg(args):
  each, width, size = (64, 4, 2) if args.small else (4800, 64, 10)
  data = clients(10, each, (32, 32, 1))
  for conv in ("patches", "lax"):
    client = fh.fedevg(fh.models.resnet10((32, 32, 1), 10, width, conv=conv))
    engine = fh.Engine(fh.federated(client, server=fh.server.sgld(500)), data, size)
    seconds, _ = timed(engine.advance, engine.init(jax.random.key(0)), 1, args.seconds)
    steps = size * -(-each // 64)
    yield {
      "conv": conv, "width": width, "cohort": size, "seconds_per_round": seconds,
      "client_steps_per_second": steps / seconds, "compile_seconds": engine.seconds.compile,
    }  # fmt: skip


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--out", type=Path, help="also write the lines here")
  parser.add_argument("--small", action="store_true", help="toy sizes, for a CPU")
  parser.add_argument("--minutes", type=float, default=8.5, help="no measurement is begun after so long")
  parser.add_argument("--seconds", type=float, default=1.0, help="time of one measurement at least")
  parser.add_argument("--limit", type=float, default=100.0, help="seconds of one run of the workload at most")
  parser.add_argument("--pfl", help="Python interpreter that has pfl-research, for the workload beside it")
  parser.add_argument("--only", nargs="*", help="names of measurements")
  args = parser.parse_args()
  args.peaks, began = {}, time.monotonic()
  device = jax.devices()[0]

  def show(line: dict) -> None:
    text = json.dumps(line)
    print(text, flush=True)
    if args.out:
      with args.out.open("a") as file:
        file.write(text + "\n")

  show(
    {"device": device.device_kind, "platform": device.platform, "jax": jax.__version__, "small": args.small}
  )
  for measure in (peak, cohort, seeds, workload, fedevg):
    if args.only and measure.__name__ not in (*args.only, "peak"):
      continue
    lines = measure(args)
    while True:
      if time.monotonic() - began > 60 * args.minutes:
        show({"measure": measure.__name__, "skipped": "no time left"})
        break
      try:
        line = next(lines)
      except StopIteration:
        break
      except Exception as error:  # the rest is still worth its time
        show({"measure": measure.__name__, "failed": f"{type(error).__name__}: {str(error)[:300]}"})
        break
      show({"measure": measure.__name__} | line)
  print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
  main()
