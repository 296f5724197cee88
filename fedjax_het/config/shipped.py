"""Finds the project's own configuration files from any current folder."""

import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path

FOLDER = "configs"


def shipped(path: str) -> str:
  """Returns a path, replaced by the project's own file if "configs/NAME.py" does not exist here.

  Args:
    path: path of a file, optionally with a colon and a cell.
  """
  name, colon, cell = path.partition(":")
  if name.startswith("~"):
    return f"{os.path.expanduser(name)}{colon}{cell}"
  if Path(name).exists() or Path(name).parts[:1] != (FOLDER,):
    return path
  for folder in _folders():
    if (found := folder.joinpath(*Path(name).parts[1:])).is_file():
      return f"{found}{colon}{cell}"
  return path


def _folders() -> Iterator[Path]:
  """Returns where the project's files may be: next to the package in a clone, or where the wheel put them."""
  yield Path(__file__).parents[2] / FOLDER
  try:
    files = importlib.metadata.files("fedjax_het") or []
  except importlib.metadata.PackageNotFoundError:
    return
  yield from {Path(str(file.locate())).parent for file in files if file.parent.name == FOLDER}
