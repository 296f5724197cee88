"""Writes the comparison page: one HTML file that contains all it needs and loads nothing from a network."""

import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from fedjax_het.errors import SettingError, folder_of
from fedjax_het.output import escape
from fedjax_het.workdir.folder import write_atomic
from fedjax_het.workdir.tracking import to_json

SCRIPTS = ("base.js", "table.js", "charts.js", "pictures.js", "start.js")  # in this order


def plotly(out: str | os.PathLike[str]) -> str:
  """Returns Plotly's JavaScript out of the Python package `plotly`.

  Raises:
    SettingError: `plotly` is not installed; the error names the page `out`.
  """
  try:
    from plotly.offline import get_plotlyjs
  except ImportError as error:
    remedy = "pip install 'fedjax_het[compare]', or see the table alone: --plain."
    raise SettingError(
      "out", os.fspath(out), "a page needs the package plotly, which is not installed", remedy
    ) from error
  return get_plotlyjs()


def write_page(
  content: Mapping[str, Any], path: str | os.PathLike[str], title: str = "Runs compared"
) -> Path:
  """Writes a page of the content that `content.content` returns, and returns the page's path.

  Raises:
    SettingError: Plotly is not installed, or the file cannot be written.
  """
  path, library = folder_of("out", path), plotly(path)
  parts = {
    "title": escape.html(title),
    "style": _read("page.css"),
    "plotly": library.replace("</script", "<\\/script"),
    "content": to_json(content).replace("<", "\\u003c"),
    "script": "\n".join(map(_read, SCRIPTS)),
  }
  head, *pieces = _read("page.html").split("{{")
  text = head + "".join(parts[name] + rest for name, _, rest in (piece.partition("}}") for piece in pieces))
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text)
  except (OSError, ValueError) as error:  # ValueError: the path has no file name
    problem = f"cannot be written ({getattr(error, 'strerror', None) or error})"
    raise SettingError("out", str(path), problem, "Name a file that you may write.") from error
  return path


def _read(name: str) -> str:
  return (resources.files("fedjax_het.compare") / "page" / name).read_text(encoding="utf-8")
