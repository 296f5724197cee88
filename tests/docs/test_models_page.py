"""docs/models.md has every model, its file, options and parameter count."""

import re
import runpy
from pathlib import Path

import pytest

from fedjax_het.models import MODELS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "models.md").read_text()
SCRIPT = runpy.run_path(str(DOCS / "models_table.py"))
TABLE = PAGE.partition(SCRIPT["START"])[2].partition(SCRIPT["END"])[0]
COUNT = re.compile(r"(?<=\| )[\d,]+(?= \|)")


def test_the_table_is_the_library_s():
  wanted = SCRIPT["table"](lambda factory: "")
  assert COUNT.sub("", TABLE) == f"{wanted}\n", "Run docs/models_table.py."
  files = re.findall(r"\(\.\./(fedjax_het/models/zoo/\w+\.py)\)", TABLE)
  assert len(files) == len(MODELS) and all((DOCS.parent / file).is_file() for file in files)


COUNTED = {
  "mobilenet_v2",
  "mobilenet_v3_small",
  "efficientnet_b0",
  "bert",
  "distilbert",
}  # by tests of their own


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name not in COUNTED])
def test_parameters_are_counted_as_the_table_says(name):
  line = next(line for line in TABLE.splitlines() if line.startswith(f"| [`{name}`]"))
  assert SCRIPT["parameters"](MODELS[name]) == COUNT.search(line)[0]
