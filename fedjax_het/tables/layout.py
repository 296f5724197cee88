"""Rendering of a table: for the terminal, as Markdown, as LaTeX and as CSV."""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table as Drawn
from rich.text import Text

from fedjax_het.metrics.budget import BUDGETS, spans, unequal
from fedjax_het.metrics.seeds import OverSeeds, over_seeds, paired
from fedjax_het.output import escape
from fedjax_het.studies.late import MARK, WHAT
from fedjax_het.tables.compare import Entry, columns, counterpart
from fedjax_het.tables.paper import Cell

MISSING = "–"


class Block(NamedTuple):
  """A part of a table that fits on a page, with a row for each method.

  Attributes:
    title: the metric and the key that all figures of the block share.
    keys: the keys that tell its columns apart, which the terminal shows.
    values: the values of these keys in each column.
    heads: the name of each column.
    rows: (method, [an entry for each column, None where the table has none]).
  """

  title: str
  keys: str
  values: list[str]
  heads: list[str]
  rows: list[tuple[str, list[Entry | None]]]


def blocks(entries: Sequence[Entry], cells: Sequence[Cell]) -> list[Block]:
  """Divides entries into a block for each metric and, if several keys differ, each value of the first one.

  The values of the remaining keys are the columns. Where no key differs, the metrics are the columns.

  Args:
    entries: the entries to show.
    cells: all cells of the table.
  """
  first, keys = next(iter(cells[0].keys)), columns(cells)
  apart, along = (keys[:1], keys[1:]) if len(keys) > 1 else ([], keys)

  def title(entry: Entry) -> str:
    fixed = [f"{key} = {entry.cell.keys[key]}" for key in apart]
    return ", ".join([*fixed, entry.metric] if along else fixed) or f"{first} = {entry.cell.keys[first]}"

  def value(entry: Entry) -> str:
    return ", ".join(entry.cell.keys[key] for key in along) or entry.metric

  def head(entry: Entry) -> str:
    return ", ".join(f"{key} {entry.cell.keys[key]}" for key in along) or entry.metric

  def unique(name: Callable[[Entry], str], of: Sequence[Entry]) -> list[str]:
    return list(dict.fromkeys(map(name, of)))

  found = []
  for name in unique(title, entries):
    own = [entry for entry in entries if title(entry) == name]
    at = {(entry.cell.method, head(entry)): entry for entry in own}
    heads = unique(head, own)
    methods = unique(lambda entry: entry.cell.method, own)
    rows = [(method, [at.get((method, head)) for head in heads]) for method in methods]
    found.append(Block(name, ", ".join(along), unique(value, own), heads, rows))
  return found


def figure(value: float | None, digits: int = 2, sign: bool = False) -> str:
  """Formats a figure with two digits, or as a dash where there is none."""
  return MISSING if value is None else f"{value:{'+' if sign else ''}.{digits}f}"


def ours(entry: Entry) -> str:
  """Formats our figure as "99.27 ± 0.04 (0.98)", or says why there is none.

  These are the mean over seeds, the std over seeds, and the std over clients. A mean that has not settled is
  followed by the range of the last fifth of its runs: "91.96 (7.29) * 79.60 to 96.10".
  """
  if entry.mean is None:
    reasons = sorted({*entry.failed.values()})
    return re.split(": | in ", reasons[0])[0] if reasons else "not run" if entry.missing else MISSING
  text = figure(entry.mean)
  if entry.over_seeds is not None:
    text += f" ± {figure(entry.over_seeds)}"
  if entry.over_clients is not None:
    text += f" ({figure(entry.over_clients)})"
  return f"{text} {MARK} {' to '.join(map(figure, entry.moving))}" if entry.moving else text


def printed(entry: Entry) -> str:
  """Formats the paper's figure, such as "99.38 (0.93)"."""
  mean, std = entry.paper
  return figure(mean) if std is None else f"{figure(mean)} ({figure(std)})"


def less_than(entry: Entry, other: Entry | None) -> OverSeeds | None:
  """Returns the paired difference of an entry and another method's; None where they share no seed."""
  found = paired(entry.values, other.values) if other and other is not entry else None
  return found if found and found.seeds else None


def against(entry: Entry, other: Entry | None) -> str:
  """Formats the paired difference from another method: mean and standard error, such as "+2.31 ± 0.12"."""
  found = less_than(entry, other)
  if found is None:
    return MISSING
  text = figure(found.mean, sign=True)
  return text if found.error is None else f"{text} ± {figure(found.error)}"


def interval(entry: Entry) -> str:
  """Formats the 95 % interval of our mean over the seeds (Student's t), such as "99.17 to 99.37"."""
  found = over_seeds(entry.values.values())
  if found.half is None:
    return MISSING
  return f"{figure(found.mean - found.half)} to {figure(found.mean + found.half)}"


def lines(block: Block, than: str, all_entries: Sequence[Entry], column: Sequence[str]) -> list[list[str]]:
  """Returns a block's rows as text: method, then for each column the figures that `kinds` names."""
  names = kinds(all_entries, than)

  def cells_of(entry: Entry | None) -> list[str]:
    if entry is None:
      return [MISSING] * len(names)
    text = {
      "ours": ours(entry), "95 % interval": interval(entry), "paper": printed(entry),
      "less paper": figure(entry.difference, sign=True),
    }  # fmt: skip
    return [
      text[name] if name in text else against(entry, counterpart(entry, all_entries, than, column))
      for name in names
    ]

  return [[method, *(text for entry in row for text in cells_of(entry))] for method, row in block.rows]


def kinds(entries: Sequence[Entry], than: str) -> list[str]:
  """Returns the headings of a column's figures: ours, the paper's, the difference, and that to `than`.

  Where some figure of the table has several seeds there is an interval, and where the paper prints nothing
  its columns are left out.
  """
  several = any(len(entry.values) > 1 for entry in entries)
  paper = any(entry.paper.mean is not None for entry in entries)
  return [
    "ours", *["95 % interval"] * several, *["paper", "less paper"] * paper,
    *([f"less {than}"] if than else []),
  ]  # fmt: skip


def heads(block: Block, entries: Sequence[Entry], than: str) -> list[str]:
  """Returns the names of a block's columns as text."""
  return ["", *(f"{head}: {kind}" for head in block.heads for kind in kinds(entries, than))]


def footnotes(entries: Sequence[Entry], than: str, made: str = "", changed: str = "") -> list[str]:
  """Returns the notes under a table: changed settings, how to read figures, failures, and provenance."""
  seeds = sorted({seed for entry in entries for seed in entry.ours})
  notes = [f"Other than in the table: {changed}."] if changed else []
  if seeds:
    means = f"Ours: mean of {len(seeds)} seed{'s' if len(seeds) != 1 else ''} ({', '.join(map(str, seeds))})"
    if any(entry.over_seeds is not None for entry in entries):
      means += " ± std over seeds"
    if any(entry.over_clients is not None for entry in entries):
      means += ", (std over clients)"
    if any(len(entry.values) > 1 for entry in entries):
      means += "; 95 % intervals of the mean by Student's t"
    less = " Differences between methods: over shared seeds, ± standard error." if than else ""
    notes.append(f"{means}.{less}")
  elif not any(entry.failed for entry in entries):
    notes.append("Nothing has run yet.")
  if any(entry.moving for entry in entries):
    notes.append(f"{WHAT}. The range is over all seeds.")
  notes += picked(entries)
  few = [entry for entry in entries if entry.ours and entry.missing]
  if few:
    notes.append(f"{len(few)} figures are of fewer seeds than asked for.")
  notes += budgets(entries)
  for entry in entries:
    for seed, reason in entry.failed.items():
      notes.append(f"{entry.cell.method}, {entry.cell.text}, seed {seed}: {reason}.")
  return [*dict.fromkeys(notes), *([f"Made by {made}."] if made else [])]


def budgets(entries: Sequence[Entry]) -> list[str]:
  """Returns a note on what a run of each method took, and one for each column in which budgets differ."""
  parts: dict[str, dict[str, list[float]]] = {}
  of: dict[str, dict[str, Mapping[str, float]]] = {}
  keys = columns([entry.cell for entry in entries]) if entries else []
  for entry in entries:
    for name, value in entry.budget.items():
      parts.setdefault(entry.cell.method, {}).setdefault(name, []).append(value)
    column = ", ".join(f"{key} {entry.cell.keys[key]}" for key in keys)
    of.setdefault(column, {})[entry.cell.method] = entry.budget
  took = [f"{method} {spans(own)}" for method, own in parts.items()]
  apart = [f"{f'{column}: ' * bool(column)}{note}" for column, own in of.items() for note in unequal(own)]
  return [*([f"A run took: {'; '.join(took)}."] if took else []), *apart]


def picked(entries: Sequence[Entry]) -> list[str]:
  """Returns a sentence for each choice made by a metric (λ, the best round), with the data that decided."""
  found: dict[tuple[str, str], dict[str, None]] = {}
  for entry in entries:
    for what, part in entry.picked.items():
      found.setdefault((what, part), {})[entry.cell.method] = None
  return [
    f"The {what} was picked on the clients' {part} parts{', which is optimistic' * (part == 'test')}: "
    f"{', '.join(methods)}."
    for (what, part), methods in found.items()
  ]


def drawn(
  entries: Sequence[Entry], cells: Sequence[Cell], than: str, title: str, made: str = "", changed: str = ""
) -> RenderableType:
  """Renders the table for the terminal, with one figure a line, because a terminal is narrow."""
  parts: list[RenderableType] = [Text(title, style="bold")]
  for block in blocks(entries, cells):
    title_of_block = Text(f"\n{block.title}")
    table = Drawn(box=SIMPLE_HEAD, title=title_of_block, title_justify="left", title_style="bold")
    for place, name in enumerate(("", block.keys, *kinds(entries, than))):
      table.add_column(Text(name), justify="right" if place > 1 else "left", no_wrap=place < 2)
    width = len(kinds(entries, than))
    for method, *texts in lines(block, than, entries, columns(cells)):
      for place, value in enumerate(block.values):
        last = place == len(block.values) - 1
        own = texts[place * width : (place + 1) * width]
        texts_of_row = map(Text, ("" if place else method, value, *own))
        table.add_row(*texts_of_row, end_section=last and place > 0)
    parts.append(table)
  return Group(*parts, *map(Text, footnotes(entries, than, made, changed)))


def markdown(
  entries: Sequence[Entry], cells: Sequence[Cell], than: str, title: str, made: str = "", changed: str = ""
) -> str:
  """Renders the table as Markdown, with one row a method."""

  def row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(escape.markdown(text) for text in texts)} |"

  text = [f"# {escape.markdown(title)}", ""]
  for block in blocks(entries, cells):
    names = heads(block, entries, than)
    text += [f"## {escape.markdown(block.title)}", "", row(names), "|---" * len(names) + "|"]
    text += [*map(row, lines(block, than, entries, columns(cells))), ""]
  notes = map(escape.markdown, footnotes(entries, than, made, changed))
  return "\n".join([*text, "\n\n".join(notes), ""])


def latex(
  entries: Sequence[Entry], cells: Sequence[Cell], than: str, title: str, made: str = "", changed: str = ""
) -> str:
  r"""Renders the table as LaTeX, for `\usepackage{booktabs}`."""
  text = [escape.latex_comment(title)]
  for block in blocks(entries, cells):
    names = heads(block, entries, than)
    rows = [names, *lines(block, than, entries, columns(cells))]
    body = [" & ".join(escape.latex(text) for text in row) + r" \\" for row in rows]
    text += [
      escape.latex_comment(block.title), rf"\begin{{tabular}}{{l{'r' * (len(names) - 1)}}}", r"\toprule",
      body[0], r"\midrule", *body[1:], r"\bottomrule", r"\end{tabular}", "",
    ]  # fmt: skip
  notes = map(escape.latex_comment, footnotes(entries, than, made, changed))
  return "\n".join([*text, *notes, ""])


def as_csv(entries: Sequence[Entry], cells: Sequence[Cell], than: str, changed: str = "") -> str:
  """Renders the table as CSV with unrounded figures: one line for each metric of each cell.

  The columns are the cell's keys, ours over seeds, the paper's, the difference to another method, the range
  in the last fifth of the runs (the largest std of a seed; whether all seeds have settled), why seeds are
  missing, the changed settings, the 95 % interval of our mean, and a run's budget, a mean over the seeds.
  """
  out = io.StringIO()
  keys = [*cells[0].keys]
  names = [
    "method", *keys, "metric", "ours", "std_over_seeds", "std_over_clients", "seeds", "paper", "paper_std",
    "ours_less_paper", "less", "ours_less_method", "standard_error", "shared_seeds",
    "late_min", "late_max", "late_std", "settled", "missing", "changed", "interval_low", "interval_high",
    *BUDGETS,
  ]  # fmt: skip
  write = csv.writer(out, lineterminator="\n")
  write.writerow(map(escape.csv_field, names))
  for entry in entries:
    other = counterpart(entry, entries, than, columns(cells)) if than else None
    pair = less_than(entry, other)
    missing = {**entry.failed, **dict.fromkeys(entry.missing, "not run")}
    fields = [
      entry.cell.method, *entry.cell.keys.values(), entry.metric, entry.mean, entry.over_seeds,
      entry.over_clients, "+".join(map(str, entry.values)), *entry.paper, entry.difference,
      *((than, *pair) if pair else ("",) * 4), *_late(entry),
      "; ".join(f"seed {seed}: {why}" for seed, why in sorted(missing.items())), changed,
      *_interval(entry), *(entry.budget.get(name, "") for name in BUDGETS),
    ]  # fmt: skip
    write.writerow(map(escape.csv_field, fields))
  return out.getvalue()


def _interval(entry: Entry) -> list[Any]:
  """Returns the ends of the 95 % interval of our mean, or blanks for fewer than two seeds."""
  found = over_seeds(entry.values.values())
  return [""] * 2 if found.half is None else [found.mean - found.half, found.mean + found.half]


def _late(entry: Entry) -> list[Any]:
  """Returns the lowest and highest late figure, the largest std, and whether all have settled; or blanks."""
  own = entry.late.values()
  if not own:
    return [""] * 4
  ends = min(one.low for one in own), max(one.high for one in own)
  return [*ends, max(one.std for one in own), "no" if entry.moving else "yes"]
