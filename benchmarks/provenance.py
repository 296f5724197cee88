"""Where a benchmark's files belong, and the commit, date and machine that each figure is recorded with."""

import datetime
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax

from fedjax_het.workdir.provenance import commit, machine

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "results"
RAW = PAGES / "raw"
START, END = "<!-- tables -->", "<!-- end of tables -->"
__all__ = [
  "END", "PAGES", "RAW", "ROOT", "START", "commit", "machine", "made", "place", "provenance", "write_tables"
]  # fmt: skip


def provenance() -> dict[str, str | None]:
  """The commit of this checkout, today's date, the machine and the version of JAX."""
  return {
    "commit": commit(ROOT), "date": str(datetime.date.today()), "machine": machine(), "jax": jax.__version__
  }  # fmt: skip


def made(command: str, cells: Iterable[Mapping[str, Any]]) -> str:
  """The line of a page that says by what, when and where cells were made; "by" of each is `provenance`."""
  by = [cell["by"] for cell in cells]
  of = {name: ", ".join(dict.fromkeys(str(own[name]) for own in by)) for name in by[0]}
  return f"`{command}`, {of['date']}, commit {of['commit']}, {of['machine']}, JAX {of['jax']}."


def place(folder: Path, name: str) -> Path:
  """Where a file belongs in a folder that is laid out as docs/results, whose folders are made.

  Pages stand in the folder itself, pictures in its `images`, everything else in its `raw`.
  """
  own = folder / {".md": "", ".png": "images"}.get(Path(name).suffix, "raw")
  own.mkdir(parents=True, exist_ok=True)
  return own / name


def write_tables(page: Path, tables: str) -> None:
  """Replaces what stands between the marks `START` and `END` of a page; all else there is written by hand.

  Raises:
    ValueError: the page is there and lacks a mark.
  """
  text = page.read_text(encoding="utf-8") if page.exists() else f"{START}{END}\n"
  before, start, rest = text.partition(START)
  _, end, after = rest.partition(END)
  if not (start and end):
    raise ValueError(f"{page} lacks the marks {START} and {END}, between which its tables are written.")
  page.write_text(f"{before}{START}\n\n{tables.strip()}\n\n{END}{after}", encoding="utf-8")
