"""The board's pages, made from the raw figures: DOCS/leaderboard.md, and two pages and a picture a task."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedjax_het.leaderboard.board import Board, rows_of
from fedjax_het.leaderboard.budget import SEEDS
from fedjax_het.leaderboard.pictures import draw
from fedjax_het.leaderboard.summary import Line, Task, summarized
from fedjax_het.leaderboard.words import ABOUT, HOW
from fedjax_het.leaderboard.work import States, states_of
from fedjax_het.metrics.budget import amount
from fedjax_het.metrics.catalogue import shown
from fedjax_het.metrics.seeds import OverSeeds
from fedjax_het.studies.text import MISSING, named
from fedjax_het.workdir.folder import write_atomic

FITS = 16_000  # bytes of a page
LISTED = 12  # methods of a first group that the summary names; of a larger one it says how many they are
SHOWN = (1000, 40, 30, 20, 15, 10, 5, 0)  # rows beside the first group, on the page of all tasks


def write_page(board: Board, raw: Path, docs: Path) -> list[Path]:
  """Writes the pages and pictures of all rows that have raw figures; returns the paths that were written.

  Args:
    board: the board.
    raw: the folder of the raw figures.
    docs: the folder of the pages.
  """
  states = states_of(board, rows_of(board, [], []), raw, on_gpu=True)
  tasks = [
    summarized(task, {row.method: own for row, own in states.there.items() if row.task == task})
    for task in board.tasks
    if any(row.task == task for row in states.there)
  ]
  written = {docs / "leaderboard.md": main_page(board, states, tasks)}
  for task in tasks:
    written[docs / "leaderboard" / f"{task.name}.md"] = task_page(board, states, task)
    written[docs / "leaderboard" / f"{task.name}_settings.md"] = settings_page(task)
  for path, lines in written.items():
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, "\n".join(lines) + "\n")
  drawn = [draw(task, docs / "images" / "leaderboard" / f"{task.name}.png") for task in tasks if task.groups]
  return [*written, *drawn]


def main_page(board: Board, states: States, tasks: Sequence[Task]) -> list[str]:
  """Returns the lines of the page of all tasks.

  It has as many of the rows behind the first groups as `FITS` bytes hold; the tasks' own pages have all.
  """
  lines: list[str] = []
  for most in SHOWN:
    lines = [*ABOUT.splitlines(), "", *_summary(board, states, tasks)]
    for task in tasks:
      lines += ["", *_section(board, task, most)]
    lines += ["", *HOW.splitlines()]
    if len("\n".join(lines).encode()) < FITS:
      break
  return lines


def _summary(board: Board, states: States, tasks: Sequence[Task]) -> list[str]:
  """Returns what the tasks say, no more than their intervals carry; what is still to run; what is stale."""
  lines = ["## Summary", ""]
  compared = [task for task in tasks if task.groups]
  if compared:
    lines += ["| how clients differ | task | not told apart from the best |", "|---|---|---|"]
    for task in compared:
      first = ", ".join(f"`{line.method}`" for line in task.first) if len(task.first) <= LISTED else ""
      many = f"{len(task.first)} of {len(task.lines)} methods"
      of = f"{first} ({many})" if first else f"{many}, see its table"
      lines.append(f"| {board.tasks[task.name]['what']} | [{task.name}](#{task.name}) | {of} |")
    lines.append("")
  else:
    lines += ["No two methods of a task have been run yet, so nothing is compared.", ""]
  left: dict[str, int] = {}
  for row in states.missing:
    left[row.task] = left.get(row.task, 0) + 1
  if left:
    many = ", ".join(f"{task} ({count} methods)" for task, count in left.items())
    lines += [f"Still to run: {many}.", ""]
  lines += [
    f"- Stale, see the task's page: {task} ({len(own)} methods)." for task, own in _stale(states).items()
  ]
  return lines[:-1] if lines[-1] == "" else lines


def _stale(states: States) -> dict[str, dict[str, list[str]]]:
  """Returns task -> method -> what has changed since its figures were made."""
  found: dict[str, dict[str, list[str]]] = {}
  for row, changed in states.stale.items():
    found.setdefault(row.task, {})[row.method] = changed
  return found


def _section(board: Board, task: Task, most: int) -> list[str]:
  """Returns a task's section of the page of all tasks, with at most `most` rows behind the first group."""
  lines = [f"## {task.name}", "", f"{_sentence(board.tasks[task.name]['what'])} {_told_apart(task)}"]
  own = f"leaderboard/{task.name}"
  lines.append(f"[All columns]({own}.md); [settings]({own}_settings.md).")
  if task.lines:
    lines += ["", f"| method | group | {named(task.metric)} | {_worst(task)} |", "|---|---|---|---|"]
    for line in [*task.first, *task.others[:most]]:
      group = "first" if line in task.first and task.groups else ""
      cells = [_figure(line.over[one], task.metric) for one in ("mean", "worst")]
      lines.append(f"| {line.method} | {group} | {' | '.join(cells)} |")
    if hidden := len(task.others[most:]):
      worse = "lower" if shown(task.metric).higher_is_better else "higher"
      lines += ["", f"{hidden} methods with {worse} means are on the task's page."]
  return lines


def task_page(board: Board, states: States, task: Task) -> list[str]:
  """Returns the lines of a task's own page: all columns, the picture, and what has no figures."""
  lines = [
    f"# Leaderboard: {task.name}", "", f"{_sentence(board.tasks[task.name]['what'])} {_told_apart(task)}",
    "See [the board](../leaderboard.md) for what was done.", "",
  ]  # fmt: skip
  if task.lines:
    columns = (
      "method", "group", named(task.metric), _worst(task), "weighted", "global", "ECE", "up", "down",
      "client steps", "seconds", "tuning",
    )  # fmt: skip
    lines += [
      "Weighted: by the clients' test examples. Up and down: bytes of a run. Seconds: training of a seed, as"
      f" one of {len(SEEDS)} in a program. Tuning: number of trials, and the seconds that they took. The"
      " machine may have done other work meanwhile.", "",
      f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}",
      *[_row(task, line) for line in task.lines], "",
    ]  # fmt: skip
  if task.groups:
    picture = f"../images/leaderboard/{task.name}.png"
    lines += [f"![Accuracy against bytes, seconds and the worst clients]({picture})", ""]
  lines += [f"- No figures of `{method}`: {reason}" for method, reason in task.failed.items()]
  missing = [f"`{row.method}`" for row in states.missing if row.task == task.name]
  lines += [f"- Still to run: {', '.join(missing)}."] if missing else []
  for row, reason in states.refused.items():
    if row.task == task.name:
      lines.append(f"- `{row.method}` does not go with the task: {reason}")
  by_reason: dict[str, list[str]] = {}
  for method, changed in _stale(states).get(task.name, {}).items():
    by_reason.setdefault("; ".join(changed), []).append(f"`{method}`")
  lines += [f"- Stale, {reason}: {', '.join(methods)}." for reason, methods in by_reason.items()]
  return lines


def settings_page(task: Task) -> list[str]:
  """Returns the lines of a task's page of settings: the command of every row, and where it was made."""
  lines = [
    f"# Leaderboard: settings of {task.name}", "",
    "The five seeds of a row again, with its FLAGS and name; the row from its trials on is"
    f" `python -m fedjax_het.leaderboard --tasks={task.name} --methods=METHOD`, without its raw figures.", "",
    "```sh", "# Not run by the tests: FLAGS and METHOD are those of a row.",
    f"python -m fedjax_het.run --config=configs/leaderboard.py:task={task.name},method=METHOD FLAGS \\",
    f"  --sweep.seed={','.join(map(str, SEEDS))} --config.data_dir=DATA --workdir=DIR", "```", "",
    "| METHOD | FLAGS | at the edge of its range |", "|---|---|---|",
  ]  # fmt: skip
  for line in task.lines:
    flags = " ".join(f"--config.{field}={value!r}" for field, value in line.raw["chosen"].items())
    lines.append(f"| {line.method} | `{flags}` | {', '.join(line.raw['at_edge'])} |")
  made = sorted({_made(line.raw["provenance"]) for line in task.lines})
  return [*lines, "", *[f"- {one}" for one in made]]


def _row(task: Task, line: Line) -> str:
  ece, raw = line.mean("ece"), line.raw
  cells = [
    line.method, "first" if line in task.first and task.groups else "",
    *[_figure(line.over[one], task.metric) for one in ("mean", "worst", "weighted", "global")],
    MISSING if ece is None else f"{ece:.3f}",
    *[amount("bytes", line.mean(one)) for one in ("up", "down")],
    amount("client_steps", line.mean("client_steps")), amount("seconds", line.mean("train_seconds")),
    f"{raw['made_by']['trials']}, {amount('seconds', raw['tuning']['seconds'])}",
  ]  # fmt: skip
  return f"| {' | '.join(cells)} |"


def _told_apart(task: Task) -> str:
  """Returns what the comparison could see, in a sentence or two."""
  if task.groups is None:
    return "One method has been run, so nothing is compared." if task.lines else "No method has figures yet."
  groups, unit = task.groups, "points" if shown(task.metric).factor == 100 else f"of {named(task.metric)}"
  margin = MISSING
  if groups.margin is not None:
    margin = f"{shown(task.metric).factor * groups.margin:.2g} {unit}"
  apart = len(task.lines) - len(groups.pooled)
  told = [
    f"Of {len(task.lines)} methods, {len(task.first)} cannot be told apart from the best; differences below"
    f" {margin} could not be seen."
  ]
  if apart:
    told.append(f"{apart} of them vary more or less than the best one over the seeds, and have own tests.")
  return " ".join(told)


def _sentence(text: str) -> str:
  return f"{text[:1].upper()}{text[1:]}."


def _worst(task: Task) -> str:
  return "worst client" if task.clients < 10 else "worst tenth"


def _figure(own: OverSeeds | None, metric: str) -> str:
  if own is None:
    return MISSING
  factor, digits = (100.0, 1) if shown(metric).unit == "%" else (1.0, 3)
  half = "" if own.half is None else f" ± {factor * own.half:.{digits}f}"
  return f"{factor * own.mean:.{digits}f}{half}"


def _made(own: Mapping[str, Any]) -> str:
  return f"commit {own.get('commit')}, {own.get('date')}, {own.get('machine')}"
