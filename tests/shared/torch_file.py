"""PyTorch's first file format (.pth, .th of before 2020), read without PyTorch."""

import pickle
from pathlib import Path

import numpy as np

KINDS = {"FloatStorage": np.float32, "DoubleStorage": np.float64, "LongStorage": np.int64}
HEADERS = 3  # a magic number, the version, the machine's sizes


class Reader(pickle.Unpickler):
  """A tensor becomes (its storage's key, offset, shape, strides); a storage's kind is noted."""

  def __init__(self, file):
    super().__init__(file)
    self.kinds = {}

  def find_class(self, module, name):
    if name in KINDS:
      return name
    if name in ("_rebuild_tensor", "_rebuild_tensor_v2"):
      return lambda key, offset, shape, strides, *_: (key, offset, shape, strides)
    if name == "_rebuild_parameter":
      return lambda tensor, *_: tensor
    if name == "OrderedDict":
      return dict
    raise pickle.UnpicklingError(f"{module}.{name} is not expected in a file of weights")

  def persistent_load(self, reference):
    _, kind, key, *_ = reference
    self.kinds[key] = np.dtype(KINDS[kind])
    return key


def read_state(path: Path) -> dict[str, np.ndarray]:
  """The `state_dict` of a checkpoint, without DataParallel's prefix."""
  with path.open("rb") as file:
    for _ in range(HEADERS):
      pickle.load(file)
    reader = Reader(file)
    state = reader.load()["state_dict"]
    storages = {}
    for key in pickle.load(file):  # each its length in numbers, and the numbers
      kind = reader.kinds[key]
      storages[key] = np.frombuffer(file.read(int.from_bytes(file.read(8), "little") * kind.itemsize), kind)
  return {
    name.removeprefix("module."): np.lib.stride_tricks.as_strided(
      storages[key][offset:], shape, [stride * storages[key].itemsize for stride in strides]
    )
    for name, (key, offset, shape, strides) in state.items()
  }
