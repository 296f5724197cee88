"""Builds an algorithm's parts from a plan."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from fedjax_het.config.shares import in_rounds
from fedjax_het.config.typed import Plan
from fedjax_het.config.values import at
from fedjax_het.data.clients import label_counts
from fedjax_het.data.container import FederatedData
from fedjax_het.errors import SettingError
from fedjax_het.federated import federated
from fedjax_het.methods import METHODS, Method, chosen
from fedjax_het.models import Generative, Model
from fedjax_het.parts import Algorithm
from fedjax_het.tasks import Task


def prepared_of(plan: Plan, data: FederatedData, task: Task) -> dict[str, Any]:
  """Returns what the parts' `Method.prepare` make of the clients' data for a plan; {} for most methods.

  Raises:
    SettingError: the labels are not classes, or a setting does not go with the counts.
  """
  prepared: dict[str, Any] = {}
  for section, method, given in _chosen(plan.parts):
    if method.prepares is None:
      continue
    if not task.classes:
      raise SettingError(
        f"{section}.name", method.name, "goes by the clients' counts of classes, and the labels of "
        f"{task.name} are none", "Use another method, or data whose labels are classes.",
      )  # fmt: skip
    seed = np.asarray(jax.random.key_data(jax.random.fold_in(jax.random.key(plan.seed), 5)))[-1]
    with as_written(plan.parts, *_homes(section)):
      prepared |= method.prepare(given, label_counts(data), seed=int(seed))
  return prepared


def placeholders_of(plan: Plan) -> dict[str, Any]:
  """Returns placeholders of what `prepared_of` makes, before data are read; see `Method.prepare`."""
  prepared: dict[str, Any] = {}
  for section, method, given in _chosen(plan.parts):
    with as_written(plan.parts, *_homes(section)):
      prepared |= method.prepare(given, num_clients=plan.num_clients)
  return prepared


def _chosen(parts: Mapping[str, Any]) -> Iterator[tuple[str, Method, dict[str, Any]]]:
  """Yields (place, method, its settings) of each part, see `methods.chosen`."""
  for place, method, own in chosen(parts):
    given = {**parts["local"], **own} if place == "algorithm" else own
    yield place, method, {name: value for name, value in given.items() if name != "name"}


def _homes(place: str) -> tuple[str, ...]:
  """Returns the sections that may have the settings of the part that is chosen at a place."""
  return (place, "local") if place == "algorithm" else (place,)


def build_algorithm(
  plan: Plan, model: Model | Generative, prepared: Mapping[str, Any] = MappingProxyType({})
) -> Algorithm:
  """Returns the parts that a plan chooses, around `model`; for `prepared` see `Method.prepare`."""
  parts = {**plan.parts, "algorithm": in_rounds(plan.parts["algorithm"], plan.rounds)}
  offered = {"model": model, "rounds": plan.rounds, **prepared}
  made: dict[str, Any] = {}
  for place, method, settings in _chosen(parts):
    section, _, number = place.partition(".")
    with as_written(plan.parts, *_homes(place)):
      part = method.make(offered, **settings)
    made[section] = (*made.get(section, ()), part) if number else part
  client, mix, move = (made.pop(section) for section in METHODS)
  for study in plan.watching:
    mix = study.observed(plan.given(study), mix, model)
  return federated(client, mix, move, **made)


@contextlib.contextmanager
def as_written(config: Mapping[str, Any], *sections: str) -> Iterator[None]:
  """Context manager in which errors name settings as a configuration does: `local.lr` for a part's `lr`.

  Args:
    config: the configuration.
    sections: sections with the part's settings; the error names the first one that has the setting. An
      element of a section that is a tuple is "SECTION.NUMBER".
  """
  try:
    yield
  except SettingError as error:
    name = error.setting.removeprefix(f"{sections[0]}'s ")
    home = next((section for section in sections if name in at(config, section)), None)
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
