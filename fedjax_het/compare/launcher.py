"""The command line of `python -m fedjax_het.compare`."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fedjax_het.compare import export
from fedjax_het.compare.curves import AXES, plot_groups, without_axis
from fedjax_het.compare.groups import Group, baseline_of, grouped
from fedjax_het.compare.plain import MODELS, check_metric, judged, tables
from fedjax_het.compare.runs import find
from fedjax_het.errors import SettingError, check_here, folder_of
from fedjax_het.output.terminal import protect_streams, say
from fedjax_het.program.display import console
from fedjax_het.workdir.folder import write_atomic

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
  about = "the metric to show, such as loss; by default the one that each task is judged by"
  found.add_argument("--metric", default="", metavar="NAME", help=about)
  found.add_argument("--csv", metavar="FILE", help="write the table's figures, unrounded, to this file")
  found.add_argument("--latex", metavar="FILE", help="write the table to this file, for booktabs")
  found.add_argument(
    "--clients", action="store_true", help="one row for each client, by name; --csv then writes these rows"
  )
  found.add_argument("--picture", metavar="FILE", help="draw the learning curves into this PNG")
  found.add_argument(
    "--over", default="round", choices=[*AXES], help="what the curves of page and picture are drawn over"
  )
  return found


def main(args: Sequence[str] | None = None) -> None:
  """Compares the runs that the command line names; exits with 1 after printing an error of the user's."""
  protect_streams()
  try:
    check_here()
    given = parser().parse_args(args)
    compare(
      given.RUN, given.out, given.plain, given.baseline, given.model, metric=given.metric, csv=given.csv,
      latex=given.latex, clients=given.clients, picture=given.picture, over=given.over,
    )  # fmt: skip
  except SettingError as error:
    say(f"{type(error).__name__}: {error}", error=True)
    sys.exit(1)


def compare(
  folders: Sequence[str], out: str | None = None, plain: bool = False, baseline: str = "",
  model: str = MODELS[0], *, metric: str = "", csv: str | None = None, latex: str | None = None,
  clients: bool = False, picture: str | None = None, over: str = "round",
) -> Path | None:  # fmt: skip
  """Prints the table of some runs if `plain`; writes their page to `out`, by default only if nothing else.

  Args:
    folders: the folders of the runs, see `runs.find`.
    out: the page's file; None is compare.html, or no page if one of `plain`, `csv`, `latex`, `clients` and
      `picture` is asked for.
    plain: whether to print the table.
    baseline: the group to compare with, see `groups.baseline_of`.
    model: the model whose figures the table shows, "personalized" or "global".
    metric: the metric to show; "" for the one that each task is judged by.
    csv: a file for the unrounded figures of the table, or with `clients` of each client.
    latex: a file for the table in LaTeX.
    clients: whether to print a row for each client instead of each group.
    picture: a PNG for the learning curves.
    over: what the curves of page and picture are drawn over, one of `curves.AXES`.

  Returns:
    The page's path, or None where none is written.

  Raises:
    SettingError: a folder has no run, the baseline or the metric is unknown, a file cannot be written, or
      Plotly is missing.
  """
  no_page = out is None and (plain or clients or csv or latex or picture)
  if clients and latex is not None:
    raise SettingError("latex", latex, "is the table of groups, not of clients", "Leave out --clients.")
  if over != "round" and no_page and picture is None:
    raise SettingError("over", over, "no curves are asked for", "Add --picture=FILE or --out=FILE.")
  left_out: list[str] = []
  groups = grouped(find(folders, left_out))
  say(*(f"{own}." for own in left_out), error=True)
  first = baseline_of(groups, baseline)
  check_metric(groups, model, metric)
  shown = [own for own in dict.fromkeys(judged(group, model, metric) for group in groups) if own]
  if clients:
    of = check_one(shown)
    table = export.clients(groups, of, model)
    if not table:
      problem = f"no run has single clients' {of} of the {model} model, in the file clients.npz"
      raise SettingError("clients", clients, problem, "Runs write it when they end.")
    console().print(export.clients_table(table, of))
  else:
    table = [row for name in shown for row in _rows(groups, groups[first], name, model, metric)]
    if plain:
      console().print(tables(groups, first, model, metric))
  if csv is not None:
    _write("csv", csv, export.as_csv(table))
  if latex is not None:
    _write("latex", latex, export.as_latex(table))
  if picture is not None:
    path = plot_groups(groups, of := check_one(shown), picture, model=model, over=over)
    say(f"Learning curves over {AXES[over]} are in {os.path.abspath(path)}.")
    if lacking := without_axis(groups, of, model, over):
      why = " (no section system)" if over == "simulated_seconds" else ""
      say(f"Not drawn, as they have no {AXES[over]}{why}: {'; '.join(lacking)}.", error=True)
  if no_page:
    return None
  from fedjax_het.compare.content import content
  from fedjax_het.compare.page import plotly, write_page

  out = OUT if out is None else out
  plotly(out)  # refuses a missing package before the files are read
  own = {"left_out": left_out, "over": over} | ({"metric": metric} if metric else {})
  path = write_page(content(groups, first) | own, out)
  count = sum(len(group.runs) for group in groups)
  size = path.stat().st_size / 1e6
  say(f"{count} run{'s' * (count > 1)} in {os.path.abspath(path)} ({size:.1f} MB)")
  return path


def check_one(metrics: Sequence[str]) -> str:
  """Returns the only metric; raises `SettingError` where the runs are judged by none or by several."""
  if len(metrics) != 1:
    problem = f"the runs are judged by {', '.join(metrics) or 'no metric yet'}"
    raise SettingError("metric", None, problem, "Name one that all have, such as --metric=loss.")
  return metrics[0]


def _rows(
  groups: Sequence[Group], baseline: Group, name: str, model: str, metric: str
) -> list[dict[str, object]]:
  return export.rows(
    [group for group in groups if judged(group, model, metric) == name], name, baseline, model
  )


def _write(setting: str, file: str, text: str) -> None:
  """Writes a file that a flag names and says so; raises `SettingError` where that fails."""
  path = folder_of(setting, file)
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text)
  except (OSError, ValueError) as error:
    problem = f"cannot be written ({getattr(error, 'strerror', None) or error})"
    raise SettingError(setting, file, problem, "Name a file that you may write.") from error
  say(f"{os.path.abspath(path)} is written.")
