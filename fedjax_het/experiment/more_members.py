"""Adds members to a complete sweep: further seeds, or further values of another swept field.

The earlier members keep their files. The new ones are trained as one program, whose checkpoints are in
checkpoints/added until all files are written. Meanwhile sweep.kept.json holds the table of the earlier
members, which determines the members that are kept. In the end it is renamed to sweep.N_members.json, and
checkpoints/ holds a checkpoint of all members, from which all can be continued with more rounds.
"""

import contextlib
import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from fedjax_het.config.grid import in_order, name_of
from fedjax_het.engine.processes import agreed, writes
from fedjax_het.engine.state import State
from fedjax_het.engine.sweep import grid_of
from fedjax_het.errors import SettingError
from fedjax_het.workdir.checkpoint import Checkpoints
from fedjax_het.workdir.claim import check_claim
from fedjax_het.workdir.folder import (
  TABLE,
  Workdir,
  as_json,
  free_name,
  read_json,
  read_record,
  write_atomic,
)

KEPT = "sweep.kept.json"
Grid = Mapping[str, Sequence[Any]]


def added_checkpoints(root: Workdir) -> Path:
  """Returns the folder of the checkpoints of members that are being added."""
  return root.checkpoints / "added"


def earlier_members(root: Workdir, grid: Grid) -> tuple[Grid, list[str]] | None:
  """Returns the grid and members of the folder's complete sweep if `grid` has more members, else None.

  None for an empty folder, a sweep of the same grid, or a sweep whose grid is not a part of `grid`.

  Args:
    root: the sweep's folder.
    grid: dotted field -> values, in order.

  Raises:
    SettingError: `grid` enlarges the grid of a sweep that is not complete.
  """
  stored = (read_record(root.config_path) or {}).get("sweep")
  if not isinstance(stored, dict) or {*stored} != {*grid}:
    return None
  if not all(isinstance(own, list) and _texts(own) <= _texts(grid[path]) for path, own in stored.items()):
    return None
  if not (more := [path for path in grid if _texts(grid[path]) - _texts(stored[path])]):
    return None
  before = in_order(stored)
  names = [name_of(values) for values in grid_of(before)]
  summaries = [root.root / "members" / name / "summary.json" for name in names]
  if None in (read_json(root.root / TABLE), *map(read_record, summaries)):
    flags = " ".join(f"--sweep.{path}={','.join(map(str, own))}" for path, own in before.items())
    raise SettingError(
      f"sweep.{more[0]}", list(grid[more[0]]),
      f"has more values than {before[more[0]]}, with which the sweep in {root.root} was begun, and that one "
      "is not complete", f"Finish it first, with {flags}; then start this command again.",
    )  # fmt: skip
  return before, names


def being_kept(root: Workdir) -> list[str]:
  """Returns the members that are kept while others are being added to a sweep; [] if none are added.

  Raises:
    SettingError: the summary of a member that is kept cannot be read.
  """
  rows = read_json(root.root / KEPT)
  names = [row["member"] for row in rows] if isinstance(rows, list) else []
  for name in names:
    path = root.root / "members" / name / "summary.json"
    if read_record(path) is None:
      problem = f"others are being added to its members, and the {path.name} of {name} is gone or damaged"
      raise SettingError("workdir", str(root.root), problem, "Put that file back, or use another workdir.")
  return names


def take_up_larger(root: Workdir, before: Grid, whole: Mapping[str, Any]) -> None:
  """Changes the claimed folder of a complete sweep to a larger grid; can be repeated after a kill.

  Args:
    root: the sweep's folder.
    before: the earlier grid.
    whole: the new content of its config.json.
  """
  stored = (read_record(root.config_path) or {}).get("sweep")
  if stored != json.loads(as_json(before)):  # another process has taken it up since
    return
  settle(root)
  write_atomic(root.root / KEPT, (root.root / TABLE).read_text(encoding="utf-8"))
  write_atomic(root.config_path, as_json(whole, indent=2) + "\n")


def settle(root: Workdir) -> None:
  """Renames sweep.kept.json and removes the added members' checkpoints once all files are written."""
  if added_checkpoints(root).exists():
    shutil.rmtree(added_checkpoints(root))
  if (kept := root.root / KEPT).exists():
    count = len(read_json(kept) or ())
    kept.rename(free_name(root.root / f"sweep.{count}_members.json"))


def write_checkpoint_of_all(root: Workdir, runs: Collection[Workdir], rounds: int, like: State) -> None:
  """Writes one checkpoint of all members from the members' own; warns if one of those is missing.

  Args:
    root: the sweep's folder.
    runs: each member's folder, in order.
    rounds: the round of their checkpoints.
    like: a member's state.
  """
  found, problem = [], ""
  for run in runs:
    state = None
    if (run.checkpoints / str(rounds)).is_dir():
      with contextlib.suppress(SettingError), contextlib.closing(Checkpoints(run.checkpoints)) as own:
        state = own.restore(like) if own.latest() == rounds else None
    if state is None:
      problem = problem or f"{run.root} has no checkpoint of round {rounds} that fits the others"
    found.append(state)
  check_claim(root)
  for path in [path for path in root.checkpoints.iterdir() if path.name.isdecimal()] if writes() else ():
    shutil.rmtree(path)
  agreed(0.0)  # no process writes before they are gone
  whole = [own for own in found if own is not None]
  if len(whole) < len(found):
    logging.warning("No checkpoint of all members was written: %s. More rounds would start anew.", problem)
    return
  state = jax.tree.map(_stacked, *(state for state, _ in whole))
  with contextlib.closing(Checkpoints(root.checkpoints)) as checkpoints:
    checkpoints.save(rounds, state, {"runs": [books["runs"][0] for _, books in whole]})


def _stacked(*leaves: Any) -> Any:
  """Stacks a leaf of the members' states, [M, ...], on the host unless it is a typed key."""
  keys = jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key)
  return jnp.stack(leaves) if keys else np.stack([np.asarray(leaf) for leaf in leaves])


def _texts(values: Sequence[Any]) -> set[str]:
  """Returns values as the text that names members, in which 1 and 1.0 differ."""
  return {json.dumps(json.loads(as_json({"": value}))[""]) for value in values}
