"""From a configuration to what it names: data, model, algorithm."""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from fedjax_het import data as datasets
from fedjax_het import mixing, models
from fedjax_het.clients.heads import layers_of_head
from fedjax_het.data.clients import label_counts
from fedjax_het.data.container import FederatedData
from fedjax_het.data.files import Source
from fedjax_het.engine.engine import Engine
from fedjax_het.engine.run import check_rounds
from fedjax_het.errors import (
  SettingError,
  check_choice,
  check_given,
  check_parameters,
  check_range,
  check_settings,
  check_whole,
)
from fedjax_het.experiment.label_noise import check_label_noise, noise_report, noisy_labels
from fedjax_het.experiment.shares import in_rounds
from fedjax_het.experiment.task import build_task, check_task
from fedjax_het.experiment.unseen import check_unseen, set_apart
from fedjax_het.experiment.values import numbers, with_values
from fedjax_het.experiment.where import Where
from fedjax_het.federated import federated
from fedjax_het.methods import CLIENTS, METHODS, Method, small_model
from fedjax_het.models import Generative, Model
from fedjax_het.parts import Algorithm, ClientUpdate
from fedjax_het.tasks import Task
from fedjax_het.yardsticks.best import check_to_accuracy
from fedjax_het.yardsticks.downstream import check_downstream
from fedjax_het.yardsticks.landscape import check_landscape

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


class Experiment(NamedTuple):
  """What a configuration names.

  Attributes:
    algorithm: the three parts.
    data: the clients' data.
    model: the model.
    key: the run's key.
    parts: row numbers of each client in the data set, for pictures.
    source: the data set.
    unseen: the data of the clients that never train; None where all may.
    label_noise: what is done to the labels: the section `label_noise`, and in `changed` the share of all
      training and validation labels that became others; None where none are touched.
    prepared: what the client part was given that is made of the clients' label counts, see `prepared_of`.
  """

  algorithm: Algorithm
  data: FederatedData
  model: Model | Generative
  key: jax.Array
  parts: list[np.ndarray]
  source: Source
  unseen: FederatedData | None = None
  label_noise: Mapping[str, Any] | None = None
  prepared: Mapping[str, Any] = {}


def named(section: str, config: Mapping[str, Any], **given: Any) -> Any:
  """The part of a method that `config.name` names, with the other fields of `config`, after checking both."""
  name, table = config["name"], METHODS[section]
  check_choice(f"{section}.name", name, table)
  settings = {setting: value for setting, value in config.items() if setting != "name"}
  try:
    check_parameters(f"{section}'s setting for {name}", table[name].settings, settings)
  except SettingError as error:
    left = {*settings} - {*table[name].settings}
    if not left & {setting for method in table.values() for setting in (*method.settings, *method.shares)}:
      raise
    raise SettingError(
      f"{error} Settings of another {section} are left where only the name is changed: choose it behind the "
      "file's name, as in --config=configs/quickstart.py:algorithm=fedavg."
    ) from error
  return table[name].make(given, **settings)


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
  for section, given in _GIVEN.items():
    check_given(section, config.get(section, {}), given)
  check_choice("dataset", config.dataset, datasets.DATASETS)
  check_choice("model.name", config.model.name, (*models.MODELS, *models.GENERATORS))
  if config.model.get("weights"):
    models.check_file(config.model.weights)
  check_partition(config.partition.to_dict())
  check_rounds(config.rounds, config.eval_every)
  for field in ("test_fraction", "valid_fraction"):
    if field == "valid_fraction" or config[field] is not None:
      check_range(field, config[field], 0.0, 1.0)
  check_range("cohort_size", config.cohort_size, 1)
  if config.num_clients is not None:
    check_whole("num_clients", config.num_clients, 1)
    check_range("cohort_size", config.cohort_size, 1, config.num_clients)
  check_downstream(config.to_dict().get("downstream", {}))
  check_to_accuracy(config.to_dict().get("to_accuracy"))
  check_task(config.get("task", {}))
  check_label_noise(config.get("label_noise", {}))
  if config.get("task") and config.model.name in models.GENERATORS:
    raise SettingError("task", dict(config.task), "a generator trains by losses of its own", "Leave it out.")
  check_choice("algorithm.name", config.algorithm.name, CLIENTS)
  client = CLIENTS[config.algorithm.name]
  check_fit(client, config.model.name)
  unprepared = client.unprepared(config.num_clients, {**config.local, **config.algorithm})
  algorithm = build_algorithm(config, small_model(client), unprepared)
  check_unseen(config, algorithm.client)
  check_landscape(config.to_dict().get("landscape", {}), algorithm.client)
  check_rounds(config.rounds, config.eval_every, algorithm)


def check_partition(given: Mapping[str, Any]) -> None:
  """Raises `SettingError` for a partition or an option of it that is not known."""
  name, known = given["name"], datasets.PARTITIONERS
  check_choice("partition.name", name, known)
  options = {option: value for option, value in given.items() if option != "name"}
  try:
    check_settings(f"option of partition {name!r}", known[name], options, (*_GIVEN["partition"], "groups"))
  except SettingError as error:
    of_others = {
      option for partitioner in known.values() for option in inspect.signature(partitioner).parameters
    }
    if not {*options} & of_others - {*inspect.signature(known[name]).parameters}:
      raise
    raise SettingError(
      f"{error} Options of another partition are left where only the name is changed: write"
      f" --config.partition=\"{{'name': '{name}'}}\"."
    ) from error


def check_fit(client: Method, model: str) -> None:
  """Raises `SettingError` where client part and model do not belong together."""
  if model not in client.models:
    raise SettingError(
      "model.name", model, f"not a model that {client.name} trains", f"Use one of {', '.join(client.models)}."
    )


def prepared_of(config: ConfigDict, data: FederatedData, task: Task) -> dict[str, Any]:
  """What a configuration's client part is given that is made of all clients' label counts; {} for most.

  Raises:
    SettingError: of labels that are no classes, or a setting that does not go with the counts.
  """
  client = CLIENTS[config.algorithm.name]
  if client.prepares is None:
    return {}
  if not task.classes:
    raise SettingError(
      "algorithm.name", client.name, f"goes by the clients' counts of classes, and the labels of {task.name} "
      "are none", "Use another method, or data whose labels are classes.",
    )  # fmt: skip
  seed = np.asarray(jax.random.key_data(jax.random.fold_in(jax.random.key(config.seed), 5)))[-1]
  return client.prepared(label_counts(data), int(seed), {**config.local, **config.algorithm})


def build_algorithm(
  config: Mapping[str, Any], model: Model | Generative, prepared: Mapping[str, Any] = MappingProxyType({})
) -> Algorithm:
  """The three parts that a configuration names, around `model`; `prepared` is as of `prepared_of`."""
  move = named("server", config["server"], rounds=config["rounds"])
  algorithm = in_rounds(config["algorithm"], config["rounds"])
  client = named("algorithm", {**config["local"], **algorithm}, model=model, **prepared)
  mix = named("mixing", config["mixing"])
  if config.get("record_losses", False):
    mix = mixing.observed(mix)
  if config.get("record_variance", False):
    mix = mixing.with_variance(mix, layers_of_head(model))
  return federated(client, mix, move)


def check_variance(config: Mapping[str, Any], client: ClientUpdate, model: Model | Generative) -> None:
  """Raises `SettingError` where the variance of a last layer is asked for that no client sends."""
  if config.get("record_variance", False):
    sent = jax.eval_shape(client.share, jax.random.key(0)).params
    if not client.uploads_model or not layers_of_head(model)(sent):
      raise SettingError(
        "record_variance", True, f"{client.name} sends no last layer of {model.name}", "Leave it out."
      )


def algorithm_maker(config: ConfigDict, model: Model | Generative) -> Callable[..., Algorithm]:
  """(prepared, **{dotted field: number}) -> a configuration's algorithm with these; see `prepared_of`."""

  def make(prepared: Mapping[str, Any] = MappingProxyType({}), **values: Any) -> Algorithm:
    return build_algorithm(with_values(config, values).to_dict(), model, prepared)

  return make


def engine_of(config: ConfigDict, experiment: Experiment, where: Where) -> Engine:
  """What trains a configuration's run: its `numbers`, and what was prepared, are values of the program."""
  make, values = algorithm_maker(config, experiment.model), numbers(config)
  if experiment.prepared:
    values["prepared"] = experiment.prepared
  return Engine(make, experiment.data, config.cohort_size, settings=values, **where._asdict())


def build(config: ConfigDict) -> Experiment:
  """Reads the data, partitions them, and builds model and algorithm.

  Raises:
    SettingError: see `check_config`, and what the data cannot give.
    DataError: a data file is missing or damaged.
  """
  check_config(config)
  key = jax.random.key(config.seed)
  partition_key, split_key, run_key, noise_key, unseen_key = (
    jax.random.fold_in(key, purpose) for purpose in range(5)
  )
  source = datasets.load(config.dataset, config.data_dir, **config.get("dataset_options", {}))
  options = {name: value for name, value in config.partition.items() if name != "name"}
  if config.partition.name == "natural":
    if source.groups is None:
      raise SettingError(
        "partition.name", "natural", f"{source.name} does not say whose its rows are", "Use iid or dirichlet."
      )
    options["groups"] = source.groups
  parts = datasets.partition(partition_key, config.partition.name, source.y, config.num_clients, **options)
  task = build_task(config.get("task", {}), source)
  if config.test_fraction is None and source.split is None:
    raise SettingError(
      "test_fraction", None, f"{source.name} does not come divided", "Use a share, such as 0.2."
    )
  laid_out = functools.partial(
    datasets.federate,
    y=source.y,
    parts=parts,
    key=split_key,
    num_classes=source.num_classes,
    task=task,
    test_fraction=config.test_fraction,
    split=source.split if config.test_fraction is None else None,
    valid_fraction=config.valid_fraction,
    stratify=config.get("stratify", False),
    name=source.name,
  )
  noise = config.get("label_noise", {})
  noisy = noisy_labels(noise_key, noise, source, task)
  data = laid_out(source.x, standardize=source.standardize, scale=source.scale, train_y=noisy)
  noise = noise_report(noise, data, laid_out(source.y).x) if noise else None
  data, parts, unseen = set_apart(unseen_key, config.get("unseen", {}), data, parts)
  model_options = {name: value for name, value in config.model.items() if name != "name"}
  shape = jax.tree.map(lambda leaf: leaf.shape[1:], source.x)
  task = build_task(config.get("task", {}), source, np.asarray(data.y)[data.train.rows()])
  prepared = prepared_of(config, data, task)
  model = models.make(config.model.name, shape, source.num_classes, task, **model_options)
  algorithm = build_algorithm(config, model, prepared)
  check_variance(config, algorithm.client, model)
  return Experiment(algorithm, data, model, run_key, parts, source, unseen, noise, prepared)
