"""The console command, and the project's own configurations from another folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedjax_het import command
from fedjax_het.config import shipped as module
from fedjax_het.config.shipped import shipped

ROOT = Path(__file__).parents[2]


def test_a_configuration_of_the_project_is_found_from_anywhere(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert shipped("configs/table_2_3.py:clients=50") == f"{ROOT / 'configs' / 'table_2_3.py'}:clients=50"
  assert shipped("~/a.py:b=1") == f"{Path.home()}/a.py:b=1"
  assert shipped("table_2_3.py") == "table_2_3.py" and shipped("configs/none.py") == "configs/none.py"
  (tmp_path / "configs").mkdir()
  (tmp_path / "configs" / "table_2_3.py").touch()
  assert shipped("configs/table_2_3.py:clients=50") == "configs/table_2_3.py:clients=50"


def test_a_wheels_configuration_is_found_where_it_was_put(tmp_path, monkeypatch):
  class File(type(Path())):
    def locate(self):
      return tmp_path / self

  (tmp_path / "share" / "configs").mkdir(parents=True)
  (tmp_path / "share" / "configs" / "own.py").touch()
  monkeypatch.setattr(module.importlib.metadata, "files", lambda name: [File("share/configs/own.py")])
  assert shipped("configs/own.py:a=1") == f"{tmp_path}/share/configs/own.py:a=1"


@pytest.mark.parametrize(("given", "status"), [([], 0), (["--help"], 0), (["rum"], 2)])
def test_it_says_what_it_can(given, status, monkeypatch, capsys):
  monkeypatch.setattr(sys, "argv", ["fedjax-het", *given])
  with pytest.raises(SystemExit) as ended:
    command.main()
  assert ended.value.code == status
  said = "".join(capsys.readouterr())
  assert all(name in said for name in command.COMMANDS) and ("'rum' is no command" in said) == bool(status)


@pytest.mark.slow
def test_it_runs_a_cell_of_a_table_from_another_folder(tmp_path):
  own = [sys.executable, "-c", "from fedjax_het.command import main; main()"]
  where = dict(cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
  options = ["--config=configs/table_4_2.py:dataset=digits,algorithm=fedevg", "--config.rounds=0"]
  done = subprocess.run([*own, "run", *options], check=False, **where)
  assert done.returncode == 1 and "rounds = 0" in done.stderr
  done = subprocess.run(
    [*own, "reproduce", "--table=configs/table_2_3.py", "--dry_run", "--where=dataset=none"],
    check=False,
    **where,
  )
  assert done.returncode == 1 and "dataset" in done.stderr and "no such file" not in done.stderr
