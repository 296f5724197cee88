"""MNIST and Fashion-MNIST from the authors' idx files, compressed or not.

An idx file is big-endian: two zero bytes, a type byte (8: uint8), the number of axes, the length of each
axis (uint32), then the values. LeCun, Cortes, Burges; Xiao, Rasul, Vollgraf 2017 (arXiv:1708.07747).
"""

import math
from pathlib import Path

import numpy as np

from fedjax_het.data.files import Source, check_digest, find
from fedjax_het.data.untrusted import read
from fedjax_het.errors import DataError

SHAPES = {
  "train-images-idx3-ubyte": (60000, 28, 28),
  "train-labels-idx1-ubyte": (60000,),
  "t10k-images-idx3-ubyte": (10000, 28, 28),
  "t10k-labels-idx1-ubyte": (10000,),
}

TORCHVISION = {"mnist": "MNIST", "fashion_mnist": "FashionMNIST"}  # the folders that torchvision makes

# sha256 of each .gz file (published in TFDS's url_checksums and on the mirrors) and of its content.
SHA256 = {
  "mnist": {
    "train-images-idx3-ubyte": (
      "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
      "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    "train-labels-idx1-ubyte": (
      "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
      "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "t10k-images-idx3-ubyte": (
      "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
      "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    "t10k-labels-idx1-ubyte": (
      "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
      "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
  },
  "fashion_mnist": {
    "train-images-idx3-ubyte": (
      "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
      "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    "train-labels-idx1-ubyte": (
      "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
      "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    "t10k-images-idx3-ubyte": (
      "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
      "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    "t10k-labels-idx1-ubyte": (
      "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
      "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
  },
}


def parse_idx(path: Path, content: bytes) -> np.ndarray:
  """Decodes the decompressed `content` of the idx file `path` into a read-only uint8 array.

  Raises:
    DataError: the magic number is not that of uint8 values, or the number of values differs from the
      header's.
  """
  axes = content[3] if len(content) >= 4 else 0
  if content[:3] != b"\0\0\x08" or not axes:
    raise DataError(f"{path.resolve()} is not an idx file of uint8 values: it starts with {content[:4]!r}.")
  shape = tuple(int(n) for n in np.frombuffer(content[4 : 4 + 4 * axes], ">u4"))
  values = np.frombuffer(content[4 + 4 * axes :], np.uint8)
  if len(shape) != axes or values.size != np.prod(shape, dtype=object):
    raise DataError(
      f"{path.resolve()} is truncated or damaged: it has {values.size} values, its header says {shape}."
    )
  return values.reshape(shape)


def load_idx(name: str, folder: Path) -> Source | None:
  """Loads "mnist" or "fashion_mnist": images, uint8 [N, 28, 28, 1], and labels, int32 [N].

  The files may lie in `folder`, or where torchvision puts them: in MNIST/raw/ or FashionMNIST/raw/, inside
  `folder` or next to it.

  Returns:
    The data set, or None where none of these folders holds one of the files.

  Raises:
    DataError: a file is missing while others are present, is truncated, or differs from what its authors
      ship.
  """
  theirs = Path(TORCHVISION[name]) / "raw"
  for own in (folder, folder / "raw", folder / theirs, folder.parent / theirs):
    paths = {file: path for file in SHAPES if (path := find(own, file))}
    if paths:
      folder = own
      break
  else:
    return None
  arrays = []
  for file, shape in SHAPES.items():
    if file not in paths:
      raise DataError(f"{name} wants {file}.gz (or {file}) too; looked in {folder.resolve()}.")
    raw, content = read(paths[file], 2**20 + math.prod(shape))
    array = parse_idx(paths[file], content)
    if array.shape != shape:
      raise DataError(f"{paths[file].resolve()} holds an array of shape {array.shape}, {name} has {shape}.")
    check_digest(paths[file], raw, "sha256", SHA256[name][file][0 if paths[file].suffix == ".gz" else 1])
    arrays.append(array)
  x, y, x_test, y_test = arrays
  files = tuple(path.name for path in paths.values())
  return Source(
    x[..., None], y.astype(np.int32), x_test[..., None], y_test.astype(np.int32), 10, name, None, files
  )
