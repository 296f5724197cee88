"""Measures the way from a table of one's own to a comparison and predictions, by docs/predictions.md.

    python benchmarks/checks/own_table.py

It makes two tables of patients of three hospitals with umlauts, missing values and a text label, 2,000 rows
and eight new ones, runs the page's commands in an empty folder, then its Python in a process of its own, and
writes lines and seconds to docs/results/raw/own_table.json (four minutes on two cores).
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.provenance import RAW, ROOT, provenance

OUT = RAW / "own_table.json"
NAMES = np.array(["Köln", "Oslo", "Århus"])


def table(rows: int) -> pd.DataFrame:
  """Patients whose diagnosis depends on age, pressure, smoking and the hospital."""
  rng = np.random.default_rng(7)
  at = rng.choice(3, rows, p=(0.5, 0.3, 0.2))
  age, pressure = rng.normal(62, 12, rows).round(), rng.normal(135, 18, rows).round()
  smoker = rng.choice(["ja", "nein"], rows)
  risk = (
    0.06 * (age - 62) + 0.03 * (pressure - 135) + 0.8 * (smoker == "ja") + at - 1 + rng.logistic(0, 1, rows)
  )
  pressure[rng.random(rows) < 0.12] = np.nan
  known = np.where(rng.random(rows) < 0.1, None, smoker)
  diagnosis = np.where(risk > 0, "krank", "gesund")
  columns = {"hospital": NAMES[at], "age": age, "pressure": pressure, "smoker": known, "diagnosis": diagnosis}
  return pd.DataFrame(columns)


def blocks() -> tuple[str, str]:
  """The page's commands, and its Python with its imports."""
  section = (ROOT / "docs" / "predictions.md").read_text().partition("## From a table to a comparison")[2]
  commands, code = (re.search(rf"```{kind}\n# .*?\n(.*?)```", section, re.S)[1] for kind in ("sh", "python"))
  return commands, f"import pandas as pd\nimport fedjax_het as fh\n\n{code}"


def main() -> None:
  commands, code = blocks()
  whole = table(2008)
  path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
  env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
  with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "configs").symlink_to(ROOT / "configs")
    whole[:2000].to_csv(Path(folder) / "hospitals.csv", index=False)
    whole[2000:].drop(columns="diagnosis").to_csv(Path(folder) / "new.csv", index=False)
    seconds = {}
    for name, command in (
      ("commands", ["bash", "-e", "-c", commands]),
      ("predictions", [sys.executable, "-c", code]),
    ):
      started = time.monotonic()
      done = subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True, text=True)
      seconds[name] = time.monotonic() - started
      print(done.stdout[-1500:], flush=True)
    assert (Path(folder) / "curves.png").exists()
  lines = sum(bool(line.strip()) for line in f"{commands}{code}".splitlines())
  OUT.write_text(json.dumps({"lines": lines, "seconds": seconds, **provenance()}, indent=1) + "\n")
  print(lines, seconds)


if __name__ == "__main__":
  main()
