"""The plan of a run: its configuration, read, checked and typed once, with every default filled in."""

from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from fedjax_het.conditions import CONDITIONS, IF_UNNAMED
from fedjax_het.config.check import check_fields, check_parts
from fedjax_het.config.own_epochs import followers, resolved
from fedjax_het.config.sections import sections
from fedjax_het.config.typed import Choice, Plan
from fedjax_het.config.values import plain
from fedjax_het.methods import METHODS
from fedjax_het.studies import STUDIES, Study

AS_GIVEN = (
  "dataset", "data_dir", "dataset_options", "num_clients", "test_fraction", "valid_fraction", "stratify",
  "task", "label_noise", "feature_shift", "public", "lora", "finetune", "rounds", "cohort_size", "seed",
  "eval_every", "late_evaluations", "eval_clients", "stopping", "tracking",
)  # fmt: skip
PARTS = ("local", *METHODS, *CONDITIONS)  # sections that choose parts and set them


def written(config: ConfigDict | Mapping[str, Any] | Plan) -> dict[str, Any]:
  """Returns a configuration's nested fields, or those from which a plan was made.

  A section that has settings and no `name` gets the one of `conditions.IF_UNNAMED`, if there is one.
  """
  if isinstance(config, Plan):
    return dict(config.written)
  found = plain(ConfigDict(config))
  for section, name in IF_UNNAMED.items():
    if isinstance(own := found.get(section), dict) and own and "name" not in own:
      found[section] = {"name": name, **own}
  return found


def plan(config: ConfigDict | Mapping[str, Any] | Plan, studies: Sequence[type[Study]] = ()) -> Plan:
  """Reads and checks a configuration; a plan that was made for these studies is returned unchanged.

  Args:
    config: nested fields.
    studies: the user's studies, in addition to `STUDIES`.

  Raises:
    SettingError: a field or name is unknown (the error names the nearest), a value is out of range, or parts
      cannot be combined, as far as that can be found before any data is read.
    DataError: a file of weights cannot be read.
  """
  if isinstance(config, Plan) and {*studies} <= {*config.watching}:
    return config
  known, given = sections(studies), written(config)
  check_fields(given, known)
  whole = {name: own for name, own in resolved(given).items() if own or name not in CONDITIONS}
  got = {name: whole.get(name, one.default) for name, one in known.items()}
  partition = known["partition"].filled(got["partition"], got["partition"]["name"])
  of_studies = {
    name: one.filled(got[name]) if one.kind == "section" else got[name]
    for name, one in known.items()
    if one.options and not (got[name] is one.default or got[name] == {})
  }
  made = Plan(
    **{name: got[name] for name in AS_GIVEN},
    partition_seed=partition.pop("seed"),
    partition=Choice(partition.pop("name"), partition),
    unseen_fraction=got["unseen"].get("fraction"),
    unseen_steps=tuple(got["unseen"].get("steps", ())),
    model=Choice(got["model"]["name"], {k: v for k, v in got["model"].items() if k != "name"}),
    parts={section: got[section] for section in PARTS},
    studies=of_studies,
    watching=(*STUDIES, *studies),
    as_epochs=tuple(path.rpartition(".")[2] for path in followers(given)),
    written=whole,
  )
  check_parts(made)
  return made
