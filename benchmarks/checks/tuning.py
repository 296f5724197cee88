"""Compares tuning by successive halving with a plain grid of the same budget, on digits.

    python benchmarks/checks/tuning.py [--seeds 0 1 2 3 4] [--out docs/results]

Digits, 20 clients, Dirichlet(0.1), five a round, T = 30, a fifth of the clients' training rows to validate on
(`valid_fraction=0.2`). Three methods, whose learning rate is chosen from lr/30 to 30 lr: by a grid of seven
rates at equal ratios, each trained to T (7 · 30 = 210 rounds), or by `fedjax_het.tune` with twelve trials in
batches of eight (8, 4, 2 and 4, 2, 1 trials to rounds 10, 20, 30: 210 rounds). Both choose by top-1 over the
clients' validation parts and train the choice once more by itself, which is tested. "untuned" is the
configuration's own rate, which is the grid's middle. The partition is one for all seeds, which determine
initial models, cohorts, mini-batches and the trials. The script writes the JSON and the page.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import fedjax_het as fh

fh.prepare_cpu()

from benchmarks.provenance import PAGES, place, provenance  # noqa: E402
from fedjax_het.config.plan import plan, written  # noqa: E402
from fedjax_het.config.quickstart import get_config  # noqa: E402
from fedjax_het.config.values import with_values  # noqa: E402
from fedjax_het.engine.run import chunks, judged  # noqa: E402
from fedjax_het.experiment.build import build, engine_of  # noqa: E402
from fedjax_het.metrics.seeds import paired  # noqa: E402
from fedjax_het.output.progress import Progress  # noqa: E402
from fedjax_het.program.display import Display  # noqa: E402
from fedjax_het.program.machine import default_cache, keep_programs  # noqa: E402
from fedjax_het.program.stopping import StopRequest  # noqa: E402
from fedjax_het.program.where import EVERYWHERE  # noqa: E402
from fedjax_het.tune.rung import Rung, train  # noqa: E402
from fedjax_het.tune.rungs import budget  # noqa: E402
from fedjax_het.tune.space import FACTOR  # noqa: E402
from fedjax_het.tune.study import run_tune  # noqa: E402

METHODS = ("fedavg", "ditto", "superfed_mm")
ROUNDS, TRIALS, BATCH, GRID = 30, 12, 8, 7
READING = "## What it shows"
WAYS = ("untuned", "grid", "tuned")


class Quiet(Display):
  """Shows nothing."""

  def progress(self, total: int) -> Progress:
    return Progress(total, quiet=True)

  def show(self, *what: Any) -> None:
    pass


def config_of(method: str, seed: int) -> dict[str, Any]:
  config = get_config(f"algorithm={method}")
  config.update(rounds=ROUNDS, eval_every=ROUNDS, valid_fraction=0.2, seed=seed)
  return with_values(written(config), {"partition.seed": 0})


def tested(config: dict[str, Any], lr: float) -> dict[str, float]:
  """Returns top-1 in percent, over the clients' validation and test parts, of a run with this rate."""
  experiment = build(plan(with_values(config, {"local.lr": lr})))
  engine = engine_of(experiment, EVERYWHERE)
  *_, last = chunks(engine, engine.init(experiment.key), ROUNDS, None)
  assert last.evaluations is not None
  found = judged(last.evaluations)
  return {
    name: 100 * found[part]["personalized"]["top1"]["mean"]
    for name, part in (("valid", "valid"), ("test", "metrics"))
  }


def by_grid(config: dict[str, Any], lr: float, folder: Path) -> dict[str, Any]:
  rates = [lr * FACTOR ** (2 * i / (GRID - 1) - 1) for i in range(GRID)]
  trials = [{"local.lr": rate} for rate in rates]
  with StopRequest() as stop, Progress(1, quiet=True) as progress:
    found = train(config, trials, Rung(folder, 0, ROUNDS), EVERYWHERE, None, 1e9, progress, stop)
  best = max(range(GRID), key=lambda i: found.values[i] if found.values[i] == found.values[i] else -1.0)
  return {"lr": rates[best], "steps": sum(found.steps), **tested(config, rates[best])}


def by_tuning(config: dict[str, Any], folder: Path) -> dict[str, Any]:
  summary, trials = run_tune(config, None, str(folder), trials=TRIALS, batch=BATCH, display=Quiet())
  chosen = json.loads((folder / "best" / "config.json").read_text())["local"]["lr"]
  valid, test = (100 * summary[part]["personalized"]["top1"]["mean"] for part in ("valid", "metrics"))
  return {"lr": chosen, "steps": sum(own.client_steps for own in trials), "valid": valid, "test": test}


def page(report: dict[str, Any], kept: str = "") -> str:
  seeds, rows, notes = report["seeds"], [], []

  def column(method: str, way: str, name: str) -> list[float]:
    return [report["found"][method][str(seed)][way][name] for seed in seeds]

  for method in METHODS:
    for way in WAYS:
      test, valid = column(method, way, "test"), column(method, way, "valid")
      rates = " ".join(f"{own:.3g}" for own in dict.fromkeys(column(method, way, "lr")))
      steps = statistics.mean(column(method, way, "steps")) if way != "untuned" else 0
      rows.append(
        f"| {method} | {way} | {statistics.mean(test):.2f} ± {statistics.stdev(test):.2f} | "
        f"{statistics.mean(valid):.2f} | {steps:,.0f} | {rates} |"
      )
    for way in ("untuned", "grid"):
      pair = paired(*(dict(zip(seeds, column(method, own, "test"))) for own in ("tuned", way)))
      notes.append(f"| {method} | tuned less {way} | {pair.mean:+.2f} ± {pair.error:.2f} |")
  made = "; ".join(f"{name} {report[name]}" for name in ("commit", "date", "machine", "jax"))
  return "\n".join(
    [
      "# Tuning beside a grid of the same budget", "",
      f"Digits, 20 clients, Dirichlet(0.1), five a round, T = {ROUNDS}, `valid_fraction=0.2`, seeds {seeds} "
      f"with one partition. The learning rate is chosen from lr / {FACTOR} to {FACTOR} lr by top-1 over the "
      f"clients' validation parts: by a grid of {GRID} rates at equal ratios that train to T, or by "
      f"[`fedjax_het.tune`](../tuning.md) with {TRIALS} trials, {BATCH} at once. Both train "
      f"{budget(TRIALS, BATCH, ROUNDS)} rounds, and the choice once more by itself, which is tested. "
      "`untuned` is the configuration's own rate, the grid's middle.", "",
      "```sh", "# Not run by the tests: it takes minutes.", "python benchmarks/checks/tuning.py", "```", "",
      "| method | choice | top-1 on test parts (%), mean ± std over seeds | on validation parts | "
      "client steps | rates chosen |",
      "|---|---|---|---|---|---|", *rows, "",
      "Differences are paired by seed, in points of top-1 on the test parts, ± standard error:", "",
      "| method | | difference |", "|---|---|---|", *notes, "",
      f"Raw figures: [tuning.json](raw/tuning.json). {report['seconds']:.0f} s in all. Made by {made}.", "",
      READING, kept,
    ]
  )  # fmt: skip


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3, 4])
  parser.add_argument("--methods", nargs="*", default=METHODS)
  parser.add_argument("--out", type=Path, default=PAGES)
  args = parser.parse_args()
  keep_programs(Path(default_cache()))
  began, report = time.monotonic(), {**provenance(), "seeds": args.seeds, "found": {}}
  for method in args.methods:
    for seed in args.seeds:
      config = config_of(method, seed)
      lr = config["local"]["lr"]
      with tempfile.TemporaryDirectory() as folder:
        own = {
          "untuned": {"lr": lr, **tested(config, lr)}, "grid": by_grid(config, lr, Path(folder) / "grid"),
          "tuned": by_tuning(config, Path(folder) / "tuned"),
        }  # fmt: skip
      report["found"].setdefault(method, {})[str(seed)] = own
      print(f"{time.monotonic() - began:.0f} s, {method}, seed {seed}: {json.dumps(own)}", flush=True)
  report["seconds"] = time.monotonic() - began
  place(args.out, "tuning.json").write_text(json.dumps(report, indent=1) + "\n")
  path = place(args.out, "tuning.md")
  kept = path.read_text().partition(f"{READING}\n")[2] if path.exists() else ""  # written by hand
  path.write_text(page(report, kept))


if __name__ == "__main__":
  main()
