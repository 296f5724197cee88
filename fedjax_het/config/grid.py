"""The grid of a sweep: the fields that may vary within one program, the members, and their names."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from fedjax_het.config.plan import plan, written
from fedjax_het.config.sections import sections
from fedjax_het.config.typed import Plan
from fedjax_het.config.values import is_number, with_values
from fedjax_het.engine.sweep import grid_of
from fedjax_het.errors import SettingError, check_choice
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
  config = written(config)
  for path, values in grid.items():
    given = ",".join(map(str, values))
    homes = [f"--sweep.{name}.{path}={given}" for name in varying() if path in config.get(name, {})]
    if homes:
      raise SettingError(f"sweep.{path}", list(values), "is in a section", f"Write {' or '.join(homes)}.")
  check_one_program(grid)
  members = grid_of(grid)
  return members, [plan(with_values(config, values), studies) for values in members]


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
    check_choice(f"{said}'s field", section, ("seed", *known))
    are_numbers = all(map(is_number, values))
    whole = all(isinstance(v, int) for v in values)
    if not are_numbers or (section == "seed" and not whole) or (section != "seed") != bool(field):
      raise SettingError(f"{said}.{path}", list(values), "is not a list of numbers", "Give numbers only.")
    if field.rpartition(".")[2] in ("batch_size", "epochs", "per_class"):
      raise SettingError(
        f"{said}.{path}", list(values), "changes the program itself", "Start a run of its own for each value."
      )
