"""Pictures of a run: what fails to be drawn costs nothing else, is noted, and is drawn by the next start."""

import contextlib
import json
from collections.abc import Iterator

from absl import logging

from fedjax_het.engine.capacity import full
from fedjax_het.workdir.folder import Workdir, read_record, write_atomic

NOTE = ".pictures.json"  # beside the figures: what was drawn, and what failed


@contextlib.contextmanager
def pictures(run: Workdir, failed: list[str]) -> Iterator[None]:
  """Lets what is drawn inside fail, unless the disk is full: that is logged, and added to `failed`."""
  try:
    yield
  except Exception as error:
    if full(error) == "disk":
      raise
    failed.append(f"{type(error).__name__}: {error}")
    logging.exception("%s: not all pictures could be drawn; its figures are all there.", run.root)


def note_pictures(run: Workdir, failed: list[str]) -> None:
  """Notes which pictures there are, and what failed, for `missing_pictures`."""
  drawn = sorted(path.name for path in run.figures.glob("*") if path.is_file())
  write_atomic(run.root / NOTE, json.dumps({"drawn": drawn, "failed": failed}))


def missing_pictures(run: Workdir, least: str = "learning_curve.png") -> list[str]:
  """Names of pictures that a complete run should have and has not, or why they could not be drawn.

  Args:
    run: the run's folder.
    least: a picture that every complete run has, by which runs of versions without the note go.
  """
  note = read_record(run.root / NOTE) or {"drawn": [least], "failed": []}

  def is_there(name: str) -> bool:
    path = run.figures / name
    return path.is_file() and path.stat().st_size > 0

  return [*note.get("failed", []), *(name for name in note.get("drawn", []) if not is_there(name))]
