"""Files of named arrays: .npz, .safetensors, and, where PyTorch is at hand, its own."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedjax_het.errors import DAMAGE, DataError, SettingError, folder_of

Arrays = dict[str, np.ndarray]

PLAIN = (".npz", ".safetensors")
OF_TORCH = (".pth", ".pt", ".th", ".bin", ".ckpt")
NESTED = ("state_dict", "model_state_dict", "model")  # where a checkpoint holds the model's state
DTYPES = {
  "F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": jnp.bfloat16, "I64": np.int64,
  "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip


def check_file(path: str | os.PathLike[str], suffixes: tuple[str, ...] = PLAIN) -> Path:
  """The path of a file of weights.

  Raises:
    SettingError: no such file, or of a kind that is not among `suffixes`.
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
  """The arrays of a file by name; a leading `module.` of all names, PyTorch's DataParallel's, is left out.

  Raises:
    SettingError: see `check_file`; or PyTorch is wanted and not installed.
    DataError: a damaged file.
  """
  found = check_file(path, (*PLAIN, *OF_TORCH))
  read = {".npz": _npz, ".safetensors": _safetensors}.get(found.suffix, _torch)
  try:
    arrays = read(found)
  except (*DAMAGE, KeyError, AttributeError) as error:
    if isinstance(error, SettingError):
      raise
    raise DataError(f"{found} cannot be read as {found.suffix}: {error}") from error
  if arrays and all(name.startswith("module.") for name in arrays):
    arrays = {name.removeprefix("module."): array for name, array in arrays.items()}
  return arrays


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
  """Writes arrays by name as an .npz; bfloat16, which such a file cannot name, as float32."""
  plain = {name: np.asarray(array) for name, array in arrays.items()}
  for name, array in plain.items():
    if array.dtype == jnp.bfloat16:
      plain[name] = array.astype(np.float32)
  with open(folder_of("weights", path), "wb") as file:
    np.savez(file, **plain)  # type: ignore[arg-type]


def _npz(path: Path) -> Arrays:
  with open(path, "rb") as raw, np.load(raw) as file:  # which np.load leaves open where it fails
    return {name: file[name] for name in file.files}


def _safetensors(path: Path) -> Arrays:
  """Eight bytes of the header's length, the header, which is JSON, then all arrays' bytes, little endian."""
  whole = np.memmap(path, np.uint8, "r")
  start = 8 + int(whole[:8].view("<u8")[0])
  if start > len(whole):
    raise ValueError(f"its header of {start - 8} bytes is longer than the file")
  header = json.loads(whole[8:start].tobytes())
  arrays = {}
  for name, entry in header.items():
    if name == "__metadata__":
      continue
    first, last = (start + offset for offset in entry["data_offsets"])
    if entry["dtype"] not in DTYPES or last > len(whole):
      raise ValueError(f"{name} of type {entry['dtype']} ends at byte {last} of {len(whole)}")
    arrays[name] = np.frombuffer(whole[first:last].tobytes(), DTYPES[entry["dtype"]]).reshape(entry["shape"])
  return arrays


def _torch(path: Path) -> Arrays:
  try:
    import torch
  except ImportError:
    raise SettingError(
      "weights", os.fspath(path), f"PyTorch, which alone reads {path.suffix}, is not installed",
      "pip install torch, or take a .safetensors or .npz of the same weights.",
    ) from None  # fmt: skip
  state: Any = torch.load(path, map_location="cpu", weights_only=True)
  while isinstance(state, Mapping) and (inner := next((key for key in NESTED if key in state), None)):
    state = state[inner]
  tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
  return {
    name: (value.float() if value.is_floating_point() else value).numpy() for name, value in tensors.items()
  }
