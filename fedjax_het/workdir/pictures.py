"""Pictures of a run, whose failure stops nothing else, is noted, and is mended by the next start."""

import contextlib
import json
from collections.abc import Iterator

from absl import logging

from fedjax_het.engine.capacity import full
from fedjax_het.workdir.folder import Workdir, read_record, write_atomic

DATA = ("partition.npz",)  # files beside the figures' folder that a study draws
NOTE = ".pictures.json"  # file in the figures' folder: what was drawn, and what failed


@contextlib.contextmanager
def pictures(run: Workdir, failed: list[str]) -> Iterator[None]:
  """Context manager that logs a failure to draw and adds it to `failed`, unless the disk is full."""
  try:
    yield
  except Exception as error:
    if full(error) == "disk":
      raise
    failed.append(f"{type(error).__name__}: {error}")
    logging.exception("%s: not all pictures could be drawn; its figures are all there.", run.root)


def note_pictures(run: Workdir, failed: list[str]) -> None:
  """Records which pictures exist and which failed, for `missing_pictures`."""
  drawn = sorted(path.name for path in run.figures.glob("*") if path.is_file())
  drawn += [f"../{name}" for name in DATA if (run.root / name).is_file()]
  write_atomic(run.root / NOTE, json.dumps({"drawn": drawn, "failed": failed}))


def missing_pictures(run: Workdir, least: str = "learning_curve.png") -> list[str]:
  """Names the pictures that a complete run lacks, or the reasons why they could not be drawn.

  Args:
    run: the run's folder.
    least: a picture that every complete run has, which is checked for runs without the record.
  """
  note = read_record(run.root / NOTE) or {"drawn": [least], "failed": []}

  def is_there(name: str) -> bool:
    path = run.figures / name
    return path.is_file() and path.stat().st_size > 0

  return [*note.get("failed", []), *(name for name in note.get("drawn", []) if not is_there(name))]
