"""What can be checked of a configuration before any data is read."""

import inspect
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from fedjax_het import data as datasets
from fedjax_het import models
from fedjax_het.config.algorithm import as_written, build_algorithm
from fedjax_het.config.known import check_known, check_model
from fedjax_het.config.label_noise import check_label_noise
from fedjax_het.config.task import check_task
from fedjax_het.config.unseen import check_unseen
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
  check_settings,
  check_whole,
)
from fedjax_het.methods import CLIENTS, Method, small_model
from fedjax_het.studies.best import check_to_accuracy
from fedjax_het.studies.downstream import check_downstream
from fedjax_het.studies.landscape import check_landscape

# What a section's factory is given besides the section's fields, and where that comes from.
_GIVEN = {
  "model": {"shape": "the data set", "num_classes": "the data set", "task": "the section task"},
  "partition": {"key": "seed", "labels": "the data set", "num_clients": "the field num_clients"},
  "dataset_options": {"name": "the field dataset", "data_dir": "the field data_dir"},
}

FIELDS = (
  "dataset", "data_dir", "num_clients", "partition", "test_fraction", "valid_fraction", "model", "algorithm",
  "local", "mixing", "server", "rounds", "cohort_size", "seed", "eval_every",
)  # fmt: skip
OPTIONAL = (
  "dataset_options", "stratify", "record_losses", "downstream", "landscape", "task", "label_noise", "unseen",
  "to_accuracy", "record_variance",
)  # fmt: skip
SECTIONS = (
  "dataset_options", "partition", "task", "model", "algorithm", "local", "mixing", "server", "downstream",
  "landscape", "label_noise", "unseen",
)  # fmt: skip
NAMED = ("partition", "model", "algorithm", "mixing", "server")  # sections that choose a part by its name


def check_config(config: ConfigDict) -> None:
  """Checks what can be checked before any data is read.

  Raises:
    SettingError: an unknown field or name (naming the nearest), or a value out of range.
  """
  for field in config:
    check_choice("field of the configuration", field, (*FIELDS, *OPTIONAL))
  for field in FIELDS:
    if field not in config:
      raise SettingError(field, None, "is missing from the configuration", "See configs/quickstart.py.")
  for section in SECTIONS:
    check_section(section, config.get(section, {}))
  for section in NAMED:
    if not config[section].get("name"):
      remedy = (
        f"Give it one, as in --config.{section}=\"{{'name': ...}}\"; python -m fedjax_het.run --list has all."
      )
      raise SettingError(f"{section}.name", None, "is missing", remedy)
  for flag in ("stratify", "record_losses", "record_variance"):
    check_flag(flag, config.get(flag, False))
  check_seed("seed", config.seed)
  for section, given in _GIVEN.items():
    check_given(section, config.get(section, {}), given)
  check_choice("dataset", config.dataset, datasets.names())
  check_choice("model.name", config.model.name, (*models.MODELS, *models.GENERATORS))
  if config.model.get("weights"):
    models.check_file(config.model.weights)
  with as_written(config, "partition"):
    check_partition(config.partition.to_dict())
  check_rounds(config.rounds, config.eval_every)
  for field in ("test_fraction", "valid_fraction"):
    if field == "valid_fraction" or config[field] is not None:
      check_range(field, config[field], 0.0, 1.0, on_host=True)
  check_whole("cohort_size", config.cohort_size, 1)
  if config.num_clients is not None:
    check_whole("num_clients", config.num_clients, 1)
    check_range("cohort_size", config.cohort_size, 1, config.num_clients)
  check_downstream(config.to_dict().get("downstream", {}))
  check_task(config.get("task", {}))
  check_label_noise(config.get("label_noise", {}))
  if config.get("task") and config.model.name in models.GENERATORS:
    raise SettingError("task", dict(config.task), "a generator trains by losses of its own", "Leave it out.")
  check_choice("algorithm.name", config.algorithm.name, CLIENTS)
  client = CLIENTS[config.algorithm.name]
  check_fit(client, config.model.name)
  check_model(config.model)
  unprepared = client.unprepared(config.num_clients, {**config.local, **config.algorithm})
  algorithm = build_algorithm(config, small_model(client), unprepared)
  if config.get("downstream") and algorithm.client.synthesize is None:
    problem = f"{algorithm.client.name} synthesises nothing that could be judged"
    raise SettingError("downstream", config.downstream.to_dict(), problem, "Leave it out.")
  check_to_accuracy(config.to_dict().get("to_accuracy"), algorithm.client)
  check_unseen(config, algorithm.client)
  check_landscape(config.to_dict().get("landscape", {}), algorithm.client, config.valid_fraction > 0)
  check_rounds(config.rounds, config.eval_every, algorithm)
  if config.num_clients is not None and not config.get("unseen", {}):
    check_cohort(algorithm, config.cohort_size, config.num_clients)


def check_partition(given: Mapping[str, Any]) -> None:
  """Raises `SettingError` for a partition or an option of it that is not known."""
  name, known = given["name"], datasets.PARTITIONERS
  check_choice("partition.name", name, known)
  of_all = {
    each: {*inspect.signature(own).parameters} - {*_GIVEN["partition"], "groups"}
    for each, own in known.items()
  }
  if given.get("seed") is not None:
    check_seed("partition.seed", given["seed"])
  options = {option: value for option, value in given.items() if option not in ("name", "seed")}
  check_known(name, {"partition": {"name": name, **options}}, of_all[name], lambda: of_all)
  check_settings(f"option of partition {name!r}", known[name], options, (*_GIVEN["partition"], "groups"))
  for option, value in options.items():
    datasets.check_option(option, value)
  datasets.check_tries(options.get("balance", False), options.get("max_tries"))


def check_fit(client: Method, model: str) -> None:
  """Raises `SettingError` where client part and model do not belong together."""
  if model not in client.models:
    raise SettingError(
      "model.name", model, f"not a model that {client.name} trains", f"Use one of {', '.join(client.models)}."
    )
