"""docs/adding.md, adding_methods.md and adding_conditions.md as a new user takes them.

Their files and lines go into a copy of the package, and run there.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from quick_compiler import environment
from sklearn.datasets import load_wine
from small_parts import federation, float64, linear, linear_loss_and_gradient, one_client, rows_of

import fedjax_het as fh
from fedjax_het.config import quickstart
from fedjax_het.config.plan import plan
from fedjax_het.data import sources

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding.md").read_text()
PAGES = PAGE, *((ROOT / "docs" / f"adding_{kind}.md").read_text() for kind in ("methods", "conditions"))
SECTIONS = dict(
  part.split("\n", 1) for page in PAGES for part in page.split("\n## ")[1:] if "```python" in part
)
SMALL = ["--config.rounds=2", "--config.eval_every=2", "--config.cohort_size=3"]
LEAVES = {  # fields of the summary that say that what was added did the work
  "A method": lambda summary: summary["algorithm"] == "signsgd",
  "A term": lambda summary: summary["algorithm"] == "fisher_prox",
  "A mixing": lambda summary: summary["mixing"] == "superquantile",
  "A model": lambda summary: summary["metrics"],
  "A data set": lambda summary: summary["dataset"] == "wine",
  "A task": lambda summary: [*summary["metrics"]["global"]] == ["mae", "loss"],
  "A study": lambda summary: summary["length"] > 10,
  "An attack": lambda summary: summary["attackers"],
  "A system": lambda summary: 0 < summary["simulated_seconds"] <= 2 * 20,
}
CHOSEN = {  # field of the configuration -> what was added
  "A participation": lambda config: config["participation"]["name"] == "round_robin",
  "An upload transform": lambda config: config["uploads"][0]["name"] == "short_floats",
  "An aggregation": lambda config: config["aggregation"]["name"] == "near_median",
}


def files(text: str) -> dict[str, str]:
  """Path -> what a section says is to stand there."""
  return dict(re.findall(r"`([\w/]+\.py)`:\n\n```python\n(.*?)```", text, re.S))


def blocks(text: str, language: str) -> list[str]:
  return re.findall(rf"```{language}\n(.*?)```", text, re.S)


def commands(text: str) -> list[list[str]]:
  lines = "".join(blocks(text, "sh")).replace("\\\n", "").splitlines()
  return [shlex.split(line) for line in lines]


def patch(root: Path, diff: str) -> None:
  """Puts the + lines of a diff behind the line above them, which is there once."""
  for line in diff.splitlines():
    sign, text = line[0], line[1:]
    if line.startswith("--- "):
      path, at = root / line.removeprefix("--- "), None
      continue
    found = path.read_text().splitlines()
    if sign == "+":
      found.insert(at + 1, text)
      path.write_text("\n".join(found) + "\n")
      at += 1
    else:
      assert sign == " " and found.count(text) == 1, f"{path.name} has not the line {text!r} once"
      at = found.index(text)


def write_wine(folder: Path) -> None:
  """The file as UCI ships it, from scikit-learn's copy."""
  wine = load_wine()
  rows = [",".join([str(y + 1), *map(str, x)]) for x, y in zip(wine.data.tolist(), wine.target)]
  folder.mkdir(parents=True)
  (folder / "wine.data").write_text("\n".join(rows) + "\n")


@pytest.fixture(scope="module")
def names() -> dict:
  """What all files of the page define."""
  found: dict = {}
  for text in SECTIONS.values():
    for source in files(text).values():
      of_file: dict = {}
      exec(source, of_file)
      found |= of_file
  return found


def test_every_example_is_short_and_has_a_file_to_copy_from():
  assert [name.partition(" ")[2] for name in SECTIONS] == [
    "method", "mixing", "model", "data set", "task", "study", "term",
    "participation", "upload transform", "aggregation", "attack", "system",
  ]  # fmt: skip
  for name, text in SECTIONS.items():
    assert files(text) and commands(text), name
    for source in files(text).values():
      assert source.count("\n") < 40 and max(map(len, source.splitlines())) <= 110, name
    assert len(files(text)) == len(blocks(text, "python"))
    copied = re.findall(r"[Cc]opy from\s+\[[\w/.]+\]\(\.\./([\w/.]+)\)", text)
    assert copied and all((ROOT / path).is_file() for path in copied), name


@pytest.mark.slow
def test_the_examples_go_together(names, tmp_path):
  write_wine(tmp_path / "wine")
  source = names["load_wine"](tmp_path / "wine")
  parts = fh.data.dirichlet(jax.random.key(0), source.y, num_clients=6, alpha=5.0)
  data = fh.federate(
    source.x, source.y, parts, jax.random.key(1), num_classes=3, standardize=source.standardize
  )
  client = names["signsgd"](names["residual_nn"]((13,), 3, hidden=8), lr=0.01, epochs=2)
  algorithm = fh.federated(client, names["superquantile"](theta=0.5))
  result = fh.run(algorithm, data, rounds=8, cohort_size=4, key=jax.random.key(2))
  assert (np.sort(result.infos.coefficients, axis=1)[:, :2] == 0).all()
  first, last = result.infos.clients.loss[[0, -1]].mean(axis=1)
  assert last < 0.7 * first


def test_the_conditions_go_together(names):
  """Each beside its formula, in one run: turns of three clients, short floats, free riders, means of few."""
  x = np.float32([1.0, 1.0 + 2**-10, -3.3])
  (short,), _ = names["short_floats"](7).encode(None, [jnp.asarray(x)], (), None)
  np.testing.assert_array_equal(short, np.asarray(jnp.asarray(x, jnp.bfloat16), np.float32))
  u, present = np.random.default_rng(0).normal(size=(7, 5)).astype(np.float32), np.arange(7) != 2
  combine = names["near_median"](1).combine
  found, _ = combine(None, (), None, fh.Message(jnp.asarray(u)), None, jnp.asarray(present))
  there = u[present]
  nearest = np.argsort(np.abs(there - np.median(there, axis=0)), axis=0)[:5]
  np.testing.assert_allclose(
    found.params, np.take_along_axis(there, nearest, 0).mean(0), rtol=1e-5, atol=1e-6
  )
  source = fh.data.load("digits")
  data = fh.federate(
    source.x, source.y, np.split(np.arange(1792), 8), jax.random.key(1), num_classes=10
  )  # fmt: skip
  algorithm = fh.federated(
    fh.fedavg(fh.models.make("logistic_regression", (8, 8, 1), 10), lr=0.05),
    fh.mixing.uniform(), uploads=[names["short_floats"]()], aggregation=names["near_median"](),
    attack=names["free_rider"](0.25), participation=names["round_robin"](0.1),
    system=names["tiers"](share=1.0, factor=3.0, step_seconds=0.5),
  )  # fmt: skip
  result = fh.run(algorithm, data, rounds=3, cohort_size=3, key=jax.random.key(2), devices=1)
  np.testing.assert_array_equal(result.infos.cohort, [[0, 1, 2], [3, 4, 5], [6, 7, 0]])
  assert np.isfinite(result.metrics["global"]["loss"]["mean"])
  clock = fh.Clock(algorithm, data, 3, jax.random.key(2)).rounds(result.infos)
  np.testing.assert_allclose(clock, 1.5 * result.infos.gradients.max(axis=1), rtol=0.05)


def launched(folder: Path, package: Path, *arguments: str) -> str:
  env = environment(PYTHONPATH=str(package))
  done = subprocess.run(
    [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=300
  )
  assert done.returncode == 0 and not done.stderr, done.stderr
  return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", SECTIONS)
def test_an_example_is_launched_from_the_page_alone(name, tmp_path):
  for folder in ("fedjax_het", "configs"):
    shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
  write_wine(tmp_path / "DATA" / "wine")
  for path, source in files(SECTIONS[name]).items():
    (tmp_path / path).write_text(source)
  for diff in blocks(SECTIONS[name], "diff"):
    patch(tmp_path, diff)
  for _, *arguments in commands(SECTIONS[name]):
    small = [] if any(argument.startswith("--list") for argument in arguments) else SMALL
    launched(tmp_path, tmp_path, *arguments, *small)
  summaries = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/summary.json")]
  assert len(summaries) == sum("--workdir" in " ".join(command) for command in commands(SECTIONS[name]))
  if name in CHOSEN:
    assert all(
      CHOSEN[name](json.loads(path.read_text())) for path in (tmp_path / "runs").glob("*/config.json")
    )
  else:
    assert all(LEAVES[name](summary) for summary in summaries)


@pytest.mark.slow
def test_a_configuration_brings_its_own_method(tmp_path):
  """Files beside the package, and an entry where the page says."""
  (example,) = files(SECTIONS["A mixing"]).values()
  (tmp_path / "own.py").write_text(example)
  entry = next(line for line in PAGE.splitlines() if line.startswith("`METHODS[")).strip("`.")
  (tmp_path / "mine.py").write_text(
    "from fedjax_het.config import quickstart\nfrom fedjax_het.methods import METHODS, Method\n"
    f"from own import superquantile\n{entry}\n"
    "get_config = quickstart.get_config\n"
  )
  command = "-m", "fedjax_het.run", "--config=mine.py", "--config.mixing.name=superquantile"
  launched(tmp_path, ROOT, *command, *SMALL, "--workdir=runs/own")
  assert json.loads((tmp_path / "runs/own/summary.json").read_text())["mixing"] == "superquantile"
  assert "file    own.py" in launched(tmp_path, ROOT, *command[:3], "--list=superquantile")


def test_a_data_set_of_ones_own_is_found(monkeypatch):
  """Where `FOLDERS` is added to, which the page says of every table."""
  source = fh.data.load("digits")
  monkeypatch.setitem(sources.FOLDERS, "own", ("own", lambda folder: source, "own.csv"))
  config = quickstart.get_config()
  config.dataset = "own"
  plan(config)
  assert fh.data.load("own") is source


@pytest.mark.slow
def test_the_term_s_fisher_diagonals_by_hand(names):
  """Mean squares of examples' gradients, by NumPy, and the pull of the term; without it, FedAvg."""
  data, local = federation((7, 3)), dict(lr=0.1, epochs=1, batch_size=7, momentum=0.0, weight_decay=0.0)
  part = names["fisher_prox"](linear()._replace(head=("fc",)), lam=0.5, **local)
  run = lambda part, sent: jax.jit(part.update)(  # noqa: E731
    jax.random.key(0), sent, (), one_client(data, 0), fh.Context()
  )[0]
  first = part.init_broadcast(jax.random.key(0))
  upload, plain = run(part, first), run(fh.fedavg(linear(), **local), first._replace(even=()))
  np.testing.assert_allclose(upload.params["fc"]["kernel"], plain.params["fc"]["kernel"], rtol=1e-6)
  x, y = rows_of(data, 0)
  slopes = [linear_loss_and_gradient(float64(upload.params), x[i : i + 1], y[i : i + 1])[1] for i in range(7)]
  wanted = np.mean([one["fc"]["kernel"] ** 2 for one in slopes], axis=0)
  np.testing.assert_allclose(upload.even["fc"]["kernel"], wanted, rtol=1e-4, atol=1e-7)
  # From another model than the received one, one step of all rows is along 2 λ f (θ - θ^g) as well.
  moved = names["fisher_prox"](linear()._replace(head=("fc",)), lam=0.5, **{**local, "epochs": 2})
  found = run(moved, first._replace(even=upload.even)).params["fc"]["kernel"]
  start, second = float64(first.params)["fc"]["kernel"], float64(upload.params)
  slope = linear_loss_and_gradient(second, x, y)[1]["fc"]["kernel"]
  pull = 2 * 0.5 * np.asarray(upload.even["fc"]["kernel"]) * (second["fc"]["kernel"] - start)
  np.testing.assert_allclose(found, second["fc"]["kernel"] - 0.1 * (slope + pull), rtol=1e-4, atol=1e-6)
