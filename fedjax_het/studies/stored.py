"""Writes the arrays that studies store in a run's folder, and reads them back for pages that show them."""

from pathlib import Path
from typing import Any

import numpy as np

from fedjax_het.errors import DAMAGE


def write_arrays(path: Path, **arrays: Any) -> None:
  """Writes arrays to an .npz, which takes an earlier one's place in one step, so that none is cut off."""
  partial = path.with_name(f".{path.name}")
  np.savez_compressed(partial, **arrays)
  partial.replace(path)


def arrays_of(path: Path, kinds: str = "biuf") -> dict[str, np.ndarray]:
  """Returns the arrays of an .npz of these kinds, by default numbers; {} if it is absent or damaged."""
  try:
    with path.open("rb") as raw, np.load(raw) as file:  # np.load leaves the file open where it fails
      return {name: array for name, array in file.items() if array.dtype.kind in kinds}
  except (*DAMAGE, AttributeError, LookupError, MemoryError):
    return {}


def short(values: np.ndarray) -> list[float | None]:
  """Returns values with six digits each, None for what is not finite."""
  return [float(f"{value:.6g}") if np.isfinite(value) else None for value in values]
