"""Configuration files: a former run's config.json, other formats, and Python that fails in any way."""

import json
import os
import stat

import pytest
from ml_collections import ConfigDict

from fedjax_het.config.file import read_config
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.errors import SettingError
from fedjax_het.launcher import take_config
from fedjax_het.tables.paper import read_table
from fedjax_het.tables.runs import identity
from fedjax_het.workdir.folder import as_json

FULL = {
  "dataset_options": {"resize": 16}, "unseen": {"fraction": 0.2, "steps": (1, 2)},
  "label_noise": {"name": "pair", "ratio": 0.4}, "to_accuracy": {"global": 0.5}, "record_losses": True,
  "landscape": {"points": 3},
}  # fmt: skip


def test_a_former_runs_config_json_is_its_configuration(tmp_path):
  config = ConfigDict(get_config().to_dict() | FULL)
  (tmp_path / "config.json").write_text(as_json(config.to_dict(), indent=2))
  again = read_config(str(tmp_path / "config.json"))
  assert identity(plan(again)) == identity(plan(config))
  again.num_clients, again.algorithm.start, again.local.lr = None, None, 1  # as the command line may
  assert again.local.lr == 1.0 and isinstance(again.local.lr, float)
  config.uploads = ({"name": "clip", "quantile": None},)
  (tmp_path / "config.json").write_text(as_json(plan(config).written))
  assert identity(plan(read_config(str(tmp_path / "config.json")))) == identity(plan(config))


@pytest.mark.parametrize(
  ("content", "problem"),
  [
    ("{", "is no JSON .*line 1 column 2"),
    ("[" * 100_000, "is no JSON"),
    ("[1, 2]", "it holds no fields"),
    ('{"dataset": "digits", "rounds": 2}', "it lacks data_dir, .*Python"),
    (json.dumps({"sweep": {"seed": [0, 1]}, "config": {}}), r"is that of a sweep.*members"),
    ("\udcff", "is no JSON"),
  ],
)
def test_json_that_is_no_configuration_of_a_run(tmp_path, content, problem):
  path = tmp_path / "config.json"
  path.write_bytes(content.encode(errors="surrogateescape"))
  with pytest.raises(SettingError, match=f"(?s)config = .*config.json.*{problem}"):
    read_config(str(path))


def test_a_config_json_takes_nothing_behind_a_colon(tmp_path):
  with pytest.raises(SettingError, match="takes nothing behind a colon"):
    read_config(f"{tmp_path}/config.json:dataset=mnist")


PYTHON = {
  "raises": ("import json\n\njson.loads('{')\n", r"\(JSONDecodeError: Expecting.*\) in line 3 of .*a\.py"),
  "opens a missing file": (
    "def get_config():\n  return open('/no/such.csv')\n",
    r"\(FileNotFoundError: .*such\.csv'\) in line 2 of .*a\.py",
  ),
  "syntax": ("x = 1\ndef get_config(:\n", r"\(SyntaxError: invalid syntax\) in line 2 of .*a\.py"),
  "another file's syntax": ("import ast\nast.parse('(')\n", r"\(SyntaxError: .*\) in line 2 of .*a\.py"),
  "no get_config": ("x = 1\n", "has no function get_config.*Python"),
  "get_config is no function": ("get_config = 3\n", "has no function get_config"),
  "nothing": ("def get_config():\n  pass\n", "its get_config returns None.*ConfigDict"),
  "something else": ("def get_config():\n  return [1]\n", r"its get_config returns \[1\]"),
  "an import": ("import no_such_module\n", r"\(ModuleNotFoundError: .*no_such_module.*\) in line 1 of"),
  "exits": ("import sys\nsys.exit(3)\n", r"\(SystemExit: 3\) in line 2 of"),
  "recursion": ("def get_config():\n  return get_config()\n", r"\(RecursionError: .* in line 2 of"),
  "null bytes": ("x = 1\0\n", r"a\.py': cannot be read \((Syntax|Value)Error: .*null bytes"),
  "not UTF-8": (b"x = '\xff'\n", r"a\.py': cannot be read \(SyntaxError"),
  "its own mistake": (
    "from fedjax_het.errors import SettingError\nraise SettingError('x', 1, 'is odd', 'Use 2.')\n",
    r"^x = 1: is odd\. Use 2\.",
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", PYTHON)
def test_python_that_fails_says_where_and_how(tmp_path, name):
  content, problem = PYTHON[name]
  path = tmp_path / "a.py"
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  with pytest.raises(SettingError, match=problem):
    read_config(str(path))


def test_a_cell_for_a_get_config_without_one(tmp_path):
  (tmp_path / "a.py").write_text("def get_config():\n  return {'rounds': 2}\n")
  assert read_config(f"{tmp_path}/a.py") == ConfigDict({"rounds": 2})
  with pytest.raises(SettingError, match="takes 0 positional arguments"):
    read_config(f"{tmp_path}/a.py:dataset=mnist")


@pytest.mark.parametrize(("name", "kind"), [("a.yaml", "YAML"), ("b.yml", "YAML"), ("c.toml", "TOML")])
def test_other_formats_are_named_with_the_remedy(tmp_path, name, kind):
  (tmp_path / name).write_text("rounds: 5\n")
  with pytest.raises(SettingError, match=rf"{name}'.*is {kind}, which is not read.*Python file"):
    read_config(str(tmp_path / name))


def test_text_of_another_kind_is_told_what_a_configuration_is(tmp_path):
  (tmp_path / "a.cfg").write_text("local:\n  lr: 0.1\n")
  with pytest.raises(SettingError, match=r"SyntaxError.* in line 1 of .*Python file with get_config"):
    read_config(str(tmp_path / "a.cfg"))


def test_files_that_are_not_there_folders_and_those_of_others(tmp_path, monkeypatch):
  with pytest.raises(SettingError, match=r"No such file.*nope\.py.*looked for from .*that is there"):
    read_config("configs/nope.py")
  with pytest.raises(SettingError, match="is a folder"):
    read_config(str(tmp_path))
  (tmp_path / "config.json").write_text("{}")
  with pytest.raises(SettingError, match=r"is a folder\. Write --config=.*config\.json"):
    read_config(str(tmp_path))
  with pytest.raises(SettingError, match="null"):
    read_config("a\0.py")
  os.chmod(tmp_path / "config.json", stat.S_IWUSR)

  def refused(self):
    raise PermissionError(13, "Permission denied", str(self))

  monkeypatch.setattr("pathlib.Path.read_bytes", refused)
  for name in ("config.json", "a.py", "a.yaml"):
    with pytest.raises(
      SettingError, match=r"^config = [^=]*: cannot be read .*Permission denied.*you may read"
    ):
      read_config(str(tmp_path / name))


def test_a_tables_configuration_says_the_same(tmp_path):
  (tmp_path / "t.csv").write_text("method,metric,mean,std\n")
  (tmp_path / "t.py").write_text("import json\nFIGURES = json.loads('{')\n")
  with pytest.raises(SettingError, match=r"table = .*JSONDecodeError.* in line 2 of .*t\.py"):
    read_table(tmp_path / "t.py")


def test_the_command_lines_file(tmp_path):
  (tmp_path / "a.py").write_text("def get_config():\n  return {'rounds': 2}\n")
  for flag in ([f"--config={tmp_path}/a.py"], ["-config", f"{tmp_path}/a.py"]):
    rest, config = take_config(["run", *flag, "--config.rounds=3", "--workdir=a"])
    assert rest == ["run", "--config.rounds=3", "--workdir=a"] and config.rounds == 2
  assert take_config(["run"])[1] == get_config()
  for bad, message in (
    (["--config.rounds=3", f"--config={tmp_path}/a.py"], "Put --config=FILE before"),
    (["--config="], "is empty"),
    (
      [f"--config={tmp_path}/a.py", "--config=b.py"],
      "b.py': is a second file beside .*Give --config=FILE once",
    ),
  ):
    with pytest.raises(SettingError, match=message):
      take_config(["run", *bad])
