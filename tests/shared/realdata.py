"""Where the raw files of real data sets are, for tests that compare with them."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def real_data(folder: str) -> Path:
  """The data folder that holds `folder`: FEDJAX_HET_DATA, else the shared one; skips where neither does."""
  places = [os.environ.get("FEDJAX_HET_DATA"), ROOT / "shared" / "data", ROOT.parent / "shared" / "data"]
  for place in places:
    if place and (Path(place) / folder).is_dir():
      return Path(place)
  pytest.skip(f"no {folder}/ in FEDJAX_HET_DATA or in ../shared/data")
