"""A table's progress on a terminal."""

import datetime
import io
import time
from types import SimpleNamespace

import pytest
from rich.console import Console

from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.tables.board import Board
from fedjax_het.tables.runs import Program


def test_the_table_is_beside_the_run(tmp_path):
  own, screen = plan(get_config("algorithm=fedavg")), io.StringIO()
  program = Program(tmp_path, own, {}, [SimpleNamespace(plan=own)])
  board = Board([program], [], Console(file=screen, force_terminal=True, width=120))
  board.begin(program)
  with board.progress(10) as progress:
    progress.begin(0)
    progress.update(5, train_loss=0.25)
  assert "[1/1] table ETA 0:00:00" in screen.getvalue() and "0.25" in screen.getvalue()


def test_a_log_of_a_table_has_rounds_now_and_then_alone(tmp_path):
  own, log = plan(get_config("algorithm=fedavg")), io.StringIO()
  program = Program(tmp_path / "cell", own, {}, [SimpleNamespace(plan=own)])
  board = Board([program], [], Console(file=log, width=120))
  board.begin(program)
  with board.progress(10) as progress:
    progress.begin(0)
    with progress.doing("first state"):
      progress.update(2, train_loss=0.5)
    progress._printed -= 31.0
    progress.update(5, train_loss=0.25)
    progress.update(10, train_loss=0.125)
  board.end()
  first, second, third = log.getvalue().splitlines()
  assert first == "[1/1] cell"
  assert second.startswith("round 5/10 (50 %)") and "[1/1] table ETA 0:00:00" in second and "0.25" in second
  assert "done after" in third


@pytest.mark.parametrize("clients", [20, None])
def test_the_time_left_of_runs_that_are_taken_up(tmp_path, monkeypatch, clients):
  """A second a round; the first of four runs of 100 rounds had 90 of them done."""
  now = [0.0]
  monkeypatch.setattr(time, "monotonic", lambda: now[0])
  config = get_config("algorithm=fedavg")
  with config.ignore_type():
    config.rounds, config.num_clients = 100, clients
  own = plan(config)
  programs = [Program(tmp_path / str(i), own, {}, [SimpleNamespace(plan=own)]) for i in range(4)]
  board = Board(programs, [], Console(file=io.StringIO(), width=120))
  told = "time left not known yet", "table ETA 0:05:00", "table ETA 0:03:20"
  for i, start in enumerate((90, 0, 0)):
    board.begin(programs[i])
    assert board.left() == told[i]
    progress = board.progress(100)
    progress.begin(start)
    now[0] += 5.0
    left = datetime.timedelta(seconds=400 - 100 * i - start - 5)
    assert board.left(5.0 / (100 - start)) == f"table ETA {left}"
    now[0] += 95.0 - start
    board.end()


def test_the_time_left_is_by_method(tmp_path):
  """Runs of a method that has run take its time, others the mean's."""
  fedavg, fedper = (plan(get_config(f"algorithm={name}")) for name in ("fedavg", "fedper"))
  todo = [
    Program(tmp_path / str(i), own, {}, [SimpleNamespace(plan=own)])
    for i, own in enumerate((fedavg, fedavg, fedper, fedper))
  ]
  past = [(fedavg, {"seconds": {"compile": 1.0, "train": 2.0}}), (fedper, {"seconds": {"train": 10.0}})]
  told = [Board(todo, past[:known], Console(file=io.StringIO())).left() for known in range(3)]
  assert told == ["time left not known yet", "table ETA 0:00:12", "table ETA 0:00:26"]
  assert Board(todo, past, Console(file=io.StringIO())).position == "1/4"
