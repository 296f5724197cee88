"""Converts PyTorch weights: `python -m fedjax_het.models.convert --model=NAME IN.pth OUT.npz`.

IN holds a PyTorch state dict. PyTorch must be installed to read .pth, .pt, .th, .bin and .ckpt files;
.safetensors and .npz files with PyTorch's parameter names are read without it. OUT can be passed to
`fh.models.make(..., weights=OUT)` and `--config.model.weights=OUT`.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from fedjax_het.errors import DataError, SettingError, check_choice, check_here, folder_of
from fedjax_het.models import MODELS, reader_of
from fedjax_het.models.weights.files import read_arrays, write_arrays
from fedjax_het.models.weights.starting import PARTS, by_name, check_floats
from fedjax_het.output.terminal import protect_streams, say


def convert(name: str, source: str, target: str) -> dict[str, tuple[int, ...]]:
  """Reads a file with PyTorch's parameter names and writes its arrays as an .npz with this library's names.

  Args:
    name: name of the model, a key of `MODELS`.
    source: path of the file with PyTorch's names.
    target: path of the .npz file to write.

  Returns:
    The shapes of the arrays that were written, by name.

  Raises:
    SettingError: the model is unknown or has no known PyTorch names; the source's format is not supported or
      it already has this library's names; the target is not an .npz, is a folder, or its folder does not
      exist.
    DataError: the source is damaged, holds no arrays, or has names that the model does not have.
  """
  check_choice("model", name, MODELS)
  reader = reader_of(name)
  if reader is None:
    having = [other for other in MODELS if reader_of(other)]
    raise SettingError("model", name, "has no names in PyTorch", f"Those that have: {', '.join(having)}.")
  if not target.endswith(".npz"):
    raise SettingError("OUT", target, "not an .npz", f"Use {target}.npz.")
  place = folder_of("OUT", target)
  if not place.parent.is_dir() or place.is_dir():
    raise SettingError(
      "OUT", target, "the file's folder does not exist, or it is a folder itself", "Make it, or name another."
    )
  state = read_arrays(source)
  if not state:
    raise DataError(f"{source} holds no arrays.")
  if any(own.partition("/")[0] in PARTS for own in state):
    raise SettingError(
      "IN", source, "has this library's names already", "Use it directly: --config.model.weights."
    )
  arrays = by_name(*reader(state))
  check_floats(source, arrays)
  write_arrays(target, arrays)
  return {own: array.shape for own, array in arrays.items()}


def main(args: Sequence[str] | None = None) -> None:
  """Runs the command line; exits with status 2 and the message on a `SettingError` or `DataError`."""
  protect_streams()
  parser = argparse.ArgumentParser("python -m fedjax_het.models.convert", description=__doc__)
  parser.add_argument("--model", required=True, help="name of the model")
  parser.add_argument("IN", help="file with PyTorch's names")
  parser.add_argument("OUT", help="file to write, .npz")
  given = parser.parse_args(args)
  try:
    check_here()
    shapes = convert(given.model, given.IN, given.OUT)
  except (SettingError, DataError) as error:
    say(error, error=True)
    sys.exit(2)
  numbers = sum(int(np.prod(shape)) for shape in shapes.values())
  say(f"{given.OUT}: {len(shapes)} arrays, {numbers:,} numbers, for --config.model.name={given.model}")


if __name__ == "__main__":
  main()
