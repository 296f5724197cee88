"""Where a figure comes from: the commit, the day, the machine."""

import datetime
from pathlib import Path

import jax

from fedjax_het.experiment.provenance import commit, machine

ROOT = Path(__file__).resolve().parent.parent
__all__ = ["ROOT", "commit", "machine", "provenance"]


def provenance() -> dict[str, str | None]:
  """What stands beside a figure."""
  return {
    "commit": commit(ROOT), "date": str(datetime.date.today()), "machine": machine(), "jax": jax.__version__
  }  # fmt: skip
