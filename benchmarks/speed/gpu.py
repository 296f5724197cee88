"""Measures what the engine reaches on an accelerator.

    python benchmarks/speed/gpu.py [--only peak cohort ...] [--out gpu.jsonl] [--minutes 8.5]
    JAX_PLATFORMS=cpu python benchmarks/speed/gpu.py --small        the same at toy size, to try the script

The programs of a measurement are compiled and run once in parallel threads, then timed one after another.
Unless said otherwise the work is plain SGD, B = 10, one local epoch of 480 examples. Each measurement prints
a line of JSON:

peak      FLOP/s of the float32 matrix product, at XLA's default precision (TF32 on some devices) and at the
          highest; and the bytes that a triad moves in a second
bits      whether four rounds end in the same bits when run again, and as two rounds and two more
cohort    client steps a second of TwoNN, TwoCNN and ResNet-10 for cohorts of 5 to 100 clients, convolutions
          as patches, Winograd and lax.conv; the share of the default peak that the arithmetic needs
methods   batches a second of TwoNN with momentum and weight decay, by method, and with bfloat16 momenta
seeds     seconds a round of 1, 8 and 32 runs as one program (TwoNN, cohort 5), as ratios to one run; the goal
          is at most twice the time for 8
ragged    seconds a round of 20 clients of log-normal sizes: all side by side, n at a time by size, one by one
workload  pfl-research's CIFAR-10 benchmark: 1,000 clients x 50 examples, cohort 50, lr 0.1, 1,500 rounds,
          its small CNN without dropout, in rounds a second without compiling; beside it pfl-research itself
          (benchmarks/peers/pfl_research.py: the same model and work) if the interpreter named by --pfl has
          it; the goal is ten times as many rounds a second
fedevg    seconds of a step of FedEvg's ten clients at the thesis's size (configs/table_4_2.py: ResNet-10 with
          h = 64, 32 x 32 pixels, B = 64); a round of 4,800 examples has 75 steps, a cell 500 rounds

A measurement that the time limit (--minutes) cuts short is printed as skipped.
"""

import argparse
import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

import fedjax_het as fh
from benchmarks.speed.momenta import sgd
from fedjax_het.engine.batched_runs import Members
from fedjax_het.models.layers.basic import Conv, Dense, flatten
from fedjax_het.models.layers.pooling import max_pool2

PEERS = Path(__file__).resolve().parents[1] / "peers"
SHAPES = {"two_nn": (28, 28, 1), "two_cnn": (32, 32, 3), "resnet10": (32, 32, 3)}
CONVOLUTIONS = ("patches", "winograd", "lax")
METHODS = ("fedavg", "superfed_mm", "superfed_lm", "scaffold", "apfl", "ditto", "pfedme")
Timer = Callable[[], dict[str, Any]]


class Case(NamedTuple):
  """Something to time: what it is, and what makes it ready and gives what times it."""

  fields: dict[str, Any]
  ready: Callable[[], Timer]


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


@functools.cache
def clients(count: int, each: int | None, shape: tuple[int, ...]) -> Any:
  """Random clients of as many examples each; None: of log-normal sizes (σ = 1), 480 each in the mean."""
  rng = np.random.default_rng(0)
  shares = np.exp(rng.normal(size=count)) if each is None else np.ones(count)
  sizes = np.maximum(1, np.floor(shares / shares.sum() * count * (each or 480) + 1e-6)).astype(int)
  rows = sizes.sum()
  return fh.federate(
    rng.integers(0, 256, (rows, *shape), np.uint8), rng.integers(0, 10, rows),
    np.split(np.arange(rows), np.cumsum(sizes)[:-1]), jax.random.key(0), num_classes=10, test_fraction=0.0,
  )  # fmt: skip


def local(model: fh.Model, lr: float = 0.01) -> fh.ClientUpdate:
  return fh.fedavg(model, lr=lr, epochs=1, batch_size=10, momentum=0.0, weight_decay=0.0)


def step_flops(model: fh.Model, batch: int) -> float:
  """FLOPs of a gradient on one batch, as XLA counts them before it optimises."""

  def loss(params, x):
    return jnp.square(model.apply(params, x)).sum()

  params = jax.eval_shape(model.init, jax.random.key(0))
  x = jax.ShapeDtypeStruct((batch, *model.shape), jnp.float32)
  with jax.default_device(jax.devices("cpu")[0]):  # a GPU's program has none to show before it is compiled
    cost = jax.jit(jax.grad(loss)).lower(params, x).cost_analysis()
  return float(cost["flops"]) if cost else float("nan")


def per_second(call: Callable[[], Any], seconds: float) -> float:
  """Calls a second, over at least so long and one call; each waits for its result."""
  started, count, spent = time.perf_counter(), 0, 0.0
  while not count or spent < seconds:
    jax.block_until_ready(call())
    count, spent = count + 1, time.perf_counter() - started
  return count / spent


def rounds(args, make: Callable[[], Any], key: jax.Array, tell: Callable[[float], dict]):
  """What makes an engine ready, and then times its rounds, many in a call: `tell` of the seconds of one."""

  def ready() -> Timer:
    engine = make()
    state, at_once = [engine.advance(engine.init(key), 1)[0]], [1]

    def advance():
      state[0], infos = engine.advance(state[0], at_once[0])
      return infos

    def timed():
      rate = per_second(advance, 0.0)
      at_once[0] = int(np.clip(args.seconds * rate, 1, 100))
      return tell(1 / rate if at_once[0] == 1 else 1 / per_second(advance, args.seconds) / at_once[0])

    return timed

  return ready


def engine(client: fh.ClientUpdate, data: Any, size: int, **where: Any) -> Callable[[], fh.Engine]:
  return lambda: fh.Engine(fh.federated(client), data, size, **where)


def peak(args) -> Iterator[Case]:
  size = 512 if args.small else 8192
  key = jax.random.key(0)

  def product(precision: str) -> Timer:
    a = jax.random.normal(key, (size, size))
    run = jax.jit(lambda a: jnp.dot(a, a, precision=precision))
    jax.block_until_ready(run(a))

    def timed():
      args.peaks[precision] = 2.0 * size**3 * per_second(lambda: run(a), args.seconds)
      return {"flops": args.peaks[precision]}

    return timed

  def triad() -> Timer:
    x = jax.random.normal(key, (size, 8 * size))
    run = jax.jit(lambda x, y: 2.0 * x + y)
    jax.block_until_ready(run(x, x + 1))
    y = x + 1
    return lambda: {"bytes_per_second": 3 * x.nbytes * per_second(lambda: run(x, y), args.seconds)}

  for precision in ("default", "highest"):
    yield Case({"precision": precision}, functools.partial(product, precision))
  yield Case({"triad": "2 x + y"}, triad)


def bits(args) -> Iterator[Case]:
  def same(make: Callable[[], Any]) -> Timer:
    own = make()
    own.advance(own.init(jax.random.key(0)), 1)

    def after(*parts: int):
      state = own.init(jax.random.key(0))
      for part in parts:
        state, _ = own.advance(state, part)
      return jax.tree.map(np.asarray, state.broadcast)

    def told():
      whole, again, cut = after(4), after(4), after(2, 2)
      equal = [all(jax.tree.leaves(jax.tree.map(np.array_equal, whole, other))) for other in (again, cut)]
      return dict(zip(("again", "two_and_two"), equal))

    return told

  each = 40 if args.small else 480
  for name, convs in (("two_nn", ("",)), ("two_cnn", args.convs)):
    for conv in convs:
      model = getattr(fh.models, name)(SHAPES[name], **({"conv": conv} if conv else {}))
      make = engine(fh.superfed_mm(model, epochs=1), clients(20, each, SHAPES[name]), 5)
      yield Case({"model": name, "conv": conv}, functools.partial(same, make))


def cohort(args) -> Iterator[Case]:
  each = 40 if args.small else 480
  for name in args.models:
    data = clients(10 if args.small else 100, each, SHAPES[name])
    options = {"width": 4} if name == "resnet10" and args.small else {}
    convs = args.convs if name != "two_nn" else ("",)
    make = functools.partial(getattr(fh.models, name), SHAPES[name], **options)
    flops = step_flops(make(**({"conv": "lax"} if convs[0] else {})), 10)
    for conv in convs:
      client = local(make(**({"conv": conv} if conv else {})))
      for size in (5,) if args.small else args.sizes:

        def tell(seconds: float, size: int = size, flops: float = flops) -> dict:
          rate = size * each / 10 / seconds
          shown = {"client_steps_per_second": rate}
          return shown | (
            {"share_of_peak": rate * flops / args.peaks["default"]} if "default" in args.peaks else {}
          )

        ready = rounds(args, engine(client, data, size), jax.random.key(0), tell)
        yield Case({"model": name, "conv": conv, "cohort": size}, ready)


def methods(args) -> Iterator[Case]:
  each, model = 40 if args.small else 480, fh.models.two_nn(SHAPES["two_nn"])
  data = clients(10 if args.small else 100, each, SHAPES["two_nn"])

  ways = [(name, {}) for name in args.methods] + [
    (name, {"optimizer": sgd(jnp.bfloat16)}) for name in METHODS[:2]
  ]
  for size in (5,) if args.small else args.sizes[:2]:
    for name, options in ways:
      more = {"local_epochs": 1} if name == "ditto" else {}
      client = getattr(fh, name)(model, batch_size=10, epochs=1, **more, **options)

      def tell(seconds: float, size: int = size) -> dict:
        return {"batches_per_second": size * each / 10 / seconds}

      fields = {"method": name, "cohort": size, "momenta": "bfloat16" if options else "float32"}
      yield Case(fields, rounds(args, engine(client, data, size), jax.random.key(0), tell))


def seeds(args) -> Iterator[Case]:
  data = clients(20, 40 if args.small else 480, SHAPES["two_nn"])
  model, one = fh.models.two_nn(SHAPES["two_nn"]), {}
  for count in (1, 2) if args.small else (1, 8, 32):

    def members(count: int = count) -> Members:
      return Members(lambda: fh.federated(local(model)), data, {}, count, 5)

    def tell(seconds: float) -> dict:
      one.setdefault("seconds", seconds)
      return {"seconds_per_round": seconds, "ratio_to_one": seconds / one["seconds"]}

    yield Case({"seeds": count}, rounds(args, members, jax.random.split(jax.random.key(0), count), tell))


def ragged(args) -> Iterator[Case]:
  size = 4 if args.small else 20
  data = clients(size, None, SHAPES["two_nn"])
  client, sizes = local(fh.models.two_nn(SHAPES["two_nn"])), np.asarray(data.train.size)
  for batch in (None, 2) if args.small else (None, 10, 5, 1):

    def tell(seconds: float) -> dict:
      return {"seconds_per_round": seconds, "largest": int(sizes.max()), "examples": int(sizes.sum())}

    make = engine(client, data, size, client_batch=batch)
    yield Case({"client_batch": batch, "cohort": size}, rounds(args, make, jax.random.key(0), tell))


def workload(args) -> Iterator[Case]:
  each, size, total = (20, 5, 4) if args.small else (50, 50, args.rounds)
  data = clients(20 if args.small else 1000, each, SHAPES["two_cnn"])
  rates: list[float] = []

  def ours(conv: str) -> Timer:
    own = engine(local(small_cnn(conv), 0.1), data, size)()
    chunk = min(100, total)
    own.advance(own.init(jax.random.key(0)), chunk)

    def timed():
      state, done, started = own.init(jax.random.key(0)), 0, time.perf_counter()
      while done < total and time.perf_counter() - started < args.limit:
        state, _ = own.advance(state, chunk)
        done += chunk
      seconds = time.perf_counter() - started
      rates.append(done / seconds)
      return {"rounds": done, "seconds": seconds, "rounds_per_second": rates[-1]}

    return timed

  def peer() -> dict:
    command = [
      args.pfl, str(PEERS / "pfl_research.py"), "--model", "small_cnn", "--samples", str(each),
      "--clients", str(data.num_clients), "--cohort", str(size), "--rounds", "2" if args.small else "5",
      "--optimizers", "loop", "fused", "--threads", "1",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=args.limit)
    if done.returncode:
      return {"failed": done.stderr[-300:]}
    line = json.loads(done.stdout.splitlines()[-1])
    line["rounds_per_second"] = line["client_steps_per_second"] / (size * each / 10)
    return line | {"ours_over_it": max(rates) / line["rounds_per_second"]}

  for conv in args.convs:
    yield Case({"peer": "fedjax_het", "conv": conv}, functools.partial(ours, conv))
  if args.pfl:
    yield Case({}, lambda: peer)


def fedevg(args) -> Iterator[Case]:
  width, size, steps = (4, 2, 1) if args.small else (64, 10, 8)
  data = clients(10, 64 * steps, (32, 32, 1))
  for conv in args.convs:

    def make(conv: str = conv) -> fh.Engine:
      client = fh.fedevg(fh.models.resnet10((32, 32, 1), 10, width, conv=conv))
      return fh.Engine(fh.federated(client, server=fh.server.sgld(500)), data, size)

    def tell(seconds: float) -> dict:
      return {"seconds_per_step": seconds / steps, "seconds_per_round": 75 * seconds / steps}

    fields = {"conv": conv, "width": width, "cohort": size}
    yield Case(fields, rounds(args, make, jax.random.key(0), tell))


MEASURES = (peak, bits, cohort, methods, seeds, ragged, workload, fedevg)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--out", type=Path, help="also write the lines here")
  parser.add_argument("--small", action="store_true", help="toy sizes, for a CPU")
  parser.add_argument("--minutes", type=float, default=8.5, help="no measurement is begun after so long")
  parser.add_argument("--seconds", type=float, default=1.0, help="time of one measurement at least")
  parser.add_argument("--threads", type=int, default=8, help="how many are made ready beside one another")
  parser.add_argument("--limit", type=float, default=100.0, help="seconds of one run of the workload at most")
  parser.add_argument("--pfl", help="Python interpreter that has pfl-research, for the workload beside it")
  parser.add_argument("--only", nargs="*", help="names of measurements, in order")
  parser.add_argument("--models", nargs="*", default=list(SHAPES), help="of cohort")
  parser.add_argument("--convs", nargs="*", default=list(CONVOLUTIONS), help="ways to convolve")
  parser.add_argument("--methods", nargs="*", default=list(METHODS), help="of methods")
  parser.add_argument("--sizes", nargs="*", type=int, default=[5, 20, 50, 100], help="of cohort")
  parser.add_argument("--rounds", type=int, default=1500, help="of the workload")
  args = parser.parse_args()
  args.peaks, began = {}, time.monotonic()
  device = jax.devices()[0]

  def show(**line: Any) -> None:
    text = json.dumps(line)
    print(text, flush=True)
    if args.out:
      with args.out.open("a") as file:
        file.write(text + "\n")

  def failure(error: Exception) -> dict:
    return {"failed": f"{type(error).__name__}: {str(error)[:300]}"}

  def ready(case: Case) -> Timer:
    try:
      return case.ready()
    except Exception as error:  # the rest is still worth its time
      failed = failure(error)
      return lambda: failed

  named = {measure.__name__: measure for measure in MEASURES}
  show(device=device.device_kind, platform=device.platform, jax=jax.__version__, small=args.small)
  for name in args.only or named:
    if time.monotonic() - began > 60 * args.minutes:
      show(measure=name, skipped="no time left")
      continue
    started = time.monotonic()
    try:
      cases = list(named[name](args))
    except Exception as error:
      show(measure=name, **failure(error))
      continue
    with ThreadPoolExecutor(args.threads) as pool:
      timers = list(pool.map(ready, cases))
    show(measure=name, ready_seconds=time.monotonic() - started)
    for case, timer in zip(cases, timers):
      try:
        line = timer()
      except Exception as error:
        line = failure(error)
      show(measure=name, **case.fields, **line)
  print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
  main()
