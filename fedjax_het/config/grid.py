"""The grid of a sweep: the fields that may vary within one program, the members, and their names."""

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from fedjax_het.config.plan import plan, written
from fedjax_het.config.sections import sections
from fedjax_het.config.typed import Plan
from fedjax_het.config.values import is_number, with_values
from fedjax_het.engine.algorithm_maker import grid_as_lists
from fedjax_het.engine.sweep import grid_of
from fedjax_het.errors import SettingError, near
from fedjax_het.studies import Study

Values = TypeVar("Values")


def varying() -> list[str]:
  """Returns the sections whose numbers may differ between the members of a sweep."""
  return [name for name, section in sections().items() if section.varies]


def in_order(grid: Mapping[str, Values]) -> dict[str, Values]:
  """Returns a grid with its fields in the members' order, the seed first, because config.json keeps none."""
  return dict(sorted(grid.items(), key=lambda field: (field[0] != "seed", field[0])))


def check_sweep(
  config: Any, grid: Mapping[str, Sequence[Any]], studies: Sequence[type[Study]] = ()
) -> tuple[list[dict[str, Any]], list[Plan]]:
  """Returns the varied values and the plan of each member of a sweep.

  Args:
    config: the configuration or plan that the members share, except for the grid's fields.
    grid: dotted field -> values.
    studies: see `plan`.

  Raises:
    SettingError: a member is invalid, or cannot be one program with the others.
  """
  config, grid = written(config), grid_as_lists(grid)
  if given := config.get("stopping"):
    problem = "members of one program all train to the last round"
    raise SettingError("stopping", given, problem, "Leave it out, or start a run of its own for each value.")
  for path, values in grid.items():
    given = ",".join(map(str, values))
    homes = [f"--sweep.{name}.{path}={given}" for name in varying() if path in config.get(name, {})]
    if homes:
      raise SettingError(f"sweep.{path}", list(values), "is in a section", f"Write {' or '.join(homes)}.")
  check_one_program(grid)
  members = grid_of(grid)
  with said_by("sweep", grid):
    return members, [plan(with_values(config, values), studies) for values in members]


@contextlib.contextmanager
def said_by(flag: str, varied: Collection[str]) -> Iterator[None]:
  """Context manager in which an error of a varied field names it as its flag does: sweep.local.lr.

  Args:
    flag: "sweep" or "space".
    varied: the fields that the flag gives.
  """
  try:
    yield
  except SettingError as error:
    if error.setting not in varied:
      raise
    told = SettingError(f"{flag}.{error}")
    told.setting = f"{flag}.{error.setting}"
    raise told from error


def name_of(values: Mapping[str, Any]) -> str:
  """Returns a member's folder name, such as "seed=0,algorithm.nu=1.0"."""
  return ",".join(f"{path}={value}" for path, value in values.items())


def check_one_program(grid: Mapping[str, Sequence[Any]], said: str = "sweep") -> None:
  """Raises `SettingError` for a varied field that is neither the seed nor a number that can be traced.

  `said` is the flag that gives the fields, --sweep.FIELD or --space.FIELD.
  """
  *most, last = known = varying()
  for path, values in grid.items():
    section, _, field = path.partition(".")
    if section in sections() and section not in ("seed", *known):
      problem = f"is not a seed, nor a number of {', '.join(most)} or {last}"
      raise SettingError(f"{said}.{path}", list(values), problem, "Start a run of its own for each value.")
    if section not in ("seed", *known):
      raise SettingError(f"{said}.{path}", list(values), "unknown", near(section, ("seed", *known)))
    are_numbers = all(map(is_number, values))
    whole = all(isinstance(v, int) for v in values)
    if not are_numbers or (section == "seed" and not whole) or (section != "seed") != bool(field):
      raise SettingError(f"{said}.{path}", list(values), "is not a list of numbers", "Give numbers only.")
    if field.rpartition(".")[2] in ("batch_size", "epochs", "per_class", "min_epochs", "crop", "cutout"):
      raise SettingError(
        f"{said}.{path}", list(values), "changes the program itself", "Start a run of its own for each value."
      )
