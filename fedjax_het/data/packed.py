"""Many small files in one place, a folder, a zip or a tar, read alike and without unpacking anything."""

import contextlib
import functools
import gzip
import lzma
import tarfile
import zipfile
from collections import Counter
from collections.abc import Container, Iterator
from pathlib import Path
from typing import IO, Any

from fedjax_het.data.files import below
from fedjax_het.data.untrusted import allowance, check_size
from fedjax_het.errors import DataError, reading

MOST = 2**26  # bytes of one file of many: an image, a clip, a list
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
  where = place.resolve()
  with reading(where):
    if place.suffix == ".zip":
      with zipfile.ZipFile(place) as archive:
        found = [member.filename for member in archive.infolist() if not member.is_dir()]
    else:
      with _tar(place) as (tar, file):
        found = [member.name.removeprefix("./") for member in tar if member.isfile()]
        if any(file.last):
          raise tarfile.ReadError(f"what follows {found[-1:]} is no header of a file, and no end")
        while file.read(1 << 20):  # a cut file is noticed at its end, or not at all
          pass
    if twice := [name for name, count in Counter(found).items() if count > 1]:
      raise DataError(f"{where} holds {twice[0]} twice.")
    return tuple(sorted(found))


def contents(place: Path, wanted: Container[str]) -> Iterator[tuple[str, bytes]]:
  """Those files of a folder or an archive that are wanted, each once, in no promised order: (name, content).

  Raises:
    DataError: a file or an archive that is damaged, or a file that is larger than any of a data set's.
  """
  where = place.resolve()
  with reading(where):
    if place.is_dir():
      for name in names(place):
        if name in wanted:
          check_size(place / name, (place / name).stat().st_size, MOST)
          yield name, (place / name).read_bytes()
    elif place.suffix == ".zip":
      with zipfile.ZipFile(place) as archive:
        for inside in archive.infolist():
          if inside.filename in wanted:
            check_size(f"{where}: {inside.filename}", inside.file_size, MOST)
            yield inside.filename, archive.read(inside)
    else:
      with _tar(place) as (tar, _):
        for member in tar:
          name = member.name.removeprefix("./")
          if member.isfile() and name in wanted:
            check_size(f"{where}: {name}", member.size, MOST)
            yield name, tar.extractfile(member).read()  # type: ignore[union-attr]


def read_one(place: Path, name: str) -> bytes:
  """One file of a folder or an archive."""
  return next(content for _, content in contents(place, {name}))


class _Bounded:
  """A file that is unpacked as it is read, so many bytes in all and at most `MOST` at once."""

  def __init__(self, where: object, file: IO[bytes], most: int):
    self._where, self._file, self._most = where, file, most
    self.seek, self.tell = file.seek, file.tell
    self.last = b""  # what was read last: where tarfile finds no header it ends, whatever follows

  def read(self, size: int = -1) -> bytes:
    """The next bytes."""
    check_size(self._where, size, MOST)  # a tar's header may ask for any number
    self.last = self._file.read(size)
    check_size(self._where, self._file.tell(), self._most)
    return self.last


@contextlib.contextmanager
def _tar(place: Path) -> Iterator[tuple[tarfile.TarFile, Any]]:
  """A tar, and the unpacked file that it is."""
  opened: Any = gzip.open if place.suffix in (".gz", ".tgz") else lzma.open if place.suffix == ".xz" else open
  with opened(place, "rb") as file:
    bounded = _Bounded(place.resolve(), file, allowance(place.stat().st_size))
    with tarfile.open(fileobj=bounded, mode="r:") as tar:  # type: ignore[call-overload]
      yield tar, bounded
