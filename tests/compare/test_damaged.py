"""Runs with damaged files: shown with a note beside the others, never the end of a page, table or report."""

import copy
import io
import json
import random

import numpy as np
import pytest
from ml_collections import ConfigDict
from run_folders import CONFIG, both, write_run
from terminal_text import shown

from fedjax_het.compare.content import content
from fedjax_het.compare.groups import grouped
from fedjax_het.compare.runs import find
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.errors import DataError, SettingError
from fedjax_het.experiment.report import made_of, report
from fedjax_het.output.terminal import console as new_console
from fedjax_het.studies.members import members_table
from fedjax_het.tables import layout
from fedjax_het.tables.board import Board
from fedjax_het.tables.compare import entries, made
from fedjax_het.tables.paper import Cell, Relative, Table
from fedjax_het.tables.runs import Wanted, identity
from fedjax_het.workdir.folder import check, prepare
from fedjax_het.workdir.tracking import to_json

SUMMARY = {
  "lambda": {"grid": [0.0, 0.5, 1.0], "mean": [0.1, 0.2, None], "metric": "top1", "common": 0.5},
  "simplex": {
    "metric": "top1", "alphas": [[1.0, 0.0], [0.0, 1.0]], "all": [0.5, None], "clusters": {"0": [0.1, 0.2]},
  },
  "synthetic": {"downstream": {"local": {"mean": 0.5, "std": 0.1}}},
  "seconds": {"compile": 1.0, "train": 2.0, "eval": 0.5}, "num_clients": 20, "dataset": "digits",
}  # fmt: skip
LINE = {"mixing": {"coefficients": [0.5, 0.5], "cohort": [0, 1], "entropy": 0.7}, "figures": {"x": 1.0}}
WORST = (
  None, True, "NaN", "text", "", [], {}, [1], {"a": 1}, 10**400, -(10**90), 1e308, float("nan"), float("inf"),
  -1, 0.5, 2**63, "\x1b[2J", "\ud800", [[[]]], {"mean": []},
)  # fmt: skip


def console():
  return new_console(file=io.StringIO(), width=200)


def mutated(value, draw):
  """The value with one place in it replaced, removed or added."""
  value = copy.deepcopy(value)
  place = value
  while True:
    keys = list(place) if isinstance(place, dict) else list(range(len(place)))
    key = draw.choice(keys)
    if isinstance(place[key], dict | list) and place[key] and draw.random() < 0.8:
      place = place[key]
      continue
    if draw.random() < 0.15:
      del place[key]
    else:
      place[key] = draw.choice(WORST)
    return value


def show_all(folder):
  """Everything that compare shows of a folder; nothing where no run in it can be shown."""
  left_out = []
  try:
    groups = grouped(find([folder], left_out))
  except SettingError:
    return [], ["none"]
  page = content(groups)
  json.loads(to_json(page))
  shown(groups)
  return groups, left_out


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 13))])
def test_no_damaged_value_ends_the_comparison(seed, tmp_path):
  draw = random.Random(seed)
  write_run(tmp_path / "good", summary=SUMMARY, line=LINE)
  own = write_run(tmp_path / "own", summary=SUMMARY, line=LINE, seed=1)
  files = {name: (own / name).read_text() for name in ("config.json", "summary.json", "metrics.jsonl")}
  starts = {"version": "1", "commit": "abc", "data": {"examples": 1797, "data_digest": "a"}}
  files |= {"starts.jsonl": json.dumps(starts), "failed.json": json.dumps({"failed": "diverged: x"})}
  for name in ("failed.json", "starts.jsonl"):
    (own / name).write_text(files[name])
  for _ in range(60):
    name = draw.choice([*files])
    lines = [
      json.loads(line) for line in ([files[name]] if name != "metrics.jsonl" else files[name].splitlines())
    ]
    at = draw.randrange(len(lines))
    for _ in range(draw.choice((1, 1, 3))):
      if lines[at]:
        lines[at] = mutated(lines[at], draw)
    (own / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    groups, left_out = show_all(tmp_path)
    assert any(run.name == "good" and run.complete for group in groups for run in group.runs)
    assert left_out or any(run.name == "own" for group in groups for run in group.runs)
    (own / name).write_text(files[name])
  for content_of in (
    "",
    "{",
    "[1]",
    "null",
    '"text"',
    "[" * 100_000,
    "\xff\x00",
    '{"a":' * 60 + "1" + "}" * 60,
  ):
    for name in files:
      (own / name).write_bytes(content_of.encode("latin-1"))
      show_all(tmp_path)
      (own / name).write_text(files[name])


def test_a_damaged_file_is_named_with_the_place(tmp_path):
  write_run(tmp_path / "good", seed=0)
  wrong = {
    "text": (
      {"metrics": both(0.5) | {"global": {"top1": {"mean": "NaN"}}}},
      "metrics.global.top1.mean is text",
    ),
    "list": ({"metrics": [1]}, "metrics is a list, not fields with values"),
    "huge": ({"metrics": both(1e200)}, "a number is too large"),
    "lambda": ({"metrics": both(0.5), "lambda": {"grid": [0.0], "mean": [1.0, 2.0]}}, "lambda.mean has 2"),
  }
  for seed, (name, (summary, _)) in enumerate(wrong.items(), 1):
    write_run(tmp_path / name, (0.5, 0.6), seed=seed)
    (tmp_path / name / "summary.json").write_text(json.dumps(summary))
  (group,) = grouped(find([tmp_path]))
  states = {run.name: run.state for run in group.runs}
  for name, (_, problem) in wrong.items():
    assert states[name].startswith("round 20 of 30; summary.json is damaged (") and problem in states[name]
  assert group.values("personalized", "top1", "mean") == {0: 0.7}
  assert "summary.json is damaged" in shown([group])


def test_damaged_lines_are_counted_and_the_one_being_written_is_not(tmp_path):
  run = write_run(tmp_path / "run", ended=False)
  lines = (run / "metrics.jsonl").read_text()
  (run / "metrics.jsonl").write_text(lines + '{"round": "x"}\n[]\n{"round": 40, "met')
  (group,) = grouped(find([run]))
  assert group.state.startswith("round 30 of 30; 2 lines of metrics.jsonl are damaged")


def test_what_may_not_be_read_or_is_a_folder_says_so(tmp_path):
  run = write_run(tmp_path / "run", (0.5,), ended=False)
  (run / "summary.json").mkdir()
  assert find([run])[0].state.endswith("summary.json cannot be read (Is a directory)")


@pytest.mark.parametrize(
  "name", ["config.json", "summary.json", "metrics.jsonl", "starts.jsonl", "failed.json"]
)
def test_a_file_of_a_workdir_that_cannot_be_read_is_not_called_damaged(name, tmp_path, monkeypatch):
  (tmp_path / name).mkdir()
  with pytest.raises(SettingError, match=rf"workdir = .*its {name} cannot be read \(Is a directory\)"):
    check(tmp_path, {"a": 1})
  (tmp_path / name).rmdir()
  (tmp_path / name).write_text("{}")

  def refused(self, *args):
    raise PermissionError(13, "Permission denied")

  monkeypatch.setattr("pathlib.Path.open", refused)
  with pytest.raises(SettingError, match=r"cannot be read \(Permission denied\)"):
    check(tmp_path, {"a": 1})


@pytest.mark.parametrize("name", ["a[b]", "a*", "a?b/c"])
def test_a_folder_whose_checkpoints_could_not_be_read_again_is_refused(name, tmp_path):
  with pytest.raises(SettingError, match=r"workdir = .*signs \*, \? and \[ in its path.*Name another"):
    prepare(tmp_path / name, {"a": 1})
  assert not [*tmp_path.iterdir()]


def test_a_run_without_a_configuration_is_left_out_with_a_note(tmp_path):
  write_run(tmp_path / "good")
  write_run(tmp_path / "bad", seed=1)
  (tmp_path / "other").mkdir()
  (tmp_path / "other" / "config.json").write_text('{"compilerOptions": {}}')
  for text, problem in (("{", "no JSON"), (json.dumps(CONFIG | {"seed": "0"}), "seed is no whole number")):
    (tmp_path / "bad" / "config.json").write_text(text)
    left_out = []
    assert [run.name for run in find([tmp_path], left_out)] == ["good"]
    assert len(left_out) == 1 and str(tmp_path / "bad") in left_out[0] and problem in left_out[0]
  with pytest.raises(SettingError, match=r"holds no run.*bad is left out: its config\.json is damaged"):
    find([tmp_path / "bad"])


ARRAYS = {
  "clients.npz": {"personalized/top1": np.linspace(0, 1, 5)},
  "partition.npz": {"counts": np.ones((3, 2), int)},
  "landscape.npz": {"line": np.arange(3.0), "losses": np.ones((3, 3))},
  "samples/10.npz": {"x": np.zeros((4, 2, 2, 1)), "y": np.array([0, 1, 0, 1])},
}  # fmt: skip
OTHERS = (
  np.array("text"), np.array(["a", "b"]), np.float64(1), np.zeros((0,)), np.zeros((0, 0)),
  np.ones((2, 2, 2)), np.array([np.nan, np.inf]), np.array([1e300]), np.array([10**9]), np.array([-1]),
  np.ones(3, complex),
)  # fmt: skip


def test_no_damaged_array_ends_the_comparison(tmp_path):
  run = write_run(tmp_path / "run", arrays=ARRAYS)
  for file, arrays in ARRAYS.items():
    path = run / file
    whole = path.read_bytes()
    for name in arrays:
      for other in OTHERS:
        np.savez(path, **(arrays | {name: other}))
        assert show_all(tmp_path)[0]
    np.savez(path, unknown=np.ones(2))
    assert show_all(tmp_path)[0]
    for damaged in (b"", whole[: len(whole) // 2], b"text", whole[:40] + b"\xff" * 40 + whole[80:]):
      path.write_bytes(damaged)
      assert show_all(tmp_path)[0]
    path.write_bytes(whole)


FULL = {name: SUMMARY[name] for name in ("seconds", "num_clients", "dataset")} | {
  "algorithm": "fedavg", "mixing": "static", "server": "sgd", "metrics": both(0.5), "client_steps": 100,
  "label_noise": {"name": "pair", "ratio": 0.4, "changed": 0.3}, "bytes": {"up": 10, "down": 20},
  "left_out": {"personalized": {"top1": 2}},
  "diverged": {"round": 12, "client": 3, "loss": "nan"},
}  # fmt: skip


def test_a_damaged_summary_of_a_complete_run_is_an_error_that_says_what_to_do(tmp_path):
  draw, refused = random.Random(1), 0
  console().print(made_of(tmp_path / "summary.json", report, FULL, ()))
  for _ in range(300):
    summary = mutated(FULL, draw)
    try:
      console().print(made_of(tmp_path / "summary.json", report, summary, ()))
    except DataError as error:
      assert "summary.json is damaged" in str(error) and "Remove it" in str(error)
      refused += 1
  assert 20 < refused < 280


def test_a_damaged_member_of_a_sweep_is_an_error_that_says_what_to_do(tmp_path):
  members = [{"seed": 0}, {"seed": 1}]
  good = {"metrics": both(0.5)}
  console().print(made_of(tmp_path, members_table, members, [good, good]))
  for wrong in (
    {"metrics": 1},
    {"metrics": {"personalized": []}},
    {"metrics": {"personalized": {"top1": "x"}}},
    {"diverged": 3},
  ):
    with pytest.raises(DataError, match="is damaged"):
      made_of(tmp_path, members_table, members, [good, good | wrong])


@pytest.mark.slow
def test_a_damaged_summary_leaves_a_table_with_the_others(tmp_path):
  cells = [Cell(method, {"algorithm": method.lower()}, {}) for method in "AB"]
  ratio = Relative("lambda", lambda own, other: own["mean"][0] / other["mean"][0], {"B": "A"})
  figures = {"top1": ("metrics.personalized.top1", 100.0), "ratio": ratio}
  table = Table("t", "t", ConfigDict, figures, cells)
  wanted = [Wanted(cell, 0, {"of": cell.text}) for cell in cells]
  ended = {identity(one.plan): tmp_path / one.cell.method for one in wanted}
  summary, starts = {"metrics": both(0.5), **SUMMARY}, {"version": "1", "date": "2026", "data": {}}
  for one in ended.values():
    one.mkdir()
    (one / "summary.json").write_text(json.dumps(summary))
  draw = random.Random(2)
  for _ in range(150):
    own = mutated(summary, draw)
    (tmp_path / "B" / "summary.json").write_text(json.dumps(own))
    (tmp_path / "B" / "starts.jsonl").write_text(json.dumps(mutated(starts, draw)))
    (tmp_path / "B" / "config.json").write_text(json.dumps(mutated(CONFIG, draw)))
    found = entries(table, wanted, ended)
    assert next(entry for entry in found if entry.cell.method == "A").values == {0: 50.0}
    parts = found, cells, "A", "title", made([*ended.values()])
    for write in (layout.markdown, layout.latex):
      write(*parts).encode()
    layout.as_csv(found, cells, "A").encode()
    console().print(layout.drawn(*parts))
    Board([], [(plan(get_config()), own)])
