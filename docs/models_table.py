"""Writes the table of docs/models.md: `python docs/models_table.py`. A test holds the two together."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from fedjax_het.models import MODELS, count_parameters, reader_of

PAGE = Path(__file__).with_name("models.md")
START, END = "<!-- models -->\n", "<!-- /models -->"
COLUMNS = "model", "what", "source", "parameters", "of one example, classes", "options", "PyTorch's names"


def parameters(factory: Callable[..., Any]) -> str:
  """Those of a model as its factory gives it by default."""
  model = factory()
  return f"{count_parameters(jax.eval_shape(model.init, jax.random.key(0))):,}"


def row(name: str, factory: Callable[..., Any], count: str) -> str:
  """A line of the table."""
  known = inspect.signature(factory).parameters
  file = inspect.unwrap(factory).__module__.replace(".", "/")
  what = (inspect.getdoc(factory) or "").partition("\n")[0].removesuffix(".").replace("|", "\\|")
  options = ", ".join(
    f"`{each}={known[each].default}`" for each in known if each not in ("shape", "num_classes")
  )
  given = f"{known['shape'].default}, {known['num_classes'].default}"
  link = f"[`{name}`](../{file}.py)"
  header = inspect.getdoc(inspect.getmodule(inspect.unwrap(factory))) or ""
  found = re.search(r"Sources?: (.*?)(\n\n|$)", header, re.S)
  source = " ".join((found[1] if found else header.partition("\n")[0]).split()).replace("|", "\\|")
  cells = link, what, source, count, given, options or "none", "known" if reader_of(name) else ""
  return f"| {' | '.join(cells)} |"


def table(count: Callable[[Callable[..., Any]], str] = parameters) -> str:
  """The table as Markdown."""
  return "\n".join(
    [
      "| " + " | ".join(COLUMNS) + " |",
      "|---" * len(COLUMNS) + "|",
      *(row(name, factory, count(factory)) for name, factory in MODELS.items()),
    ]
  )


if __name__ == "__main__":
  before, _, rest = PAGE.read_text().partition(START)
  PAGE.write_text(before + START + table() + "\n" + END + rest.partition(END)[2])
