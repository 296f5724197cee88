"""What a run took: client steps, bytes and time, by which methods are compared on equal terms."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedjax_het.errors import in_thousands

BUDGETS = {
  "client_steps": "client steps", "bytes": "bytes", "seconds": "seconds of training",
  "simulated_seconds": "simulated seconds",
}  # fmt: skip
MOST = 1e30  # no budget is as large; larger numbers are a file's damage
MUCH = 1.05  # a budget that is so many times another's differs from it


def budget(summary: Mapping[str, Any]) -> dict[str, float]:
  """Returns a run's budget: client steps, bytes sent up and down, seconds of training and simulated ones.

  Args:
    summary: the run's summary.json; what it does not say, or damaged fields, are left out.
  """
  sent, seconds = summary.get("bytes"), summary.get("seconds")
  values: dict[str, list[Any]] = {
    "client_steps": [summary.get("client_steps")],
    "bytes": [sent.get("up"), sent.get("down")] if isinstance(sent, Mapping) else [None],
    "seconds": [seconds.get("train")] if isinstance(seconds, Mapping) else [None],
    "simulated_seconds": [summary.get("simulated_seconds")],
  }
  return {name: float(np.sum(own)) for name, own in values.items() if all(map(_known, own))}


def mean_budget(summaries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
  """Returns the mean of each part of some runs' budgets that all of them know."""
  found = [budget(own) for own in summaries]
  return {
    name: float(np.mean([own[name] for own in found]))
    for name in BUDGETS
    if found and all(name in own for own in found)
  }


def unequal(budgets: Mapping[str, Mapping[str, float]]) -> list[str]:
  """Returns a sentence for each of client steps and bytes that differs between labels by more than 5 %.

  Seconds differ with the machine and what else it does, so they are shown and make no note.

  Args:
    budgets: label -> budget.
  """
  notes = []
  for name in ("client_steps", "bytes"):
    known = {label: own[name] for label, own in budgets.items() if own.get(name)}
    if len(known) > 1 and max(known.values()) > MUCH * min(known.values()):
      least, most = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
      notes.append(
        f"Budgets differ: {most} took {known[most] / known[least]:.1f} times the {BUDGETS[name]} of {least} "
        f"({amount(name, known[most])}; {amount(name, known[least])})."
      )
  return notes


def amount(name: str, value: float | None) -> str:
  """Formats a part of a budget with its unit, such as "37,500", "3.2 GB" or "71 s"; a dash for None."""
  if value is None:
    return "–"
  if name == "bytes":
    return in_thousands(value, ("B", "kB", "MB", "GB", "TB"))
  return (
    f"{value:,.0f}" if name == "client_steps" else f"{value:,.3g} s" if value < 100 else f"{value:,.0f} s"
  )


def spans(values: Mapping[str, Sequence[float]]) -> str:
  """Formats the range over runs of each part of a budget, such as "37,500 client steps, 3.2 GB"."""
  words = {"client_steps": " client steps", "seconds": " of training", "simulated_seconds": " simulated"}

  def one(name: str, own: Sequence[float]) -> str:
    text = " to ".join(dict.fromkeys(amount(name, end) for end in (min(own), max(own))))
    return text + words.get(name, "")

  return ", ".join(one(name, values[name]) for name in BUDGETS if values.get(name))


def _known(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MOST
