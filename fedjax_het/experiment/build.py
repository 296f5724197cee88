"""From a configuration to what it names: data, model, algorithm."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from fedjax_het import data as datasets
from fedjax_het import models
from fedjax_het.config.algorithm import algorithm_maker, build_algorithm, check_variance, prepared_of
from fedjax_het.config.check import check_config
from fedjax_het.config.label_noise import noise_report, noisy_labels
from fedjax_het.config.shares import rounded_to_nothing
from fedjax_het.config.task import build_task
from fedjax_het.config.unseen import set_apart
from fedjax_het.config.values import numbers
from fedjax_het.data.container import FederatedData
from fedjax_het.data.files import Source, digest
from fedjax_het.engine.checks import check_cohort
from fedjax_het.engine.engine import Engine
from fedjax_het.errors import SettingError
from fedjax_het.models import Generative, Model
from fedjax_het.parts import Algorithm
from fedjax_het.program.where import Where
from fedjax_het.studies.downstream import classifier, to_follow
from fedjax_het.studies.landscape import rows_of


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
    label_noise: what is done to the labels: the section `label_noise`, and in `changed` the share of these
      clients' training and validation labels that became others; None where none are touched.
    prepared: what the client part was given that is made of the clients' label counts, see `prepared_of`.
    digests: "data_digest" of the data set, whatever the seed, and "clients_digest" of who has which of its
      rows, with which labels; "prepared_digest" where there is something prepared.
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
  digests: Mapping[str, str] = {}


def notes_of(config: ConfigDict, experiment: Experiment) -> tuple[str, ...]:
  """What should be known of a run before it trains: of its data, and of settings that come to nothing."""
  own = config.partition.get("seed")
  said = f"partition.seed = {own}: who has which rows, and which are tested on, does not follow seed."
  return (
    *experiment.source.notes,
    *([] if own is None else [said]),
    *rounded_to_nothing(config.algorithm, config.rounds),
    *experiment.algorithm.client.remarks(experiment.data),
  )


def engine_of(config: ConfigDict, experiment: Experiment, where: Where) -> Engine:
  """What trains a configuration's run: its `numbers`, and what was prepared, are values of the program."""
  make, values = algorithm_maker(config, experiment.model), numbers(config)
  if experiment.prepared:
    values["prepared"] = experiment.prepared
  return Engine(make, experiment.data, config.cohort_size, settings=values, **where._asdict())


def with_prepared(experiment: Experiment, prepared: Mapping[str, Any]) -> Experiment:
  """The same with this prepared, and with its digest, to three decimals: processors differ in last places."""
  if not prepared:
    return experiment
  rounded = jax.tree.map(lambda leaf: np.round(np.asarray(leaf, np.float64), 3), prepared)
  digests = {**experiment.digests, "prepared_digest": digest(rounded)}
  return experiment._replace(prepared=prepared, digests=digests)


def data_keys(config: ConfigDict, *of_run: jax.Array) -> tuple[jax.Array, ...]:
  """Returns the keys of the partition and of each client's split: of `partition.seed` where it is given.

  Args:
    config: the configuration.
    *of_run: the two keys that follow from the run's seed.
  """
  seed = config.partition.get("seed")
  if seed is None:
    return of_run
  return tuple(jax.random.fold_in(jax.random.key(seed), purpose) for purpose in range(len(of_run)))


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
  partition_key, split_key = data_keys(config, partition_key, split_key)
  source = datasets.load(config.dataset, config.data_dir, **config.get("dataset_options", {}))
  options = {name: value for name, value in config.partition.items() if name not in ("name", "seed")}
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
  split, stratify, notes = None, config.get("stratify", False), [*source.notes]
  if config.test_fraction is None:
    split = source.split
    if stratify and not config.valid_fraction:
      stratify = False
      notes.append(f"{source.name} comes divided: stratify has no effect.")
  elif source.split is not None:
    notes.append(f"{source.name} comes divided; test_fraction = {config.test_fraction} divides it anew.")
  laid_out = functools.partial(
    datasets.federate,
    y=source.y,
    parts=parts,
    key=split_key,
    num_classes=source.num_classes,
    task=task,
    test_fraction=config.test_fraction,
    split=split,
    valid_fraction=config.valid_fraction,
    stratify=stratify,
    name=source.name,
  )
  noise = config.get("label_noise", {})
  noisy = noisy_labels(noise_key, noise, source, task)
  data = laid_out(
    source.x, standardize=source.standardize, scale=source.scale, train_y=noisy, tell=notes.append
  )
  source = source._replace(notes=tuple(notes))
  apart = functools.partial(set_apart, unseen_key, config.get("unseen", {}), parts=parts)
  clean = apart(data=laid_out(source.y))[0] if noise else None
  data, parts, unseen = apart(data=data)
  noise = noise_report(noise, data, clean.x) if clean else None
  model_options = {name: value for name, value in config.model.items() if name != "name"}
  shape = jax.tree.map(lambda leaf: leaf.shape[1:], source.x)
  task = build_task(config.get("task", {}), source, np.asarray(data.y)[data.train.rows()])
  prepared = prepared_of(config, data, task)
  model = models.make(config.model.name, shape, source.num_classes, task, **model_options)
  algorithm = build_algorithm(config, model, prepared)
  check_cohort(algorithm, config.cohort_size, data.num_clients)
  if algorithm.client.synthesize is not None:
    asked = config.to_dict().get("downstream", {})
    for judge in (asked, to_follow(asked) or {}):
      classifier(judge.get("model"), source)
    tests = len(source.y_test) or int(np.sum(data.test.size))
    if asked.get("features") and tests < 2:
      raise SettingError(
        "downstream.features", asked["features"],
        f"distances are to real test examples, of which there are {tests}",
        "Hold some out, as by test_fraction = 0.2, or leave it out.",
      )  # fmt: skip
  check_variance(config, algorithm.client, model)
  if config.get("landscape"):
    rows_of(data, config.landscape.get("part", "test"))
  digests = {
    "data_digest": digest(source.x, source.y, source.x_test, source.y_test, source.groups, source.split),
    "clients_digest": digest(parts, data.y, data.train, data.valid, data.test, unseen and unseen.y),
  }
  built = Experiment(algorithm, data, model, run_key, parts, source, unseen, noise, digests=digests)
  return with_prepared(built, prepared)
