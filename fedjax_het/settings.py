"""Declares each setting once: a factory's annotation has its type and range, its docstring the meaning.

A factory is a function that makes a part from its settings, such as `fh.fedavg(model, lr=0.05)`:

    @checked
    def ditto(model: Model, *, lam: NonNegative = 1.0, **local: Unpack[LocalSettings]) -> ClientUpdate:

`NonNegative` is `Annotated[float, Range(low=0.0, below=inf)]`. A plain annotation, such as `float`, declares
a type without a range. `settings_of` reads the declarations. The check of a call from Python (`checked`) and
of a configuration (`check_settings`), `--list`, `--describe`, and the decision which settings may vary within
one compiled program are all derived from them.
"""

import abc
import contextlib
import dataclasses
import functools
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Annotated, Any, TypeVar, cast

import jax
import numpy as np

from fedjax_het.errors import SettingError, check_choice, check_range, check_whole, near

Factory = TypeVar("Factory", bound=Callable[..., Any])
Settings = TypeVar("Settings")
NO_DEFAULT = inspect.Parameter.empty
NONE = "(it has none)"


class Rule(abc.ABC):
  """Base class of restrictions on a setting's values, used in `Annotated[type, rule]`."""

  @abc.abstractmethod
  def check(self, setting: str, value: Any) -> None:
    """Raises `SettingError` if the setting called `setting` may not have this value."""


@dataclasses.dataclass(frozen=True)
class Range(Rule):
  """A number with low <= value <= high and above < value < below, see `errors.check_range`.

  Attributes:
    low: the least value.
    high: the largest value.
    above: the value must be larger than this.
    below: the value must be smaller than this.
    on_host: whether the value is used in Python only, in float64, and never in a compiled program.
  """

  low: float | None = None
  high: float | None = None
  above: float | None = None
  below: float | None = None
  on_host: bool = False

  def check(self, setting: str, value: Any) -> None:
    """See `Rule.check`. A traced value passes: its values were checked before the program was traced."""
    check_range(setting, value, **dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Whole(Rule):
  """A whole number with low <= value <= high; by default `high` is the largest int32."""

  low: int
  high: int = 2**31 - 1

  def check(self, setting: str, value: Any) -> None:
    """See `Rule.check`."""
    check_whole(setting, value, self.low, self.high)


@dataclasses.dataclass(frozen=True, eq=False)
class Choice(Rule):
  """One of several names; the keys of a dict are read when a value is checked, so names can be added."""

  names: Collection[str]

  def check(self, setting: str, value: Any) -> None:
    """See `Rule.check`."""
    check_choice(setting, value, self.names)


@dataclasses.dataclass(frozen=True)
class FromRound(Rule):
  """The number of a round, counted from 0, or infinity for never."""

  def check(self, setting: str, value: Any) -> None:
    """See `Rule.check`. A traced value passes."""
    if isinstance(value, jax.core.Tracer):
      return
    check_range(setting, value, 0.0, on_host=True)
    check_range(setting, value, high=math.inf if value == math.inf else 2**31 - 1, on_host=True)
    if value % 1 and value != math.inf:
      remedy = f"Count rounds from 0; a share of T rounds is {setting}=int({value} * T)."
      raise SettingError(setting, value, "not a round", remedy)


@dataclasses.dataclass(frozen=True)
class Default:
  """The default of a `TypedDict`'s key, for which Python has no syntax."""

  value: Any


@dataclasses.dataclass(frozen=True)
class Neutral:
  """The value with which a setting does nothing, 0 if this is not given; it stays a constant of a program."""

  value: float


Number = Annotated[float, Range(above=-math.inf, below=math.inf)]
Positive = Annotated[float, Range(above=0.0, below=math.inf)]
NonNegative = Annotated[float, Range(low=0.0, below=math.inf)]
Share = Annotated[float, Range(low=0.0, high=1.0)]
Weight = Annotated[float, Range(low=0.0, high=1.0), Neutral(1.0)]  # of which 1 leaves the rest out
HostShare = Annotated[float, Range(low=0.0, high=1.0, on_host=True)]
Decay = Annotated[float, Range(above=0.0, high=1.0)]
Fraction = Annotated[float, Range(low=0.0, below=1.0)]
Round = Annotated[float, FromRound()]
Count = Annotated[int, Whole(1)]


@dataclasses.dataclass(frozen=True)
class Setting:
  """One setting of a factory.

  Attributes:
    name: its name.
    types: the types that its annotation allows, one for each member of a union; () for any type.
    rules: the rules of its annotation.
    unruled: the members of `types` to which the rules do not apply, such as None.
    default: the value if it is left out; `NO_DEFAULT` if it is required.
    about: its line in the docstring.
    called: its name in errors, such as "server's lr".
    neutral: the number with which it does nothing, see `Neutral`.
  """

  name: str
  types: tuple[Any, ...] = ()
  rules: tuple[Rule, ...] = ()
  unruled: tuple[type, ...] = ()
  default: Any = NO_DEFAULT
  about: str = ""
  called: str = ""
  neutral: float = 0.0

  @property
  def is_value(self) -> bool:
    """Returns whether a program takes the setting as a traced number, which may vary between its runs."""
    return float in self.types

  @property
  def required(self) -> bool:
    """Returns whether the setting has no default."""
    return self.default is NO_DEFAULT

  @property
  def kind(self) -> str:
    """Returns the type in words, such as "int or None"; "" for any type or an unknown one."""
    kinds = [kind for kind in self.types if kind is not jax.Array]
    return "" if any(isinstance(kind, str) for kind in kinds) else " or ".join(map(_name_of, kinds))

  def check(self, value: Any) -> None:
    """Raises `SettingError` if the value has another type, or a rule refuses it."""
    if not self.rules:
      self._check_type(value)
    elif not isinstance(value, self.unruled):
      for rule in self.rules:
        rule.check(self.called, value)

  def _check_type(self, value: Any) -> None:
    """Checks a value against the plain types of the annotation, for members without rules."""
    kinds, plain = {*self.types}, {*self.types} & {int, float, bool, str, type(None)}
    if not plain - {type(None)} or not all(isinstance(kind, type) for kind in kinds):
      return
    if isinstance(value, jax.Array) and plain & {int, float}:  # a traced number
      return
    value = value.item() if isinstance(value, np.generic) else value
    exact = plain | ({int} if float in kinds else set())  # True is not a number here
    if type(value) not in exact and not isinstance(value, tuple(kinds - plain)):
      names = " or ".join(sorted(map(_name_of, plain)))
      raise SettingError(self.called, value, "of the wrong type", f"It must be {names}.")


@typing.overload
def checked(factory: Factory) -> Factory: ...


@typing.overload
def checked(*, whose: str) -> Callable[[Factory], Factory]: ...


def checked(factory: Any = None, *, whose: str = "") -> Any:
  """Decorates a factory so that a call checks names, types and ranges before the factory's body runs.

  Settings taken as `**local: Unpack[LocalSettings]` are listed one by one, without their ranges, in the
  signature of the returned function, which `help` shows; `signature_of` has the ranges.

  Args:
    factory: the factory; None to give `whose` first, as in `@checked(whose="server's ")`.
    whose: prefix of a setting's name in errors.

  Returns:
    The checked factory. It raises `SettingError` for an unknown keyword, naming the nearest one, and for an
    invalid value.

  Raises:
    NameError: an annotation is a string with an unknown name, so that the setting's range would be lost.
  """
  if factory is None:
    return functools.partial(checked, whose=whose)
  declared = vars(factory).get("__declared__") or _flattened(inspect.signature(factory, eval_str=True))
  parameters = declared.parameters.values()
  plain = [own.replace(annotation=_without_marks(own.annotation)) for own in parameters]
  shown = declared.replace(parameters=plain)
  vars(factory).update(__declared__=declared, __signature__=shown, __whose__=whose)
  places = [own.name for own in parameters if own.kind is own.POSITIONAL_OR_KEYWORD]
  takes_others = any(own.kind is own.VAR_KEYWORD for own in parameters)

  @functools.wraps(factory)
  def call(*args: Any, **given: Any) -> Any:
    known = settings_of(factory)
    for name, value in (*zip(places, args), *given.items()):
      if name in known:
        known[name].check(value)
      elif not takes_others:
        bound = {*places[: len(args)], *given}
        settable = [own.name for own in known.values() if not own.required or own.name not in bound]
        check_choice(f"{factory.__name__}'s setting", name, settable or [NONE])
    return factory(*args, **given)

  return call


def check_settings(
  kind: str,
  of: Callable[..., Any] | Mapping[str, Setting],
  given: Mapping[str, Any],
  not_settable: Iterable[str] = (),
  place: str = "",
) -> None:
  """Checks settings that were given by name, as in a configuration, against their declarations.

  Args:
    kind: the name of the settings in the error, such as "option of partition 'iid'".
    of: the factory that will be called with them, or its settings.
    given: name -> value.
    not_settable: parameters that the caller of the factory provides.
    place: the section of a configuration that holds the settings; errors then name "PLACE.NAME", as it is
      written, and its value.

  Raises:
    SettingError: a setting is unknown (the error names the nearest one), or a value is invalid.
  """
  known = of if isinstance(of, Mapping) else settings_of(of)
  names = [name for name in known if name not in {*not_settable}]
  for name, value in given.items():
    if place and name not in names:
      raise SettingError(f"{place}.{name}", value, f"unknown {kind}", near(name, names or [NONE]))
    check_choice(kind, name, names or [NONE])
    own = known[name]
    (dataclasses.replace(own, called=f"{place}.{name}") if place else own).check(value)


@functools.cache
def settings_of(factory: Callable[..., Any]) -> Mapping[str, Setting]:
  """Returns a factory's settings, or the keys of a `TypedDict`, by name, in the order of the signature."""
  lines, whose = documented(factory), getattr(factory, "__whose__", "")
  return {
    name: _setting(parameter, lines.get(name, ""), whose)
    for name, parameter in signature_of(factory).parameters.items()
    if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
  }


def with_defaults(kind: type[Settings], given: Settings) -> Settings:
  """Returns the settings that were given together with the defaults of a `TypedDict`'s other keys."""
  known = settings_of(cast(Callable[..., Any], kind))
  return cast(Settings, {name: own.default for name, own in known.items()} | cast(dict, given))


def origin_of(factory: Callable[..., Any]) -> Any:
  """Returns the function inside a wrapped or partially applied factory."""
  while isinstance(factory, functools.partial):
    factory = factory.func
  return inspect.unwrap(factory)


def documented(factory: Callable[..., Any]) -> dict[str, str]:
  """Returns the description of each argument from the docstrings of a factory and of its `TypedDict`."""
  origin = origin_of(factory)
  found: dict[str, str] = {}
  with contextlib.suppress(Exception):  # the annotation is resolvable for type checkers only
    for annotation in inspect.get_annotations(origin, eval_str=True).values():
      if typing.get_origin(annotation) is typing.Unpack:
        found |= documented(*typing.get_args(annotation))
  section = re.split(r"\n(?:Args|Attributes):\n", inspect.getdoc(origin) or "", maxsplit=1)[1:]
  entries = re.split(r"^  (?=[\w*])", "".join(section).split("\n\n")[0], flags=re.MULTILINE)
  pairs = (entry.partition(":") for entry in entries if entry)
  return found | {name: " ".join(text.split()) for name, _, text in pairs}


def signature_of(factory: Callable[..., Any]) -> inspect.Signature:
  """Returns the signature including the `Annotated` declarations, which `inspect.signature` omits."""
  if hasattr(factory, "__declared__"):
    return factory.__declared__
  if typing.is_typeddict(factory):
    keys = inspect.Parameter("keys", inspect.Parameter.VAR_KEYWORD, annotation=typing.Unpack[factory])
    return _flattened(inspect.Signature([keys]))
  try:
    return _flattened(inspect.signature(factory, eval_str=True))
  except Exception:  # the annotation is resolvable for type checkers only, and may raise anything
    return inspect.signature(factory)


def _flattened(signature: inspect.Signature) -> inspect.Signature:
  """Returns the signature with the keys of an unpacked `TypedDict` as parameters."""
  parameters: list[inspect.Parameter] = []
  for own in signature.parameters.values():
    if own.kind is not own.VAR_KEYWORD or typing.get_origin(own.annotation) is not typing.Unpack:
      parameters.append(own)
      continue
    (keys,) = typing.get_args(own.annotation)
    for name, hint in typing.get_type_hints(keys, include_extras=True).items():
      default = next((mark.value for _, marks in _members(hint) for mark in marks
                      if isinstance(mark, Default)), NO_DEFAULT)  # fmt: skip
      parameters.append(inspect.Parameter(name, own.KEYWORD_ONLY, default=default, annotation=hint))
  return signature.replace(parameters=parameters)


def _without_marks(annotation: Any) -> Any:
  kinds = [kind for kind, _ in _members(annotation)]
  return kinds[0] if len(kinds) == 1 else typing.Union[tuple(kinds)]  # noqa: UP007


def _setting(parameter: inspect.Parameter, about: str, whose: str) -> Setting:
  annotation = parameter.annotation
  members = [] if annotation in (NO_DEFAULT, Any) else _members(annotation)
  rules = {mark: None for _, marks in members for mark in marks if isinstance(mark, Rule)}  # in order, once
  others = (
    typing.get_origin(kind) or kind
    for kind, marks in members
    if kind is type(None) or not any(isinstance(mark, Rule) for mark in marks)
  )
  unruled = tuple(kind for kind in others if isinstance(kind, type) and kind is not jax.Array)
  return Setting(
    parameter.name, tuple(kind for kind, _ in members), tuple(rules), unruled, parameter.default, about,
    whose + parameter.name,
    next((mark.value for _, marks in members for mark in marks if isinstance(mark, Neutral)), 0.0),
  )  # fmt: skip


def _name_of(kind: Any) -> str:
  return "None" if kind is type(None) else getattr(kind, "__name__", str(kind))


def _members(annotation: Any) -> list[tuple[Any, tuple[Any, ...]]]:
  """Returns (type, declarations from `Annotated`) of each member of a union; one pair for other types."""
  origin, args = typing.get_origin(annotation), typing.get_args(annotation)
  if origin is Annotated:
    return [(kind, (*marks, *args[1:])) for kind, marks in _members(args[0])]
  if origin in (typing.Union, types.UnionType):
    return [member for own in args for member in _members(own)]
  return [(annotation, ())]
