"""The Python of the README and of docs/tasks.md runs as it stands; the table of methods is the library's."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

from fedjax_het.config.listing import goes_with, path_of
from fedjax_het.methods import METHODS

ROOT = Path(__file__).parents[2]
README, TASKS = (ROOT / "README.md").read_text(), (ROOT / "docs" / "tasks.md").read_text()
BLOCKS, MORE = (re.findall(r"```python\n(.*?)```", page, re.S) for page in (README, TASKS))


@pytest.fixture(scope="module")
def names() -> dict:
  """What the README's Python defines, run as it stands."""
  found: dict = {}
  for block in BLOCKS:
    exec(block, found)
  return found


def methods() -> str:
  """The table of methods as Markdown."""
  lines = ["| part | method | what | kept between rounds | goes with |", "|---|---|---|---|---|"]
  for section, table in METHODS.items():
    part = section.replace("algorithm", "client")
    for name, method in table.items():
      link = f"[`{name}`](../fedjax_het/{path_of(method)})"
      cells = part, link, method.about, method.keeps, goes_with(section, name)
      lines.append(f"| {' | '.join(cells)} |")
  return "\n".join(lines)


def test_table_of_methods_is_the_library_s():
  page = (ROOT / "docs" / "combinations.md").read_text()
  found = page.partition("<!-- methods -->\n")[2].partition("\n<!-- /methods -->")[0]
  assert found == methods(), f"Put between the page's markers:\n{methods()}"


def test_the_readme_names_every_method():
  listed = README.partition("## Methods\n")[2].partition("\n## ")[0]
  assert {name for table in METHODS.values() for name in table} <= {*re.findall("`([a-z_]+)`", listed)}


@pytest.mark.slow
def test_pure_function_example(names):
  assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) < 15
  top1 = names["result"].metrics["personalized"]["top1"]
  assert set(top1) == {"mean", "std", "worst10", "best10", "gini", "gap"}
  assert top1["mean"] > 0.9


@pytest.mark.slow
def test_own_trees_of_examples_are_trained():
  names: dict = {}
  exec(*MORE, names)
  rng = np.random.default_rng(0)
  tokens, mask = rng.integers(0, 99, (40, 20)), rng.random((40, 20)) < 0.5
  x, y = {"tokens": tokens, "mask": mask}, (tokens[:, 0] / 99).astype(np.float32)
  result = names["read"](x, y, np.split(np.arange(40), 4), jax.random.key(0))
  assert next(iter(result.metrics["global"])) == "rmse"
  assert np.isfinite(result.infos.clients.loss).all()


@pytest.mark.slow
def test_own_module_is_trained(names):
  fh, data = names["fh"], names["data"]
  client = fh.superfed(names["net"], start_round=5, epochs=2, lr=0.05)
  result = fh.run(fh.federated(client), data, rounds=15, cohort_size=5, key=jax.random.key(1))
  assert result.metrics["personalized"]["top1"]["mean"] > 0.8
  assert float(np.abs(result.state.broadcast.stats["BatchNorm_0"]["mean"]).max()) > 0.1
