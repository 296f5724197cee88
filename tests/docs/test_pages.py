"""Every block of code of every page runs as it stands, or says in its first line why it does not.

Python runs page by page, all blocks of a page in one namespace. Commands are started. The first of a page
that trains does so, with few rounds where the page has many; the others, and those that name DATA, which has
to be fetched, go as far as their configuration: its fields are listed, or a table's runs are planned.
docs/adding.md, adding_methods.md and adding_conditions.md have their own test; docs/results/ are records of
what was run. The cells of docs/notebook.ipynb run in turn.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from forked import forked
from quick_compiler import environment
from run_folders import write_run

matplotlib.use("agg")

ROOT = Path(__file__).parents[2]
NOT_RUN = "# Not run by the tests: "
PAGES = {path.stem: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
ADDING = ("adding", "adding_methods", "adding_conditions")
ELSEWHERE = {**dict.fromkeys(ADDING, "test_adding.py"), "tasks": "test_readme.py"}  # whose Python runs there
FEW = "--config.rounds=2", "--config.eval_every=2", "--config.cohort_size=2"
SHORT = ("--list", "--describe", "--dry_run")  # commands that train nothing


def blocks(page: str, language: str = "") -> list[tuple[str, str]]:
  """(language, code) of a page's blocks."""
  found = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.S | re.M)
  return [(own, code) for own, code in found if language in ("", own)]


def commands(page: str) -> list[list[str]]:
  """The commands of a page's sh blocks, but for blocks that are not run."""
  run = [code for _, code in blocks(page, "sh") if not code.startswith(NOT_RUN)]
  return [shlex.split(line) for line in "".join(run).replace("\\\n", "").splitlines()]


COMMANDS = [
  (name, command) for name, page in PAGES.items() if name not in ADDING for command in commands(page)
]
TRAINED = {}  # page -> the place in COMMANDS of the one that trains
for place, (name, command) in enumerate(COMMANDS):
  if "fedjax_het.run" in command and not any("DATA" in own or own.startswith(SHORT) for own in command):
    TRAINED.setdefault(name, place)
PYTHON = [name for name, page in PAGES.items() if blocks(page, "python") and name not in ELSEWHERE]


def test_blocks_are_of_a_kind_that_is_run():
  """Nothing else than these languages, and a block that is not run says why."""
  for name, page in PAGES.items():
    assert {language for language, _ in blocks(page)} <= {"python", "sh", "diff", "csv", "toml"}, name
    for _, code in blocks(page):
      assert NOT_RUN not in code or re.match(rf"{NOT_RUN}\w.+\.\n.", code), name
  assert sum(NOT_RUN in code for page in PAGES.values() for _, code in blocks(page)) == 21
  assert len(COMMANDS) > 15 and len(PYTHON) > 4


def test_commands_are_ours():
  for name, command in COMMANDS:
    program = " ".join(command[:3])
    assert program.startswith(("python -m fedjax_het.", "launch/local.sh")), (name, command)


def test_the_site_searches_without_a_network():
  """The script that lets pages opened as files search is the site's own, and all that it names is there."""
  text = (ROOT / "mkdocs.yml").read_text()
  own = re.findall(r"(?:extra_css: |polyfills: )\[([\w.-]+)\]", text)
  assert own == ["site.css", "iframe-worker.js"] and all((ROOT / "docs" / name).is_file() for name in own)
  assert re.search(r"^  - offline\b", text, re.M)  # which takes a script of that name instead of a network's


@pytest.mark.slow
@pytest.mark.parametrize("name", PYTHON)
def test_the_python_of_a_page_runs(name, tmp_path, monkeypatch):
  if "import pandas" in PAGES[name]:
    pytest.importorskip("pandas")
  monkeypatch.chdir(tmp_path)
  for run in ("fedavg", "superfed_mm"):  # whose landscapes docs/studies.md puts side by side
    folder = tmp_path / "runs" / "landscape" / run
    folder.mkdir(parents=True)
    line, losses = np.linspace(-1, 1, 3), np.arange(1.0, 10.0).reshape(3, 3)
    np.savez(folder / "landscape.npz", line=line, losses=losses)
  names: dict = {"__name__": "page"}
  for _, code in blocks(PAGES[name], "python"):
    if not code.startswith(NOT_RUN):
      exec(compile(code, f"{name}.md", "exec"), names)


def test_the_first_recipes_run():
  names: dict = {"__name__": "page"}
  for _, code in blocks(PAGES["recipes"], "python")[:2]:
    exec(compile(code, "recipes.md", "exec"), names)
  assert names["adamw"].training is not None


def cells() -> list[dict]:
  return json.loads((ROOT / "docs" / "notebook.ipynb").read_text())["cells"]


def test_the_notebook_is_stored_without_outputs():
  code = [cell for cell in cells() if cell["cell_type"] == "code"]
  assert len(code) == 4 and not any(cell["outputs"] or cell["execution_count"] for cell in code)


@pytest.mark.slow
def test_the_notebook_runs(monkeypatch, capsys):
  shown = []
  monkeypatch.setattr(plt, "show", lambda: shown.append(len(plt.gcf().axes)) or plt.close("all"))
  names: dict = {"__name__": "notebook"}
  for cell in cells():
    if cell["cell_type"] == "code":
      exec(compile("".join(cell["source"]), "notebook.ipynb", "exec"), names)
  assert shown == [2, 1, 2]
  out = capsys.readouterr().out
  assert "picked on validation parts" in out and "AAggFF-S: mean" in out
  assert names["result"].metrics["personalized"]["top1"]["mean"] > 0.9


@pytest.fixture(scope="module")
def start():
  with forked() as own:
    yield own


@pytest.mark.slow
@pytest.mark.parametrize("place", range(len(COMMANDS)), ids=[name for name, _ in COMMANDS])
def test_a_command_of_a_page_runs(place, tmp_path, start):
  name, command = COMMANDS[place]
  for folder in ("configs", "launch"):
    (tmp_path / folder).symlink_to(ROOT / folder)
  program, *arguments = command
  later = "fedjax_het.run" in arguments and place != TRAINED.get(name, place)
  later = later and not any(argument.startswith(SHORT) for argument in arguments)
  if later or any("DATA" in argument for argument in arguments):
    if "fedjax_het.reproduce" in arguments or "fedjax_het.leaderboard" in arguments:
      arguments.append("--dry_run")
    else:
      arguments = [own for own in arguments if not own.startswith("--sweep.")] + ["--describe"]
  elif "fedjax_het.compare" in arguments:
    for run in ("fedavg", "ditto"):
      clients = {"clients.npz": {"personalized/top1": np.array([0.5])}}
      write_run(tmp_path / "runs" / run, line={"client_steps": 9}, arrays=clients, algorithm__name=run)
  elif not any(argument.startswith(SHORT) for argument in arguments):
    arguments += FEW[:2] if any("device_" in argument for argument in arguments) else FEW
  if program == "python":
    assert arguments[0] == "-m"
    done = start(arguments[1], arguments[2:], tmp_path)
  else:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = environment(PYTHONPATH=str(ROOT), PATH=path, PROCESSES="2", DEVICES="1")
    done = subprocess.run(
      [str(tmp_path / program), *arguments],
      cwd=tmp_path,
      env=env,
      capture_output=True,
      text=True,
      timeout=600,
    )
  assert done.returncode == 0, done.stderr
  if "fedjax_het.compare" in arguments:
    files = [own.partition("=")[2] for own in arguments if "=" in own and "." in own.partition("=")[2]]
    assert ("differences from" in done.stdout or files) and all((tmp_path / own).exists() for own in files)
  elif not any(argument.startswith(("--dry_run", *SHORT)) for argument in arguments):
    (workdir,) = (argument.removeprefix("--workdir=") for argument in arguments if "--workdir=" in argument)
    made = "summary.json", "sweep.json", "best/summary.json"
    assert any((tmp_path / workdir / name).exists() for name in made)
