"""encoder.npz: names of a run's clients and labels, and the constants that fill and scale columns."""

from pathlib import Path

import numpy as np

from fedjax_het.data.encoder import Encoder
from fedjax_het.data.untrusted import read_arrays
from fedjax_het.workdir.folder import written_at_once

FILE = "encoder.npz"


def write_encoder(folder: Path, encoder: Encoder) -> None:
  """Writes `folder`/encoder.npz atomically, if the encoder has anything to say; called at every start."""
  if not (encoder.clients or encoder.labels or encoder.columns or encoder.scaling):
    return
  with written_at_once(folder / FILE) as file:
    np.savez_compressed(file, **encoder.arrays())  # type: ignore[arg-type]


def read_encoder(folder: Path) -> Encoder | None:
  """Reads `folder`/encoder.npz; None if there is none, and `DataError` for a damaged one."""
  path = folder / FILE
  return Encoder.of_arrays(read_arrays(path)) if path.is_file() else None
