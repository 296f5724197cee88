"""Where a figure comes from: the commit, the day, the machine."""

import datetime
from pathlib import Path
from typing import Any

import jax

from fedjax_het.experiment.provenance import commit, machine

ROOT = Path(__file__).resolve().parent.parent
__all__ = ["ROOT", "commit", "machine", "provenance", "timeless"]


def provenance() -> dict[str, str | None]:
  """What stands beside a figure."""
  return {
    "commit": commit(ROOT), "date": str(datetime.date.today()), "machine": machine(), "jax": jax.__version__
  }  # fmt: skip


def timeless(tree: Any) -> Any:
  """A summary, or a line of metrics, without any `seconds`."""
  if isinstance(tree, dict):
    return {name: timeless(part) for name, part in tree.items() if name != "seconds"}
  return [timeless(part) for part in tree] if isinstance(tree, list) else tree
