"""PyTorch's weights into a file of ours: `python -m fedjax_het.models.convert --model=NAME IN.pth OUT.npz`.

IN may be a .pth, .pt, .th, .bin or .ckpt, for which PyTorch has to be installed, a .safetensors or an .npz
with PyTorch's names; OUT is what `fh.models.make(..., weights=OUT)` and `--config.model.weights=OUT` take.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedjax_het.errors import DataError, SettingError, check_choice
from fedjax_het.models import MODELS, reader_of
from fedjax_het.models.weight_files import read_arrays, write_arrays
from fedjax_het.models.weights import PARTS, by_name, check_floats


def convert(name: str, source: str, target: str) -> dict[str, tuple[int, ...]]:
  """Writes the arrays of a file by our names.

  Args:
    name: of the model, one of `MODELS`.
    source: the file with PyTorch's names.
    target: the .npz to write.

  Returns:
    The shapes of the arrays that were written, by name.

  Raises:
    SettingError: an unknown model, one that has no names in PyTorch, a file of a kind that is not read, or
      that has our names already, or a folder that is not there.
    DataError: a damaged file, one without arrays, or names that the model does not have.
  """
  check_choice("model", name, MODELS)
  reader = reader_of(name)
  if reader is None:
    having = [other for other in MODELS if reader_of(other)]
    raise SettingError("model", name, "has no names in PyTorch", f"Those that have: {', '.join(having)}.")
  if not target.endswith(".npz"):
    raise SettingError("OUT", target, "not an .npz", f"Use {target}.npz.")
  place = Path(target).expanduser()
  if not place.parent.is_dir() or place.is_dir():
    raise SettingError("OUT", target, "its folder is not there, or it is one", "Make it, or name another.")
  state = read_arrays(source)
  if not state:
    raise DataError(f"{source} holds no arrays.")
  if any(own.partition("/")[0] in PARTS for own in state):
    raise SettingError("IN", source, "has our names already", "Use it as it is: --config.model.weights.")
  arrays = by_name(*reader(state))
  check_floats(source, arrays)
  write_arrays(target, arrays)
  return {own: array.shape for own, array in arrays.items()}


def main(args: Sequence[str] | None = None) -> None:
  """The command line."""
  parser = argparse.ArgumentParser("python -m fedjax_het.models.convert", description=__doc__)
  parser.add_argument("--model", required=True, help="name of the model")
  parser.add_argument("IN", help="file with PyTorch's names")
  parser.add_argument("OUT", help="file to write, .npz")
  given = parser.parse_args(args)
  try:
    shapes = convert(given.model, given.IN, given.OUT)
  except (SettingError, DataError) as error:
    parser.exit(2, f"{error}\n")
  numbers = sum(int(np.prod(shape)) for shape in shapes.values())
  print(f"{given.OUT}: {len(shapes)} arrays, {numbers:,} numbers, for --config.model.name={given.model}")


if __name__ == "__main__":
  main()
