"""Many small files in one place, a folder, a zip or a tar, read alike and without unpacking anything."""

import functools
import tarfile
import zipfile
from collections.abc import Container, Iterator
from pathlib import Path

from fedjax_het.data.files import below
from fedjax_het.errors import DAMAGE, DataError

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz")


def locate(folder: Path, ending: str) -> tuple[Path, list[str]] | None:
  """The first of `folder` and the archives in it with files whose names end so: that place, and their names.

  Args:
    folder: where to look.
    ending: how their names end, in lower case, such as "/test_list.txt" or ".jpg".

  Returns:
    The place, and the names within it, sorted; None where nothing has such files.

  Raises:
    DataError: an archive that is damaged.
  """
  archives = sorted(path for path in folder.glob("*") if path.name.endswith(ARCHIVES) and path.is_file())
  for place in (folder, *archives):
    found = [name for name in names(place) if f"/{name}".lower().endswith(ending)]
    if found:
      return place, found
  return None


def names(place: Path) -> list[str]:
  """The files in a folder or an archive, as relative paths with "/", sorted.

  Raises:
    DataError: an archive that is damaged.
  """
  if place.is_dir():
    return sorted(path.relative_to(place).as_posix() for path in below(place))
  if not place.exists():
    return []
  about = place.stat()
  return [*_members(place, about.st_size, about.st_mtime_ns)]


@functools.lru_cache(maxsize=8)  # a compressed tar is read from end to end for it
def _members(place: Path, size: int, changed: int) -> tuple[str, ...]:
  """The files in an archive, as long as it stays what it is."""
  try:
    if place.suffix == ".zip":
      with zipfile.ZipFile(place) as archive:
        return tuple(sorted(member.filename for member in archive.infolist() if not member.is_dir()))
    with tarfile.open(place) as tar:
      found = [member.name.removeprefix("./") for member in tar if member.isfile()]
      while tar.fileobj and tar.fileobj.read(1 << 20):  # a cut file is noticed at its end, or not at all
        pass
      return tuple(sorted(found))
  except DAMAGE as error:
    raise _damaged(place, error) from error


def contents(place: Path, wanted: Container[str]) -> Iterator[tuple[str, bytes]]:
  """Those files of a folder or an archive that are wanted, each once, in no promised order: (name, content).

  Raises:
    DataError: a file or an archive that is damaged.
  """
  try:
    if place.is_dir():
      for name in names(place):
        if name in wanted:
          yield name, (place / name).read_bytes()
    elif place.suffix == ".zip":
      with zipfile.ZipFile(place) as archive:
        for inside in archive.infolist():
          if inside.filename in wanted:
            yield inside.filename, archive.read(inside)
    else:
      with tarfile.open(place) as tar:
        for member in tar:
          name = member.name.removeprefix("./")
          if member.isfile() and name in wanted:
            yield name, tar.extractfile(member).read()  # type: ignore[union-attr]
  except DAMAGE as error:
    raise _damaged(place, error) from error


def read_one(place: Path, name: str) -> bytes:
  """One file of a folder or an archive."""
  return next(content for _, content in contents(place, {name}))


def _damaged(place: Path, error: Exception) -> DataError:
  return DataError(f"{place.resolve()} cannot be read, it is truncated or damaged: {error}")
