"""The command line of `python -m fedjax_het.compare`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fedjax_het.compare.groups import baseline_of, grouped
from fedjax_het.compare.plain import MODELS, tables
from fedjax_het.compare.runs import find
from fedjax_het.errors import SettingError, check_here
from fedjax_het.output.terminal import protect_streams, say
from fedjax_het.program.display import console

OUT = "compare.html"


def parser() -> argparse.ArgumentParser:
  """Makes the parser of the command line."""
  found = argparse.ArgumentParser(
    sys.argv[0] if sys.argv[0].endswith(" compare") else "python -m fedjax_het.compare",
    description="Compares runs: as a page of tables and pictures, or as a table on the terminal.",
  )
  found.add_argument(
    "RUN", nargs="+", help="a run's workdir, a sweep's, or any folder of runs; unfinished ones too"
  )
  found.add_argument("--out", metavar="FILE", help=f"the page to write; by default {OUT} in this folder")
  found.add_argument("--plain", action="store_true", help="print the table, and write a page only with --out")
  found.add_argument(
    "--baseline", default="", metavar="NAME",
    help="what the others are compared with: a label of the table, or a run's name or folder; by default the "
    "first",
  )  # fmt: skip
  found.add_argument(
    "--model", default=MODELS[0], choices=MODELS, help="whose figures the table of --plain shows"
  )
  return found


def main(args: Sequence[str] | None = None) -> None:
  """Compares the runs that the command line names; exits with 1 after printing an error of the user's."""
  protect_streams()
  try:
    check_here()
    given = parser().parse_args(args)
    compare(given.RUN, given.out, given.plain, given.baseline, given.model)
  except SettingError as error:
    say(f"{type(error).__name__}: {error}", error=True)
    sys.exit(1)


def compare(
  folders: Sequence[str], out: str | None = None, plain: bool = False, baseline: str = "",
  model: str = MODELS[0],
) -> Path | None:  # fmt: skip
  """Prints the table of some runs if `plain`; writes their page to `out`, by default only if not `plain`.

  Args:
    folders: the folders of the runs, see `runs.find`.
    out: the page's file; None is compare.html, or no page with `plain`.
    plain: whether to print the table.
    baseline: the group to compare with, see `groups.baseline_of`.
    model: the model whose figures the table shows, "personalized" or "global".

  Returns:
    The page's path, or None where none is written.

  Raises:
    SettingError: a folder has no run, the baseline is unknown, the file cannot be written, or Plotly is
      missing.
  """
  left_out: list[str] = []
  groups = grouped(find(folders, left_out))
  say(*(f"{own}." for own in left_out), error=True)
  first = baseline_of(groups, baseline)
  if plain:
    console().print(tables(groups, first, model))
    if out is None:
      return None
  from fedjax_het.compare.content import content
  from fedjax_het.compare.page import plotly, write_page

  out = OUT if out is None else out
  plotly(out)  # refuses a missing package before the files are read
  path = write_page(content(groups, first) | {"left_out": left_out}, out)
  count = sum(len(group.runs) for group in groups)
  size = path.stat().st_size / 1e6
  say(f"{count} run{'s' * (count > 1)} in {os.path.abspath(path)} ({size:.1f} MB)")
  return path
