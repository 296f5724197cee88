"""Compares client steps a second with other systems and a plain loop on the same work, on this CPU.

    python benchmarks/speed/speed.py [--repeats 3] [--without fluke flower]
      [--out docs/results/raw/speed_momentum.json]

The script makes each peer's virtual environment (peers/envs.py). Then it runs the library and the peers in
turn, every run in a new process, and prints medians over the turns and ratios, each with its goal. A ratio is
the median of the turns' ratios, with their range. All take SGD steps with the papers' momentum and weight
decay; the library also takes plain ones. benchmarks/speed/README.md describes the work and what each peer is
given.
"""

import argparse
import collections
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks.peers import envs
from benchmarks.provenance import RAW, ROOT, provenance

HERE = pathlib.Path(__file__).resolve().parent
PEERS = HERE.parent / "peers"
WORK = {"clients": 100, "samples": 480, "cohort": 5, "batch": 10, "epochs": 1}
WORK |= {"momentum": 0.9, "weight_decay": 1e-4}  # the papers'
ROUNDS = {"two_nn": (40, 2), "two_cnn": (2, 1)}  # timed and warm-up rounds

Run = collections.namedtuple("Run", "name model command environment", defaults=({},))


class RunFailed(RuntimeError):
  """A run ended with an error or printed no result."""


def work(model: str) -> list[str]:
  """The arguments, the same for every script, that say what is to be done."""
  rounds, warmup = ROUNDS[model]
  values = {"model": model, **WORK, "rounds": rounds, "warmup": warmup}
  return [text for name, value in values.items() for text in (f"--{name}", str(value))]


def plan(without: list[str], models: Sequence[str]) -> list[Run]:
  """One turn: every run, ours next to the peers it is compared with."""
  ours = [sys.executable, str(HERE / "ours.py")]
  cores = len(os.sched_getaffinity(0))
  runs = []

  def add(name: str, model: str, command: list[str], environment: dict[str, str] | None = None) -> None:
    runs.append(Run(f"{model}: {name}", model, command, environment or {}))

  def peer(script: str, model: str, environment: str) -> list[str]:
    return [str(envs.ensure(environment)), str(PEERS / f"{script}.py"), *work(model)]

  for model in models:
    add("fedjax_het", model, [*ours, *work(model), "--peak"])
    if "pfl_research" not in without:  # and a plain loop, in its environment
      for script, name in (("torch_loop", "PyTorch loop"), ("pfl_research", "pfl-research")):
        command = peer(script, model, "pfl_research")
        for threads in sorted({1, cores}):
          add(
            f"{name}, {threads} thread{'s' if threads > 1 else ''}",
            model,
            [*command, "--threads", str(threads)],
          )
        if script == "torch_loop" and cores > 1:
          add(f"{name}, {cores} processes", model, [*command, "--threads", "1", "--processes", str(cores)])
      if cores > 1:  # pfl-research's own way of using them
        launch = ["-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
        launch += ["--nproc_per_node", str(cores)]
        command = [command[0], *launch, *command[1:], "--threads", "1"]
        add(f"pfl-research, {cores} processes", model, command, {"OMP_NUM_THREADS": "1"})
    if model == "two_nn" and "fedjax_google" not in without:
      command = peer("fedjax_google", model, "fedjax_google")
      add("FedJAX, 1 core", model, [*command, "--threads", "1"])
      if cores > 1:
        add(f"FedJAX, {cores} cores", model, command)
        add(f"FedJAX, pmap on {cores} devices", model, [*command, "--backend", "pmap"])
    if model == "two_nn" and "fluke" not in without:
      add("fluke", model, [*peer("fluke_bench", model, "fluke"), "--threads", "1"])
      add(
        "SuPerFed-MM of fluke",
        model,
        [*peer("fluke_bench", model, "fluke"), "--threads", "1", "--algorithm", "superfed"],
      )
    if model == "two_nn" and "flower" not in without:
      for threads in sorted({1, cores}):
        name = f"Flower, {cores // threads} actors of {threads} threads"
        add(name, model, [*peer("flower", model, "flower"), "--threads", str(threads)])
  add("fedjax_het, plain SGD", "two_nn", [*ours, *work("two_nn"), "--momentum", "0", "--weight_decay", "0"])
  add("fedjax_het, SuPerFed-MM", "two_nn", [*ours, *work("two_nn"), "--algorithm", "superfed_mm"])
  return runs


def busy(seconds: float = 0.5) -> float | None:
  """Share of the cores' time that others take just now, in [0, 1]; None where /proc/stat is missing."""
  stat = pathlib.Path("/proc/stat")
  if not stat.is_file():
    return None

  def read() -> tuple[int, int]:
    ticks = [int(text) for text in stat.read_text().splitlines()[0].split()[1:9]]
    return sum(ticks), ticks[3] + ticks[4]  # idle and waiting for input

  total, idle = read()
  time.sleep(seconds)
  total_after, idle_after = read()
  return 1.0 - (idle_after - idle) / max(total_after - total, 1)


def result_of(run: Run) -> dict:
  """Runs one command and returns the JSON line it prints, with how busy the machine was before it.

  Raises:
    RunFailed: the command failed or printed no JSON line.
  """
  others = busy()
  environment = {**os.environ, **run.environment}
  command = [*run.command, "--started", repr(time.time())] if "--start" in run.command else run.command
  done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
  lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
  if done.returncode or not lines:
    tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
    raise RunFailed(f"{run.name}: {' '.join(run.command)} ended with {done.returncode}:\n{tail}")
  result = json.loads(lines[-1])
  if not result.get("finite", True):
    raise RunFailed(f"{run.name}: its parameters are not finite, so its speed means nothing.")
  return {**result, "busy_before": others}


def starts() -> dict[str, dict]:
  """The first start, with an empty persistent cache, and the second."""
  results = {}
  with tempfile.TemporaryDirectory() as cache:
    for name in ("first", "second"):
      command = [sys.executable, str(HERE / "ours.py"), "--start", "--cache", cache]
      results[name] = result_of(Run(f"{name} start", "start", [*command, *work("two_nn")]))
  return results


def machine() -> dict:
  """What the figures hold for."""
  about = provenance()
  changed = subprocess.run(
    ["git", "-C", str(ROOT), "status", "--porcelain"], capture_output=True, text=True, check=False
  )
  return {
    **about,
    "platform": f"{platform.system()} {platform.machine()}",
    "python": platform.python_version(),
    "uncommitted_changes": bool(changed.stdout.strip()),
    "command": "python benchmarks/speed/speed.py " + " ".join(sys.argv[1:]),
  }


def summarize(runs: list[Run], results: dict[str, list[dict]], start: list[dict]) -> dict:
  """Medians by run, and the comparisons asked for, each with its value, its bound and whether it holds."""
  rates = {run.name: [row["client_steps_per_second"] for row in results[run.name]] for run in runs}
  median = {name: statistics.median(values) for name, values in rates.items()}

  def over(faster: str, slower: str) -> dict | None:
    """One row's rate over another's: the median and the range of the turns' ratios."""
    if faster not in rates or slower not in rates:
      return None
    turns = [own / other for own, other in zip(rates[faster], rates[slower])]
    return {"value": statistics.median(turns), "min": min(turns), "max": max(turns)}

  def ratio(model: str, peer: str) -> dict | None:
    """Ours over the peer's fastest way of running, the one of the largest median."""
    found = {name: value for name, value in median.items() if name.startswith(f"{model}: {peer}")}
    fastest, ours = max(found, key=found.get, default=""), f"{model}: fedjax_het"
    others = {name: over(ours, name) for name in found if name != fastest}
    both = over(ours, fastest)
    return both and {**both, "against": fastest, "others": others}

  first, second = (
    statistics.median(turn[name][field] for turn in start)
    for name, field in (("first", "compile_seconds"), ("second", "ready_seconds"))
  )
  peers = ("PyTorch loop", "pfl-research", "FedJAX", "fluke", "Flower")
  comparisons = [
    *((f"TwoNN, times {peer}", ratio("two_nn", peer), "at least", 8.0) for peer in peers),
    *((f"TwoCNN, times {peer}", ratio("two_cnn", peer), "at least", 1.6) for peer in peers[:2]),
    (
      "TwoNN, SuPerFed-MM, times fluke's",
      over("two_nn: fedjax_het, SuPerFed-MM", "two_nn: SuPerFed-MM of fluke"),
      "at least",
      8.0,
    ),
    (
      "Plain SGD, times with momentum",
      over("two_nn: fedjax_het, plain SGD", "two_nn: fedjax_het"),
      "at most",
      2.0,
    ),
    (
      "SuPerFed-MM's client step, times FedAvg's",
      over("two_nn: fedjax_het", "two_nn: fedjax_het, SuPerFed-MM"),
      "at most",
      2.0,
    ),
    ("First compile of the TwoNN run, s", {"value": first}, "at most", 4.0),
    ("Second start, whole process, s", {"value": second}, "at most", 5.0),
  ]
  cnn = results.get("two_cnn: fedjax_het", [])
  return {
    "client_steps_per_second": {
      name: {"median": median[name], "min": min(values), "max": max(values)} for name, values in rates.items()
    },
    "comparisons": [
      {"what": what, **found, "bound": f"{side} {bound:g}"}
      | {"holds": found["value"] >= bound if side == "at least" else found["value"] <= bound}
      for what, found, side, bound in comparisons
      if found is not None
    ],
    "two_cnn_share_of_matmul_peak": statistics.median(row["share_of_peak"] for row in cnn) if cnn else None,
    "matmul_peak_gflops": statistics.median(row["matmul_peak_flops"] for row in cnn) / 1e9 if cnn else None,
  }


def show(summary: dict) -> None:
  """Prints the summary as two tables."""
  print(f"\n{'client steps a second':<44}{'median':>10}{'min':>10}{'max':>10}")
  for name, row in summary["client_steps_per_second"].items():
    print(f"{name:<44}{row['median']:>10.1f}{row['min']:>10.1f}{row['max']:>10.1f}")
  print(f"\n{'asked for':<44}{'value':>10}  {'turns':<16}{'bound':<14}")
  for row in summary["comparisons"]:
    verdict = "holds" if row["holds"] else "DOES NOT HOLD"
    against = f"  (against {row['against'].split(': ')[1]})" if "against" in row else ""
    span = f"{row['min']:.2f} to {row['max']:.2f}" if "min" in row else ""
    print(f"{row['what']:<44}{row['value']:>10.2f}  {span:<16}{row['bound']:<14}{verdict}{against}")
  share, peak = summary["two_cnn_share_of_matmul_peak"], summary["matmul_peak_gflops"]
  if share is not None:
    print(f"\nTwoCNN reaches {100 * share:.0f} % of the matrix product's peak, {peak:.0f} GFLOP/s.")


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--repeats", type=int, default=3, help="turns, each of all runs")
  parser.add_argument(
    "--without", nargs="*", default=[], choices=("pfl_research", "fedjax_google", "fluke", "flower"),
    help="peers to leave out",
  )  # fmt: skip
  parser.add_argument("--models", nargs="+", default=list(ROUNDS), choices=list(ROUNDS), help="which")
  parser.add_argument("--out", type=pathlib.Path, default=RAW / "speed_momentum.json")
  args = parser.parse_args()
  about = machine()
  results, start = collections.defaultdict(list), []
  try:
    runs = plan(args.without, args.models)
    for turn in range(args.repeats):
      for run in runs:
        row = result_of(run)
        results[run.name].append(row)
        rate, others = row["client_steps_per_second"], row["busy_before"] or 0.0
        warning = (
          f"  ({100 * others:.0f} % of the machine was busy: not to be trusted)" if others > 0.1 else ""
        )
        print(f"turn {turn + 1}  {run.name:<44}{rate:>10.1f}{warning}", file=sys.stderr, flush=True)
      start.append(starts())
  except (envs.EnvironmentFailed, RunFailed) as error:
    raise SystemExit(str(error)) from None
  summary = summarize(runs, results, start)
  show(summary)
  args.out.parent.mkdir(parents=True, exist_ok=True)
  document = {"machine": about, "work": WORK, "rounds": ROUNDS, **summary, "runs": results, "starts": start}
  args.out.write_text(json.dumps(document, indent=2) + "\n")
  print(f"written: {args.out}")


if __name__ == "__main__":
  main()
