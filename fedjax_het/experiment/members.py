"""Builds the engine that trains the members of a launched sweep in one program."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_het.config.algorithm import algorithm_maker, build_algorithm, prepared_of
from fedjax_het.config.grid import name_of
from fedjax_het.config.typed import Plan
from fedjax_het.config.values import chosen
from fedjax_het.data.container import FederatedData
from fedjax_het.engine.batched_runs import Members
from fedjax_het.engine.side_by_side import sized_beside
from fedjax_het.errors import SettingError
from fedjax_het.experiment.build import Experiment, build, notes_of, settled, with_prepared
from fedjax_het.methods import CLIENTS
from fedjax_het.program.where import Where
from fedjax_het.vectors import same_form
from fedjax_het.workdir.folder import TABLE, Workdir, read_json, read_record


class Sweep(NamedTuple):
  """All members of a sweep, with their configurations and folders.

  Attributes:
    root: the sweep's folder.
    members: each member's varied fields, dotted field -> value.
    plans: each one's plan.
    runs: each member's folder.
    whole: the content of the sweep's config.json.
  """

  root: Workdir
  members: list[dict[str, Any]]
  plans: list[Plan]
  runs: list[Workdir]
  whole: dict[str, Any]

  @property
  def table(self) -> Path:
    """Returns the path of `sweep.json`."""
    return Path(self.root) / TABLE

  @property
  def complete(self) -> bool:
    """Returns whether the table and all members' summaries can be read."""
    return None not in (read_json(self.table), *(read_record(run.summary_path) for run in self.runs))

  def only(self, names: Collection[str]) -> "Sweep":
    """Returns the sweep reduced to the members with these names, see `name_of`."""
    chosen = [i for i, values in enumerate(self.members) if name_of(values) in names]
    return self._replace(
      members=[self.members[i] for i in chosen], plans=[self.plans[i] for i in chosen],
      runs=[self.runs[i] for i in chosen],
    )  # fmt: skip


def build_members(
  sweep: Sweep, where: Where, member_batch: int | None, kept: Sweep | None = None
) -> tuple[Members, list[Experiment], list[Experiment]]:
  """Builds the engine that trains a sweep's members in one program.

  Args:
    sweep: the members that it trains.
    where: the devices.
    member_batch: see `Members`.
    kept: members that are complete and not trained. Their data still determine the lengths of sums over a
      client's examples, so that the bits are those of a program of all members.

  Returns:
    (the engine, the experiments of the trained members, the experiments of the kept members).
  """
  grid, members = sweep.whole["sweep"], sweep.members
  built, experiments, of_data = _of_plans([*sweep.plans, *(kept.plans if kept else [])], grid)
  client, data = CLIENTS[sweep.plans[0].client.name], dict(zip(built, sized_beside(list(built.values()))))
  beside, experiments, plans = experiments[len(members) :], experiments[: len(members)], sweep.plans
  seeds = {own.seed for own in plans}
  experiments = [_settled(own) for own in experiments]
  resolved = [own.plan.with_shares_in_rounds() for own in experiments]
  columns = {path: [values[path] for values in members] for path in grid if path != "seed"}
  for part, number in client.shares.items():
    if columns.pop(f"algorithm.{part}", None):
      columns[f"algorithm.{number}"] = [own.parts["algorithm"][number] for own in resolved]
  for section, method, _ in chosen(resolved[0].parts):
    if method.target is not None:
      place = f"{section}.{method.target.setting}"
      if columns.pop(f"{section}.{method.target.given}", None) or place in resolved[0].numbers:
        columns[place] = [own.parts[section][method.target.setting] for own in resolved]
  values: dict[str, Any] = {path: [value] * len(members) for path, value in resolved[0].numbers.items()}
  values |= {path: own for path, own in columns.items() if path not in of_data}
  if experiments[0].prepared:
    values["prepared"] = _stacked([own.prepared for own in experiments], of_data)

  engine = Members(
    algorithm_maker(resolved[0], experiments[0].model),
    data[plans[0].seed] if len(seeds) == 1 else [data[own.seed] for own in plans],
    values,
    len(members),
    plans[0].cohort_size,
    member_batch=member_batch,
    client_batch=where.client_batch,
    devices=where.devices,
    device_rows=where.device_rows,
    seeds=len(seeds),
  )
  return engine, experiments, beside


def experiments_of(plans: Sequence[Plan], grid: Collection[str]) -> list[Experiment]:
  """Builds the members of a sweep over some fields, without their engine."""
  return [_settled(own) for own in _of_plans(plans, grid)[1]]


def notes_of_members(members: Sequence[Mapping[str, Any]], experiments: Sequence[Experiment]) -> list[str]:
  """Returns `notes_of` all members without repetitions, naming the member if a note is not common to all.

  Args:
    members: each member's varied fields, dotted field -> value.
    experiments: the members' experiments.
  """
  owners: dict[str, list[str]] = {}
  for experiment, values in zip(experiments, members):
    for note in notes_of(experiment):
      owners.setdefault(note, []).append(name_of(values))
  everybody = len(members)
  return [note if len(of) == everybody else f"{'; '.join(of)}: {note}" for note, of in owners.items()]


def _of_plans(
  plans: Sequence[Plan], grid: Collection[str]
) -> tuple[dict[int, FederatedData], list[Experiment], list[str]]:
  """Returns each seed's data, each plan's experiment with its algorithm still to make, and what is prepared.

  The last are the fields of the grid from which arguments of the client part are prepared.
  """
  first = {own.seed: own for own in reversed(plans)}
  built = {seed: build(first[seed]) for seed in dict.fromkeys(own.seed for own in plans)}
  of_data = [path for path in grid if _may_be(path, CLIENTS[plans[0].client.name].from_data)]
  experiments = [built[own.seed]._replace(plan=own) for own in plans]
  if of_data:
    experiments = [_prepared_anew(experiment) for experiment in experiments]
  return {seed: own.data for seed, own in built.items()}, experiments, of_data


def _settled(own: Experiment) -> Experiment:
  """Returns an experiment with the algorithm of its plan, and the settings that its sizes decide."""
  return settled(own._replace(algorithm=build_algorithm(own.plan, own.model, own.prepared)))


def _prepared_anew(built: Experiment) -> Experiment:
  """Returns an experiment whose preparation from label counts is repeated with its plan."""
  return with_prepared(built, prepared_of(built.plan, built.data, built.algorithm.client.task))


def _may_be(path: str, settings: Collection[str]) -> bool:
  """Returns whether a dotted field may be one of these settings of the client part."""
  section, _, field = path.partition(".")
  return section in ("algorithm", "local") and field in settings


def _stacked(prepared: Sequence[Mapping[str, Any]], swept: Sequence[str]) -> Any:
  """Stacks the members' prepared arguments, each leaf [M, ...]."""
  if not all(same_form(own, prepared[0]) for own in prepared):
    raise SettingError(
      "sweep", [*swept], "one of these changes the program itself", "Start a run of its own for each value."
    )
  return jax.tree.map(lambda *own: np.stack([np.asarray(leaf) for leaf in own]), *prepared)
