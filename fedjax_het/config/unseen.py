"""The configuration's section `unseen`: clients that never train but are evaluated."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fedjax_het.config.algorithm import as_written
from fedjax_het.config.typed import Plan
from fedjax_het.data.clients import count_apart, select, split_clients
from fedjax_het.data.container import FederatedData
from fedjax_het.errors import SettingError, check_range, check_whole, near
from fedjax_het.models import GENERATORS
from fedjax_het.parts import ClientUpdate

FIELDS = ("fraction", "steps")


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
  if steps and (plan.model.name in GENERATORS or not client.needs.uploads_model):
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
  """Raises `SettingError` for a field of `unseen` that cannot be; {} is none."""
  if not given:
    return
  for field, value in given.items():
    if field not in FIELDS:
      raise SettingError(f"unseen.{field}", value, "unknown to unseen", near(field, FIELDS))
  if "fraction" not in given:
    raise SettingError("unseen.fraction", None, "is missing", "Give the share of clients that never train.")
  check_range("unseen.fraction", given["fraction"], above=0.0, below=1.0, on_host=True)
  steps = given.get("steps", ())
  if not isinstance(steps, list | tuple):
    raise SettingError("unseen.steps", steps, "not a list", f"Write [{steps}].")
  steps = list(steps)
  for count in steps:
    check_whole("unseen.steps", count, 1)
  if sorted(set(steps)) != steps:
    raise SettingError("unseen.steps", steps, "do not rise", "Give each number once, smaller ones first.")


def set_apart(
  key: jax.Array, fraction: float | None, data: FederatedData, parts: list[np.ndarray]
) -> tuple[FederatedData, list[np.ndarray], FederatedData | None]:
  """Parts the clients into those that train and those that never do.

  Args:
    key: typed key of the draw.
    fraction: share of the clients that never train; None for none.
    data: all clients' data.
    parts: their rows in the data set.

  Returns:
    (data and rows of the clients that train, data of the others; None where there are none).
  """
  if fraction is None:
    return data, parts, None
  seen, apart = split_clients(key, data.num_clients, fraction)
  return select(data, seen), [parts[i] for i in seen], select(data, apart)
