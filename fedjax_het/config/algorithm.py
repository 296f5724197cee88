"""Builds an algorithm's parts from a plan."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from fedjax_het.clients.finetuned import finetuned
from fedjax_het.clients.local_settings import at_evaluations
from fedjax_het.conditions import CONDITIONS, SEVERAL
from fedjax_het.config.shares import in_rounds
from fedjax_het.config.typed import Plan
from fedjax_het.config.values import chosen, each_of
from fedjax_het.data.clients import label_counts
from fedjax_het.data.container import FederatedData
from fedjax_het.data.public import public_examples
from fedjax_het.errors import SettingError
from fedjax_het.federated import federated
from fedjax_het.methods import TABLES, Method, or_brought
from fedjax_het.models import Generative, Model
from fedjax_het.parts import Algorithm
from fedjax_het.tasks import Task


def named(section: str, config: Mapping[str, Any], **given: Any) -> Any:
  """Makes the part of the method `config.name` with the other fields of `config`."""
  settings = {setting: value for setting, value in config.items() if setting != "name"}
  return TABLES[section][config["name"]].make(given, **settings)


def prepared_of(plan: Plan, data: FederatedData, task: Task) -> dict[str, Any]:
  """Returns what the parts' `Method.prepare` make of the clients' data for a plan; {} for most methods.

  Raises:
    SettingError: the labels are not classes, or a setting does not go with the counts.
  """
  prepared: dict[str, Any] = {}
  for section, method, given in _chosen(plan):
    if method.prepares is None:
      continue
    kind = method.prepares.source
    if kind == "classes" and not task.classes:
      raise SettingError(
        f"{section}.name", method.name, "goes by the clients' counts of classes, and the labels of "
        f"{task.name} are none", "Use another method, or data whose labels are classes.",
      )  # fmt: skip
    seed = np.asarray(jax.random.key_data(jax.random.fold_in(jax.random.key(plan.seed), 5)))[-1]
    with as_written(plan.parts, section, "local"):
      made_of = {
        "classes": lambda: label_counts(data),
        "sizes": lambda: np.asarray(data.train.size)[:, None],
        "public": lambda: public_of(plan, data),
      }[kind]
      prepared |= method.prepare(given, made_of(), seed=int(seed))
  return prepared


def public_of(plan: Plan, data: FederatedData) -> Any:
  """Returns the public examples of a plan, see `public_examples`."""
  key = jax.random.fold_in(jax.random.key(plan.seed), 6)
  return public_examples(key, data, data_dir=plan.data_dir, **plan.public)


def reads_public(plan: Plan) -> str:
  """Returns the name of a chosen method that public examples are made for; "" if there is none."""
  found = (own.name for _, own, _ in _chosen(plan) if own.prepares and own.prepares.source == "public")
  return next(found, "")


def placeholders_of(plan: Plan) -> dict[str, Any]:
  """Returns placeholders of what `prepared_of` makes, before data are read; see `Method.prepare`."""
  prepared: dict[str, Any] = {}
  for section, method, given in _chosen(plan):
    with as_written(plan.parts, section, "local"):
      prepared |= method.prepare(given, num_clients=plan.num_clients)
  return prepared


def _chosen(plan: Plan) -> Iterator[tuple[str, Method, Mapping[str, Any]]]:
  """Yields (section, method, all of its settings) of each part of a plan."""
  for place, method, own in chosen(plan.parts):
    yield place, method, {**plan.parts["local"], **own} if place == "algorithm" else own


def build_algorithm(
  plan: Plan, model: Model | Generative, prepared: Mapping[str, Any] = MappingProxyType({})
) -> Algorithm:
  """Returns the parts that a plan chooses, around `model`; for `prepared` see `Method.prepare`."""
  parts = plan.parts
  with as_written(parts, "server"):
    move = named("server", parts["server"], rounds=plan.rounds, **prepared)
  with as_written(parts, "algorithm", "local"):
    algorithm = in_rounds(parts["algorithm"], plan.rounds)
    client = named("algorithm", {**parts["local"], **algorithm}, model=model, rounds=plan.rounds, **prepared)
  if plan.finetune:
    given = at_evaluations({**parts["local"], **parts["algorithm"]})
    with as_written({"finetune": plan.finetune, **parts}, "finetune", "algorithm", "local"):
      client = finetuned(client, **{**given, **plan.finetune})
  with as_written(parts, "mixing"):
    mix = named("mixing", parts["mixing"], **prepared)
  mix = or_brought(client, "mixing", parts["mixing"]["name"], mix)
  move = or_brought(client, "server", parts["server"]["name"], move)
  for study in plan.watching:
    mix = study.observed(plan.given(study), mix, model)
  return federated(client, mix, move, **_conditions(plan, prepared))


def _conditions(plan: Plan, prepared: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the further parts that a plan chooses, as arguments of `federated`."""
  found: dict[str, Any] = {}
  for section in CONDITIONS:
    made = []
    for place, given in each_of({section: plan.parts[section]}):
      if given:
        with as_written({place: TABLES[section][given["name"]].settings}, place):
          made.append(named(section, given, rounds=plan.rounds, **prepared))
    if made:
      found[section] = tuple(made) if section in SEVERAL else made[0]
  return found


@contextlib.contextmanager
def as_written(config: Mapping[str, Any], *sections: str) -> Iterator[None]:
  """Context manager in which errors name settings as a configuration does: `local.lr` for a part's `lr`.

  Args:
    config: the configuration.
    sections: sections with the part's settings; the error names the first one that has the setting.
  """
  try:
    yield
  except SettingError as error:
    name = error.setting.removeprefix(f"{sections[0]}'s ")
    home = next((section for section in sections if name in config[section]), None)
    if home is None or not str(error).startswith(f"{error.setting} = "):
      raise
    told = SettingError(f"{home}.{name}{str(error).removeprefix(error.setting)}")
    told.setting = f"{home}.{name}"
    raise told from error


def algorithm_maker(plan: Plan, model: Model | Generative) -> Callable[..., Algorithm]:
  """Returns (prepared, **{dotted field: number}) -> the algorithm of the plan with these numbers."""

  def make(prepared: Mapping[str, Any] = MappingProxyType({}), **values: Any) -> Algorithm:
    return build_algorithm(plan.with_numbers(values), model, prepared)

  return make
