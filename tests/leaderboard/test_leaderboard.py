"""The board: its rows, their spaces and trials, and what makes raw figures stale."""

import json
from pathlib import Path

import pytest

from fedjax_het.config.plan import plan
from fedjax_het.errors import SettingError
from fedjax_het.leaderboard import raw, spaces
from fedjax_het.leaderboard.board import Row, read_board, rows_of, section_of
from fedjax_het.leaderboard.budget import LEAST, MOST, trials_within
from fedjax_het.methods import METHODS, Method
from fedjax_het.tune.checks import checked_study
from fedjax_het.tune.rungs import budget
from fedjax_het.tune.space import Span

ROOT = Path(__file__).parents[2]
BOARD = read_board(ROOT / "configs" / "leaderboard.py")
TINY = read_board(ROOT / "tests" / "shared" / "tiny_board.py")
SOME = "fedavg", "superfed_mm", "pfedme", "feddf", "afl", "adam"


@pytest.mark.parametrize("task", BOARD.tasks)
def test_rows_of_a_task_plan_and_their_spaces_hold(task):
  for method in SOME:
    row = Row(task, method)
    assert not BOARD.goes(row), (row, BOARD.goes(row))
    checked_study(BOARD.config(row), BOARD.space(row), BOARD.number_of_trials(row), 8)


@pytest.mark.slow
def test_every_row_plans_or_is_refused_for_its_cohort():
  for row in rows_of(BOARD, [], []):
    if reason := BOARD.goes(row):
      assert row.method in ("cfl", "aaggff_s") and "in every round" in reason, (row, reason)
    else:
      checked_study(BOARD.config(row), BOARD.space(row), BOARD.number_of_trials(row), 8)


def test_every_method_has_rows_or_a_reason_and_a_number_of_trials():
  known = {name for table in METHODS.values() for name in table}
  names = BOARD.names()
  assert {*names} | {*BOARD.left_out} == known and not {*names} & {*BOARD.left_out}
  assert sum(map(len, METHODS.values())) == len(known), "a name stands in two tables"
  assert {*spaces.SPACES} <= {*names}
  for task in BOARD.tasks:
    assert {*BOARD.trials[task]} == {*names}
    assert all(LEAST <= own <= MOST for own in BOARD.trials[task].values())
    assert BOARD.tasks[task]["what"] and BOARD.config(Row(task, "fedavg")).valid_fraction > 0
  assert [name for name, own in BOARD.tasks.items() if own.get("gpu")] == ["cifar10"]
  for name, (own, source) in spaces.SPACES.items():
    assert 1 <= len(own) <= 2 and (source == "around" or source.startswith("grid of ")), name


def test_a_task_is_the_same_for_all_its_methods():
  def shared(method):
    own = plan(BOARD.config(Row("digits", method))).written
    return {name: own[name] for name in own if name not in METHODS}

  assert shared("ditto") == shared("fedavg") == shared("qffl") == shared("adam")
  assert plan(BOARD.config(Row("fsdd", "fedavg"))).test_fraction is None  # the authors' test takes


def test_a_space_has_the_tasks_rates_and_the_methods_strengths():
  space = TINY.space(Row("one", "adam"))
  assert space == {
    "local.lr": Span(0.05, 0.5, True), "server.lr": Span(0.001, 1.0, True),
    "server.tau": Span(1e-5, 0.1, True),
  }  # fmt: skip
  assert [*TINY.space(Row("one", "qffl"))] == ["local.lr", "mixing.q"]
  assert [*TINY.space(Row("one", "ditto"))] == ["local.lr", "algorithm.lam"]
  assert [TINY.number_of_trials(Row("one", own)) for own in ("fedavg", "ditto", "adam")] == [4, 5, 4]


def test_rows_are_selected_by_name():
  assert rows_of(TINY, [], ["ditto", "fedavg"]) == [
    Row("one", "fedavg"), Row("one", "ditto"), Row("two", "fedavg"), Row("two", "ditto"),
  ]  # fmt: skip
  for tasks, methods, says in (
    (["three"], [], "tasks = 'three'"), ([], ["dito"], "Did you mean 'ditto'"),
    ([], ["static"], "has no rows: is `fedavg`"),
  ):  # fmt: skip
    with pytest.raises(SettingError, match=says):
      rows_of(TINY, tasks, methods)
  with pytest.raises(SettingError, match="Did you mean 'ditto'"):
    section_of("dito")


def test_a_board_that_lacks_something_is_refused(tmp_path):
  path = tmp_path / "board.py"
  path.write_text("TASKS = {}")
  with pytest.raises(SettingError, match="has no get_config"):
    read_board(path)
  path.write_text((ROOT / "tests/shared/tiny_board.py").read_text().replace('"ditto": 5', '"ditto": 3'))
  with pytest.raises(SettingError, match="a method of one has 3 trials"):
    read_board(path)
  board = (ROOT / "tests/shared/tiny_board.py").read_text()
  for old, new, says in (
    (', "two": {"fedavg": 4}', "", "its TRIALS lack the task two. Give it"),
    ('{"what": "label skew of six clients; asks for θ", "lr"', '{"lr"', "its task one has no `what`"),
    ('θ", "lr": "0.05:0.5:log"', 'θ", "lr": "0.5:0.05"', r"TASKS\['one'\]\['lr'\] = '0.5:0.05': ends where"),
  ):
    assert old in board
    path.write_text(board.replace(old, new))
    with pytest.raises(SettingError, match=says):
      read_board(path)


def test_trials_are_as_many_as_the_budget_holds():
  for seconds in (3.0, 30.0, 100.0):
    n = trials_within(seconds, 40)
    cost = [(budget(own, 8, 40) / 40 + 5) * seconds for own in (n, n + 1)]
    assert n == MOST or cost[1] > 1200
    assert n == LEAST or cost[0] <= 1200
  assert (trials_within(1.0, 40), trials_within(1e4, 40)) == (MOST, LEAST)


def test_a_method_of_another_package_is_a_row_as_soon_as_it_is_in_the_tables(monkeypatch):
  def mine(model, strength: float = 1.0, lr: float = 0.1):
    raise SettingError("model", "any", "is not trained here", "Take another.")

  monkeypatch.setitem(METHODS["algorithm"], "mine", Method("mine", mine, "words", "nowhere"))
  monkeypatch.setitem(spaces.SPACES, "mine", ({"strength": "0.01:1:log"}, "grid of nobody"))
  (row,) = rows_of(BOARD, ["digits"], ["mine"])
  assert BOARD.number_of_trials(row) == BOARD.trials["digits"]["fedavg"]
  assert [*BOARD.space(row)] == ["local.lr", "algorithm.strength"]
  assert BOARD.config(row).algorithm.name == "mine"


def test_what_has_changed_makes_figures_stale_by_name(monkeypatch):
  row = Row("one", "ditto")
  now = raw.made_by(TINY, row)
  kept = {"made_by": json.loads(json.dumps(now))}
  assert raw.stale(kept, raw.made_by(TINY, row)) == []
  assert raw.stale({}, now) == ["what it was made by is not known"]
  lost = json.loads(json.dumps(kept))
  lost["made_by"]["config"]["rounds"] = "9"
  lost["made_by"]["config"]["algorithm.gone"] = "1"
  lost["made_by"]["space"] = {"local.lr": now["space"]["local.lr"]}
  lost["made_by"] |= {"trials": 4, "seeds": [1, 2], "code": "0"}
  del lost["made_by"]["config"]["algorithm.lr"], lost["made_by"]["config"]["algorithm.b1"]
  assert raw.stale(lost, now) == [
    "algorithm.gone = absent, was 1", "algorithm.lr = 0.1, was absent", "rounds = 3, was 9",
    f"algorithm.lam = {now['space']['algorithm.lam']}, was absent", "trials = 5, was 4",
    "seeds = [1, 2, 3, 4, 5], was [1, 2]", "the code of the method",
  ]  # fmt: skip
  assert raw.fingerprint(now) != raw.fingerprint(lost["made_by"])
  assert "data_dir" not in now["config"] and "seed" not in now["config"]


def test_the_code_of_a_method_is_that_of_its_module_without_its_words(tmp_path, monkeypatch):
  import importlib
  import sys

  monkeypatch.syspath_prepend(str(tmp_path))

  def code(text):
    (tmp_path / "own_method.py").write_text(text)
    sys.modules.pop("own_method", None)
    importlib.invalidate_caches()
    factory = importlib.import_module("own_method").mine
    monkeypatch.setitem(METHODS["algorithm"], "mine", Method("mine", factory, "words", "nowhere"))
    import linecache

    linecache.checkcache()
    return raw.code_of("mine")

  first = code('"""Words."""\n\n\ndef mine(a=1):\n  """Others."""\n  return a\n')
  assert len(first) == 16 and first == code("# None.\ndef mine(a = 1):\n  'Words.'\n  return a\n")
  assert first != code("def mine(a=2):\n  return a\n")
  sys.modules.pop("own_method")
