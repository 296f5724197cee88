"""Changing the number of rounds of a run that has begun: from T_old to T.

A run of T rounds equals the first T rounds of a longer run, bit for bit, unless a setting of the method
depends on T. In that case the run is refused, and the error names the reason: a share of T (`start`) that
becomes another round, a part whose factory takes `rounds`, or an `eval_every` that is derived from T.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_het.config.own_epochs import of_earlier
from fedjax_het.config.same import as_given
from fedjax_het.config.shares import in_rounds
from fedjax_het.config.typed import Plan
from fedjax_het.config.values import chosen
from fedjax_het.errors import SettingError
from fedjax_het.methods import CLIENTS
from fedjax_het.workdir.folder import (
  TABLE,
  Workdir,
  as_json,
  filled,
  free_name,
  leaves,
  read_record,
  write_atomic,
)

Config = Mapping[str, Any]


def earlier_rounds(
  run: Workdir, plan: Plan, free: Sequence[str] = (), held: Workdir | None = None
) -> int | None:
  """Returns T_old of the run in a folder that this plan continues with another T, else None.

  It is also None for an empty folder, or one of another configuration, which `check` refuses.

  Args:
    run: its folder.
    plan: the plan, with T.
    free: fields that may differ.
    held: the folder with its checkpoints, which for a member is the sweep's; by default `run`.

  Raises:
    SettingError: a setting of the method depends on T, or T is smaller than the rounds done.
  """
  stored, config = of_earlier(read_record(run.config_path) or {}), json.loads(as_json(plan.written))
  old, new = stored.get("rounds"), config["rounds"]
  if type(old) is not int or old == new:
    return None
  try:
    before, now = (_without_rounds(own, free) for own in (stored, config))
  except (SettingError, KeyError, TypeError, AttributeError):
    return None
  differ = {name for name in {*before, *now} if before.get(name) != now.get(name)}
  shares = CLIENTS[config["algorithm"]["name"]].shares
  follow = {"eval_every", *(f"algorithm.{number}" for number in ("schedule_rounds", *shares.values()))}
  if differ - follow:
    return None
  begun = f"the run in {run.root} was begun with rounds = {old}"
  for place, method, given in chosen(config):
    if method.goes_by_rounds(given):
      problem = f"{begun}, and {place} = {method.name} goes by their number in every round"
      raise SettingError("rounds", new, problem, "Use another workdir.")
  if differ:
    own = leaves(stored), leaves(config)
    called = {name: as_given(name, *own) for name in sorted(differ)}
    were = [
      f"{said} = {before.get(name, 'None')}, which would be {now.get(name, 'None')}"
      for name, said in called.items()
    ]
    flags = [
      f"--config.algorithm.{share}=None" for share, own in shares.items() if f"algorithm.{own}" in differ
    ]
    flags += [f"--config.{said}={before.get(name, 'None')}" for name, said in called.items()]
    remedy = f"Add {' '.join(flags)} to go on with the same run, or use another workdir."
    raise SettingError("rounds", new, f"{begun} and {', and '.join(were)} with this many", remedy)
  steps, usable = _steps(held or run), _usable(held or run, plan, old)
  done = max(steps, default=0)
  if new < done:
    problem = f"{begun}, and {done} are done"
    raise SettingError("rounds", new, problem, f"Ask for at least {done}, or use another workdir.")
  if steps and not usable:
    why = "is no multiple of eval_every" if plan.eval_clients is None else "was evaluated on all clients"
    problem = f"{begun}, and its only checkpoint is of round {done}, which {why}"
    raise SettingError("rounds", new, problem, "Use another workdir.")
  return old


def take_up(run: Workdir, plan: Plan, old: int, text: Config | None = None) -> None:
  """Turns a claimed folder of T_old rounds into one of T rounds; can be repeated after a kill.

  The old summary becomes summary.T_old_rounds.json. Checkpoints of rounds at which a run of T rounds would
  not evaluate, or not all clients, are removed: T_old is such a round unless it is a multiple of `eval_every`
  and `eval_clients` is None.

  Args:
    run: the folder.
    plan: see `earlier_rounds`, whose value is `old`.
    old: T_old.
    text: what config.json is to hold; by default the plan's.
  """
  for path in (run.summary_path, run.root / TABLE):
    if path.exists():
      path.rename(free_name(path.with_name(f"{path.stem}.{old}_rounds.json")))
  for step in {*_steps(run)} - {*_usable(run, plan, old)}:
    shutil.rmtree(run.checkpoints / str(step))
  write_atomic(run.config_path, as_json(text or plan.written, indent=2) + "\n")


def take_up_members(
  root: Workdir,
  runs: Sequence[Workdir],
  plans: Sequence[Plan],
  olds: Sequence[int | None],
  whole: Config,
) -> None:
  """Prepares the folders of a sweep of T_old rounds for training on to T rounds, see `take_up`.

  The sweep's own folder comes first. A member that has not been prepared yet has T_old in its config.json, so
  that a call after a kill goes on with it. The members' checkpoints, which are copies of the sweep's last
  one, are removed.

  Args:
    root: the sweep's folder.
    runs: the members' folders.
    plans: each member's plan, of T rounds.
    olds: each member's T_old, None where it has T rounds already.
    whole: the sweep's configuration.
  """
  if found := [old for old in olds if old is not None]:
    take_up(root, plans[0], found[0], whole)
  for run, own, old in zip(runs, plans, olds):
    if old is not None:
      for step in _steps(run):
        shutil.rmtree(run.checkpoints / str(step))
      take_up(run, own, old)


def _steps(run: Workdir) -> list[int]:
  """Returns the rounds of a folder's checkpoints."""
  folders = run.checkpoints.iterdir() if run.checkpoints.is_dir() else ()
  return sorted(int(path.name) for path in folders if path.name.isdecimal())


def _usable(run: Workdir, plan: Plan, old: int) -> list[int]:
  """Returns the rounds at which runs of T_old and of T rounds have the same state and record."""
  rounds, every = plan.rounds, plan.eval_every
  again = every if plan.eval_clients is None else None  # else only the last round's evaluation is of all
  return [
    step for step in _steps(run)
    if step < min(old, rounds) or (step <= rounds and again is not None and step % again == 0)
  ]  # fmt: skip


def _without_rounds(config: Config, free: Sequence[str]) -> dict[str, str]:
  """Flattens a configuration without T and the free fields, with shares of T as rounds: field -> text."""
  own = leaves(filled({**config, "algorithm": in_rounds(config["algorithm"], config["rounds"])}))
  return {name: text for name, text in own.items() if name not in ("rounds", *free)}
