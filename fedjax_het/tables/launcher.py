"""The command line of `python -m fedjax_het.reproduce`."""

import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from absl import app, flags, logging

from fedjax_het.config.shipped import shipped
from fedjax_het.errors import SettingError, check_here, folder_of
from fedjax_het.output.terminal import protect_streams, say
from fedjax_het.program.command_line import (
  leave_out_waiting,
  mistakes_in_one_line,
  parse_flags,
  show_in_help,
  take_changes,
  told,
)
from fedjax_het.program.machine import define_machine_flags, prepare_jax, where_of_flags
from fedjax_het.program.packages import load_packages
from fedjax_het.program.stopping import outlive_save


def define_flags() -> None:
  """Defines the command-line flags of `reproduce`."""
  flags.DEFINE_string("table", None, "The table: a configuration file with a .csv of the same name.")
  flags.DEFINE_multi_string("where", [], "Selects cells by columns of the .csv: key=value,key=value|value.")
  flags.DEFINE_multi_string(
    "cell", [], "Further arguments of get_config for every cell, which are no columns: key=value,key=value."
  )
  flags.DEFINE_list("seeds", ["0"], "Seeds that each cell is run with.")
  flags.DEFINE_string("workdir", None, "Where runs and table are kept; by default runs/NAME of the table.")
  flags.DEFINE_alias("runs", "workdir")
  flags.DEFINE_string("data_dir", None, "Folder of the data sets; the same as --config.data_dir.")
  flags.DEFINE_string("against", "", "Compare the other methods with this one, by either name.")
  flags.DEFINE_enum(
    "pick", "test", ["test", "valid"],
    "The part of the clients' data on which a best round is picked; valid needs --config.valid_fraction.",
  )  # fmt: skip
  flags.DEFINE_bool("dry_run", False, "Print the runs so far and the programs to start, and exit.")
  define_machine_flags()


def check_changes(changes: Mapping[str, Any]) -> None:
  """Raises `SettingError` if the changes contain the seed, which the flag --seeds sets for all cells."""
  if "seed" in changes:
    problem = "every cell has the seeds of --seeds"
    raise SettingError("config.seed", changes["seed"], problem, f"Use --seeds={changes['seed']}.")


def told_of(changes: Mapping[str, Any], configs: Sequence[Any]) -> str:
  """Lists the changes that affect figures, such as "rounds=50, local.lr=0.1".

  `configs` are the configurations before the changes.
  """
  from fedjax_het.config.plan import written
  from fedjax_het.config.sections import sections
  from fedjax_het.experiment.experiment import FREE
  from fedjax_het.tables.compare import at

  silent = {*FREE, *(name for name, one in sections().items() if one.options and one.options.silent)}
  own = [written(config) for config in configs]
  told = [path for path in changes if path not in silent and any(at(c, path) != changes[path] for c in own)]
  return ", ".join(f"{path}={changes[path]}" for path in told)


def check_pick(pick: str, table: Any, runs: Sequence[Any]) -> None:
  """Raises `SettingError` if validation parts are to pick and a run of the table has none.

  A note says so where the table has no figure for which anything is picked on test parts.
  """
  from fedjax_het.tables.compare import picked_on

  without = [one.cell.text for one in runs if not one.plan.valid_fraction]
  if pick == "valid" and without:
    problem = f"the clients of {without[0]} have no validation parts to pick on"
    remedy = "Add --config.valid_fraction=0.1, with which the clients train on fewer rows."
    raise SettingError("pick", pick, problem, remedy)
  if pick == "valid" and not any(picked_on({}, source, pick) for source in table.figures.values()):
    say("pick = valid: has no effect, as nothing is picked on test parts for the figures of this table.")


def parse_seeds(texts: Sequence[str]) -> list[int]:
  """Parses the seeds of the command line; raises `SettingError` for a seed that is not a whole number."""
  try:
    return [int(text) for text in texts]
  except ValueError as error:
    raise SettingError("seeds", ",".join(texts), "are not whole numbers", "Write --seeds=0,1,2.") from error


def main(argv: list[str], changes: dict[str, Any]) -> int:
  """Makes the table that the flags select; returns 0, or 1 after printing a user's error."""
  if len(argv) > 1:
    say(f"Unexpected argument {argv[1]!r}: settings are given as --config.key=value.", error=True)
    return 1
  logging.set_verbosity(min(logging.get_verbosity(), logging.WARNING))
  leave_out_waiting()
  return told(functools.partial(make_table, changes))


def make_table(changes: dict[str, Any]) -> None:
  """Runs the missing runs of the table that the flags select, then shows and writes the table."""
  from fedjax_het.config.override import change
  from fedjax_het.experiment.report import beside
  from fedjax_het.tables.paper import chosen, method_of, parse_where, read_table, with_keys
  from fedjax_het.tables.reproduce import check_where, reproduce, show, wanted

  given = flags.FLAGS
  if given.table is None:
    raise SettingError("table", None, "no table is named", "Write --table=configs/table_2_3.py.")
  if given.data_dir is not None:
    changes = {**changes, "data_dir": given.data_dir}
  table = read_table(shipped(given.table))
  cells = chosen(table.cells, parse_where(",".join(given.where)))
  table = with_keys(table, cells, ",".join(given.cell))
  fields = told_of(changes, [table.get_config(cell.text) for cell in cells])
  table = table._replace(changed=", ".join(filter(None, (table.changed, fields))), pick=given.pick)
  folder = folder_of("workdir", given.workdir or f"runs/{table.name}")
  if folder.exists() and not folder.is_dir():
    raise SettingError("workdir", str(folder), "is a file", "Name a folder.")
  than, seeds = method_of(given.against, cells), parse_seeds(given.seeds)
  prepare_jax()
  check_changes(changes)
  runs = wanted(table, cells, seeds, lambda config: change(config, changes))
  check_pick(given.pick, table, runs)
  where = where_of_flags()
  check_where(where, runs)
  together = None if jax.default_backend() != "cpu" else where.devices or jax.device_count()
  if where.device_states is not None:
    together = 0  # a sweep cannot stream clients' states, so each run is a program
  if given.dry_run:
    show(table, runs, folder, than)
    return print_plan(runs, folder, together)
  reproduce(
    table, runs, folder, where, together=together, checkpoint_seconds=given.checkpoint_seconds,
    than=than,
  )  # fmt: skip
  show(table, runs, folder, than)
  if (folder / "table.md").exists():
    say(f"table.md, table.csv, table.tex and the runs are in {folder.absolute()}.")
  say(beside(folder.absolute()))


def print_plan(runs: list[Any], folder: Path, together: int | None) -> None:
  """Prints which runs have ended and which programs would be started."""
  from fedjax_het.tables.runs import programs

  todo = programs(runs, folder, together)
  say(f"{len(runs) - sum(len(program.runs) for program in todo)} of {len(runs)} runs are in {folder}.")
  for program in todo:
    say(f"{program.folder.name}: {len(program.runs)} run{'s as one program' if program.grid else ''}")


def launch() -> None:
  """Runs the program of the command line and exits with its status."""
  protect_streams()
  outlive_save()
  with mistakes_in_one_line():
    check_here()
    load_packages()
    sys.argv, changes = take_changes(sys.argv)
    define_flags()
    show_in_help(__name__, define_machine_flags.__module__)
  app.run(functools.partial(main, changes=changes), flags_parser=parse_flags)
