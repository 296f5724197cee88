"""A table's progress on a terminal."""

import io
from types import SimpleNamespace

from rich.console import Console

from fedjax_het.experiment.quickstart import get_config
from fedjax_het.tables.board import Board
from fedjax_het.tables.runs import Program


def test_the_table_is_beside_the_run(tmp_path):
  config, screen = get_config("algorithm=fedavg"), io.StringIO()
  program = Program(tmp_path, config, {}, [SimpleNamespace(config=config)])
  board = Board([program], [], Console(file=screen, force_terminal=True, width=120))
  board.begin(program)
  with board.progress(10) as progress:
    progress.begin(0)
    progress.update(5, train_loss=0.25)
  assert "[1/1] table ETA 0:00:00" in screen.getvalue() and "0.25" in screen.getvalue()


def test_a_log_of_a_table_has_rounds_now_and_then_alone(tmp_path):
  config, log = get_config("algorithm=fedavg"), io.StringIO()
  program = Program(tmp_path / "cell", config, {}, [SimpleNamespace(config=config)])
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
