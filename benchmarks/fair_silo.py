"""Tables 3.8 and 3.10 of the thesis, cross-silo: many seeds of every method, each method one program.

    python benchmarks/fair_silo.py [--datasets heart berka mqp] [--seeds 100] [--out docs/results/fair_silo]

Every seed is another split, another initial model and another order of mini-batches; all methods get the same
ones, so differences between methods are paired. Writes OUT.json, OUT.md and pictures OUT_*.png.
"""

import argparse
import datetime
import importlib.util
import json
import platform
import time
from pathlib import Path

import numpy as np

import fedjax_het as fh

fh.prepare_cpu()

import jax  # noqa: E402
from scipy import stats  # noqa: E402

from fedjax_het.analysis import regret  # noqa: E402
from fedjax_het.analysis.mixing_plot import plot_mixture, plot_regret  # noqa: E402
from fedjax_het.experiment.build import build_algorithm  # noqa: E402
from fedjax_het.mixing.responses import respond  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
SERVERS = {  # server, its learning rate
  "FedAvg": ("sgd", 1.0), "FedProx": ("sgd", 1.0), "FedAdam": ("adam", 0.01), "FedYogi": ("yogi", 0.01),
  "FedAdagrad": ("adagrad", 0.01), "FedAdagrad, server lr 0.1": ("adagrad", 0.1),
}  # fmt: skip
MIXINGS = ("static", "uniform", "afl", "qffl", "term", "fedmgda", "propfair", "aaggff_s")
FEWER = {"mqp": 30}  # at most so many seeds, one after another: its text model has 133,217 parameters
PAPER_HEART = {  # table 3.10: average, worst AUROC, percent, without and with AAggFF-S
  "FedAvg": ((84.42, 65.22), (85.04, 66.56)),
  "FedProx": ((84.48, 65.44), (85.04, 66.67)),
  "FedAdam": ((84.34, 65.44), (84.84, 67.00)),
  "FedYogi": ((84.29, 65.67), (84.86, 67.00)),
  "FedAdagrad": ((84.61, 65.67), (85.09, 66.67)),
}
PAPER_GAP = {  # table 3.8: AUROC gap in points, mean (std) of three seeds
  "berka": ("50.84 (23.98)", "–", "50.98 (23.78)", "50.43 (22.15)", "49.60 (23.74)", "44.46 (17.49)",
            "49.05 (23.78)", "44.03 (17.55)"),
  "mqp": ("35.30 (5.39)", "–", "34.26 (5.16)", "39.16 (7.13)", "36.07 (6.93)", "34.74 (1.74)", "37.38 (4.35)",
          "33.77 (3.31)"),
}  # fmt: skip


def table_3_10():
  spec = importlib.util.spec_from_file_location("table_3_10", ROOT / "configs" / "table_3_10.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def interval(values: np.ndarray) -> tuple[float, float, float]:
  """Mean and its 95 % confidence interval (Student's t)."""
  mean, error = values.mean(), stats.sem(values)
  half = stats.t.ppf(0.975, len(values) - 1) * error if error > 0 else 0.0
  return mean, mean - half, mean + half


class Study:
  """All seeds' data of a data set, and what its methods reach on them."""

  def __init__(self, dataset: str, seeds: int, stratify: bool = True, **options):
    self.config = table_3_10().get_config(f"dataset={dataset}")
    source = fh.data.load(dataset, None, **options)
    parts = fh.data.partition(jax.random.key(0), "natural", source.y, groups=source.groups)
    self.names = [str(name) for name in np.unique(source.groups)]
    self.keys = jax.vmap(jax.random.key)(np.arange(seeds))
    self.data = [
      fh.federate(
        source.x, source.y, parts, jax.random.fold_in(key, 1), num_classes=source.num_classes,
        standardize=source.standardize, stratify=stratify,
      )
      for key in self.keys
    ]  # fmt: skip
    self.model = fh.models.make(self.config.model.name, source.x.shape[1:], source.num_classes)
    self.test_sizes = np.stack([each.test.size for each in self.data])

  def run(self, algorithm: str, mixing: str, server: str = "sgd", server_lr: float = 1.0) -> dict:
    cell = f"dataset={self.config.dataset},algorithm={algorithm},mixing={mixing},server={server}"
    config = table_3_10().get_config(cell)
    config.server.lr = server_lr
    started = time.time()
    result = fh.sweep(
      lambda: build_algorithm(config, self.model),
      seeds=jax.vmap(lambda key: jax.random.fold_in(key, 2))(self.keys),
      data=self.data,
      rounds=config.rounds,
      cohort_size=config.cohort_size,
      **({} if self.config.dataset in FEWER else {"member_batch": len(self.keys), "client_batch": 64}),
    )
    auroc = 100 * result.history[config.rounds].global_["auroc"]
    return {
      "average": (auroc * self.test_sizes).sum(1) / self.test_sizes.sum(1),
      "mean": auroc.mean(1),
      "worst": auroc.min(1),
      "gap": auroc.max(1) - auroc.min(1),
      "infos": result.infos,
      "seconds": time.time() - started,
    }


def describe(values: np.ndarray) -> str:
  return f"{values.mean():.2f} ({values.std(ddof=1):.2f})"


def difference(a: np.ndarray, b: np.ndarray) -> str:
  mean, low, high = interval(a - b)
  return f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]" + ("" if low <= 0 <= high else " *")


def from_uniform(run: dict) -> float:
  """Half of Σ_i |p_i - 1/K| in the round where it is largest, its mean over the seeds."""
  p = run["infos"].coefficients
  return float((0.5 * np.abs(p - 1.0 / p.shape[-1]).sum(-1)).max(axis=1).mean())


def plug_and_play(study: Study, lines: list[str], record: dict) -> None:
  """Table 3.10: each server and client method without and with AAggFF-S."""
  lines += [
    "| method | paper: average, worst | with AAggFF-S | ours: average | with AAggFF-S | difference [95 %] "
    "| ours: worst | with AAggFF-S | difference [95 %] |",
    "|---|---|---|---|---|---|---|---|---|",
  ]
  for name, server in SERVERS.items():
    algorithm = "fedprox" if name == "FedProx" else "fedavg"
    without, fair = (study.run(algorithm, mixing, *server) for mixing in ("static", "aaggff_s"))
    paper = [f"{a:.2f}, {w:.2f}" for a, w in PAPER_HEART.get(name, ())] or ["–", "–"]
    cells = [
      text
      for figure in ("average", "worst")
      for text in (
        describe(without[figure]), describe(fair[figure]), difference(fair[figure], without[figure])
      )
    ]  # fmt: skip
    lines.append(f"| {name} | {' | '.join([*paper, *cells])} |")
    print(lines[-1], f"{without['seconds'] + fair['seconds']:.0f} s", flush=True)
    record[name] = {
      key: {figure: run[figure].tolist() for figure in ("average", "worst", "gap")}
      for key, run in (("static", without), ("aaggff_s", fair))
    }


def all_mixings(study: Study, lines: list[str], record: dict) -> dict:
  """Table 3.8: every mixing with FedAvg; returns the run of AAggFF-S."""
  paper = PAPER_GAP.get(study.config.dataset, ("–",) * len(MIXINGS))
  lines += [
    "| mixing | paper: gap | ours: gap | less static [95 %] | average | worst | worst less static [95 %] "
    "| farthest p from uniform |",
    "|---|---|---|---|---|---|---|---|",
  ]
  base, run = None, {}
  for mixing, printed in zip(MIXINGS, paper):
    run = study.run("fedavg", mixing)
    base = base or run
    cells = (
      printed, describe(run["gap"]), "–" if run is base else difference(run["gap"], base["gap"]),
      describe(run["average"]), describe(run["worst"]),
      "–" if run is base else difference(run["worst"], base["worst"]), f"{from_uniform(run):.3f}",
    )  # fmt: skip
    lines.append(f"| {mixing} | {' | '.join(cells)} |")
    print(lines[-1], f"{run['seconds']:.0f} s", flush=True)
    record[mixing] = {figure: run[figure].tolist() for figure in ("average", "worst", "gap")}
  return run


def measured_regret(study: Study, run: dict, cdf: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """(rounds, regret [M, N], bound [N]) of AAggFF-S on its own losses."""
  losses, played = run["infos"].losses, run["infos"].coefficients
  members, rounds, clients = losses.shape
  responses = np.asarray(jax.vmap(jax.vmap(lambda f: respond(f, cdf, 0.0, 1.0 / clients)))(losses))
  before = np.concatenate([np.full((members, 1, clients), 1.0 / clients), played[:, :-1]], axis=1)
  at = np.unique(np.geomspace(1, rounds, 12).astype(int))
  curves = np.stack([regret.regret_curve(p, r, at) for p, r in zip(before, responses)])
  return at, curves, regret.bound_cross_silo(clients, at)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--datasets", nargs="+", default=["heart", "berka", "mqp"])
  parser.add_argument("--seeds", type=int, default=100)
  parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "fair_silo")
  args = parser.parse_args()
  args.out.parent.mkdir(parents=True, exist_ok=True)
  lines, record = [], {}
  for dataset in args.datasets:
    for leaky in (False, True) if dataset == "berka" else (None,):
      label = dataset if leaky is None else f"berka, {'leaky as in the paper' if leaky else 'no leak'}"
      seeds = min(args.seeds, FEWER.get(dataset, args.seeds))
      study = Study(dataset, seeds, **({} if leaky is None else {"leaky": leaky}))
      kept = record.setdefault(label, {})
      print(label, flush=True)
      if dataset == "heart":
        lines += ["", f"## Heart, table 3.10, {seeds} seeds", ""]
        plug_and_play(study, lines, kept)
      lines += ["", f"## {label.capitalize()}, all mixings with FedAvg, {seeds} seeds", ""]
      run = all_mixings(study, lines, kept)
      here, curves, bound = measured_regret(study, run, table_3_10().CELLS[dataset]["cdf"])
      lines += ["", f"Regret of AAggFF-S after {here[-1]} rounds: largest of {len(curves)} seeds "
                f"{curves[:, -1].max():.4f}, bound {bound[-1]:.3f}; never above the bound: "
                f"{bool((curves <= bound).all())}."]  # fmt: skip
      plot_mixture(
        run["infos"].coefficients[0],
        args.out.with_name(f"{args.out.name}_p_{dataset}{'_leaky' if leaky else ''}.png"),
        names=study.names, title=f"AAggFF-S on {label}, seed 0",
      )  # fmt: skip
      plot_regret(
        here, {label: (curves, bound)},
        args.out.with_name(f"{args.out.name}_regret_{dataset}{'_leaky' if leaky else ''}.png"),
      )  # fmt: skip
      write(args, lines, record)


def write(args: argparse.Namespace, lines: list[str], record: dict) -> None:
  """What is known so far."""
  args.out.with_suffix(".json").write_text(json.dumps(record))
  tail = (
    f"\nCommand: `python benchmarks/fair_silo.py --seeds {args.seeds}`, {datetime.date.today()}, "
    f"{platform.machine()}, JAX {jax.__version__}.\n"
  )
  args.out.with_suffix(".md").write_text("\n".join(lines) + "\n" + tail)


if __name__ == "__main__":
  main()
