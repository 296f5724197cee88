"""More rounds, or fewer, in a folder that was begun with another number of them: T_old becomes T.

A run of T rounds has the bits of the first rounds of a longer one wherever T is no setting of the method.
Where it is one, the run is refused, and the error says why: a share of T (`start`) that is another round
then, a part whose factory asks for `rounds`, or an `eval_every` that follows from T.
"""

import inspect
import json
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_het.config.own_epochs import of_earlier
from fedjax_het.config.shares import in_rounds
from fedjax_het.config.typed import Plan
from fedjax_het.errors import SettingError
from fedjax_het.methods import CLIENTS, METHODS
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
  """T_old of the run that a folder holds, where this plan goes on with it to another T; else None.

  None too where the folder holds nothing, or a run of another configuration, which `check` refuses.

  Args:
    run: its folder.
    plan: the plan, with T.
    free: fields that may differ anyway.
    held: the folder with its checkpoints, a sweep's for a member; by default `run`.

  Raises:
    SettingError: T is a setting of the method, or fewer rounds than are done already.
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
  follow = {"eval_every", *(f"algorithm.{number}" for number in shares.values())}
  if differ - follow:
    return None
  begun = f"the run in {run.root} was begun with rounds = {old}"
  if differ:
    were = [
      f"{name} = {before.get(name, 'None')}, which would be {now.get(name, 'None')}"
      for name in sorted(differ)
    ]
    flags = [
      f"--config.algorithm.{share}=None" for share, own in shares.items() if f"algorithm.{own}" in differ
    ]
    flags += [f"--config.{name}={before.get(name, 'None')}" for name in sorted(differ)]
    remedy = f"Add {' '.join(flags)} to go on with the same run, or use another workdir."
    raise SettingError("rounds", new, f"{begun} and {', and '.join(were)} with this many", remedy)
  for section, table in METHODS.items():
    part = config[section]["name"]
    if "rounds" in inspect.signature(table[part].factory).parameters:
      problem = f"{begun}, and {section} = {part} goes by their number in every round"
      raise SettingError("rounds", new, problem, "Use another workdir.")
  steps, usable = _steps(held or run), _usable(held or run, plan, old)
  done = max(steps, default=0)
  if new < done:
    problem = f"{begun}, and {done} are done"
    raise SettingError("rounds", new, problem, f"Ask for at least {done}, or use another workdir.")
  if steps and not usable:
    problem = f"{begun}, and its only checkpoint is of round {done}, which is no multiple of eval_every"
    raise SettingError("rounds", new, problem, "Use another workdir.")
  return old


def take_up(run: Workdir, plan: Plan, old: int, text: Config | None = None) -> None:
  """Makes a claimed folder of T_old rounds one of T; after a kill within, the next start does the rest.

  The summary so far becomes summary.T_old_rounds.json. A checkpoint that a run of T does not go through is
  removed: T_old's last evaluation is one of T's only where it is a multiple of `eval_every`.

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


def earlier_rounds_of_members(
  root: Workdir, runs: Sequence[Workdir], plans: Sequence[Plan], grid: Mapping[str, Any],
  free: Sequence[str],
) -> list[int | None]:  # fmt: skip
  """`earlier_rounds` of each member of the sweep in `root`, of this grid."""
  if (read_record(root.config_path) or {}).get("sweep") != json.loads(as_json(grid)):
    return [None] * len(runs)
  return [earlier_rounds(run, own, free, root) for run, own in zip(runs, plans)]


def take_up_members(
  root: Workdir,
  runs: Sequence[Workdir],
  plans: Sequence[Plan],
  olds: Sequence[int | None],
  whole: Config,
) -> None:
  """`take_up` of each member whose rounds become others, and last of their sweep, with config.json `whole`.

  The members' checkpoints, copies of the sweep's last one, are removed.
  """
  for run, own, old in zip(runs, plans, olds):
    if old is not None:
      for step in _steps(run):
        shutil.rmtree(run.checkpoints / str(step))
      take_up(run, own, old)
  if found := [old for old in olds if old is not None]:
    take_up(root, plans[0], found[0], whole)


def _steps(run: Workdir) -> list[int]:
  """The rounds of a folder's checkpoints."""
  folders = run.checkpoints.iterdir() if run.checkpoints.is_dir() else ()
  return sorted(int(path.name) for path in folders if path.name.isdecimal())


def _usable(run: Workdir, plan: Plan, old: int) -> list[int]:
  """Those at which a run of T_old rounds and one of T are in the same state, with the same books."""
  rounds, every = plan.rounds, plan.eval_every
  return [
    step for step in _steps(run)
    if step < min(old, rounds) or (step <= rounds and every is not None and step % every == 0)
  ]  # fmt: skip


def _without_rounds(config: Config, free: Sequence[str]) -> dict[str, str]:
  """Dotted field -> its text, of all but T and the free fields; shares of T as rounds."""
  own = leaves(filled({**config, "algorithm": in_rounds(config["algorithm"], config["rounds"])}))
  return {name: text for name, text in own.items() if name not in ("rounds", *free)}
