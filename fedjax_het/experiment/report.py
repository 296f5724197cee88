"""The table at the end of a run, from its summary."""

import datetime
import math
from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fedjax_het.engine.divergence import Divergence

_LABELS = {
  "top1": "top-1 (%)",
  "top5": "top-5 (%)",
  "auroc": "AUROC",
  "loss": "loss (nats)",
  "ece": "ECE",
  "mce": "MCE",
}
_IN_PERCENT = ("top1", "top5")
_COLUMNS = ("worst10", "best10", "gini", "gap")
_MISSING = "–"


def print_report(summary: Mapping[str, Any], console: Console | None = None) -> None:
  """Prints `report(summary)`, on standard output by default; colours only where that is a terminal."""
  (console or Console()).print(report(summary))


def report(summary: Mapping[str, Any]) -> RenderableType:
  """The final figures of a run as a table for the terminal.

  A block of rows for the personalised models and one for the global model, or one for both where they are
  the same model; a column for each of the figures of `fairness.summarize`. Top-1 and top-5 are in percent,
  their Gini coefficient and everything else as in the summary.

  Args:
    summary: the content of summary.json. Parts that are missing or null are left out or shown as a dash.
      Optional, for a method with a family of personalised models θ(λ): `lambda`, a dict with `grid`, `mean`
      and `std` (of `metric`, by default top-1, over the clients' test parts, [Λ] each), `common` (the λ of
      the metrics above, best on `picked_on` by `picked_by`), and `validation` and
      `per_client_test_optimistic` (the metric where each client has its own λ, chosen on its validation
      part, or on the test part itself: a number or {mean, std}). `left_out`: model -> metric -> clients
      that do not count in it. Likewise `synthetic`, for a method that makes
      examples, as `experiment.synthetic.yardsticks` gives it.
  """
  parts: list[RenderableType] = [_header(summary), _metrics_table(summary.get("metrics") or {})]
  if summary.get("left_out"):
    parts.append(Text(_left_out(summary["left_out"])))
  if summary.get("lambda"):
    parts.append(_lambda_table(summary["lambda"]))
  if summary.get("synthetic"):
    parts.append(_synthetic_table(summary["synthetic"]))
  return Group(*parts)


def _header(summary: Mapping[str, Any]) -> Text:
  """What ran, on what, for how long."""
  text = Text()
  parts = [summary.get("algorithm", "?"), summary.get("mixing"), summary.get("server")]
  text.append(" + ".join(str(part) for part in parts if part), style="bold")
  text.append(f" on {summary.get('dataset', '?')}", style="bold")
  for name, unit in (("num_clients", "clients"), ("rounds", "rounds"), ("client_steps", "client steps")):
    if summary.get(name) is not None:
      text.append(f" · {summary[name]:,} {unit}")
  if summary.get("diverged"):
    text.append(f"\n{Divergence(**summary['diverged'])}.", style="bold red")
  seconds = summary.get("seconds") or {}
  if seconds:
    total = sum(value or 0.0 for value in seconds.values())
    split = ", ".join(f"{name} {value:.1f}" for name, value in seconds.items() if value is not None)
    text.append(f"\n{_duration(total)} ({split} s)")
  traffic = summary.get("bytes") or {}
  if traffic:
    text.append(" · " if seconds else "\n")
    text.append(", ".join(f"{_bytes(value)} {way}" for way, value in traffic.items() if value is not None))
  return text


def _metrics_table(metrics: Mapping[str, Any]) -> Table:
  """One row a metric, under a heading a model."""
  table = Table(box=SIMPLE_HEAD, caption="over all clients' local test sets", caption_justify="left")
  table.add_column("")
  for name in ("mean ± std", "worst 10 %", "best 10 %", "Gini", "gap"):
    table.add_column(name, justify="right", no_wrap=True)
  blocks = {name: block for name, block in metrics.items() if block}
  if len(blocks) == 2 and blocks.get("personalized") == blocks.get("global"):
    blocks = {"personalized = global": blocks["global"]}
  for model, block in blocks.items():
    table.add_row(model.replace("personalized", "personalised"), style="bold cyan")
    known = [name for name in _LABELS if name in block]
    for name in [*known, *sorted(set(block) - set(known))]:
      figures = block[name] or {}
      if name == "top5" and figures.get("mean") == 1.0:  # five classes or fewer
        continue
      table.add_row(
        f"  {_LABELS.get(name, name)}",
        f"{number(figures.get('mean'), name)} ± {number(figures.get('std'), name)}",
        *(number(figures.get(column), "gini" if column == "gini" else name) for column in _COLUMNS),
        style="bold" if name == "top1" else None,
      )
    table.add_section()
  return table


def _left_out(counts: Mapping[str, Mapping[str, int]]) -> str:
  """Who does not count in which metrics; the models' test parts, and so their counts, are the same."""
  metrics = {name: count for own in counts.values() for name, count in own.items()}
  names = {count: [_short(name) for name in metrics if metrics[name] == count] for count in metrics.values()}
  return "left out for want of test examples (for AUROC, of both classes): " + "; ".join(
    f"{count} client{'s' if count > 1 else ''} of {', '.join(own)}" for count, own in names.items()
  )


def _short(metric: str) -> str:
  """A metric's name without its unit."""
  return _LABELS.get(metric, metric).split(" (")[0]


def _lambda_table(sweep: Mapping[str, Any]) -> RenderableType:
  """The headline's metric against λ, and what choosing λ per client gives."""
  metric = sweep.get("metric", "top1")
  unit = " %" if metric in _IN_PERCENT else ""
  table = Table(box=None, padding=(0, 2, 0, 0))
  table.add_column("λ", justify="right")
  table.add_column(f"{_LABELS.get(metric, metric)}, mean ± std", justify="right")
  table.add_column("")
  common, note = sweep.get("common"), "best common λ"
  if sweep.get("picked_on"):
    note += f" on the {sweep['picked_on']} parts, by {_short(sweep['picked_by'])}"
  means = sweep.get("mean") or []
  stds = sweep.get("std") or [None] * len(means)
  for value, mean, std in zip(sweep.get("grid") or [], means, stds):
    best = common is not None and math.isclose(value, common, abs_tol=1e-6)
    row = (f"{value:.2f}", _spread({"mean": mean, "std": std}, metric), note if best else "")
    table.add_row(*row, style="bold green" if best else None)
  lines = [
    f"λ chosen per client {how}: {_spread(sweep[name], metric)}{unit}"
    for name, how in (
      ("validation", "on its validation part"),
      ("per_client_test_optimistic", "on its own test part (optimistic)"),
    )
    if sweep.get(name) is not None
  ]
  return Group(Text("\npersonalised models θ(λ) = (1 - λ) θf + λ θl"), table, *map(Text, lines))


def _synthetic_table(found: Mapping[str, Any]) -> RenderableType:
  """What the synthetic examples are worth."""
  table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
  learner, distance, real = found["downstream"], found["within_class_distance"], found["real"]
  known = real["downstream"]
  table.add_row("", "synthetic", "as many real")
  table.add_row(
    "top-1 on the clients' test parts (%)", _spread(learner["local"]), _spread(known["local"]), style="bold"
  )
  if learner.get("official") is not None:
    figures = (number(own["official"], "top1") for own in (learner, known))
    table.add_row("top-1 on the official test set (%)", *figures)
  table.add_row("distance within a class", f"{distance['synthetic']:.3g}", f"{distance['real']:.3g}")
  if "frechet" in found:
    figures = (f"{own['frechet']:.2f}, {own['kernel']:.4f}" for own in (found, real))
    table.add_row("Fréchet, kernel distance", *figures)
    table.add_row("  in the features of", found["features"])
  text = f"\n{found['examples']} synthetic examples, and a {learner['model']} trained on them alone"
  if len(learner["seeds"]) > 1:
    text += f", {len(learner['seeds'])} times"
  return Group(Text(text), table)


def _spread(figures: float | Mapping[str, Any], metric: str = "top1") -> str:
  """A figure of `metric`, with its std where there is one."""
  if not isinstance(figures, Mapping):
    return number(figures, metric)
  mean, std = number(figures.get("mean"), metric), figures.get("std")
  return mean if std is None else f"{mean} ± {number(std, metric)}"


def number(value: float | None, metric: str) -> str:
  """A figure of `metric`; a dash where there is none."""
  if value is None or math.isnan(value):
    return _MISSING
  return f"{100 * value:.2f}" if metric in _IN_PERCENT else f"{value:.4f}"


def _duration(seconds: float) -> str:
  """Seconds, or h:mm:ss from two minutes on."""
  return f"{seconds:.1f} s" if seconds < 120 else str(datetime.timedelta(seconds=round(seconds)))


def _bytes(count: float) -> str:
  """Bytes with a decimal prefix."""
  for unit in ("B", "kB", "MB", "GB"):
    if count < 1000:
      return f"{count:.3g} {unit}"
    count /= 1000
  return f"{count:.3g} TB"
