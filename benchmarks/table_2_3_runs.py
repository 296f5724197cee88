"""Shared by the benchmarks of table 2.3: its printed figures, and a run with its provenance."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.provenance import ROOT, provenance
from fedjax_het.tables.paper import Figure, read_table


def printed(dataset: str = "mnist") -> dict[tuple[str, int], Figure]:
  """Reads the thesis's top-1 in percent, with its std over clients, by algorithm and K."""
  cells = [c for c in read_table(ROOT / "configs" / "table_2_3.py").cells if c.keys["dataset"] == dataset]
  return {(c.keys["algorithm"], int(c.keys["clients"])): c.paper["top1"] for c in cells}


def launch(command: Sequence[str], name: str, runs: Path, flags: Sequence[str]) -> None:
  """Starts a launcher's command, and records commit, date and machine in `runs`/NAME.json.

  Args:
    command: the words after "python", in which RUNS stands for the folder of all runs.
    name: the name of the run's folder in it.
    runs: the folder of all runs; made if it is missing.
    flags: further flags.
  """
  runs.mkdir(parents=True, exist_ok=True)
  (runs / f"{name}.json").write_text(json.dumps(provenance()))
  words = [word.replace("RUNS", str(runs.resolve())) for word in command]
  subprocess.run([sys.executable, *words, *flags], cwd=ROOT, check=True)
