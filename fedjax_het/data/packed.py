"""Reading of many small files from a folder, a zip or a tar, without unpacking archives to disk."""

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
  """Finds the first of `folder` and the archives in it that holds files with a given ending.

  Args:
    folder: where to look.
    ending: the end of the files' names in lower case, such as "/test_list.txt" or ".jpg".

  Returns:
    (folder or archive, sorted names within it), or None where there are no such files.

  Raises:
    DataError: an archive is damaged.
  """
  archives = sorted(path for path in folder.glob("*") if path.name.endswith(ARCHIVES) and path.is_file())
  for place in (folder, *archives):
    found = [name for name in names(place) if f"/{name}".lower().endswith(ending)]
    if found:
      return place, found
  return None


def names(place: Path) -> list[str]:
  """Returns the sorted names of the files in a folder or an archive, as relative paths with "/".

  Raises:
    DataError: the archive is damaged.
  """
  if place.is_dir():
    return sorted(path.relative_to(place).as_posix() for path in below(place))
  if not place.exists():
    return []
  about = place.stat()
  return [*_members(place, about.st_size, about.st_mtime_ns)]


@functools.lru_cache(maxsize=8)  # listing a compressed tar means reading all of it
def _members(place: Path, size: int, changed: int) -> tuple[str, ...]:
  """Lists the files in an archive; cached until the archive's size or time of change differs."""
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
  """Yields (name, content) of each wanted file of a folder or an archive, once, in no promised order.

  Raises:
    DataError: a file or the archive is damaged, or a file is larger than `MOST` bytes.
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
  """Returns the content of one file of a folder or an archive; raises `DataError` as `contents` does."""
  return next(content for _, content in contents(place, {name}))


class _Bounded:
  """A file that is decompressed while it is read, with a limit on all bytes and of `MOST` on one read."""

  def __init__(self, where: object, file: IO[bytes], most: int):
    self._where, self._file, self._most = where, file, most
    self.seek, self.tell = file.seek, file.tell
    self.last = b""  # the last block read: tarfile stops without error at anything that is no header

  def read(self, size: int = -1) -> bytes:
    """Reads the next `size` bytes."""
    check_size(self._where, size, MOST)  # `size` comes from a tar's header, which may claim any number
    self.last = self._file.read(size)
    check_size(self._where, self._file.tell(), self._most)
    return self.last


@contextlib.contextmanager
def _tar(place: Path) -> Iterator[tuple[tarfile.TarFile, Any]]:
  """Opens a tar; yields it and the decompressed file.

  The compression is recognised by the first bytes, not by the name, because some browsers decompress
  downloads.
  """
  with place.open("rb") as raw:
    begins = raw.read(6)
  opened: Any = gzip.open if begins[:2] == b"\x1f\x8b" else lzma.open if begins == b"\xfd7zXZ\0" else open
  with opened(place, "rb") as file:
    bounded = _Bounded(place.resolve(), file, allowance(place.stat().st_size))
    with tarfile.open(fileobj=bounded, mode="r:") as tar:  # type: ignore[call-overload]
      yield tar, bounded
