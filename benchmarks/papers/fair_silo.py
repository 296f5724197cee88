"""Reproduces the thesis's tables 3.8 and 3.10 (cross-silo) with many seeds, each method as one program.

    python benchmarks/papers/fair_silo.py [--datasets heart berka mqp] [--rows static fedmgda] [--seeds 100]
      [--frozen model.safetensors] [--out docs/results]

Every seed has another split, another initial model and another order of mini-batches. All methods get the
same ones, so differences between methods are paired. --frozen adds MQP as a pretrained MiniLM reads it, with
a linear model on top (see frozen_pairs.py). OUT/raw/fair_silo.json holds every seed's figures, and rows that
are not run again keep theirs. The script rewrites OUT/fair_silo.md from its first second-level heading on and
leaves the text above it alone. The pictures are OUT/images/fair_silo_*.png.
"""

import argparse
import importlib.util
import json
import re
import time
from pathlib import Path

import numpy as np

import fedjax_het as fh
from benchmarks.papers.frozen_pairs import frozen_pairs
from benchmarks.provenance import PAGES, ROOT, commit, machine, place

fh.prepare_cpu()

import jax  # noqa: E402

from benchmarks.papers import regret  # noqa: E402
from fedjax_het.config.algorithm import build_algorithm  # noqa: E402
from fedjax_het.config.plan import plan  # noqa: E402
from fedjax_het.metrics.seeds import over_seeds  # noqa: E402
from fedjax_het.mixing.responses import respond  # noqa: E402
from fedjax_het.studies.mixture import plot_mixture  # noqa: E402

SERVERS = {  # server, its learning rate
  "FedAvg": ("sgd", 1.0), "FedProx": ("sgd", 1.0), "FedAdam": ("adam", 0.01), "FedYogi": ("yogi", 0.01),
  "FedAdagrad": ("adagrad", 0.01), "FedAdagrad, server lr 0.1": ("adagrad", 0.1),
}  # fmt: skip
MIXINGS = ("static", "uniform", "afl", "qffl", "term", "fedmgda", "propfair", "aaggff_s")
DRAWN = {"heart": "heart", "berka, no leak": "berka"}  # whose pictures the page shows
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


COMMIT = {"commit": commit(), "machine": machine()}


def table_3_10():
  spec = importlib.util.spec_from_file_location("table_3_10", ROOT / "configs" / "table_3_10.py")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def interval(values: np.ndarray) -> tuple[float, float, float]:
  """Mean and its 95 % confidence interval (Student's t)."""
  found = over_seeds(values)
  half = found.half or 0.0  # of a single value too
  return found.mean, found.mean - half, found.mean + half


class Study:
  """All seeds' data of a data set, and what its methods reach on them."""

  def __init__(self, dataset: str, seeds: int, weights: Path | None = None, **options):
    self.config = table_3_10().get_config(f"dataset={dataset}")
    source = frozen_pairs(weights) if weights else fh.data.load(dataset, None, **options)
    parts = fh.data.partition(jax.random.key(0), "natural", source.y, groups=source.groups)
    self.names = [str(name) for name in np.unique(source.groups)]
    self.keys = jax.vmap(jax.random.key)(np.arange(seeds))
    self.data = [
      fh.federate(
        source.x, source.y, parts, jax.random.fold_in(key, 1), num_classes=source.num_classes,
        standardize=source.standardize, stratify=self.config.stratify,
      )
      for key in self.keys
    ]  # fmt: skip
    model = "logistic_regression" if weights else self.config.model.name
    self.model = fh.models.make(model, source.x.shape[1:], source.num_classes)
    at_once = dataset not in FEWER or weights
    self.how = {"member_batch": seeds, "client_batch": 64} if at_once else {}
    self.test_sizes = np.stack([each.test.size for each in self.data])

  def run(self, algorithm: str, mixing: str, server: str = "sgd", server_lr: float = 1.0) -> dict:
    cell = f"dataset={self.config.dataset},algorithm={algorithm},mixing={mixing},server={server}"
    config = table_3_10().get_config(cell)
    config.server.lr = server_lr
    config.record_losses = mixing == "static"
    started = time.time()
    result = fh.sweep(
      lambda: build_algorithm(plan(config), self.model),
      seeds=jax.vmap(lambda key: jax.random.fold_in(key, 2))(self.keys),
      data=self.data,
      rounds=config.rounds,
      cohort_size=config.cohort_size,
      **self.how,
    )
    auroc = 100 * result.history[config.rounds].global_["auroc"]
    return {
      "average": (auroc * self.test_sizes).sum(1) / self.test_sizes.sum(1),
      "mean": auroc.mean(1),
      "worst": auroc.min(1),
      "gap": auroc.max(1) - auroc.min(1),
      "auroc": auroc,
      "infos": result.infos,
      "seconds": time.time() - started,
    }


def describe(values: np.ndarray) -> str:
  return f"{np.mean(values):.2f} ({np.std(values, ddof=1):.2f})"


def difference(a: np.ndarray, b: np.ndarray) -> str:
  mean, low, high = interval(np.asarray(a) - np.asarray(b))
  return f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]" + ("" if low <= 0 <= high else " *")


def figures(run: dict) -> dict:
  """What is kept of a run."""
  return {figure: np.round(run[figure], 4).tolist() for figure in ("average", "worst", "gap")} | COMMIT


def from_uniform(run: dict) -> float:
  """Half of Σ_i |p_i - 1/K| in the round where it is largest, its mean over the seeds."""
  p = run["infos"].coefficients
  return float((0.5 * np.abs(p - 1.0 / p.shape[-1]).sum(-1)).max(axis=1).mean())


def plug_and_play(study: Study, rows: list[str], record: dict) -> None:
  """Table 3.10: each server and client method without and with AAggFF-S."""
  for name, server in SERVERS.items():
    if name in rows:
      algorithm = "fedprox" if name == "FedProx" else "fedavg"
      record[name] = {
        mixing: figures(study.run(algorithm, mixing, *server)) for mixing in ("static", "aaggff_s")
      }
      print(name, flush=True)


def plug_and_play_table(record: dict) -> list[str]:
  lines = [
    "| method | paper: average, worst | with AAggFF-S | ours: average | with AAggFF-S | difference [95 %] "
    "| ours: worst | with AAggFF-S | difference [95 %] |",
    "|---|---|---|---|---|---|---|---|---|",
  ]
  for name in (name for name in SERVERS if name in record):
    without, fair = (record[name][mixing] for mixing in ("static", "aaggff_s"))
    cells = [f"{a:.2f}, {w:.2f}" for a, w in PAPER_HEART.get(name, ())] or ["–", "–"]
    for figure in ("average", "worst"):
      cells += [describe(without[figure]), describe(fair[figure]), difference(fair[figure], without[figure])]
    lines.append(f"| {name} | {' | '.join(cells)} |")
  return lines


def mixings_table(dataset: str, record: dict) -> list[str]:
  lines = [
    "| mixing | paper: gap | ours: gap | less static [95 %] | average | worst | worst less static [95 %] "
    "| farthest p from uniform |",
    "|---|---|---|---|---|---|---|---|",
  ]
  base = record["static"]
  for mixing, printed in zip(MIXINGS, PAPER_GAP.get(dataset, ("–",) * len(MIXINGS))):
    if mixing not in record:
      continue
    run = record[mixing]
    less = ["–" if run is base else difference(run[figure], base[figure]) for figure in ("gap", "worst")]
    cells = (
      printed, describe(run["gap"]), less[0], describe(run["average"]), describe(run["worst"]), less[1],
      f"{run['from_uniform']:.3f}",
    )  # fmt: skip
    settings = ", ".join(f"{name} = {value:g}" for name, value in run.get("settings", {}).items())
    lines.append(f"| {mixing}{settings and f' ({settings})'} | {' | '.join(cells)} |")
  return lines


def losses_beside_auroc(study: Study, run: dict) -> dict:
  """Each client's training loss of the last round's model and its AUROC; how they correlate in each seed."""
  order = np.argsort(run["infos"].cohort[:, -1], axis=-1)
  losses = np.take_along_axis(run["infos"].losses[:, -1], order, axis=-1)
  correlations = [np.corrcoef(f, a)[0, 1] for f, a in zip(losses, run["auroc"])]
  return {
    "clients": study.names, "test examples": study.test_sizes[0].tolist(),
    "auroc": np.round(run["auroc"].mean(0), 2).tolist(),
    "loss": np.round(np.float64(losses.mean(0)), 4).tolist(),
    "correlation": np.round(correlations, 4).tolist(), **COMMIT,
  }  # fmt: skip


def losses_table(record: dict) -> list[str]:
  mean, low, high = interval(np.asarray(record["correlation"]))
  lines = ["", "Static mixing's last round, means over the seeds; within a seed training loss and AUROC "
           f"correlate by {mean:+.2f} [{low:+.2f}, {high:+.2f}].", "",
           "| client | test examples | training loss | AUROC x 100 |", "|---|---|---|---|"]  # fmt: skip
  rows = sorted(
    zip(record["clients"], record["test examples"], record["loss"], record["auroc"]), key=lambda row: -row[2]
  )
  return lines + [f"| {name} | {size} | {loss:.3f} | {auroc:.1f} |" for name, size, loss, auroc in rows]


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
  parser.add_argument("--datasets", nargs="*", default=["heart", "berka", "mqp"])
  parser.add_argument("--rows", nargs="+", default=[*SERVERS, *MIXINGS], help="which methods to run (anew)")
  parser.add_argument("--seeds", type=int, default=100)
  parser.add_argument("--frozen", type=Path, help="all-MiniLM-L6-v2's model.safetensors")
  parser.add_argument("--out", type=Path, default=PAGES, help="the folder of the page, raw/, images/")
  args = parser.parse_args()
  kept = place(args.out, "fair_silo.json")
  record = json.loads(kept.read_text()) if kept.exists() else {}
  kinds = {
    "heart": [("heart", {})],
    "berka": [("berka, no leak", {"leaky": False}), ("berka, leaky as in the paper", {"leaky": True})],
    "mqp": [("mqp", {})],
    "frozen": [("mqp, read by a frozen MiniLM", {"weights": args.frozen})],
  }  # fmt: skip
  for dataset in [*args.datasets, *(["frozen"] if args.frozen else [])]:
    for label, options in kinds[dataset]:
      dataset = label.split(",")[0]
      seeds = args.seeds if options else min(args.seeds, FEWER.get(dataset, args.seeds))
      study = Study(dataset, seeds, **options)
      own = record.setdefault(label, {"mixings": {}})
      print(label, flush=True)
      if dataset == "heart":
        plug_and_play(study, args.rows, own.setdefault("table 3.10", {}))
      for mixing in (mixing for mixing in MIXINGS if mixing in args.rows):
        run = study.run("fedavg", mixing)
        own["mixings"][mixing] = figures(run) | {
          "from_uniform": round(from_uniform(run), 4), "settings": table_3_10().strengths(dataset, mixing)
        }  # fmt: skip
        if mixing == "static":
          own["losses"] = losses_beside_auroc(study, run)
        if mixing == "aaggff_s":
          own["regret"] = draw(study, run, label, args.out)
        print(mixing, f"{run['seconds']:.0f} s", flush=True)
        kept.write_text(compact(record))
  write(args, record)


def draw(study: Study, run: dict, label: str, folder: Path) -> dict:
  """The figures of AAggFF-S's regret, and pictures of its mixture and regret where the page shows them."""
  rounds, curves, bound = measured_regret(study, run, table_3_10().CELLS[study.config.dataset]["cdf"])
  if name := DRAWN.get(label):
    path, title = place(folder, f"fair_silo_p_{name}.png"), f"AAggFF-S on {label}, seed 0"
    plot_mixture(run["infos"].coefficients[0], path, names=study.names, title=title)
    regret.plot_regret(rounds, {label: (curves, bound)}, place(folder, f"fair_silo_regret_{name}.png"))
  return {
    "rounds": int(rounds[-1]), "seeds": len(curves), "largest": round(float(curves[:, -1].max()), 4),
    "bound": round(float(bound[-1]), 4), "never above": bool((curves <= bound).all()), **COMMIT,
  }  # fmt: skip


def compact(record: dict) -> str:
  """JSON with each list of numbers on one line."""
  text = json.dumps(record, indent=1, ensure_ascii=False)
  return re.sub(r"\[[^\[\]{}]*\]", lambda found: re.sub(r"\s+", " ", found[0]), text) + "\n"


def commits(record: dict) -> set[str]:
  """The commits, and the machines, at which the figures in a record were measured."""
  found = {f"{record['commit']} on {record['machine']}"} if "commit" in record else set()
  return found.union(*(commits(value) for value in record.values() if isinstance(value, dict)))


def write(args: argparse.Namespace, record: dict) -> None:
  """The page's tables, out of the record."""
  page, lines = place(args.out, "fair_silo.md"), []
  for label, own in record.items():
    seeds = len(own["mixings"]["static"]["gap"])
    if own.get("table 3.10"):
      lines += ["", f"## {label[0].upper()}{label[1:]}, table 3.10, {seeds} seeds", ""]
      lines += plug_and_play_table(own["table 3.10"])
    lines += ["", f"## {label[0].upper()}{label[1:]}, all mixings with FedAvg, {seeds} seeds", ""]
    lines += mixings_table(label.split(",")[0], own["mixings"])
    if "losses" in own:
      lines += losses_table(own["losses"])
    if "regret" in own:
      lines += ["", "Regret of AAggFF-S after {rounds} rounds: largest of {seeds} seeds {largest:.4f}, bound "
                "{bound:.3f}; never above the bound: {never above}.".format_map(own["regret"])]  # fmt: skip
  command = "`python benchmarks/papers/fair_silo.py --seeds N [--frozen FILE]`, N as the headings say"
  lines += ["", f"Command: {command}; commits {', '.join(sorted(commits(record)))} (each row's own in "
            "[fair_silo.json](raw/fair_silo.json))."]  # fmt: skip
  prose = page.read_text().split("\n## ")[0].rstrip() if page.exists() else "# Fair mixing across silos"
  page.write_text(prose + "\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
  main()
