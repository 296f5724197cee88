"""Reads and writes files of named arrays: .npz, .safetensors and, with PyTorch installed, its formats."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedjax_het.data.untrusted import read_arrays as read_npz
from fedjax_het.data.untrusted import read_json
from fedjax_het.errors import SettingError, folder_of, reading

Arrays = dict[str, np.ndarray]

MOST_HEADER = 100_000_000  # most bytes of a .safetensors header, the limit of its authors' reader
SAFE_TORCH = 2, 6  # the first version whose weights_only=True runs nothing, see CVE-2025-32434

PLAIN = (".npz", ".safetensors")
OF_TORCH = (".pth", ".pt", ".th", ".bin", ".ckpt")
NESTED = ("state_dict", "model_state_dict", "model")  # keys that nest the model's state dict in a checkpoint
DTYPES = {
  "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16, "I64": np.int64,
  "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip


def check_file(path: str | os.PathLike[str], suffixes: tuple[str, ...] = PLAIN) -> Path:
  """Returns the path of an existing weight file, with `~` expanded.

  Args:
    path: path of the file.
    suffixes: the suffixes that are accepted.

  Raises:
    SettingError: `path` is not a path, the file does not exist, or its suffix is not among `suffixes`.
  """
  if not isinstance(path, str | os.PathLike):
    raise SettingError("weights", path, "of the wrong type", "Give the path of a file.")
  found = folder_of("weights", path)
  if found.suffix not in suffixes:
    remedy = f"Use {' or '.join(suffixes)}."
    if found.suffix in OF_TORCH:
      remedy = f"Where PyTorch is: python -m fedjax_het.models.convert --model=NAME {found} OUT.npz"
    raise SettingError("weights", os.fspath(path), f"{found.suffix or 'no suffix'} is not read here", remedy)
  if not found.is_file():
    raise SettingError(
      "weights", os.fspath(path), f"no such file (looked for {found.absolute()})", "Check the path."
    )
  return found


def read_arrays(path: str | os.PathLike[str]) -> Arrays:
  """Reads the arrays of a weight file by name, without the prefix `module.` that PyTorch's DataParallel adds.

  The prefix is removed only if all names have it.

  Raises:
    SettingError: see `check_file`; also if PyTorch is required and not installed.
    DataError: the file is damaged.
  """
  found = check_file(path, (*PLAIN, *OF_TORCH))
  read = {".npz": read_npz, ".safetensors": _safetensors}.get(found.suffix, _torch)
  with reading(found, f"cannot be read as {found.suffix}"):
    arrays = read(found)
  if arrays and all(name.startswith("module.") for name in arrays):
    arrays = {name.removeprefix("module."): array for name, array in arrays.items()}
  return arrays


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
  """Writes arrays by name as an .npz file, bfloat16 as float32 because NumPy's format lacks it."""
  plain = {name: np.asarray(array) for name, array in arrays.items()}
  for name, array in plain.items():
    if array.dtype == jnp.bfloat16:
      plain[name] = array.astype(np.float32)
  with open(folder_of("weights", path), "wb") as file:
    np.savez(file, **plain)  # type: ignore[arg-type]


def _safetensors(path: Path) -> Arrays:
  """Parses a .safetensors file: header length (8 bytes), JSON header, arrays' bytes, little-endian.

  The tensors' bytes must be contiguous, without gaps and without overlaps.
  """
  whole = np.memmap(path, np.uint8, "r")
  length = int(whole[:8].view("<u8")[0])
  start = 8 + length
  if start > len(whole) or length > MOST_HEADER:
    raise ValueError(f"its header of {length} bytes is longer than the file, or than {MOST_HEADER}")
  header = read_json(f"{path}: its header", whole[8:start].tobytes())
  if not isinstance(header, dict) or whole[8] != ord("{"):
    raise ValueError("the header is no JSON object")
  size = len(whole) - start
  spans = {name: _span(name, entry, size) for name, entry in header.items() if name != "__metadata__"}
  end = 0
  for name, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
    if first != end:
      what = "within the tensor before it, which ends" if first < end else "after a hole, which begins"
      raise ValueError(f"{name} begins at byte {first}, {what} at byte {end}")
    end = last
  if end != size:
    raise ValueError(f"its last {size - end} bytes belong to no tensor")
  return {
    name: np.frombuffer(whole[start + first : start + last].tobytes(), DTYPES[header[name]["dtype"]]).reshape(
      header[name]["shape"]
    )
    for name, (first, last) in spans.items()
  }


def _span(name: str, entry: Any, size: int) -> tuple[int, int]:
  """Returns the first byte of a tensor and the one after its last; raises `ValueError` naming the tensor."""
  if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= {*entry}:
    raise ValueError(f"{name} has no dtype, shape and data_offsets")
  dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
  if not isinstance(dtype, str) or dtype not in DTYPES:
    raise ValueError(f"{name} is of type {str(dtype)[:20]}, which is none of {', '.join(DTYPES)}")
  for what, own in (("shape", shape), ("data_offsets", offsets)):
    if not isinstance(own, list) or any(type(value) is not int or value < 0 for value in own):
      raise ValueError(f"{name} has the {what} {str(own)[:60]}, which are not whole numbers of 0 or more")
  wanted = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
  if len(offsets) != 2 or not offsets[0] <= offsets[1] <= size or offsets[1] - offsets[0] != wanted:
    problem = f"{name}, {dtype} {shape}, lies at the bytes {offsets[:3]} of {size}"
    raise ValueError(f"{problem}, and takes {wanted}")
  return offsets[0], offsets[1]


def _torch(path: Path) -> Arrays:
  try:
    import torch
  except ImportError:
    raise SettingError(
      "weights", os.fspath(path), f"PyTorch, which alone reads {path.suffix}, is not installed",
      "pip install torch, or take a .safetensors or .npz of the same weights.",
    ) from None  # fmt: skip
  version = tuple(int(part) for part in torch.__version__.split(".")[:2])
  if version < SAFE_TORCH:
    raise SettingError(
      "weights", os.fspath(path), f"PyTorch {torch.__version__} may run what the file holds (CVE-2025-32434)",
      "pip install 'torch>=2.6', or take a .safetensors or .npz of the same weights.",
    )  # fmt: skip
  state: Any = torch.load(path, map_location="cpu", weights_only=True)
  while isinstance(state, Mapping) and (inner := next((key for key in NESTED if key in state), None)):
    state = state[inner]
  tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
  return {
    name: (value.float() if value.is_floating_point() else value).numpy() for name, value in tensors.items()
  }
