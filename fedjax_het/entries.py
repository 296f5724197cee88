"""`Method`: what a table of methods knows of one, without calling its factory."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from fedjax_het.models import GENERATORS, MODELS, Generative
from fedjax_het.parts import Release, Sampling
from fedjax_het.settings import Setting, settings_of

# Parameters of factories that no configuration sets: they are offered, name another method, or are objects.
NOT_SETTABLE = ("model", "rounds", "name")


class Preparation(NamedTuple):
  """How an argument of a part's factory is made of the clients' data, before the part is made.

  Attributes:
    argument: the argument's name; parts of one algorithm that have the same receive the same value.
    make: (what `source` says, seed=, **settings) -> the argument. The settings have defaults, and belong to
      the method in a configuration.
    placeholder: (K, or None if it is not known yet; **settings) -> an argument with which the part can be
      made and its properties read before data are read; it checks the settings.
    source: what the argument is made of: "classes", each client's examples of each class, int [K, C], for
      labels that are classes; "sizes", its examples as if of one class, int [K, 1]; or "public", the
      examples without labels of the section `public`, as the model reads them, [M, ...].
    release: (**settings) -> what the argument tells of the clients' data, see `Release`.
  """

  argument: str
  make: Callable[..., Any]
  placeholder: Callable[..., Any]
  source: Literal["classes", "sizes", "public"] = "classes"
  release: Callable[..., Release] = lambda **settings: Release("label counts")


def counts_of_nobody(num_clients: int | None) -> np.ndarray:
  """Returns a placeholder of label counts, int32 [K, 1]: one example of one class for each client."""
  return np.ones((num_clients or 1, 1), np.int32)


def label_counts(counts: ArrayLike, seed: int = 0) -> np.ndarray:
  """Returns the label counts themselves, int32 [K, C]."""
  return np.asarray(counts, np.int32)


def sizes_of_nobody(num_clients: int | None) -> np.ndarray:
  """Returns a placeholder of the clients' numbers of examples, int32 [K]: one for each client."""
  return np.ones(num_clients or 1, np.int32)


def client_sizes(counts: ArrayLike, seed: int = 0) -> np.ndarray:
  """Returns each client's number of training examples, int32 [K]."""
  return np.asarray(counts, np.int32).sum(1)


LABEL_COUNTS = Preparation("counts", label_counts, counts_of_nobody)  # for a part that takes them as `counts`
# For a part that takes the clients' numbers of training examples as `sizes`, and so knows how many there are.
SIZES = Preparation(
  "sizes", client_sizes, sizes_of_nobody, source="sizes",
  release=lambda: Release("numbers of examples", sizes_only=True),
)  # fmt: skip
# For a part that takes public examples as `public`; the placeholder is of the small model's, see
# `methods.small_model`. Where they are noise, it has the range of the clients' examples.
PUBLIC = Preparation(
  "public",
  lambda examples, seed=0: examples,
  lambda num_clients: np.zeros((1, 2, 2, 1), np.float32),
  "public",
  lambda: Release("range of examples"),
)


class OwnEpochs(NamedTuple):
  """A setting for the epochs of a second local training of a method; as many as `epochs` by default.

  Attributes:
    before: the default of earlier versions, in whose config.json the setting may be missing.
    unless_none: a setting that switches this training off if it is None; "" if there is none.
  """

  before: int
  unless_none: str = ""


class Target(NamedTuple):
  """A setting that is found from another by the run's sizes, before anything is compiled.

  Attributes:
    setting: the setting that is found.
    given: the setting that takes its place.
    find: (the method's settings, `Sampling`, T) -> its value, a float.
  """

  setting: str
  given: str
  find: Callable[[Mapping[str, Any], Sampling, int], float]


class Method(NamedTuple):
  """A method: its factory, and what is known of it without calling the factory.

  Attributes:
    name: the name in configurations.
    factory: (**settings) -> the part. A client part's factory also takes the `model`, whose annotation,
      `Model` or `Generative`, says which kind it trains. A part may take the run's `rounds`. All else has a
      default.
    about: a one-line description.
    source: where the method was published.
    keeps: the state that it keeps between rounds, in words.
    shares: settings that a configuration gives as a share of the rounds -> the factory's setting in rounds.
    prepares: how an argument is made of the clients' data, see `prepare`; None for most methods.
    own_epochs: settings for the epochs of a second local training, see `OwnEpochs`.
    python_only: further parameters of the factory that no configuration sets.
    target: a setting that is found by the run's sizes; None for most methods.
    rounds_for: the settings without which a factory that takes the run's `rounds` does not go by them; () for
      one that always does.
  """

  name: str
  factory: Callable[..., Any]
  about: str
  source: str
  keeps: str = "nothing"
  shares: Mapping[str, str] = {}
  prepares: Preparation | None = None
  own_epochs: Mapping[str, OwnEpochs] = MappingProxyType({})
  python_only: tuple[str, ...] = ()
  target: Target | None = None
  rounds_for: tuple[str, ...] = ()

  def goes_by_rounds(self, given: Mapping[str, Any]) -> bool:
    """Returns whether the part would be another one in a run of more rounds, with these settings."""
    known = settings_of(self.factory)
    asked = [name for name in self.rounds_for if given.get(name, known[name].default) != known[name].default]
    return "rounds" in known and bool(asked or not self.rounds_for)

  @property
  def given(self) -> tuple[str, ...]:
    """The factory's parameters that no configuration sets."""
    return (*NOT_SETTABLE, *self.python_only, *([self.prepares.argument] if self.prepares else []))

  @property
  def settings(self) -> dict[str, Setting]:
    """The settings that a configuration may have, by name, including those of `from_data`."""
    known = settings_of(self.factory)
    return {name: own for name, own in known.items() if name not in self.given} | self.from_data

  @property
  def from_data(self) -> dict[str, Setting]:
    """The settings, by name, that `prepare` uses instead of the factory."""
    known = settings_of(self.prepares.make) if self.prepares else {}
    return {name: own for name, own in known.items() if name not in ("counts", "examples", "seed")}

  @property
  def models(self) -> Mapping[str, Callable[..., Any]]:
    """The models, by name, that a client part can train; {} for a mixing or a server part."""
    if (model := settings_of(self.factory).get("model")) is None:
      return {}
    names = (getattr(kind, "__name__", str(kind)) for kind in model.types)  # as text where unresolved
    return GENERATORS if any(name.endswith(Generative.__name__) for name in names) else MODELS

  def make(self, offered: Mapping[str, Any], **settings: Any) -> Any:
    """Returns the part with these settings and with the `offered` arguments that its factory takes.

    Settings in `from_data` are ignored: the argument that `prepare` made of them is among the offered ones.
    """
    known = settings_of(self.factory)
    own = {name: value for name, value in settings.items() if name not in self.from_data}
    part = self.factory(**{name: value for name, value in offered.items() if name in known} | own)
    if self.prepares is None:
      return part
    release = self.prepares.release(**{name: settings[name] for name in self.from_data if name in settings})
    others = tuple(one for one in part.needs.releases if one.what != release.what)
    return part._replace(needs=part.needs._replace(releases=(*others, release)))

  def prepare(
    self, settings: Mapping[str, Any], given: Any = None, *, seed: int = 0, num_clients: int | None = None,
  ) -> dict[str, Any]:  # fmt: skip
    """Returns arguments for `make` that are computed from the clients' data; {} for most methods.

    Args:
      settings: the method's settings; those that are not in `from_data` are ignored.
      given: what `Preparation.source` says; None before data are read, for a placeholder that suffices to
        read the part's properties.
      seed: seed of the random draws.
      num_clients: K for a placeholder, if it is known.

    Raises:
      SettingError: a setting is out of range, or does not fit what is given.
    """
    if self.prepares is None:
      return {}
    of = self.prepares
    own = {name: value for name, value in settings.items() if name in self.from_data}
    made = of.placeholder(num_clients, **own) if given is None else of.make(given, seed=seed, **own)
    return {of.argument: made}


def by_name(*entries: Method) -> dict[str, Method]:
  """Returns a table of methods, name -> method."""
  return {entry.name: entry for entry in entries}
