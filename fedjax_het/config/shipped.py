"""The project's own configurations, from whatever folder they are asked for."""

import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path

FOLDER = "configs"


def shipped(path: str) -> str:
  """A path as it is; but where "configs/NAME.py" or its cell is not there, that of the project's own file.

  Args:
    path: of a file, with or without a cell behind a colon.
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
  """Where the project's files may be: beside the package in a clone, else where the wheel put them."""
  yield Path(__file__).parents[2] / FOLDER
  try:
    files = importlib.metadata.files("fedjax_het") or []
  except importlib.metadata.PackageNotFoundError:
    return
  yield from {Path(str(file.locate())).parent for file in files if file.parent.name == FOLDER}
