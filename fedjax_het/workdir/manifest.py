"""A manifest: the checksums of all files of a checkpoint, which tell damage from every other error.

Orbax calls back when all files of a checkpoint are written and before the folder gets its final name. The
manifest is written then, so a folder with a final name has one, unless an earlier version wrote it.
"""

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
LATER = ("_CHECKPOINT_METADATA", "commit_success.txt", MANIFEST)  # written afterwards, and never read back
GONE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EIO)


def write_manifest(folder: Path, step: int) -> None:
  """Writes `folder`/manifest.json: the round, and the SHA-256 of every file below, by its relative path."""
  files = {name: checksum(folder / name) for name in names(folder)}
  with (folder / MANIFEST).open("w", encoding="utf-8") as file:
    json.dump({"round": step, "files": files}, file, indent=1)
    file.flush()
    os.fsync(file.fileno())


def has_manifest(folder: Path) -> bool:
  """Whether a checkpoint has a manifest; those of earlier versions have none."""
  return os.path.lexists(folder / MANIFEST)


def damage(folder: Path, step: int) -> str:
  """What differs between a checkpoint's files and its manifest, in words; "" where nothing does.

  Files that the manifest does not name are never read, and do not count.

  Raises:
    OSError: a file may be whole, and cannot be read for another reason, such as its permissions.
  """
  try:
    found = json.loads((folder / MANIFEST).read_bytes())
    if found["round"] != step:
      return f"its manifest is of round {found['round']}"
    differ = [name for name, own in found["files"].items() if checksum(folder / name) != own]
  except (ValueError, KeyError, TypeError, AttributeError):
    return f"{MANIFEST} cannot be read"
  except OSError as error:
    if error.errno not in GONE:
      raise
    return f"{Path(error.filename).relative_to(folder) if error.filename else 'a file'}: {error.strerror}"
  return f"{differ[0]} is not as it was written" if differ else ""


def names(folder: Path) -> list[str]:
  """The relative paths of all files that a manifest covers."""
  found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
  return sorted(name for name in found if name not in LATER)


def checksum(path: Path) -> str:
  """The SHA-256 of a file, in hexadecimal digits; about 1 GB a second."""
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def checksum_of_books(books: Any) -> str:
  """The SHA-256 of what JSON holds, the same before it was written and after it was read."""
  plain = json.loads(json.dumps(books))  # keys become text
  return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
