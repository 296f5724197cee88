"""What is started for the runs of a table: programs of those that differ in numbers, and what went before."""

import json
from pathlib import Path

import pytest
from tiny_table import tiny_table, unchanged

from fedjax_het.errors import SettingError
from fedjax_het.program.where import Where
from fedjax_het.tables import reproduce
from fedjax_het.tables.runs import Program, ended, identity, programs


@pytest.fixture(scope="module")
def table(tmp_path_factory):
  return tiny_table(tmp_path_factory.mktemp("table"))


def plan(todo: list[Program]) -> list[tuple[str, dict, list[int]]]:
  return [(program.folder.name, program.grid, [one.seed for one in program.runs]) for program in todo]


def test_runs_that_differ_in_numbers_are_one_program(table, tmp_path):
  wanted = reproduce.wanted(table, table.cells, [0, 1, 2], unchanged)
  whole = plan(programs(wanted, tmp_path))
  grid = {"local.lr": [0.05, 0.1], "seed": [0, 1, 2]}
  assert whole == [
    (f"algorithm={name},lr=0.05+0.1,seed=0+1+2", grid, [0, 0, 1, 1, 2, 2]) for name in ("fedavg", "fedper")
  ]
  by_cell = plan(programs(wanted[:3], tmp_path, together=2))
  assert by_cell == [
    ("algorithm=fedavg,lr=0.05,seed=0+1", {"seed": [0, 1]}, [0, 1]),
    ("algorithm=fedavg,lr=0.05,seed=2", {}, [2]),
  ]
  assert [name for name, *_ in plan(programs(wanted[:2], tmp_path, together=3))] == [
    "algorithm=fedavg,lr=0.05,seed=0", "algorithm=fedavg,lr=0.05,seed=1",
  ]  # fmt: skip
  no_grid = [wanted[0], wanted[1], wanted[3]]  # lr 0.05 with seeds 0 and 1, 0.1 with 0 alone
  assert [seeds for _, _, seeds in plan(programs(no_grid, tmp_path))] == [[0, 1], [0]]


def test_a_program_s_runs_are_in_its_members_order(table, tmp_path):
  wanted = reproduce.wanted(table, table.cells[:2], [0, 1], unchanged)
  (program,) = programs(wanted[::-1], tmp_path)
  assert program.grid == {"local.lr": [0.1, 0.05], "seed": [1, 0]}
  assert [(one.plan.parts["local"]["lr"], one.seed) for one in program.runs] == [
    (0.1, 1),
    (0.05, 1),
    (0.1, 0),
    (0.05, 0),
  ]


def test_a_hundred_seeds_have_a_folder(table, tmp_path):
  for seeds in (range(100), range(1, 101)):
    (program,) = programs(reproduce.wanted(table, table.cells[:1], [*seeds], unchanged), tmp_path)
    program.folder.mkdir()
    assert program.folder.name.startswith("algorithm=fedavg,lr=0.05,seed=")
  assert len([*tmp_path.iterdir()]) == 2


def leave(folder: Path, config: dict, summary: bool = True) -> Path:
  folder.mkdir(parents=True)
  (folder / "config.json").write_text(json.dumps(config))
  if summary:
    (folder / "summary.json").write_text("{}")
  return folder


def test_what_has_ended_counts_by_its_configuration_alone(table, tmp_path):
  wanted = reproduce.wanted(table, table.cells[:1], [0, 1], unchanged)
  first = dict(wanted[0].plan.written)
  assert ended(tmp_path / "nowhere") == {}
  here = leave(tmp_path / "any" / "name", first | {"data_dir": "/elsewhere"})
  leave(tmp_path / "algorithm=fedavg,lr=0.05,seed=0", first | {"rounds": 3})
  assert ended(tmp_path)[identity(wanted[0].plan)] == here
  assert plan(programs(wanted, tmp_path)) == [("algorithm=fedavg,lr=0.05,seed=1", {}, [1])]
  (tmp_path / "algorithm=fedavg,lr=0.05,seed=1").mkdir()  # nobody's yet
  assert plan(programs(wanted, tmp_path)) == [("algorithm=fedavg,lr=0.05,seed=1", {}, [1])]
  (here / "summary.json").unlink()
  todo = programs(wanted, tmp_path)
  assert [(program.folder, program.grid) for program in todo] == [
    (here, {}), (tmp_path / "algorithm=fedavg,lr=0.05,seed=1", {}),
  ]  # fmt: skip
  (here / "failed.json").write_text("{}")
  assert len(programs(wanted, tmp_path)) == 1
  for name in ("a", "z"):  # of two, the one that did not fail, wherever it is
    again = leave(tmp_path / name, first)
    assert ended(tmp_path)[identity(wanted[0].plan)] == again
    (again / "config.json").unlink()


def test_runs_may_be_programs_of_their_own(table, tmp_path):
  wanted = reproduce.wanted(table, table.cells[:1], [0, 1], unchanged)
  assert [grid for _, grid, _ in plan(programs(wanted, tmp_path, together=0))] == [{}, {}]
  assert len(programs(wanted, tmp_path)) == 1
  todo = programs(wanted, tmp_path, together=1)
  assert reproduce.alike(todo, wanted) == todo  # as processes send it to one another


def test_methods_without_states_run_as_ever_where_others_states_stay_on_the_host(
  table, tmp_path, monkeypatch, capsys
):
  asked, seen = Where(device_states=9), []
  real = reproduce.run_experiment

  def run(config, folder, where, **more):
    seen.append((config.client.name, where))
    return real(config, folder, where, **more)

  monkeypatch.setattr(reproduce, "run_experiment", run)
  wanted = reproduce.wanted(table, [table.cells[0], table.cells[2]], [0], unchanged)
  found = reproduce.reproduce(table, wanted, tmp_path / "runs", asked, together=0)
  assert seen == [("fedavg", asked), ("fedavg", Where()), ("fedper", asked)]  # the engine is asked
  assert all(entry.ours for entry in found)
  assert capsys.readouterr().out.count("algorithm=fedavg") == 1


def test_states_of_a_cohort_that_do_not_fit_are_found_before_anything_runs(table, tmp_path):
  wanted = reproduce.wanted(table, table.cells, [0], unchanged)
  with pytest.raises(SettingError, match=r"device_states = 2: a round's cohort has 5 clients.*Use 5 or more"):
    reproduce.reproduce(table, wanted, tmp_path / "runs", Where(device_states=2), together=0)
  assert not (tmp_path / "runs").exists()


def test_an_unfinished_sweep_goes_on_where_all_its_members_are_wanted(table, tmp_path):
  wanted = reproduce.wanted(table, table.cells[:1], [0, 1, 2], unchanged)
  whole = leave(
    tmp_path / "sweep", {"config": dict(wanted[0].plan.written), "sweep": {"seed": [0, 1]}}, False
  )
  leave(whole / "members" / "seed=0", dict(wanted[0].plan.written), summary=False)
  leave(whole / "members" / "seed=1", dict(wanted[1].plan.written), summary=False)
  todo = programs(wanted, tmp_path)
  assert plan(todo) == [
    ("sweep", {"seed": [0, 1]}, [0, 1]), ("algorithm=fedavg,lr=0.05,seed=2", {}, [2]),
  ]  # fmt: skip
  assert plan(programs(wanted[1:], tmp_path)) == [
    ("algorithm=fedavg,lr=0.05,seed=1+2", {"seed": [1, 2]}, [1, 2])
  ]
  (whole / "members" / "seed=0" / "summary.json").write_text("{}")  # stopped while it wrote the summaries
  assert plan(programs(wanted, tmp_path)) == plan(todo)
  (whole / "sweep.json").write_text("[]")
  (whole / "members" / "seed=0" / "summary.json").rename(tmp_path / "aside")  # no member has one: all go on
  assert plan(programs(wanted, tmp_path)) == plan(todo)
  (tmp_path / "aside").rename(whole / "members" / "seed=0" / "summary.json")  # the other's files were removed
  assert plan(programs(wanted, tmp_path)) == [("algorithm=fedavg,lr=0.05,seed=1+2", {"seed": [1, 2]}, [1, 2])]
