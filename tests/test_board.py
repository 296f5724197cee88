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
