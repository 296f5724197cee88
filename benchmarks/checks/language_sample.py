"""Draws docstrings and pages at random and prints them without the code around, to be read with fresh eyes.

    python benchmarks/checks/language_sample.py [--root TREE] [--seed 49] [--docstrings 40] [--pages 10]

The question for each is whether an engineer who knows federated learning and JAX, and has not seen the file,
understands every sentence. docs/results/language.md has the answers for two commits.
"""

import argparse
import ast
import random
import re
from collections.abc import Iterator
from pathlib import Path

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(root: Path) -> Iterator[tuple[str, str]]:
  """Yields (file: name, docstring) for all docstrings of the package, in order of files and lines."""
  for path in sorted((root / "fedjax_het").rglob("*.py")):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
        yield f"{path.relative_to(root)}: {getattr(node, 'name', 'module')}", text


def pages(root: Path) -> list[tuple[str, str]]:
  """Returns (file, prose) of the pages that explain; blocks of code and tables of figures are left out."""
  paths = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").glob("*.md"))]
  texts = (re.sub(r"```.*?```", "[code]", path.read_text(), flags=re.S) for path in paths)
  return [(str(path.relative_to(root)), text) for path, text in zip(paths, texts)]


def main() -> None:
  """Prints the samples of the command line's tree."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--root", type=Path, default=Path(__file__).parents[2])
  parser.add_argument("--seed", type=int, default=49)
  parser.add_argument("--docstrings", type=int, default=40)
  parser.add_argument("--pages", type=int, default=10)
  args = parser.parse_args()
  draw = random.Random(args.seed)
  for name, text in draw.sample(list(docstrings(args.root)), args.docstrings) + draw.sample(
    pages(args.root), args.pages
  ):
    print(f"--- {name}\n{text}\n")


if __name__ == "__main__":
  main()
