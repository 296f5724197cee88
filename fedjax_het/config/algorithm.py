"""Builds an algorithm's three parts from a plan."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from fedjax_het.config.shares import in_rounds
from fedjax_het.config.typed import Plan
from fedjax_het.data.clients import label_counts
from fedjax_het.data.container import FederatedData
from fedjax_het.errors import SettingError
from fedjax_het.federated import federated
from fedjax_het.methods import CLIENTS, METHODS
from fedjax_het.models import Generative, Model
from fedjax_het.parts import Algorithm
from fedjax_het.tasks import Task


def named(section: str, config: Mapping[str, Any], **given: Any) -> Any:
  """Makes the part of the method `config.name` with the other fields of `config`."""
  settings = {setting: value for setting, value in config.items() if setting != "name"}
  return METHODS[section][config["name"]].make(given, **settings)


def prepared_of(plan: Plan, data: FederatedData, task: Task) -> dict[str, Any]:
  """Returns what `Method.prepare` makes of the clients' data for a plan; {} for most methods.

  Raises:
    SettingError: the labels are not classes, or a setting does not go with the counts.
  """
  client = CLIENTS[plan.parts["algorithm"]["name"]]
  if client.prepares is None:
    return {}
  if not task.classes:
    raise SettingError(
      "algorithm.name", client.name, f"goes by the clients' counts of classes, and the labels of {task.name} "
      "are none", "Use another method, or data whose labels are classes.",
    )  # fmt: skip
  seed = np.asarray(jax.random.key_data(jax.random.fold_in(jax.random.key(plan.seed), 5)))[-1]
  given = {**plan.parts["local"], **plan.parts["algorithm"]}
  with as_written(plan.parts, "algorithm", "local"):
    return client.prepare(given, label_counts(data), seed=int(seed))


def build_algorithm(
  plan: Plan, model: Model | Generative, prepared: Mapping[str, Any] = MappingProxyType({})
) -> Algorithm:
  """Returns the parts that a plan chooses, around `model`; for `prepared` see `Method.prepare`."""
  parts = plan.parts
  with as_written(parts, "server"):
    move = named("server", parts["server"], rounds=plan.rounds)
  with as_written(parts, "algorithm", "local"):
    algorithm = in_rounds(parts["algorithm"], plan.rounds)
    client = named("algorithm", {**parts["local"], **algorithm}, model=model, **prepared)
  with as_written(parts, "mixing"):
    mix = named("mixing", parts["mixing"])
  for study in plan.watching:
    mix = study.observed(plan.given(study), mix, model)
  return federated(client, mix, move)


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
