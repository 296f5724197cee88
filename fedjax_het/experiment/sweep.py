"""A launched sweep: seeds and numbers of a configuration as one program, each member a run of its own."""

import contextlib
import functools
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from fedjax_het.engine.members import Members
from fedjax_het.engine.processes import agreed, writes
from fedjax_het.engine.room import in_words
from fedjax_het.errors import SettingError, check_range
from fedjax_het.experiment.algorithm import algorithm_maker, build_algorithm, prepared_of
from fedjax_het.experiment.build import Experiment, build, notes_of, with_prepared
from fedjax_het.experiment.checkpoint import Checkpoints
from fedjax_het.experiment.claim import check_claim_together
from fedjax_het.experiment.display import TERMINAL, Display
from fedjax_het.experiment.experiment import FREE, draw_missing, models_of_checkpoint, not_drawn, share, train
from fedjax_het.experiment.extend import earlier_rounds_of_members, take_up_members
from fedjax_het.experiment.grid import check_sweep, in_order, name_of
from fedjax_het.experiment.model_file import MODEL
from fedjax_het.experiment.own_epochs import resolved
from fedjax_het.experiment.pictures import missing_pictures, note_pictures, pictures
from fedjax_het.experiment.record import Record
from fedjax_het.experiment.report import beside, made_of
from fedjax_het.experiment.shares import in_rounds
from fedjax_het.experiment.tracking import to_json
from fedjax_het.experiment.values import numbers, with_values
from fedjax_het.experiment.where import EVERYWHERE, Where
from fedjax_het.experiment.workdir import (
  Workdir,
  check,
  check_writable,
  claimed,
  keep_config,
  prepare,
  read_json,
  read_record,
  workdir_of,
  write_atomic,
)
from fedjax_het.methods import CLIENTS
from fedjax_het.modes import in_float32
from fedjax_het.parts import ClientUpdate
from fedjax_het.yardsticks import Yardstick
from fedjax_het.yardsticks.members import grid_of_members, members_table, plot_members

FREE_OF_ALL = tuple(f"config.{name}" for name in FREE)  # in the sweep's own config.json
TABLE, PICTURE = "sweep.json", "sweep.png"


class Sweep(NamedTuple):
  """All members of a sweep.

  Attributes:
    config: what they have alike.
    root: the sweep's folder.
    members: what each has of its own, dotted field -> value.
    configs: each one's configuration.
    runs: each one's folder.
    whole: what the sweep's own config.json holds.
  """

  config: ConfigDict
  root: Workdir
  members: list[dict[str, Any]]
  configs: list[ConfigDict]
  runs: list[Workdir]
  whole: dict[str, Any]

  @property
  def table(self) -> Path:
    """`sweep.json`."""
    return Path(self.root) / TABLE

  @property
  def complete(self) -> bool:
    """Whether the table and all members' summaries can be read."""
    return None not in (read_json(self.table), *(read_record(run.summary_path) for run in self.runs))


@in_words()
@in_float32()
def run_sweep(
  config: ConfigDict,
  grid: Mapping[str, Sequence[Any]],
  workdir: str,
  where: Where = EVERYWHERE,
  *,
  member_batch: int | None = None,
  checkpoint_seconds: float = 600.0,
  yardsticks: Sequence[type[Yardstick]] = (),
  display: Display = TERMINAL,
) -> list[dict[str, Any]]:
  """Runs a configuration with every combination of some fields' values, as one program.

  Each member's files are in `workdir`/members/NAME, as its own run would leave them, with the final state as
  its only checkpoint; `workdir` has the whole sweep's checkpoints, figures/sweep.png where they differ in one
  or two numbers (see `plot_members`), and, written last, sweep.json: the members and their metrics, and what
  their synthetic examples are worth. The same
  call continues a stopped sweep. Where a member's training loss, or what its server sends, becomes NaN or
  infinite the others go on; its summary and its row say `diverged` (round, client, loss), and its metrics are
  null from then on.

  Args:
    config: what to run.
    grid: dotted field -> values: "seed", and numbers of the algorithm, local training, mixing and server.
    workdir: the folder.
    where: devices, over which members are spread, and the examples that each holds at once.
    member_batch: members that a device runs at once; see `Members`.
    checkpoint_seconds: see `run_experiment`.
    yardsticks: your own, of which each member has its own; see `run_experiment`.
    display: what shows the runs.

  Returns:
    The members' summaries, in the order of `grid_of(in_order(grid))`.

  Raises:
    SettingError: also for a field that cannot differ within one program.
    NonFiniteLoss: every member has diverged.
    NoRoom: memory does not suffice, or the workdir's disk is full.
  """
  where.check()
  if where.device_states is not None:
    raise SettingError(
      "device_states", where.device_states, "a sweep keeps its members' clients' states on the devices",
      "Leave it out, or run the members one by one.",
    )  # fmt: skip
  check_range("checkpoint_seconds", checkpoint_seconds, 0.0, on_host=True)
  grid = in_order(grid)
  members, configs = check_sweep(config, grid)
  config, configs = resolved(config, grid), [resolved(own) for own in configs]
  whole = {"config": config.to_dict(), "sweep": dict(grid)}
  root = workdir_of(workdir)
  runs = [Workdir(root.root / "members" / name_of(values)) for values in members]
  olds = earlier_rounds_of_members(root, runs, configs, grid, FREE)
  if not any(olds):
    check(workdir, whole, FREE_OF_ALL)
  begun = {path.parent for path in root.root.glob("members/*/config.json")}
  if strange := begun - {run.root for run in runs}:
    raise SettingError(
      "workdir", os.fspath(root), f"has a member {min(strange).name}, by another order of the sweep's fields",
      "An earlier version began it: use another workdir.",
    )  # fmt: skip
  for run, own, old in zip(runs, configs, olds):
    if old is None:
      check(run, own.to_dict(), FREE)
  sweep = Sweep(config, root, members, configs, runs, whole)
  if sweep.complete and not any(olds):
    undrawn = _draw_missing(sweep, yardsticks, display)
    if not all((run.root / MODEL).is_file() for run in runs):

      def made() -> tuple[Members, jax.Array, list[tuple[Path, ClientUpdate]]]:
        engine, experiments = _build(sweep, grid, where, member_batch)
        clients = [experiment.algorithm.client for experiment in experiments]
        return engine, _keys(experiments), [(run.root, client) for run, client in zip(runs, clients)]

      display.show(*models_of_checkpoint(root, config.rounds, made, display))
  else:
    check_writable(*root.folders)
    with display.doing("reading the data"):
      engine, experiments = _build(sweep, grid, where, member_batch)
    display.show(*_notes(sweep, experiments))
    with in_words(root), claimed(root, writes()):
      undrawn = []
      if writes():
        take_up_members(root, runs, configs, olds, whole)
      if not agreed(writes() and sweep.complete)[0]:  # by another process, since
        prepare(root, sweep.whole, FREE_OF_ALL, writes())
        for run, own in zip(runs, configs):
          prepare(run, own.to_dict(), FREE, writes())
        undrawn = _save(
          sweep, engine, *_train(sweep, engine, experiments, checkpoint_seconds, yardsticks, display)
        )
        check_claim_together(root)
  summaries = [found for run in runs if (found := read_record(run.summary_path))] if writes() else []
  if writes():
    drawn = " and figures/sweep.png" if (root.figures / PICTURE).exists() else ""
    place = f"In {os.fspath(root)}: sweep.json{drawn}, and each member's files in members/."
    path = root.root / "members" / "*" / "summary.json"
    shown = made_of(path, members_table, members, summaries)
    display.show(shown, place, *not_drawn(undrawn), beside(root))
  return summaries


def _draw_missing(
  sweep: Sweep, yardsticks: Sequence[type[Yardstick]], display: Display
) -> list[str]:  # fmt: skip
  """Draws the pictures that a complete sweep and its members lack; why some are still missing."""
  undrawn: list[str] = []
  with contextlib.ExitStack() as stack:
    claim = functools.cache(lambda: stack.enter_context(claimed(sweep.root, writes())))
    for own, run in zip(sweep.configs, sweep.runs):
      undrawn += draw_missing(own, run, claim, yardsticks, display)
    if writes() and missing_pictures(sweep.root, PICTURE):
      summaries = [read_record(run.summary_path) or {} for run in sweep.runs]
      with contextlib.suppress(SettingError):  # not in a folder that cannot be written
        check_writable(sweep.root.figures)
        undrawn += _draw(sweep, summaries)
  return undrawn


def _build(
  sweep: Sweep, grid: Mapping[str, Sequence[Any]], where: Where, member_batch: int | None
) -> tuple[Members, list[Experiment]]:
  """What trains all members as one program, and what each one's configuration names."""
  config, members, configs = sweep.config, sweep.members, sweep.configs
  built = {seed: build(with_values(config, {"seed": seed})) for seed in grid.get("seed", [config.seed])}
  client = CLIENTS[config.algorithm.name]
  of_counts = [path for path in grid if client.prepares and _may_be(path, client.prepares.settings)]
  experiments = [built[own.seed] for own in configs]
  if of_counts:
    experiments = [_prepared_anew(own, experiment) for own, experiment in zip(configs, experiments)]
  resolved = [with_values(own, {"algorithm": in_rounds(own.algorithm, own.rounds)}) for own in configs]
  columns = {path: [values[path] for values in members] for path in grid if path != "seed"}
  for part, number in client.shares.items():
    if columns.pop(f"algorithm.{part}", None):
      columns[f"algorithm.{number}"] = [own.algorithm[number] for own in resolved]
  values: dict[str, Any] = {path: [value] * len(members) for path, value in numbers(resolved[0]).items()}
  values |= {path: own for path, own in columns.items() if path not in of_counts}
  if client.prepares:
    values["prepared"] = _stacked([own.prepared for own in experiments], of_counts)

  engine = Members(
    algorithm_maker(resolved[0], experiments[0].model),
    experiments[0].data if len(built) == 1 else [experiment.data for experiment in experiments],
    values,
    len(members),
    config.cohort_size,
    member_batch=member_batch,
    client_batch=where.client_batch,
    devices=where.devices,
    device_rows=where.device_rows,
    seeds=len(built),
  )
  named = [
    experiment._replace(algorithm=build_algorithm(own, experiment.model, experiment.prepared))
    for own, experiment in zip(configs, experiments)
  ]
  return engine, named


def _notes(sweep: Sweep, experiments: Sequence[Experiment]) -> list[str]:
  """`notes_of` the members, each once; with whose it is where it is not everybody's."""
  owners: dict[str, list[str]] = {}
  for own, experiment, values in zip(sweep.configs, experiments, sweep.members):
    for note in notes_of(own, experiment):
      owners.setdefault(note, []).append(name_of(values))
  everybody = len(sweep.members)
  return [note if len(of) == everybody else f"{'; '.join(of)}: {note}" for note, of in owners.items()]


def _prepared_anew(config: ConfigDict, built: Experiment) -> Experiment:
  """An experiment of the same seed, with what these settings prepare of its clients' label counts."""
  return with_prepared(built, prepared_of(config, built.data, built.algorithm.client.task))


def _may_be(path: str, settings: Collection[str]) -> bool:
  """Whether a dotted field is one of these settings of the client part."""
  section, _, field = path.partition(".")
  return section in ("algorithm", "local") and field in settings


def _stacked(prepared: Sequence[Mapping[str, Any]], swept: Sequence[str]) -> Any:
  """What is prepared for each member, each leaf [M, ...]."""
  kinds = {str(jax.tree.map(np.shape, own)) for own in prepared}
  if len(kinds) > 1:
    raise SettingError(
      "sweep", [*swept], "one of these changes the program itself", "Start a run of its own for each value."
    )
  return jax.tree.map(lambda *own: np.stack([np.asarray(leaf) for leaf in own]), *prepared)


def _train(
  sweep: Sweep, engine: Members, experiments: Sequence[Experiment], checkpoint_seconds: float,
  yardsticks: Sequence[type[Yardstick]], display: Display,
) -> tuple[Any, list[Record], list[dict[str, Any]]]:  # fmt: skip
  """The members' states after the last round, their records, and their summaries, which are written."""
  keys = _keys(experiments)
  with contextlib.ExitStack() as stack:
    records = [
      stack.enter_context(Record(own, experiment, run, writes(), yardsticks, engine.groups))
      for own, experiment, run in zip(sweep.configs, experiments, sweep.runs)
    ]
    checkpoints = Checkpoints(sweep.root.checkpoints)
    state, summaries = train(engine, keys, records, sweep.config, checkpoints, checkpoint_seconds, display)
  return state, records, summaries


def _keys(experiments: Sequence[Experiment]) -> jax.Array:
  """The members' keys."""
  return jnp.stack([experiment.key for experiment in experiments])


def _save(
  sweep: Sweep, engine: Members, state: Any, records: Sequence[Record], summaries: list[dict[str, Any]]
) -> list[str]:
  """Writes each member's last checkpoint, the sweep's picture and, last of all, its table.

  Returns:
    Why pictures, also the members' own, could not be drawn; [] where all are there.
  """
  undrawn = [why for record in records for why in record.undrawn]
  rounds, count = sweep.config.rounds, len(sweep.runs)
  for own, record, run in zip(engine.split(engine.to_save(state)), records, sweep.runs):
    with contextlib.closing(Checkpoints(run.checkpoints)) as checkpoints:
      if checkpoints.latest() != rounds:
        checkpoints.save(rounds, own, {"runs": [record.books(share(engine.seconds, count))]})
  if writes():
    undrawn += _draw(sweep, summaries)
    rows = [
      {"member": name_of(values), **values}
      | {name: summary[name] for name in ("diverged", "metrics", "synthetic") if name in summary}
      for values, summary in zip(sweep.members, summaries)
    ]
    for run, config in zip(sweep.runs, sweep.configs):
      keep_config(run, config.to_dict())
    keep_config(sweep.root, sweep.whole)
    write_atomic(sweep.table, to_json(rows, indent=2))
  return undrawn


def _draw(sweep: Sweep, summaries: Sequence[dict[str, Any]]) -> list[str]:
  """Draws the sweep's picture; why that failed, where it did."""
  failed: list[str] = []
  with pictures(sweep.root, failed):
    seen = summaries[0]
    title = f"{seen['algorithm']} on {seen['dataset']}, {seen['num_clients']} clients"
    grid = grid_of_members(sweep.members, summaries)
    plot_members(grid, sweep.root.figures / PICTURE, title=title)
  note_pictures(sweep.root, failed)
  return failed
