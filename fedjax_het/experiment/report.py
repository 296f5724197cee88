"""Makes the table that is shown at the end of a run from its summary."""

import datetime
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fedjax_het.conditions import in_words
from fedjax_het.engine.divergence import Divergence
from fedjax_het.errors import DataError, in_bytes
from fedjax_het.studies import STUDIES, Study


def report(summary: Mapping[str, Any], studies: Sequence[type[Study]] = ()) -> RenderableType:
  """Returns the final figures of a run for the terminal: what ran, and the rows of each study.

  Args:
    summary: the content of summary.json. Parts that are missing or null are left out.
    studies: further studies, in addition to `STUDIES`.
  """
  rows = (own.rows(summary) for own in (*STUDIES, *studies))
  return Group(_header(summary), *(row for row in rows if row is not None))


def made_of(path: Path, show: Callable[..., RenderableType], *args: Any) -> RenderableType:
  """Returns show(*args) for arguments that were read from summaries.

  Args:
    path: the file or pattern that they were read from.
    show: a function such as `report`.
    args: its arguments.

  Raises:
    DataError: a value in a file differs from what a run writes.
  """
  try:
    return show(*args)
  except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
    raise DataError(
      f"{path} is damaged: it cannot be shown ({type(error).__name__}: {error}). Remove it, and the same "
      "command writes it again from the last checkpoint."
    ) from error


def beside(folder: str | os.PathLike[str], others: str = "") -> str:
  """Returns the command that compares the runs of a folder, and others that the user names."""
  words = ["python -m fedjax_het.compare", shlex.quote(os.fspath(folder)), others]
  words += [] if find_spec("plotly") else ["--plain"]  # the table alone, as a page needs Plotly
  return f"Side by side: {' '.join(filter(None, words))}"


def _header(summary: Mapping[str, Any]) -> Text:
  """Returns the first lines of a report: what ran, on which data, and for how long."""
  text = Text()
  parts = [summary.get("algorithm", "?"), summary.get("mixing"), summary.get("server")]
  text.append(" + ".join(str(part) for part in parts if part), style="bold")
  text.append(f" on {summary.get('dataset', '?')}", style="bold")
  counts = ("num_clients", "clients"), ("rounds", "rounds"), ("client_steps", "client steps")
  known = [f"{summary[name]:,} {unit}" for name, unit in counts if summary.get(name) is not None]
  text.append("\n" * bool(known) + " · ".join(known))
  if summary.get("conditions"):
    text.append(f"\nconditions: {in_words(summary['conditions'])}")
  if summary.get("label_noise"):
    noise = summary["label_noise"]
    text.append(f"\nlabel noise: {noise['name']}, ratio {noise['ratio']}; ", style="bold yellow")
    text.append(
      f"{100 * noise['changed']:.1f} % of training and validation labels are wrong", style="bold yellow"
    )
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
    text.append(", ".join(f"{in_bytes(value)} {way}" for way, value in traffic.items() if value is not None))
  if summary.get("simulated_seconds") is not None:
    text.append(f"\nsimulated: {_duration(summary['simulated_seconds'])}")
  return text


def _duration(seconds: float) -> str:
  """Formats a duration as seconds, or as h:mm:ss from two minutes on."""
  return f"{seconds:.1f} s" if seconds < 120 else str(datetime.timedelta(seconds=round(seconds)))
