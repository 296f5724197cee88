"""Pictures in files, for tests of the loaders that read them."""

import io
import struct
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from fedjax_het.data import sources
from fedjax_het.errors import DataError

RNG = np.random.default_rng(5)


def jpeg(width, height, colour=None, mode="RGB"):
  content = io.BytesIO()
  if colour is None:
    picture = Image.fromarray(RNG.integers(0, 256, (height, width, 3), np.uint8)).convert(mode)
  else:
    picture = Image.new(mode, (width, height), colour)
  picture.save(content, "JPEG", quality=95)
  return content.getvalue()


def write(folder, files):
  for name, content in files.items():
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def packed(folder, name, files):
  """The same files in an archive."""
  folder.mkdir(parents=True, exist_ok=True)
  if name.endswith(".zip"):
    with zipfile.ZipFile(folder / name, "w") as archive:
      for path, content in files.items():
        archive.writestr(path, content)
  else:
    with tarfile.open(folder / name, "w:gz") as archive:
      for path, content in files.items():
        info = tarfile.TarInfo(f"./{path}")
        data = content.encode() if isinstance(content, str) else content
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))


def refused(folder, name, files, change, says):
  """That changed files are no data set of this name, in its folder, and why."""
  change(files)
  write(folder, files)
  with pytest.raises(DataError, match=says):
    sources.load(name, folder.parent)


def scrambled(path, arrays):
  """A compressed .npz whose first array cannot be unpacked."""
  np.savez_compressed(path, **arrays)
  content = bytearray(path.read_bytes())
  content[30 + sum(struct.unpack("<HH", content[26:30]))] = 0xFF  # no kind of block that there is
  path.write_bytes(content)
