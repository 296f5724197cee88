"""The house: every room imports only from the floors below its own, no file goes in circles, none is long."""

import ast
import json
import re
import runpy
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOUSE = "fedjax_het"
PICTURE = ROOT / "docs" / "images" / "architecture.py"
FLOORS = runpy.run_path(str(PICTURE))["FLOORS"]
FLOOR = {room: floor for floor, rooms in enumerate(reversed(FLOORS)) for room in rooms}
FLOOR["_starting"] = -1  # is imported before every room, and imports none
FOLDERS = (HOUSE, "benchmarks", "configs", "docs", "launch", "tests")
MOST_BYTES = 16 * 1024


def imports(source: str) -> set[str]:
  """The names in the house that a file imports, anywhere in it, as `fedjax_het.room.file.name`."""
  found: set[str] = set()
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.ImportFrom):
      assert not node.level, "a relative import"
      found |= {f"{node.module}.{alias.name}" for alias in node.names}
    elif isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
  return {name for name in found if name.split(".")[0] == HOUSE}


def upstairs(files: dict[str, str]) -> list[str]:
  """Imports of a room on the same floor or above, or of what is no room, where they stand."""
  wrong = []
  for module, source in files.items():
    room, *_ = [*module.split(".")[1:], ""]
    for name in imports(source) if room else ():
      other, *_ = [*name.split(".")[1:], ""]
      if other != room and not FLOOR.get(other, len(FLOOR)) < FLOOR[room]:
        wrong.append(f"{module} imports {name}")
  return wrong


def circle(files: dict[str, str]) -> list[str] | None:
  """Files that import one another in a circle."""

  def file_of(name: str) -> str:
    while name not in files:
      name = name.rpartition(".")[0]
    return name

  graph = {module: {file_of(name) for name in imports(source)} for module, source in files.items()}
  try:
    TopologicalSorter(graph).prepare()
  except CycleError as error:
    return error.args[1]
  return None


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
  """The house's modules and what stands in them."""
  modules = {}
  for path in (ROOT / HOUSE).rglob("*.py"):
    names = path.relative_to(ROOT).with_suffix("").parts
    modules[".".join(names[:-1] if names[-1] == "__init__" else names)] = path.read_text()
  return modules


def test_every_room_has_a_floor(files):
  rooms = {module.split(".")[1] for module in files if "." in module}
  assert rooms == {*FLOOR}


def test_the_picture_and_the_page_show_every_room():
  drawn, page = PICTURE.with_suffix(".svg").read_text(), (ROOT / "docs" / "architecture.md").read_text()
  for rooms in FLOORS:
    for room, words in rooms.items():
      assert f">{room}</text>" in drawn and f">{words}</text>" in drawn, "run docs/images/architecture.py"
      assert f"\n**{room}**" in page


def test_nobody_imports_from_upstairs(files):
  assert not upstairs(files)


def test_no_file_goes_in_circles(files):
  assert circle(files) is None


def test_no_file_is_long():
  paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")] + [*ROOT.glob("*.*")]
  paths = [path for path in paths if ".envs" not in path.parts]  # of the benchmarks' peers
  texts = [path for path in paths if path.suffix in (".py", ".md")]
  assert ROOT / "README.md" in texts and Path(__file__) in texts
  assert not {str(path): path.stat().st_size for path in texts if path.stat().st_size > MOST_BYTES}


def test_no_two_files_of_tests_have_one_name():
  """Pytest imports them by it; those of parity run by themselves."""
  names = [path.name for path in (ROOT / "tests").rglob("test_*.py") if path.parent.name != "parity"]
  assert len({*names}) == len(names) > 100


def test_every_result_and_benchmark_is_on_a_page():
  pages = "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
  kept = [path for folder in ("raw", "images") for path in (ROOT / "docs" / "results" / folder).iterdir()]
  assert kept and not [path.name for path in kept if f"{path.parent.name}/{path.name})" not in pages]
  folder = ROOT / "benchmarks"
  listed = "".join(path.read_text() for path in (folder / "README.md", *folder.glob("*/README.md")))
  scripts = [path for path in folder.glob("*/*.py") if path.parent.name != "peers"]
  assert scripts and not [path.name for path in scripts if f"`{path.name}`" not in listed]


def test_the_checks_can_fail():
  assert FLOOR["errors"] < FLOOR["data"] < FLOOR["parts"] < FLOOR["engine"] < FLOOR["clients"] < FLOOR["run"]
  late = "def f():\n  from fedjax_het.clients import sgd\n"
  assert upstairs({"fedjax_het.engine.round": late}) == [
    "fedjax_het.engine.round imports fedjax_het.clients.sgd"
  ]
  assert upstairs({"fedjax_het.data": "import fedjax_het\n"}) and upstairs({"fedjax_het.data": late})
  assert upstairs({"fedjax_het.data": "from fedjax_het import Model\n"})
  assert not upstairs({"fedjax_het.methods": late, "fedjax_het": late})
  ring = {
    "fedjax_het.data": "from fedjax_het.data.one import x",
    "fedjax_het.data.one": "from fedjax_het.data.two import x",
    "fedjax_het.data.two": "from fedjax_het.data import x",
  }
  assert circle(ring) and circle({**ring, "fedjax_het.data.two": "import jax"}) is None


def test_the_image_installs_extras_that_exist_and_starts_the_command():
  text = (ROOT / "Dockerfile").read_text()
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", text, re.M)
  assert {*extras.split(",")} <= {*project["optional-dependencies"]}
  assert json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.M)[0]) == [*project["scripts"]]
  python = re.findall(r"^FROM python:3\.(\d+)-slim$", text, re.M)
  assert project["requires-python"].startswith(">=3.11") and int(python[0]) >= 11
