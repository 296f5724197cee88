"""The space of a study: for each field a range or a list of numbers, as `--space.FIELD=...` gives it."""

import ast
from collections.abc import Mapping
from typing import Any, NamedTuple

from fedjax_het.config.grid import check_one_program, said_by, varying
from fedjax_het.config.plan import plan, written
from fedjax_het.config.typed import Plan
from fedjax_het.config.values import chosen, is_number, with_values
from fedjax_het.errors import SettingError
from fedjax_het.program.command_line import take_dotted
from fedjax_het.settings import FromRound

HOW = "Write low:high, low:high:log, or a,b,c."
FACTOR = 30  # the default range of the learning rate: from lr / 30 to 30 lr


class Span(NamedTuple):
  """A range of numbers.

  Attributes:
    low: the lowest number.
    high: the highest.
    log: whether numbers are drawn uniformly on a logarithmic scale.
    whole: whether only whole numbers are drawn.
  """

  low: float
  high: float
  log: bool = False
  whole: bool = False

  def __str__(self) -> str:
    """Describes the range in words."""
    kind = "whole numbers" if self.whole else "numbers"
    return f"{kind} from {self.low:g} to {self.high:g}{', log-uniform' if self.log else ', uniform'}"


Dimension = Span | tuple[Any, ...]
Space = Mapping[str, Dimension]


def take_space(argv: list[str]) -> tuple[list[str], dict[str, Dimension]]:
  """Splits --space.FIELD=... arguments from a command line: (the rest, the space).

  Raises:
    SettingError: a field has no range or list of numbers, or is given twice.
  """
  rest, given = take_dotted(argv, "space")
  space: dict[str, Dimension] = {}
  for path, text in given:
    if path in space:
      raise SettingError(f"space.{path}", text, "was given before", "Give each field once.")
    space[path] = parse(f"space.{path}", text)
  return rest, space


def parse(setting: str, text: str) -> Dimension:
  """Parses "0.001:0.3:log", "0:1" or "0.1,0.3"; raises `SettingError` for anything else.

  Args:
    setting: the name of what is parsed, for errors.
    text: the text.
  """
  if ":" not in text:
    values = tuple(_number(setting, one) for one in text.split(","))
    check_dimension(setting, values, text)
    return values
  low, high, *scale = text.split(":")
  if scale not in ([], ["log"]):
    raise SettingError(setting, text, f"ends in {':'.join(scale)!r}, which is no scale", HOW)
  span = Span(_number(setting, low), _number(setting, high), bool(scale))
  check_dimension(setting, span, text)
  return span


def check_dimension(setting: str, own: Dimension, said: Any) -> None:
  """Raises `SettingError` for a range that does not rise or has no logarithm, and for a number twice.

  Args:
    setting: the name of the dimension, for errors.
    own: the range or list.
    said: how it was given, for errors.
  """
  if not isinstance(own, Span):
    if len({*own}) < len(own):
      raise SettingError(setting, said, "has a number twice", "Name each once.")
    return
  if not own.low < own.high:
    raise SettingError(setting, said, "ends where it begins, or before", HOW)
  if own.log and own.low <= 0:
    raise SettingError(setting, said, "begins at or below 0, where there is no logarithm", "Leave log out.")


def _number(setting: str, text: str) -> float:
  try:
    value = ast.literal_eval(text.strip())
  except (ValueError, SyntaxError):
    value = None
  if not is_number(value):
    raise SettingError(setting, text, "is no number", HOW)
  return value


def default_space(config: Plan) -> dict[str, Dimension]:
  """Returns {"local.lr": log-uniform from lr/30 to 30 lr}, where lr is the configuration's learning rate.

  Raises:
    SettingError: the method has no positive learning rate of this name.
  """
  lr = config.client.settings.get("lr")
  if lr is None or not is_number(lr) or lr <= 0:
    raise SettingError(
      "local.lr", lr, "begins no range, which lr / 30 to 30 lr is", "Give --space.FIELD=low:high."
    )
  return {"local.lr": Span(lr / FACTOR, lr * FACTOR, log=True)}


def checked_space(config: Any, space: Space) -> dict[str, Dimension]:
  """Returns a space whose fields can vary in one program, in the fields' alphabetical order.

  A range of a setting that takes whole numbers only draws whole numbers.

  Args:
    config: the configuration that the trials share otherwise.
    space: field -> range or list.

  Raises:
    SettingError: there is no field; a field is the seed, cannot vary in one program, or does not take the
      ends of its range; see `check_dimension`.
  """
  if not space:
    problem = "has no field that could be tuned"
    raise SettingError("space", {}, problem, "Name one, or give None for a range of learning rates.")
  base, found = written(config), {}
  for path, own in sorted(space.items()):
    ends = [own.low, own.high] if isinstance(own, Span) else [*own]
    if path == "seed":
      problem = "the trials share the seed, without which they could not be compared"
      raise SettingError("space.seed", ends, problem, "Run --sweep.seed with the configuration that is best.")
    homes = [f"--space.{name}.{path}=..." for name in varying() if path in base.get(name, {})]
    if homes:
      raise SettingError(f"space.{path}", ends, "is in a section", f"Write {' or '.join(homes)}.")
    check_one_program({path: ends}, "space")
    with said_by("space", {path}):
      for end in ends:
        plan(with_values(base, {path: end}))
    check_dimension(f"space.{path}", own, ends)
    found[path] = own._replace(whole=True) if isinstance(own, Span) and _is_whole(base, path) else own
  return found


def _is_whole(config: Mapping[str, Any], path: str) -> bool:
  """Returns whether a setting takes whole numbers only."""
  place, _, field = path.rpartition(".")
  methods = {place: method for place, method, _ in chosen(config)}
  setting = methods["algorithm" if place == "local" else place].settings.get(field)
  if setting is None:  # such as a share of the rounds, which the configuration converts
    return False
  return not setting.is_value or any(isinstance(rule, FromRound) for rule in setting.rules)
