"""Tables and pictures of what conditions.py has measured."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.provenance import place
from fedjax_het.studies.plots import save

NAMES = {"digits": "digits", "mnist": "MNIST"}
TRANSFORMS = {
  "top_k": "top-k", "random_k": "random-k", "quantize": "quantised (b bits)", "sign": "signs",
}  # fmt: skip
RULES = {
  "mean": "mean", "median": "median", "trimmed_mean": "trimmed mean", "geometric_median": "geometric median",
  "centered_clipping": "centred clipping",
}  # fmt: skip
ATTACKS = {
  "sign_flip": "sign flip (−10 Δ)", "alie": "ALIE (μ − 1.5 σ)", "ipm": "IPM (−0.5 μ)",
  "label_flip": "labels flipped",
}  # fmt: skip
METHODS = {"fedavg": "FedAvg", "scaffold": "SCAFFOLD"}


def of_seeds(row: dict[str, Any]) -> np.ndarray:
  """The seeds' top-1, NaN where a run diverged."""
  return np.array(row["top1"], float)


def in_words(values: np.ndarray) -> str:
  """Mean and standard deviation over the seeds; how many have diverged, if some have."""
  gone = int(np.isnan(values).sum())
  return f"{gone} of {len(values)} diverged" if gone else f"{values.mean():.1f} ({values.std(ddof=1):.1f})"


def strength(row: dict[str, Any]) -> str:
  if "share" in row:
    return f"{100 * row['share']:g} %"
  return f"{row['bits']} bits" if "bits" in row else "–"


def chosen(rows: list[dict[str, Any]], **wanted: Any) -> list[dict[str, Any]]:
  return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def compression(rows: list[dict[str, Any]]) -> list[str]:
  (plain,) = chosen(rows, transform="none")
  lines = [
    "| transform | strength | MB of all uploads | of float32 | top-1 | less uncompressed |",
    "|---|---|---|---|---|---|",
  ]
  for row in rows:
    name = TRANSFORMS.get(row["transform"], "none")
    less = in_words(of_seeds(row) - of_seeds(plain)) if row is not plain else "–"
    part = f"{100 * row['bytes'] / plain['bytes']:.2g} %" if row is not plain else "100 %"
    cells = name, strength(row), f"{row['bytes'] / 1e6:.2f}", part, in_words(of_seeds(row)), less
    lines.append(f"| {' | '.join(cells)} |")
  return lines


def attacks(rows: list[dict[str, Any]]) -> list[str]:
  shares = sorted({row["share"] for row in rows})
  head = " | ".join(f"{100 * share:g} %" for share in shares)
  lines = [f"| attack | aggregation | {head} |", "|---|---|" + "---|" * len(shares)]
  for (attack, shown), (rule, own) in itertools.product(ATTACKS.items(), RULES.items()):
    row = [in_words(of_seeds(each)) for each in chosen(rows, attack=attack, aggregation=rule)]
    lines.append(f"| {shown} | {own} | {' | '.join(row)} |")
  return lines


def dropout(rows: list[dict[str, Any]]) -> list[str]:
  lines = ["| dropout | " + " | ".join(METHODS.values()) + " |", "|---|" + "---|" * len(METHODS)]
  for share in sorted({row["dropout"] for row in rows}):
    cells = [in_words(of_seeds(own)) for name in METHODS
             for own in chosen(rows, algorithm=name, dropout=share)]  # fmt: skip
    lines.append(f"| {100 * share:g} % | {' | '.join(cells)} |")
  return lines


TABLES = {
  "compression": ("Accuracy against bits sent", compression),
  "attacks": ("Accuracy against the share of attackers", attacks),
  "dropout": ("Accuracy against dropout", dropout),
}


def tables(record: dict[str, Any]) -> str:
  """All tables as Markdown."""
  lines = []
  for part, (title, table) in TABLES.items():
    for dataset in NAMES:
      if part in (found := record.get(dataset, {})):
        own = found[part]
        lines += [
          f"### {title}: {NAMES[dataset]}", "", *table(own["rows"]), "",
          f"`python benchmarks/papers/conditions.py --dataset {dataset} --only {part}`, {own['date']}, commit"
          f" {own['commit']}, {own['machine']}, JAX {own['jax']}.", "",
        ]  # fmt: skip
  return "\n".join(lines).rstrip()


def draw_compression(axis: Axes, rows: list[dict[str, Any]]) -> None:
  (plain,) = chosen(rows, transform="none")
  level = of_seeds(plain)
  axis.axhline(level.mean(), color="0.4", linewidth=1)
  axis.plot(plain["bytes"] / 1e6, level.mean(), "o", color="0.4")
  axis.annotate("float32,\nno transform", (plain["bytes"] / 1e6, level.mean()), (6, -30),
                textcoords="offset points", ha="right", color="0.3")  # fmt: skip
  for place_, (name, shown) in enumerate(TRANSFORMS.items()):
    own = chosen(rows, transform=name)
    size, found = [row["bytes"] / 1e6 for row in own], [of_seeds(row) for row in own]
    axis.errorbar(size, [v.mean() for v in found], [v.std(ddof=1) for v in found], color=f"C{place_}",
                  marker="os^D"[place_], capsize=2, label=shown)  # fmt: skip
    for row, x, values in zip(own, size, found):
      text = strength(row).replace(" bits", " b").replace("–", "1 b")
      beside = (-6, 9) if name == "quantize" else (4, -11)
      axis.annotate(text, (x, values.mean()), beside, textcoords="offset points", fontsize=8,
                    color=f"C{place_}")  # fmt: skip
  axis.set_xscale("log")
  axis.set_xticks(ticks := [0.5, 1, 2, 5, 10, 20, 50], [f"{tick:g}" for tick in ticks])
  axis.set(xlabel="MB that all clients upload in the whole run (log scale)")
  axis.grid(alpha=0.3)


def draw_attacks(axes: np.ndarray, rows: list[dict[str, Any]]) -> Any:
  shares = sorted({row["share"] for row in rows})
  for axis, (attack, shown) in zip(axes, ATTACKS.items()):
    table = np.array([
      [of_seeds(row).mean() for row in chosen(rows, attack=attack, aggregation=rule)] for rule in RULES
    ])  # fmt: skip
    image = axis.imshow(np.nan_to_num(table), vmin=0, vmax=100, cmap="viridis", aspect="auto")
    for i, j in np.ndindex(*table.shape):
      text = "diverged" if np.isnan(table[i, j]) else f"{table[i, j]:.0f}"
      dark = np.nan_to_num(table[i, j]) < 60
      axis.text(j, i, text, ha="center", va="center", color="white" if dark else "black",
                fontsize=7 if text == "diverged" else 10)  # fmt: skip
    axis.set_title(shown)
    axis.set_xticks(range(len(shares)), [f"{100 * share:g} %" for share in shares])
    axis.set_yticks(range(len(RULES)), list(RULES.values()))
  return image


def draw_dropout(axis: Axes, rows: list[dict[str, Any]]) -> None:
  for place_, (name, shown) in enumerate(METHODS.items()):
    own = chosen(rows, algorithm=name)
    x, found = [100 * row["dropout"] for row in own], [of_seeds(row) for row in own]
    for values in zip(*found):
      axis.plot(x, values, color=f"C{place_}", linewidth=0.7, alpha=0.35)
    axis.plot(x, [v.mean() for v in found], color=f"C{place_}", marker="os"[place_], label=shown)
  axis.set(xlabel="probability that a trained client's upload is lost, in percent")
  axis.grid(alpha=0.3)


def pictures(record: dict[str, Any], out: Path) -> None:
  """A picture of each part, of those data sets that have it."""
  for part, draw, title in (
    (
      "compression",
      draw_compression,
      "Accuracy against what is uploaded:\nmean of five seeds, bars: standard deviation",
    ),
    ("dropout", draw_dropout, "Accuracy against lost uploads:\nmean of five seeds, and each seed (thin)"),
  ):
    if not (found := [name for name in NAMES if part in record.get(name, {})]):
      continue
    figure = Figure(figsize=(5.8 * len(found), 4.6), layout="constrained")
    for axis, name in zip(np.atleast_1d(figure.subplots(1, len(found))), found):
      draw(axis, record[name][part]["rows"])
      axis.set_title(f"{NAMES[name]}, after {record[name][part]['rounds']} rounds")
      axis.set_ylabel("top-1 of the global model, mean over 100 clients, %")
      axis.legend(loc="lower right" if part == "compression" else "lower left", frameon=False)
    figure.suptitle(title)
    save(figure, place(out, f"conditions_{part}.png"))
  if not (found := [name for name in NAMES if "attacks" in record.get(name, {})]):
    return
  figure = Figure(figsize=(14, 3.5 * len(found) + 0.7), layout="constrained")
  grid = figure.subplots(len(found), len(ATTACKS), sharey=True, squeeze=False)
  for axes, name in zip(grid, found):
    image = draw_attacks(axes, record[name]["attacks"]["rows"])
    axes[0].set_ylabel(f"{NAMES[name]}\naggregation", fontsize=11)
  for axis in grid[-1]:
    axis.set_xlabel("share of the clients that attack")
  figure.colorbar(image, ax=grid, label="top-1 of the global model, %", shrink=0.8)
  figure.suptitle(
    "Accuracy on the honest clients' test rows, mean of five seeds (diverged: at least one of them did)"
  )
  save(figure, place(out, "conditions_attacks.png"))
