"""Reproduces the thesis's figure 3.1 on Berka: AAggFF-S's cumulative objective by distribution function.

    python benchmarks/papers/figure_3_1.py [--seeds 100] [--out docs/results]

Each row is one program of many seeds, whose splits, initial models and mini-batches all rows share. Besides
the six distribution functions of section III-5.1 there are rows for the settings that the thesis only names
(other learners, a scale by maximum spacing) and for its softmax of two logits. Transactions after a loan's
date are left out, and with "leaky" counted, as in the paper. OUT/raw/figure_3_1.json holds every seed's
figures; OUT/figure_3_1.md and OUT/images/figure_3_1.png are written from it. Three minutes on two cores.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import fedjax_het as fh
from benchmarks.papers.fair_silo import Study, compact, describe, difference, table_3_10
from benchmarks.provenance import PAGES, place, provenance

fh.prepare_cpu()

import jax  # noqa: E402

from fedjax_het.config.algorithm import build_algorithm  # noqa: E402
from fedjax_het.config.plan import plan  # noqa: E402
from fedjax_het.mixing.responses import CDFS  # noqa: E402
from fedjax_het.studies.mixture import cumulative_objective  # noqa: E402
from fedjax_het.studies.plots import COLORS, save  # noqa: E402

ROWS = {
  **{cdf: {"cdf": cdf} for cdf in CDFS},
  "normal, scale by spacing": {"cdf": "normal", "scale": "spacing"},
  "weibull, scale by spacing": {"cdf": "weibull", "scale": "spacing"},
  **{
    f"normal, {own}": {"cdf": "normal", "learner": own} for own in ("exponentiated", "gradient", "universal")
  },
  "normal, two logits": {"cdf": "normal"},
}
PAPER = {"normal": "79.37, 43.75", "weibull": "73.02, 25.00"}  # section III-5.1: average, worst
HEADINGS = {"berka, no leak": {"leaky": False}, "berka, leaky as in the paper": {"leaky": True}}


def measure(study: Study, settings: dict, logits: int) -> dict:
  """Every seed's AUROC, average and worst over the clients, and its cumulative objective, by round."""
  config = table_3_10().get_config("dataset=berka,mixing=aaggff_s")
  config.mixing.update(settings)
  task = fh.tasks.for_model(logits)
  model = fh.models.make(config.model.name, study.model.shape, 2, task)
  result = fh.sweep(
    lambda: build_algorithm(plan(config), model),
    seeds=jax.vmap(lambda key: jax.random.fold_in(key, 2))(study.keys),
    data=study.data,
    rounds=config.rounds,
    cohort_size=config.cohort_size,
    **study.how,
  )
  auroc = 100 * result.history[config.rounds].global_["auroc"]
  order = np.argsort(result.infos.cohort, axis=-1)
  p, losses = (np.take_along_axis(own, order, -1) for own in (result.infos.coefficients, result.infos.losses))
  first = np.full((len(p), 1, p.shape[-1]), 1.0 / p.shape[-1])
  decided = np.concatenate([first, p[:, :-1]], axis=1)
  sums = np.stack([cumulative_objective(*own) for own in zip(decided, losses)])
  return {
    "average": np.round(auroc.mean(1), 4).tolist(), "worst": np.round(auroc.min(1), 4).tolist(),
    "cumulative": np.round(sums[:, -1], 4).tolist(), "course": np.round(sums.mean(0), 4).tolist(),
  }  # fmt: skip


def table(record: dict) -> list[str]:
  """The rows of a data set, each less the Normal distribution with Newton steps."""
  lines = [
    "| distribution, settings | paper: average, worst | average | worst | worst less normal's [95 %] "
    "| cumulative objective | less normal's [95 %] |",
    "|---|---|---|---|---|---|---|",
  ]
  base = record["normal"]
  for name, own in record.items():
    less = ["–" if own is base else difference(own[of], base[of]) for of in ("worst", "cumulative")]
    if name.endswith("logits"):
      less[1] = "–"  # another loss
    cells = PAPER.get(name, "–"), describe(own["average"]), describe(own["worst"]), less[0]
    lines.append(f"| {name} | {' | '.join(cells)} | {describe(own['cumulative'])} | {less[1]} |")
  return lines


def draw(record: dict, path: Path) -> None:
  """The courses of the six distributions, less the mean of the six, in which they differ."""
  figure = Figure(figsize=(5.0 * len(HEADINGS), 3.6), layout="constrained")
  for axes, heading in zip(figure.subplots(1, len(HEADINGS), squeeze=False)[0], HEADINGS):
    courses = {cdf: np.array(record[heading][cdf]["course"]) for cdf in CDFS}
    middle = np.mean([*courses.values()], axis=0)
    for (cdf, course), color in zip(courses.items(), COLORS):
      axes.plot(np.arange(1, len(course) + 1), course - middle, color=color, label=cdf)
    axes.set(title=heading, xlabel="round", ylabel="cumulative objective less the mean of the six")
    axes.legend(frameon=False, fontsize="small")
  save(figure, path)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--seeds", type=int, default=100)
  parser.add_argument("--rows", nargs="+", default=[*ROWS], help="which rows to run (anew)")
  parser.add_argument("--out", type=Path, default=PAGES, help="the folder of the page, raw/, images/")
  args = parser.parse_args()
  kept = place(args.out, "figure_3_1.json")
  record = json.loads(kept.read_text()) if kept.exists() else {}
  for heading, options in HEADINGS.items():
    study = Study("berka", args.seeds, **options)
    for row in args.rows:
      logits = 2 if row.endswith("two logits") else 1
      record.setdefault(heading, {})[row] = measure(study, ROWS[row], logits)
      print(heading, row, np.mean(record[heading][row]["worst"]), flush=True)
  record["provenance"] = provenance() | {"seeds": args.seeds}
  kept.write_text(compact(record))
  draw(record, place(args.out, "figure_3_1.png"))
  page, made = place(args.out, "figure_3_1.md"), record["provenance"]
  prose = page.read_text().split("\n## ")[0].rstrip() if page.exists() else "# Figure 3.1"
  lines = []
  for heading in HEADINGS:
    lines += ["", f"## {heading[0].upper()}{heading[1:]}", "", *table(record[heading])]
  by = "[figure_3_1.json](raw/figure_3_1.json); {date}, commit {commit}, {machine}, JAX {jax}."
  command = "`python benchmarks/papers/figure_3_1.py --seeds {seeds}`"
  lines += ["", f"{command} wrote {by}".format_map(made)]
  page.write_text(prose + "\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
  main()
