"""Reads what the record of a run has written."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedjax_het.config.typed import Plan
from fedjax_het.workdir.folder import Workdir, read_json_lines


def missing_rounds(run: Workdir, plan: Plan, rounds_done: int) -> list[int]:
  """Returns the evaluations among the rounds done that metrics.jsonl has no line for, by round."""
  known = {line.get("round") for line in read_json_lines(run.metrics_path)}
  every = plan.eval_every or plan.rounds
  last = {rounds_done} if rounds_done == plan.rounds else set()
  return sorted({*range(every, rounds_done + 1, every), *last} - known)


def with_nan(tree: Any) -> Any:
  """Replaces null in a stored summary by NaN, in lists and in figures over the clients, which have `mean`."""
  if isinstance(tree, dict):
    figures = "mean" in tree and not isinstance(tree["mean"], list)
    return {name: np.nan if own is None and figures else with_nan(own) for name, own in tree.items()}
  return [np.nan if own is None else with_nan(own) for own in tree] if isinstance(tree, list) else tree


def timeless(tree: Any) -> Any:
  """Removes all `seconds` from a summary or from lines of metrics, so that repeated runs can be compared."""
  if isinstance(tree, Mapping):
    return {name: timeless(part) for name, part in tree.items() if name != "seconds"}
  return [timeless(part) for part in tree] if isinstance(tree, list) else tree
