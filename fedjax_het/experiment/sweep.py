"""A launched sweep: many seeds and settings of one configuration in one program; each member is a run."""

import contextlib
import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedjax_het.config.grid import check_sweep, in_order, name_of
from fedjax_het.config.own_epochs import resolved
from fedjax_het.config.plan import written
from fedjax_het.engine.algorithm_maker import grid_as_lists
from fedjax_het.engine.batched_runs import Members
from fedjax_het.engine.capacity import in_words
from fedjax_het.engine.processes import agreed, writes
from fedjax_het.errors import SettingError, check_range
from fedjax_het.experiment.build import Experiment
from fedjax_het.experiment.experiment import FREE, draw_missing, models_of_checkpoint, not_drawn, train
from fedjax_het.experiment.extend import earlier_rounds, take_up_members
from fedjax_het.experiment.members import Sweep, build_members, notes_of_members
from fedjax_het.experiment.moments import share
from fedjax_het.experiment.more_members import (
  added_checkpoints,
  being_kept,
  earlier_members,
  settle,
  take_up_larger,
  write_checkpoint_of_all,
)
from fedjax_het.experiment.record import Record
from fedjax_het.experiment.report import beside, made_of
from fedjax_het.modes import in_float32
from fedjax_het.program.display import TERMINAL, Display
from fedjax_het.program.where import EVERYWHERE, Where
from fedjax_het.studies import Study
from fedjax_het.studies.members import grid_of_members, members_table, plot_members
from fedjax_het.workdir.checkpoint import Checkpoints
from fedjax_het.workdir.claim import check_claim_together
from fedjax_het.workdir.folder import (
  Workdir,
  as_json,
  check,
  check_writable,
  claimed,
  keep_config,
  prepare,
  read_record,
  workdir_of,
  write_atomic,
)
from fedjax_het.workdir.pictures import missing_pictures, note_pictures, pictures
from fedjax_het.workdir.provenance import check_start, numerics
from fedjax_het.workdir.tracking import to_json

FREE_OF_ALL = tuple(f"config.{name}" for name in FREE)  # the free fields in the sweep's config.json
PICTURE = "sweep.png"
# Sections of members' summaries.
IN_TABLE = ("diverged", "metrics", "valid", "late", "synthetic", "privacy", "privacy_of_records")


@in_words()
@in_float32()
def run_sweep(
  config: Any,
  grid: Mapping[str, Sequence[Any]],
  workdir: str,
  where: Where = EVERYWHERE,
  *,
  member_batch: int | None = None,
  checkpoint_seconds: float = 600.0,
  studies: Sequence[type[Study]] = (),
  display: Display = TERMINAL,
) -> list[dict[str, Any]]:
  """Runs a configuration with every combination of some fields' values, in one program.

  Each member's files are in `workdir`/members/NAME, like those of a separate run, with the final state as the
  only checkpoint. `workdir` has the checkpoints of the whole sweep, figures/sweep.png if members differ in
  one or two numbers (see `plot_members`), and, written last, sweep.json with the members, their metrics and
  the evaluation of their synthetic examples.

  The same call continues a stopped sweep. A call with more values of the swept fields adds members to a
  complete sweep: it trains the new ones alone, as one program, and leaves the files of the others as they
  are. If a member's training loss or broadcast becomes NaN or infinite, the others continue; its summary and
  row have `diverged` (round, client, loss), and its metrics are null from then on.

  Args:
    config: what to run, see `run_experiment`.
    grid: dotted field -> values: "seed", and numbers of the algorithm, local training, mixing and server.
    workdir: the folder.
    where: the devices over which members are spread, and the number of examples that each holds.
    member_batch: members that a device runs at once; see `Members`.
    checkpoint_seconds: see `run_experiment`.
    studies: further studies, instantiated for each member; see `run_experiment`.
    display: shows the runs.

  Returns:
    The members' summaries, in the order of `grid_of(in_order(grid))`.

  Raises:
    SettingError: see `run_experiment`; or a field cannot vary within one program, or more values are given
      for a sweep that is not complete.
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
  grid = in_order(grid_as_lists(grid))
  if not grid:
    raise SettingError("grid", {}, "varies nothing", "Name a field with its values, or use run_experiment.")
  base = written(config)
  members, plans = check_sweep(base, grid, studies)
  whole, rounds = {"config": resolved(base, grid), "sweep": dict(grid)}, plans[0].rounds
  root = workdir_of(workdir)
  runs = [Workdir(root.root / "members" / name_of(values)) for values in members]
  as_begun = (read_record(root.config_path) or {}).get("sweep") == json.loads(as_json(grid))
  olds = [earlier_rounds(run, own, FREE, root) if as_begun else None for run, own in zip(runs, plans)]
  smaller = earlier_members(root, grid)
  if not any(olds):
    check(workdir, {**whole, "sweep": smaller[0]} if smaller else whole, FREE_OF_ALL)
  begun = {path.parent for path in root.root.glob("members/*/config.json")}
  if strange := begun - {run.root for run in runs}:
    raise SettingError(
      "workdir", os.fspath(root), f"has a member {min(strange).name}, by another order of the sweep's fields",
      "An earlier version began it: use another workdir.",
    )  # fmt: skip
  for run, own, old in zip(runs, plans, olds):
    if old is None:
      check(run, own.written, FREE)
  sweep = Sweep(root, members, plans, runs, whole)
  if sweep.complete and not any(olds):
    undrawn = _draw_missing(sweep, display)

    def made() -> tuple[Members, jax.Array, list[Experiment]]:
      engine, experiments, _ = build_members(sweep, where, member_batch)
      return engine, _keys(experiments), experiments

    display.show(*models_of_checkpoint(root, runs, rounds, made, display))
  else:
    names = smaller[1] if smaller else [] if sweep.complete else being_kept(root)
    kept = sweep.only(names if len(names) < len(runs) else ())
    new = sweep.only({run.root.name for run in runs} - {run.root.name for run in kept.runs})
    if kept.runs and any(olds):
      raise SettingError(
        "rounds", rounds, f"members are being added to the sweep in {root.root}",
        "Finish that first, with its own number of rounds.",
      )  # fmt: skip
    check_writable(*root.folders)
    with display.doing("reading the data"):
      engine, experiments, theirs = build_members(new, where, member_batch, kept)
    for run, experiment in zip(kept.runs, theirs):
      check_start(run, experiment.digests, numerics(engine.groups))
    display.show(*notes_of_members(new.members, experiments))
    if kept.runs:
      display.show(f"{len(kept.runs)} members are complete and stay as they are; {len(new.runs)} are added.")
    with in_words(root), claimed(root, writes()):
      undrawn = []
      if writes() and any(olds):
        settle(root)
        take_up_members(root, runs, plans, olds, whole)
      elif writes() and smaller:
        take_up_larger(root, smaller[0], whole)
      if not agreed(writes() and sweep.complete)[0]:  # completed by another process meanwhile
        if kept.runs and writes():
          sweep.table.unlink(missing_ok=True)
        prepare(root, sweep.whole, FREE_OF_ALL, writes())
        for run, own in zip(new.runs, new.plans):
          prepare(run, own.written, FREE, writes())
        trained = _train(new, kept, engine, experiments, checkpoint_seconds, display)
        undrawn = _save(sweep, new, engine, *trained)
        if kept.runs and writes():
          settle(root)
        check_claim_together(root)
  summaries = [found for run in runs if (found := read_record(run.summary_path))] if writes() else []
  if writes():
    drawn = " and figures/sweep.png" if (root.figures / PICTURE).exists() else ""
    place = f"In {os.fspath(root)}: sweep.json{drawn}, and each member's files in members/."
    path = root.root / "members" / "*" / "summary.json"
    shown = made_of(path, members_table, members, summaries)
    display.show(shown, place, *not_drawn(undrawn), beside(root))
  return summaries


def _draw_missing(sweep: Sweep, display: Display) -> list[str]:
  """Draws the missing pictures of a complete sweep and its members; returns reasons for those that fail."""
  undrawn: list[str] = []
  with contextlib.ExitStack() as stack:
    claim = functools.cache(lambda: stack.enter_context(claimed(sweep.root, writes())))
    for own, run in zip(sweep.plans, sweep.runs):
      undrawn += draw_missing(own, run, claim, display)
    if writes() and missing_pictures(sweep.root, PICTURE):
      summaries = [read_record(run.summary_path) or {} for run in sweep.runs]
      with contextlib.suppress(SettingError):  # does nothing in a folder that cannot be written
        check_writable(sweep.root.figures)
        undrawn += _draw(sweep, summaries)
  return undrawn


def _train(
  new: Sweep, kept: Sweep, engine: Members, experiments: Sequence[Experiment], checkpoint_seconds: float,
  display: Display,
) -> tuple[Any, list[Record], list[dict[str, Any]]]:  # fmt: skip
  """Trains the new members; returns their final states, records, and summaries, which are written."""
  keys = _keys(experiments)
  with contextlib.ExitStack() as stack:
    records = [
      stack.enter_context(Record(experiment, run, writes(), engine.groups))
      for experiment, run in zip(experiments, new.runs)
    ]
    checkpoints = Checkpoints(added_checkpoints(new.root) if kept.runs else new.root.checkpoints)
    alone = all("diverged" in (read_record(run.summary_path) or {}) for run in kept.runs)
    state, summaries = train(
      engine, keys, records, new.plans[0], checkpoints, checkpoint_seconds, display, alone
    )
  return state, records, summaries


def _keys(experiments: Sequence[Experiment]) -> jax.Array:
  """Stacks the members' keys."""
  return jnp.stack([experiment.key for experiment in experiments])


def _save(
  sweep: Sweep, new: Sweep, engine: Members, state: Any, records: Sequence[Record],
  summaries: list[dict[str, Any]],
) -> list[str]:  # fmt: skip
  """Writes each new member's last checkpoint, the sweep's picture and, last of all, its table.

  Returns:
    Reasons why pictures of the sweep or its members could not be drawn; [] if there are all.
  """
  undrawn = [why for record in records for why in record.undrawn]
  rounds, count = sweep.plans[0].rounds, len(new.runs)
  states = engine.split(engine.to_save(state))
  for own, record, run in zip(states, records, new.runs):
    with contextlib.closing(Checkpoints(run.checkpoints)) as checkpoints:
      if checkpoints.latest() != rounds:
        checkpoints.save(rounds, own, {"runs": [record.checkpoint_state(share(engine.seconds, count))]})
  if count < len(sweep.runs):
    write_checkpoint_of_all(sweep.root, sweep.runs, rounds, states[0])
  if writes():
    found = dict(zip((run.root for run in new.runs), summaries))
    summaries = [found.get(run.root) or read_record(run.summary_path) or {} for run in sweep.runs]
    undrawn += _draw(sweep, summaries)
    rows = [
      {"member": name_of(values), **values} | {name: summary[name] for name in IN_TABLE if name in summary}
      for values, summary in zip(sweep.members, summaries)
    ]
    for run, own in zip(new.runs, new.plans):
      keep_config(run, own.written)
    keep_config(sweep.root, sweep.whole)
    write_atomic(sweep.table, to_json(rows, indent=2))
  return undrawn


def _draw(sweep: Sweep, summaries: Sequence[dict[str, Any]]) -> list[str]:
  """Draws the sweep's picture; returns the reason if that failed."""
  failed: list[str] = []
  with pictures(sweep.root, failed):
    seen = summaries[0]
    title = f"{seen['algorithm']} on {seen['dataset']}, {seen['num_clients']} clients"
    grid = grid_of_members(sweep.members, summaries)
    plot_members(grid, sweep.root.figures / PICTURE, title=title)
  note_pictures(sweep.root, failed)
  return failed
