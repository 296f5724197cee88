"""A checkpoint's manifest: checksums of all its files, which distinguish damage from other errors.

Orbax calls back after all files of a checkpoint are written and before the folder gets its final name. The
manifest is written in this callback, so every folder with a final name has one, unless an earlier version
wrote it.
"""

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
LATER = ("_CHECKPOINT_METADATA", "commit_success.txt", MANIFEST)  # written later, never read back
GONE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EIO)


def write_manifest(folder: Path, step: int) -> None:
  """Writes `folder`/manifest.json: the round, and the SHA-256 of every file by relative path."""
  files = {name: checksum(folder / name) for name in names(folder)}
  with (folder / MANIFEST).open("w", encoding="utf-8") as file:
    json.dump({"round": step, "files": files}, file, indent=1)
    file.flush()
    os.fsync(file.fileno())


def has_manifest(folder: Path) -> bool:
  """Returns whether a checkpoint has a manifest, which those of earlier versions lack."""
  return os.path.lexists(folder / MANIFEST)


def damage(folder: Path, step: int) -> str:
  """Describes how a checkpoint's files differ from its manifest; "" if they do not.

  Files outside the manifest are ignored.

  Raises:
    OSError: a file cannot be read for a reason other than damage, such as its permissions.
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
  """Returns the relative paths of all files that a manifest covers."""
  found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
  return sorted(name for name in found if name not in LATER)


def checksum(path: Path) -> str:
  """Computes the SHA-256 of a file in hexadecimal, at about 1 GB per second."""
  with path.open("rb") as file:
    return hashlib.file_digest(file, "sha256").hexdigest()


def checksum_of_books(books: Any) -> str:
  """The SHA-256 of what JSON holds, the same before it was written and after it was read."""
  plain = json.loads(json.dumps(books))  # keys become text
  return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()
