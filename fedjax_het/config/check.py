"""Checks of a configuration that are possible before any data is read."""

from collections.abc import Mapping
from typing import Any

from fedjax_het import data as datasets
from fedjax_het import models
from fedjax_het.config.algorithm import as_written, build_algorithm, placeholders_of
from fedjax_het.config.known import check_known, check_model
from fedjax_het.config.label_noise import check_label_noise
from fedjax_het.config.sections import Section
from fedjax_het.config.task import check_task
from fedjax_het.config.typed import Plan
from fedjax_het.config.unseen import check_unseen, check_unseen_fields
from fedjax_het.data.sources import check_dataset, kind_of
from fedjax_het.engine.checks import check_cohort
from fedjax_het.engine.run import check_rounds
from fedjax_het.errors import (
  SettingError,
  check_choice,
  check_flag,
  check_given,
  check_range,
  check_section,
  check_seed,
  check_whole,
  near,
)
from fedjax_het.methods import CLIENTS, Method, small_model
from fedjax_het.settings import check_settings, settings_of
from fedjax_het.studies import Options


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
  for name, section in known.items():
    if section.required and name not in config:
      raise SettingError(name, None, "is missing from the configuration", "See configs/quickstart.py.")
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
  for name in ("model", "partition", "dataset_options"):
    check_given(name, config.get(name, {}), known[name].given)
  model = config["model"]
  check_dataset(config["dataset"])
  check_choice("model.name", model["name"], (*models.MODELS, *models.GENERATORS))
  with as_written(config, "model"):
    if model.get("weights"):
      models.check_file(model["weights"])
  check_loader(config["dataset"], config.get("dataset_options", {}), known["dataset_options"])
  with as_written(config, "partition"):
    check_partition(config["partition"], known["partition"].given)
  late_evaluations = config.get("late_evaluations", 0)
  check_rounds(config["rounds"], config["eval_every"], late_evaluations=late_evaluations)
  for field in ("test_fraction", "valid_fraction"):
    if field == "valid_fraction" or config[field] is not None:
      check_range(field, config[field], 0.0, below=1.0, on_host=True)
  check_whole("cohort_size", config["cohort_size"], 1)
  if config["num_clients"] is not None:
    check_whole("num_clients", config["num_clients"], 1)
    check_range("cohort_size", config["cohort_size"], 1, config["num_clients"])
  for name, section in known.items():
    given = config.get(name)
    if given and section.kind == "choice" and not (section.required or section.always):
      check_chosen(name, section, given)
    for number, own in enumerate(given or () if section.kind == "choices" else ()):
      check_chosen(f"{name}.{number}", section, own)
    if section.options and name in config:
      check_options(section.options, config[name])
  check_task(config.get("task", {}))
  check_label_noise(config.get("label_noise", {}))
  check_unseen_fields(config.get("unseen", {}))
  if config.get("task") and model["name"] in models.GENERATORS:
    raise SettingError("task", config["task"], "a generator trains by losses of its own", "Leave it out.")
  check_choice("algorithm.name", config["algorithm"]["name"], CLIENTS)
  check_fit(CLIENTS[config["algorithm"]["name"]], model["name"])
  check_model(model)
  factory = (models.MODELS | models.GENERATORS)[model["name"]]
  own = {name: value for name, value in model.items() if name not in ("name", *known["model"].more)}
  check_settings(f"to {model['name']}", factory, own, known["model"].given, place="model")


def check_chosen(place: str, section: Section, given: Mapping[str, Any]) -> None:
  """Checks a section whose `name` chooses something and whose other fields are its settings.

  Args:
    place: the section's name, or "SECTION.NUMBER" for one of several.
    section: the section's entry in the registry.
    given: its fields.

  Raises:
    SettingError: the name is missing or unknown, or a field is invalid.
  """
  table = section.table()
  check_section(place, given)
  if given.get("name") is None:
    raise SettingError(
      place, dict(given), "has no name, and so no effect", f"Name one of {', '.join(table)}."
    )
  check_choice(f"{place}.name", given["name"], table)
  check_given(place, given, section.given)
  settings = {field: value for field, value in given.items() if field != "name"}
  check_settings(f"to {given['name']}", table[given["name"]], settings, section.given, place)


def check_options(options: Options, given: Any) -> None:
  """Raises `SettingError` for an option that a study does not take, or of another type; see `Options`."""
  if options.single:
    check_settings("", options.settings, {options.name: given})
  else:
    check_settings(f"to {options.name}", options.settings, given, place=options.name)


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
  with as_written(plan.parts, "algorithm", "local"):
    check_rounds(plan.rounds, plan.eval_every, algorithm)
  if plan.num_clients is not None and plan.unseen_fraction is None:
    check_cohort(algorithm, plan.cohort_size, plan.num_clients)


def check_loader(dataset: str, given: Mapping[str, Any], section: Section) -> None:
  """Raises `SettingError` for an unknown or impossible option of a data set's loader."""
  options = {name: value for name, value in given.items() if name not in section.more}
  if given.get("resize") is not None:
    check_whole("dataset_options.resize", given["resize"], 1)
  known = {**settings_of(section.table()[kind_of(dataset)]), **settings_of(datasets.load)}
  apart = {*section.given, "folder", "options"}
  check_settings(f"to {dataset}", known, options, apart, place="dataset_options")


def check_partition(given: Mapping[str, Any], not_settable: Mapping[str, str]) -> None:
  """Raises `SettingError` for an unknown partition or an unknown option of it."""
  name, known = given["name"], datasets.PARTITIONERS
  check_choice("partition.name", name, known)
  of_all = {each: {*settings_of(own)} - {*not_settable, "groups"} for each, own in known.items()}
  if given.get("seed") is not None:
    check_seed("partition.seed", given["seed"])
  options = {option: value for option, value in given.items() if option not in ("name", "seed")}
  check_known(name, {"partition": {"name": name, **options}}, of_all[name], lambda: of_all)
  check_settings(f"option of partition {name!r}", known[name], options, (*not_settable, "groups"))
  datasets.check_tries(options.get("balance", False), options.get("max_tries"))


def check_fit(client: Method, model: str) -> None:
  """Raises `SettingError` if the client part cannot train the model."""
  if model not in client.models:
    raise SettingError(
      "model.name", model, f"not a model that {client.name} trains", f"Use one of {', '.join(client.models)}."
    )
