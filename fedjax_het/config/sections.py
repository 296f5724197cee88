"""The registry of the fields and sections that a configuration may have, which all its readers use.

A new section is a line in `CORE`; a study's comes from its `options`, through `fedjax_het.studies.STUDIES`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from fedjax_het.data.label_noise import LABEL_NOISES
from fedjax_het.data.partition import PARTITIONERS
from fedjax_het.data.sources import FOLDERS, OF_PATH, OWN, kind_of, load_digits
from fedjax_het.errors import SettingError
from fedjax_het.methods import CLIENTS, MIXINGS, SERVERS, Method
from fedjax_het.models import COMMON, GENERATORS, MODELS
from fedjax_het.settings import NO_DEFAULT, settings_of
from fedjax_het.studies import STUDIES, Options, Study
from fedjax_het.tasks import TASKS


def loaders() -> dict[str, Callable[..., Any]]:
  """Returns the loader of each data set, by name."""
  return {"digits": load_digits} | {name: loader for name, (_, loader, _) in FOLDERS.items()} | OWN


class Section(NamedTuple):
  """A field or a section of a configuration.

  Attributes:
    name: as in `--config.NAME=VALUE` or `--config.NAME.FIELD=VALUE`.
    kind: "field"; "section"; "choice", a section whose `name` says what takes its other fields; or "choices",
      a tuple of such sections, in order.
    table: () -> {name: function or `Method`} from which a choice chooses, whose arguments are the settings.
    required: whether every configuration has it.
    given: arguments of the chosen function that the section does not set -> their origins.
    always: whether an empty section means its defaults; otherwise it means nothing.
    default: its value if a configuration leaves it out; {} for a section.
    more: settings that every choice has in addition to its own -> default.
    varies: whether its numbers may differ between the members of a sweep.
    options: the options of the study that it belongs to; None for other sections.
  """

  name: str
  kind: Literal["field", "section", "choice", "choices"] = "field"
  table: Callable[[], Mapping[str, Any]] = dict
  required: bool = False
  given: Mapping[str, str] = {}
  default: Any = None
  more: Mapping[str, Any] = {}
  varies: bool = False
  always: bool = False
  options: Options | None = None

  def defaults(self, chosen: Any = None) -> dict[str, Any]:
    """Returns the defaults of the choice `chosen`, setting -> default; {} for an unknown name."""
    if self.options:
      return self.options.defaults
    taker = self.table().get(kind_of(chosen)) if isinstance(chosen, str) else None
    if isinstance(taker, Method):
      own = dict.fromkeys(taker.shares) | {name: one.default for name, one in taker.settings.items()}
    else:
      known = settings_of(taker) if taker else {}
      own = {name: one.default for name, one in known.items() if name not in self.given}
    return {name: value for name, value in {**self.more, **own}.items() if value is not NO_DEFAULT}


_OF_DATA = {"shape": "the data set", "num_classes": "the data set", "task": "the section task"}
_OF_PARTITION = {"key": "seed", "labels": "the data set", "num_clients": "the field num_clients"}
_OF_LOADER = {"name": "the field dataset", "data_dir": "the field data_dir"} | dict.fromkeys(
  OF_PATH, "the field dataset"
)


def _models() -> Mapping[str, Any]:
  return MODELS | GENERATORS


def _choice(name: str, table: Callable[[], Mapping[str, Any]], **more: Any) -> Section:
  return Section(name, "choice", table, default={}, **more)


CORE = (
  Section("dataset", required=True),
  Section("data_dir", required=True),
  Section("num_clients", required=True),
  _choice("partition", lambda: PARTITIONERS, required=True, given=_OF_PARTITION, more={"seed": None}),
  Section("test_fraction", required=True),
  Section("valid_fraction", required=True),
  _choice("model", _models, required=True, given=_OF_DATA, more={**dict.fromkeys(COMMON), "weights": ""}),
  _choice("algorithm", lambda: CLIENTS, required=True, varies=True),
  Section("local", "section", required=True, default={}, varies=True),
  _choice("mixing", lambda: MIXINGS, required=True, varies=True),
  _choice("server", lambda: SERVERS, required=True, varies=True),
  Section("rounds", required=True),
  Section("cohort_size", required=True),
  Section("seed", required=True),
  Section("eval_every", required=True),
  Section("late_evaluations", default=0),
  Section(
    "dataset_options", "section", loaders, default={}, always=True, given=_OF_LOADER, more={"resize": None}
  ),
  Section("stratify", default=False),
  _choice("task", lambda: TASKS, always=True),
  _choice("label_noise", lambda: LABEL_NOISES, given={"num_classes": "the data set"}),
  Section("unseen", "section", default={}, more={"steps": ()}),
)
FIELDS = tuple(section.name for section in CORE if section.required)


def sections(studies: Sequence[type[Study]] = ()) -> dict[str, Section]:
  """Returns all fields and sections by name, in the order in which they are shown.

  Args:
    studies: studies in addition to `STUDIES`.
  """
  found = {section.name: section for section in CORE}
  for study in (*STUDIES, *studies):
    if own := study.options:
      if own.name in found:
        raise SettingError("studies", own.name, "the options of two, or a field of every run", "Rename them.")
      default = own.defaults[own.name] if own.single else {}
      kind: Literal["field", "section"] = "field" if own.single else "section"
      found[own.name] = Section(own.name, kind, default=default, always=not own.on_request, options=own)
  return found
