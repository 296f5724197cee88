"""The registry of the fields and sections that a configuration may have, which all its readers use.

A field is declared by the argument of the function that takes it, whose docstring has its meaning.

A new section is a line in `CORE`, or a table in `conditions.CONDITIONS` if it chooses parts; a study's comes
from its `options`, through `fedjax_het.studies.STUDIES`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, cast

from fedjax_het.clients.finetuned import finetuned
from fedjax_het.clients.local_settings import OF_RATE, LocalSettings
from fedjax_het.conditions import CONDITIONS, SEVERAL, UNLESS_CHOSEN
from fedjax_het.config.tracking import TrackingSettings
from fedjax_het.data.clients import split_clients
from fedjax_het.data.feature_shift import SHIFTS
from fedjax_het.data.federate import federate
from fedjax_het.data.label_noise import LABEL_NOISES
from fedjax_het.data.partition import PARTITIONERS, partition
from fedjax_het.data.public import public_examples
from fedjax_het.data.sources import FOLDERS, OF_PATH, OWN, kind_of, load, load_digits
from fedjax_het.engine.run import run
from fedjax_het.engine.stopping import Stopping
from fedjax_het.errors import SettingError
from fedjax_het.methods import CLIENTS, MIXINGS, SERVERS, Method
from fedjax_het.models import COMMON, GENERATORS, MODELS, lora
from fedjax_het.settings import Setting, Whole, settings_of
from fedjax_het.studies import STUDIES, Options, Study
from fedjax_het.studies.unseen import after_steps
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
    setting: the declaration of a field: meaning, type and default; None for a section.
    more: (choice) -> settings that it has in addition to the arguments of the chosen function.
    varies: whether its numbers may differ between the members of a sweep.
    options: the options of the study that it belongs to; None for other sections.
    unless_chosen: the name, if any, that a choice has where a configuration leaves the section out.
    identifies: whether configurations that differ in it are different ones.
  """

  name: str
  kind: Literal["field", "section", "choice", "choices"] = "field"
  table: Callable[[], Mapping[str, Any]] = dict
  required: bool = False
  given: Mapping[str, str] = {}
  setting: Setting | None = None
  more: Callable[[Any], Mapping[str, Setting]] = lambda chosen: {}
  varies: bool = False
  always: bool = False
  options: Options | None = None
  unless_chosen: str = ""
  identifies: bool = True

  @property
  def default(self) -> Any:
    """The value if a configuration leaves it out: the field's default, {} for a section, () for several."""
    return self.setting.default if self.setting else () if self.kind == "choices" else {}

  def settings(self, chosen: Any = None) -> dict[str, Setting]:
    """Returns the settings of the section, or of its choice `chosen`, by name; {} for an unknown name."""
    taker = self.table().get(kind_of(chosen)) if isinstance(chosen, str) else None
    if isinstance(taker, Method):
      shares = {
        share: Setting(share, default=None, about=f"{number}, as a share of the rounds")
        for share, number in taker.shares.items()
      }
      return taker.settings | shares
    if taker is None and self.kind in ("choice", "choices"):
      return {}
    known = settings_of(taker) if taker else {}
    return {**{name: own for name, own in known.items() if name not in self.given}, **self.more(chosen)}

  def filled(self, given: Mapping[str, Any], chosen: Any = None) -> dict[str, Any]:
    """Returns a section's fields with defaults; whole numbers become floats where the default is a float."""
    known = {name: own.default for name, own in self.settings(chosen).items() if not own.required}
    numbers = {name for name, own in known.items() if isinstance(own, float) and type(given.get(name)) is int}
    return {**known, **given, **{name: float(given[name]) for name in numbers}}


_OF_DATA = {"shape": "the data set", "num_classes": "the data set", "task": "the section task"}
_OF_PARTITION = {
  "key": "seed", "labels": "the data set", "num_clients": "the field num_clients", "groups": "the data set",
}  # fmt: skip
_OF_LOADER = {"name": "the field dataset", "data_dir": "the field data_dir"} | dict.fromkeys(
  OF_PATH, "the field dataset"
)
_SEED = Setting(
  "seed", (int,), about="what partition, split, first parameters and every round's draws follow from"
)
_PARTITION_SEED = Setting(
  "seed", (int, type(None)), (Whole(0, 2**32 - 1),), (type(None),), None,
  "what the partition and each client's split into train, valid and test follow from, in place of `seed`",
  "seed",
)  # fmt: skip
_OF_LORA = {name: own for name, own in settings_of(lora).items() if name != "model"}
# Of fine-tuning: as in `local` unless given, but for its own two.
_OF_FINETUNE = {
  name: replace(own, default=None)
  for name, own in settings_of(cast(Any, LocalSettings)).items()
  if name not in OF_RATE
} | {name: own for name, own in settings_of(finetuned).items() if name in ("layers", "epochs")}
_OF_PUBLIC = {
  name: own for name, own in settings_of(public_examples).items() if name in ("dataset", "examples")
}
_OF_STOPPING = {name: own for name, own in settings_of(Stopping.__init__).items() if name != "self"}
_OF_CLASSIFIER = {
  name: Setting(name, default="" if name in ("weights", "frozen") else None, about=about)
  for name, about in COMMON.items()
}


def _field(name: str, function: Callable[..., Any], argument: str = "", required: bool = True) -> Section:
  return Section(name, required=required, setting=settings_of(function)[argument or name])


def _choice(name: str, table: Callable[[], Mapping[str, Any]], **more: Any) -> Section:
  return Section(name, "choice", table, **more)


def _condition(name: str) -> Section:
  return Section(
    name, "choices" if name in SEVERAL else "choice", lambda: CONDITIONS[name], varies=True,
    unless_chosen=UNLESS_CHOSEN.get(name, ""),
  )  # fmt: skip


def _settings(**known: Setting) -> Callable[[Any], Mapping[str, Setting]]:
  return lambda chosen: known


CORE = (
  _field("dataset", load, "name"),
  _field("data_dir", load),
  _field("num_clients", partition),
  _choice("partition", lambda: PARTITIONERS, required=True, given=_OF_PARTITION,
          more=_settings(seed=_PARTITION_SEED)),
  _field("test_fraction", federate),
  _field("valid_fraction", federate),
  _choice("model", lambda: MODELS | GENERATORS, required=True, given=_OF_DATA,
          more=lambda chosen: {} if chosen in GENERATORS else _OF_CLASSIFIER),
  Section("lora", "section", more=_settings(**_OF_LORA)),
  _choice("algorithm", lambda: CLIENTS, required=True, varies=True),
  Section("local", "section", required=True, varies=True),
  _choice("mixing", lambda: MIXINGS, required=True, varies=True),
  _choice("server", lambda: SERVERS, required=True, varies=True),
  *map(_condition, CONDITIONS),
  _field("rounds", run),
  _field("cohort_size", run),
  Section("seed", required=True, setting=_SEED),
  _field("eval_every", run),
  _field("late_evaluations", run, required=False),
  _field("eval_clients", run, required=False),
  Section("dataset_options", "section", loaders, always=True, given=_OF_LOADER,
          more=_settings(**{name: settings_of(load)[name] for name in ("resize", "examples")})),
  _field("stratify", federate, required=False),
  _choice("task", lambda: TASKS, always=True),
  _choice("label_noise", lambda: LABEL_NOISES, given={"num_classes": "the data set"}),
  _choice("feature_shift", lambda: SHIFTS),
  Section("public", "section", more=_settings(**_OF_PUBLIC)),
  Section("unseen", "section", more=_settings(fraction=settings_of(split_clients)["fraction"],
                                              steps=settings_of(after_steps)["steps"])),
  Section("finetune", "section", more=_settings(**_OF_FINETUNE)),
  Section("stopping", "section", more=_settings(**_OF_STOPPING)),
  Section("tracking", "section", more=_settings(**settings_of(cast(Any, TrackingSettings))),
          identifies=False),
)  # fmt: skip
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
      found[own.name] = (
        Section(own.name, setting=own.settings[own.name], options=own)
        if own.single
        else Section(
          own.name, "section", more=_settings(**own.settings), always=not own.on_request, options=own
        )
      )
  return found
