"""Lines of a text file of numbers, such as a recorded trace."""

from fedjax_het.errors import DataError, SettingError


def numbered_lines(path: str) -> list[tuple[int, str]]:
  """Reads a trace's lines with their numbers, counted from 1, without empty ones and those that begin with #.

  Args:
    path: the file, whose setting is called `path` in the error.

  Raises:
    SettingError: the file cannot be read.
    DataError: it has no such lines.
  """
  try:
    with open(path, encoding="utf-8") as file:
      lines = file.read().splitlines()
  except (OSError, ValueError) as error:
    raise SettingError(
      "path", path, f"cannot be read ({error})", "Name a trace that you may read."
    ) from error
  kept = [(n, line) for n, line in enumerate(lines, 1) if line.strip() and not line.lstrip().startswith("#")]
  if not kept:
    raise DataError(f"{path}: it has no lines.")
  return kept
