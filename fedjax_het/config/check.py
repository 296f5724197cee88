"""Checks of a configuration that are possible before any data is read."""

from collections.abc import Mapping
from typing import Any

from fedjax_het import data as datasets
from fedjax_het import models
from fedjax_het.config.algorithm import as_written, build_algorithm, placeholders_of
from fedjax_het.config.known import check_known, check_method, check_name
from fedjax_het.config.sections import Section
from fedjax_het.config.tracking import check_tracking
from fedjax_het.config.typed import Plan
from fedjax_het.data.clients import count_apart
from fedjax_het.data.label_noise import LABEL_NOISES
from fedjax_het.data.sources import check_dataset
from fedjax_het.engine.checks import check_cohort
from fedjax_het.engine.judged import check_eval_clients, check_rounds
from fedjax_het.engine.stopping import check_stopping
from fedjax_het.errors import (
  SettingError,
  check_choice,
  check_flag,
  check_given,
  check_range,
  check_section,
  check_seed,
  check_whole,
  folder_of,
  near,
)
from fedjax_het.methods import CLIENTS, METHODS, Method, small_model
from fedjax_het.parts import ClientUpdate
from fedjax_het.settings import check_settings, settings_of
from fedjax_het.tasks import TASKS


def check_fields(config: Mapping[str, Any], known: Mapping[str, Section]) -> None:
  """Checks the fields of a configuration one by one.

  Args:
    config: nested fields.
    known: all known fields and sections, by name.

  Raises:
    SettingError: a field or name is unknown (the error names the nearest), or a value is out of range.
  """
  for field, value in config.items():
    if field not in known:
      raise SettingError(field, value, "unknown field of the configuration", near(field, known))
  missing = [name for name, section in known.items() if section.required and name not in config]
  if missing:
    others = f", as are {', '.join(missing[1:])}" if missing[1:] else ""
    remedy = "See configs/quickstart.py; --describe says what each field means."
    raise SettingError(missing[0], None, f"is missing from the configuration{others}", remedy)
  for name, section in known.items():
    if section.kind in ("section", "choice"):
      check_section(name, config.get(name, {}))
  for name, section in known.items():
    if section.required and section.kind == "choice" and not config[name].get("name"):
      remedy = (
        f"Give it one, as in --config.{name}=\"{{'name': ...}}\"; python -m fedjax_het.run --list has all."
      )
      raise SettingError(f"{name}.name", None, "is missing", remedy)
  check_flag("stratify", config.get("stratify", False))
  check_seed("seed", config["seed"])
  check_dataset(config["dataset"])
  if config.get("data_dir"):
    folder_of("data_dir", config["data_dir"])  # raises for what is no path
  late_evaluations = config.get("late_evaluations", 0)
  check_rounds(config["rounds"], config["eval_every"], late_evaluations=late_evaluations)
  check_eval_clients(config.get("eval_clients"), config["num_clients"])
  for field in ("test_fraction", "valid_fraction"):
    if field == "valid_fraction" or config[field] is not None:
      check_range(field, config[field], 0.0, below=1.0, on_host=True)
  check_whole("cohort_size", config["cohort_size"], 1)
  if config["num_clients"] is not None:
    check_whole("num_clients", config["num_clients"], 1)
    if config["cohort_size"] > config["num_clients"]:
      problem = f"more than the num_clients = {config['num_clients']} that there are"
      raise SettingError("cohort_size", config["cohort_size"], problem, "Lower it, or raise num_clients.")
  for name, section in known.items():
    given = config.get(name, section.default)
    if name in METHODS:
      check_method(section, config)
    elif section.kind == "choice" and given and not section.always:
      check_chosen(name, section, given)
    elif section.kind == "choices":
      check_several(section, given)
      for number, own in enumerate(given):
        check_chosen(f"{name}.{number}", section, own)
    elif section.kind == "section" and name != "local":
      of = config["dataset"] if name == "dataset_options" else name
      check_given(name, given, section.given)
      check_settings(f"to {of}", section.settings(of), given, place=name)
    elif section.setting and section.options and name in config:
      section.setting.check(given)
  check_task(config.get("task", {}))
  check_label_noise(config.get("label_noise", {}))
  check_unseen_fields(config.get("unseen", {}))
  check_lora(config)
  with as_written(config, "public"):
    if (public := config.get("public", {}).get("dataset")) is not None:
      check_dataset(public)
  check_stopping(
    config.get("stopping", {}), config["valid_fraction"], config["eval_every"], config.get("eval_clients")
  )
  check_tracking(config.get("tracking", {}))
  partition, model = config["partition"], config["model"]
  with as_written(config, "partition"):
    datasets.check_tries(partition.get("balance", False), partition.get("max_tries"))
  with as_written(config, "model"):
    if model.get("weights"):
      models.check_file(model["weights"])
  if config.get("task") and model["name"] in models.GENERATORS:
    raise SettingError("task", config["task"], "a generator trains by losses of its own", "Leave it out.")
  check_fit(CLIENTS[config["algorithm"]["name"]], model["name"])


def check_several(section: Section, given: Any) -> None:
  """Raises `SettingError` unless `given` is a list or a tuple of sections, which stand in order."""
  several = isinstance(given, list | tuple)
  elements = list(given) if several else [given]
  if several and all(hasattr(own, "items") for own in elements):
    return
  names = [name for name in elements if isinstance(name, str) and name in section.table()]
  one = {"name": names[0] if names else next(iter(section.table()))}
  remedy = f'Write one or several in order, such as --config.{section.name}="({one!r},)".'
  raise SettingError(section.name, given, "is no tuple of sections", remedy)


def check_chosen(place: str, section: Section, given: Mapping[str, Any]) -> None:
  """Checks a section whose `name` chooses something and whose other fields are its settings.

  Args:
    place: the section's name, or "SECTION.NUMBER" for one of several.
    section: the section's entry in the registry.
    given: its fields.

  Raises:
    SettingError: the name is missing or unknown, or a field is invalid.
  """
  check_section(place, given)
  if (name := given.get("name")) is None:
    known = ", ".join(section.table())
    raise SettingError(place, dict(given), "has no name, and so no effect", f"Name one of {known}.")
  check_name(place, section, name)
  check_given(place, given, section.given)
  if section.required:
    check_known(section, {place: given})
  settings = {field: value for field, value in given.items() if field != "name"}
  check_settings(f"to {name}", section.settings(name), settings, place=place)


def check_parts(plan: Plan) -> None:
  """Checks that the choices of a plan can be combined, using parts around a small model.

  Raises:
    SettingError: a setting of a part or a study is invalid, or the parts cannot be combined.
  """
  client = CLIENTS[plan.parts["algorithm"]["name"]]
  algorithm = build_algorithm(plan, small_model(client), placeholders_of(plan))
  for study in plan.watching:
    if study.options:
      given = plan.given(study)
      study.check(given, algorithm.client, plan.valid_fraction > 0)
  check_unseen(plan, algorithm.client)
  if plan.stopping.get("model") == "global" and algorithm.client.global_model is None:
    problem = f"{algorithm.client.name} has no global model"
    raise SettingError("stopping.model", "global", problem, "Leave it out, for the personalised ones.")
  with as_written(plan.parts, "algorithm", "local"):
    check_rounds(plan.rounds, plan.eval_every, algorithm)
  if plan.num_clients is not None and plan.unseen_fraction is None:
    check_cohort(algorithm, plan.cohort_size, plan.num_clients)


def check_fit(client: Method, model: str) -> None:
  """Raises `SettingError` if the client part cannot train the model."""
  if model not in client.models:
    raise SettingError(
      "model.name", model, f"not a model that {client.name} trains", f"Use one of {', '.join(client.models)}."
    )


def check_task(given: Mapping[str, Any]) -> None:
  """Raises `SettingError` for an invalid field of `task`, as far as that is known without the data."""
  check_choice("task.name", given.get("name", "classification"), TASKS)
  known = [TASKS[given["name"]]] if "name" in given else TASKS.values()
  settings = {"name", *(setting for task in known for setting in settings_of(task))}
  for field, value in given.items():
    if field not in settings:
      raise SettingError(f"task.{field}", value, "unknown to task", near(field, settings))


def check_label_noise(given: Mapping[str, Any]) -> None:
  """Raises `SettingError` for a `label_noise` of known fields whose values cannot be; {} is none."""
  if not given:
    return
  settings = {field: value for field, value in given.items() if field != "name"}
  if "ratio" not in settings:
    raise SettingError("label_noise.ratio", None, "is missing", "Give the share of labels to be changed.")
  LABEL_NOISES[given["name"]](2, **settings)


def check_lora(config: Mapping[str, Any]) -> None:
  """Raises `SettingError` for a section `lora` that cannot be, as far as that is known without the model."""
  if not (given := config.get("lora", {})):
    return
  if "rank" not in given:
    raise SettingError("lora.rank", None, "is missing", "Give the rank of the adapters, such as 4.")
  name, method = config["model"]["name"], CLIENTS[config["algorithm"]["name"]]
  if name in models.GENERATORS:
    raise SettingError("lora", dict(given), f"adapts no {name}, which is a generator", "Leave it out.")
  if given.get("variant") == "shared_a" and "head" not in method.settings:
    owners = ", ".join(own for own, each in CLIENTS.items() if "head" in each.settings)
    raise SettingError(
      "lora.variant", "shared_a", f"clients keep B only by a method with a personal head, and {method.name} "
      "has none", f"Use one of {owners}.",
    )  # fmt: skip


def check_unseen(plan: Plan, client: ClientUpdate) -> None:
  """Raises `SettingError` for a section `unseen` that does not go with the client part or the cohort.

  Args:
    plan: the plan.
    client: its client part, around any model.
  """
  if plan.unseen_fraction is None:
    return
  steps = [*plan.unseen_steps]
  if client.global_model is None:
    raise SettingError(
      "unseen", plan.written["unseen"],
      f"{client.name} has no global model, which such clients would start with",
      "Use a method that has one, such as fedavg, or leave unseen out.",
    )  # fmt: skip
  if steps and (plan.model.name in models.GENERATORS or not client.needs.uploads_model):
    raise SettingError(
      "unseen.steps", steps, f"{client.name} shares no model that could be trained on", "Set it to []."
    )
  if plan.num_clients is not None:
    with as_written(plan.written, "unseen"):
      apart = count_apart(plan.num_clients, plan.unseen_fraction)
    left = plan.num_clients - apart
    if plan.cohort_size > left:
      raise SettingError(
        "cohort_size", plan.cohort_size, f"{apart} of {plan.num_clients} clients are unseen",
        f"Use at most {left}, or a smaller unseen.fraction.",
      )  # fmt: skip


def check_unseen_fields(given: Mapping[str, Any]) -> None:
  """Raises `SettingError` for a `unseen` of known fields whose values cannot be; {} is none."""
  if not given:
    return
  if "fraction" not in given:
    raise SettingError("unseen.fraction", None, "is missing", "Give the share of clients that never train.")
  steps = given.get("steps", ())
  if not isinstance(steps, list | tuple):
    raise SettingError("unseen.steps", steps, "not a list", f"Write [{steps}].")
  steps = list(steps)
  for count in steps:
    check_whole("unseen.steps", count, 1)
  if sorted(set(steps)) != steps:
    raise SettingError("unseen.steps", steps, "do not rise", "Give each number once, smaller ones first.")
