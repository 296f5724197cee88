"""Builds what a plan names: data, model and algorithm."""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_het import data as datasets
from fedjax_het import models
from fedjax_het.config.algorithm import (
  algorithm_maker,
  as_written,
  build_algorithm,
  prepared_of,
  reads_public,
)
from fedjax_het.config.data import build_task, noise_report, noisy_labels, set_apart, shifted
from fedjax_het.config.shares import rounded_to_nothing
from fedjax_het.config.typed import Plan
from fedjax_het.config.values import chosen
from fedjax_het.data.container import FederatedData
from fedjax_het.data.encoder import with_names
from fedjax_het.data.files import Source, digest
from fedjax_het.data.own import names_of
from fedjax_het.data.sources import OWN, kind_of
from fedjax_het.engine.checks import check_cohort, remarks_of
from fedjax_het.engine.engine import Engine
from fedjax_het.engine.judged import all_are_judged, check_eval_clients, fewer_late_rounds
from fedjax_het.errors import DataError, SettingError
from fedjax_het.methods import TABLES
from fedjax_het.models import Generative, Model
from fedjax_het.parts import Algorithm, ClientUpdate
from fedjax_het.privacy import records
from fedjax_het.privacy.ledger import Ledger, keeps_state
from fedjax_het.program.where import Where
from fedjax_het.settings import settings_of
from fedjax_het.studies import Watched
from fedjax_het.studies.record_privacy import RecordPrivacy, delta_of


class Experiment(NamedTuple):
  """Data, model and algorithm of a run, made from its plan.

  Attributes:
    plan: the run's plan.
    algorithm: the three parts.
    data: the clients' data.
    model: the model.
    key: the run's key.
    parts: row numbers of each client in the data set, for pictures.
    source: the data set.
    unseen: the data of the clients that never train; None if there are none.
    hidden: the clients' hidden clusters, int [K], where the section `feature_shift` makes some; else None.
    label_noise: the section `label_noise`, with the fraction `changed` of the clients' training and
      validation labels that differ from the true ones; None without noise.
    prepared: arguments of the client part that are made of the clients' data, see `Method.prepare`.
    digests: hashes: "data_digest" of the data set, independent of the seed; "clients_digest" of each client's
      rows and labels; "prepared_digest" of `prepared`, if there is any.
  """

  plan: Plan
  algorithm: Algorithm
  data: FederatedData
  model: Model | Generative
  key: jax.Array
  parts: list[np.ndarray]
  source: Source
  unseen: FederatedData | None = None
  hidden: np.ndarray | None = None
  label_noise: Mapping[str, Any] | None = None
  prepared: Mapping[str, Any] = {}
  digests: Mapping[str, str] = {}


def notes_of(experiment: Experiment) -> tuple[str, ...]:
  """Returns sentences to show before a run trains: about its data, and about settings without effect."""
  plan, own = experiment.plan, experiment.plan.partition_seed
  said = f"partition.seed = {own}: who has which rows, and which are tested on, does not follow seed."
  return (
    *experiment.source.notes,
    *([] if own is None else [said]),
    *without_effect(experiment),
    *replaced_settings(plan, experiment.algorithm.client),
    *rounded_to_nothing(plan.parts["algorithm"], plan.rounds),
    *fewer_late_rounds(plan.rounds, plan.late_evaluations),
    *all_are_judged(
      plan.eval_clients, plan.rounds, plan.eval_every, plan.late_evaluations, experiment.data.num_clients
    ),
    *remarks_of(experiment.algorithm, experiment.data, plan.cohort_size),
    *private(experiment),
  )


def private(experiment: Experiment) -> Iterator[str]:
  """Yields what a private run guarantees after its last round, and what it does not."""
  plan, algorithm, data = experiment.plan, experiment.algorithm, experiment.data
  ledger = Ledger.of(algorithm, data, plan.cohort_size)
  if ledger is not None:
    yield from ledger.notes(plan.rounds)
  if (of := algorithm.client.studies.records) is not None:
    sizes, share = np.asarray(data.train.size), algorithm.clients_in_a_round(plan.cohort_size)
    delta = delta_of(sizes, record_delta=plan.given(RecordPrivacy))
    yield from records.notes(of, sizes, plan.rounds, share / data.num_clients, delta)


def replaced_settings(plan: Plan, client: ClientUpdate) -> Iterator[str]:
  """Yields a note for each mixing or server setting that a method's own part leaves without effect."""
  for section, part in client.needs.brings.items():
    known = TABLES[section][plan.parts[section]["name"]].settings
    for name, value in plan.parts[section].items():
      if name in known and value != known[name].default:
        yield f"{section}.{name} = {value}: no effect, as {client.name} brings its own part, {part.name}."


def without_effect(experiment: Experiment) -> Iterator[str]:
  """Yields a sentence for each setting whose value changes nothing in this run."""
  plan, algorithm, data = experiment.plan, experiment.algorithm, experiment.data
  if plan.data_dir and plan.dataset == "digits":
    yield f"data_dir = {plan.data_dir}: has no effect, as digits comes with scikit-learn."
  if plan.eval_every is not None and plan.eval_every > plan.rounds:
    yield f"eval_every = {plan.eval_every}: above rounds = {plan.rounds}, so only the end is evaluated."
  if plan.label_noise and not plan.label_noise["ratio"]:
    yield f"label_noise.ratio = {plan.label_noise['ratio']}: no label is changed."
  over = plan.parts["system"].get("over_selection", 1.0)
  if over > 1 and algorithm.clients_in_a_round(plan.cohort_size) >= data.num_clients:
    yield f"system.over_selection = {over}: has no effect, as all {data.num_clients} clients are asked."
  if (reader := reads_public(plan)) and plan.public.get("dataset") is None:
    yield f"public.dataset is not set: {reader} learns on seeded noise in the range of the clients' examples."
  elif plan.public and not reader:
    yield "public: no effect, as no method that is chosen reads public examples."
  for field, part in (("test_fraction", data.test), ("valid_fraction", data.valid)):
    if getattr(plan, field) and not np.asarray(part.size).any():
      yield f"{field} = {getattr(plan, field)}: rounds down to no row of any client."


def engine_of(experiment: Experiment, where: Where) -> Engine:
  """Makes the engine of a run; the plan's `numbers` and prepared arguments are program values."""
  plan = experiment.plan
  make, values = algorithm_maker(plan, experiment.model), plan.numbers
  if experiment.prepared:
    values["prepared"] = experiment.prepared
  sections = {**plan.parts, "task": plan.task}
  with as_written(sections, "algorithm", "local", "task"):
    return Engine(make, experiment.data, plan.cohort_size, settings=values, **where._asdict())


def with_prepared(experiment: Experiment, prepared: Mapping[str, Any]) -> Experiment:
  """Returns the experiment with prepared arguments and their digest.

  The digest is of three decimals, as processors differ in last places.
  """
  if not prepared:
    return experiment
  rounded = jax.tree.map(lambda leaf: np.round(np.asarray(leaf, np.float64), 3), prepared)
  digests = {**experiment.digests, "prepared_digest": digest(rounded)}
  return experiment._replace(prepared=prepared, digests=digests)


def data_keys(plan: Plan, *of_run: jax.Array) -> tuple[jax.Array, ...]:
  """Returns the keys of the partition and of the clients' splits, from `partition.seed` if it is set.

  Args:
    plan: the run's plan.
    *of_run: the two keys derived from the run's seed.
  """
  if plan.partition_seed is None:
    return of_run
  key = jax.random.key(plan.partition_seed)
  return tuple(jax.random.fold_in(key, purpose) for purpose in range(len(of_run)))


def options_of(dataset: str) -> Collection[str]:
  """Returns the options of a file or folder of the user's own; none for data sets with a name."""
  reader = OWN.get(kind_of(dataset))
  return settings_of(reader) if reader else ()


@contextlib.contextmanager
def options_named(dataset: str) -> Iterator[None]:
  """Context manager in which a remedy like `missing=('?',)` also says how a configuration writes it."""
  try:
    yield
  except DataError as error:
    found = [name for name in options_of(dataset) if re.search(rf"\b{name}=", str(error))]
    if not found:
      raise
    raise DataError(
      f"{error} In configurations, {found[0]} is --config.dataset_options.{found[0]}."
    ) from error


def build(plan: Plan) -> Experiment:
  """Reads and partitions the data, and builds model and algorithm.

  Raises:
    SettingError: the data do not allow a setting, such as the number of clients.
    DataError: a data file is missing or damaged.
  """
  key = jax.random.key(plan.seed)
  partition_key, split_key, run_key, noise_key, unseen_key, shift_key = (
    jax.random.fold_in(key, purpose) for purpose in range(6)
  )
  partition_key, split_key = data_keys(plan, partition_key, split_key)
  with as_written({"dataset_options": plan.dataset_options}, "dataset_options"), options_named(plan.dataset):
    source = datasets.load(plan.dataset, plan.data_dir, **plan.dataset_options)
  options = dict(plan.partition.settings)
  if plan.partition.name == "natural":
    if source.groups is None:
      column = "client" in options_of(plan.dataset)
      remedy = "Name the column that does: --config.dataset_options.client=COLUMN. " if column else ""
      raise SettingError(
        "partition.name", "natural", f"{source.name} does not say whose its rows are",
        f"{remedy}Use iid or dirichlet{' for clients without such a column' if column else ''}.",
      )  # fmt: skip
    options["groups"] = source.groups
  elif plan.dataset_options.get("client") is not None:
    raise SettingError(
      "partition.name", plan.partition.name, "does not use the column dataset_options.client",
      "Use --config.partition=\"{'name': 'natural'}\", or leave the client out.",
    )  # fmt: skip
  with as_written({"partition": options}, "partition"):
    parts = datasets.partition(partition_key, plan.partition.name, source.y, plan.num_clients, **options)
  task = build_task(plan.task, source)
  if plan.test_fraction is None and source.split is None:
    raise SettingError(
      "test_fraction", None, f"{source.name} does not come divided", "Use a share, such as 0.2."
    )
  split, stratify, notes = None, plan.stratify, [*source.notes]
  if plan.test_fraction is None:
    split = source.split
    if stratify and not plan.valid_fraction:
      stratify = False
      notes.append(f"{source.name} comes divided: stratify has no effect.")
  elif source.split is not None:
    notes.append(f"{source.name} comes divided; test_fraction = {plan.test_fraction} divides it anew.")
  laid_out = functools.partial(
    datasets.federate,
    y=source.y,
    parts=parts,
    key=split_key,
    num_classes=source.num_classes,
    task=task,
    test_fraction=plan.test_fraction,
    split=split,
    valid_fraction=plan.valid_fraction,
    stratify=stratify,
    name=source.name,
  )
  noise = plan.label_noise
  noisy = noisy_labels(noise_key, noise, source, task)
  data = laid_out(
    source.x, standardize=source.standardize, pooled=source.pooled, scale=source.scale, train_y=noisy,
    tell=notes.append,
  )  # fmt: skip
  names = names_of(options["groups"], parts) if "groups" in options else ()
  data = with_names(data, clients=names, labels=source.labels, columns=source.columns)
  source = source._replace(notes=tuple(notes))
  with as_written({"feature_shift": plan.feature_shift}, "feature_shift"):
    data, hidden = shifted(shift_key, plan.feature_shift, data)
  apart = functools.partial(set_apart, unseen_key, plan.unseen_fraction)
  clean = apart(data=laid_out(source.y))[0] if noise else None
  data, seen, unseen = apart(data=data)
  parts, hidden = [parts[i] for i in seen], None if hidden is None else hidden[seen]
  report = noise_report(noise, data, clean.x) if clean else None
  shape = jax.tree.map(lambda leaf: leaf.shape[1:], source.x)
  task = build_task(plan.task, source, np.asarray(data.y)[data.train.rows()])
  prepared = prepared_of(plan, data, task)
  with as_written({"model": plan.model.settings}, "model"):
    model = models.make(plan.model.name, shape, source.num_classes, task, **plan.model.settings)
  if plan.lora and isinstance(model, Model):
    with as_written({"lora": plan.lora}, "lora"):
      model = models.lora(model, **plan.lora)
  algorithm = build_algorithm(plan, model, prepared)
  check_cohort(algorithm, plan.cohort_size, data.num_clients)
  check_eval_clients(plan.eval_clients, data.num_clients)
  built = settled(
    Experiment(plan, algorithm, data, model, run_key, parts, source, unseen, hidden, report, prepared)
  )._replace(prepared={})
  for study in plan.watching:
    study.check_run(plan.given(study), watched(built))
  digests = {
    "data_digest": digest(source.x, source.y, source.x_test, source.y_test, source.groups, source.split),
    "clients_digest": digest(parts, data.y, data.train, data.valid, data.test, unseen and unseen.y),
  }
  return with_prepared(built._replace(digests=digests), prepared)


def settled(experiment: Experiment, seen: bool = False) -> Experiment:
  """Returns the experiment with the settings that are found by the run's sizes, see `Method.target`.

  Args:
    experiment: the run, whose plan may name targets.
    seen: whether it is seen who takes part, so that no chance of being left out protects a client.
  """
  plan, algorithm, data, model, *_ = experiment
  parts = dict(plan.parts)
  for section, method, own in chosen(plan.parts):
    target = method.target
    if target is None or own.get(target.given) is None:
      continue
    keeps = seen or keeps_state(algorithm, data, plan.cohort_size)
    sampling = algorithm.sampled(data.num_clients, plan.cohort_size, keeps)
    given = {name: value for name, value in own.items() if name != "name"}
    with as_written(plan.parts, section):
      found = target.find(given, sampling, plan.rounds)
    parts[section] = {name: value for name, value in own.items() if name != target.given}
    parts[section][target.setting] = found
  if parts == plan.parts:
    return experiment
  plan = dataclasses.replace(plan, parts=parts)
  return experiment._replace(plan=plan, algorithm=build_algorithm(plan, model, experiment.prepared))


def watched(experiment: Experiment, folder: Path = Path(), writes: bool = False) -> Watched:
  """Returns the run as studies see it.

  Args:
    experiment: the run's data, model and algorithm.
    folder: its folder.
    writes: whether this process writes the files.
  """
  plan, algorithm, data, model, key, parts, source, unseen, hidden, *_ = experiment
  return Watched(plan, algorithm, data, source, parts, key, folder, writes, model, unseen, hidden)
