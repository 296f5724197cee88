"""InceptionV3 up to its pooled features, with torchvision's weights.

The network of Szegedy et al. (CVPR 2016) with the layer names of torchvision's `inception_v3`. Its weights
are not shipped. With PyTorch installed, the following writes a file for `read_weights`:

    state = torchvision.models.inception_v3(weights="IMAGENET1K_V1").state_dict()
    numpy.savez("inception_v3.npz", **{name: value.numpy() for name, value in state.items()})
"""

import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax

from fedjax_het.data.untrusted import read_arrays
from fedjax_het.errors import DataError, reading

SIZE = 299
EPSILON = 1e-3
PARTS = ("conv.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var")
STEM = ("Conv2d_1a_3x3", "Conv2d_2a_3x3", "Conv2d_2b_3x3", "Conv2d_3b_1x1", "Conv2d_4a_3x3")
Weights = Mapping[str, jax.Array]

# Branches of a block: each is a chain of convolutions, whose last entry may be a pair applied in parallel. A
# name with "!" has stride 2 and no padding; "avg" and "max" are poolings before the following layer.
Chain = Sequence[str | tuple[str, str]]
_A: list[Chain] = [
  ["branch1x1"], ["branch5x5_1", "branch5x5_2"], ["branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3"],
  ["avg", "branch_pool"],
]  # fmt: skip
_B: list[Chain] = [["branch3x3!"], ["branch3x3dbl_1", "branch3x3dbl_2", "branch3x3dbl_3!"], ["max"]]
_C: list[Chain] = [
  ["branch1x1"], [f"branch7x7_{i}" for i in (1, 2, 3)], [f"branch7x7dbl_{i}" for i in (1, 2, 3, 4, 5)],
  ["avg", "branch_pool"],
]  # fmt: skip
_D: list[Chain] = [
  ["branch3x3_1", "branch3x3_2!"], [*(f"branch7x7x3_{i}" for i in (1, 2, 3)), "branch7x7x3_4!"], ["max"],
]  # fmt: skip
_E: list[Chain] = [
  ["branch1x1"], ["branch3x3_1", ("branch3x3_2a", "branch3x3_2b")],
  ["branch3x3dbl_1", "branch3x3dbl_2", ("branch3x3dbl_3a", "branch3x3dbl_3b")], ["avg", "branch_pool"],
]  # fmt: skip
BLOCKS: dict[str, list[Chain]] = {
  "Mixed_5b": _A, "Mixed_5c": _A, "Mixed_5d": _A, "Mixed_6a": _B, "Mixed_6b": _C, "Mixed_6c": _C,
  "Mixed_6d": _C, "Mixed_6e": _C, "Mixed_7a": _D, "Mixed_7b": _E, "Mixed_7c": _E,
}  # fmt: skip


def layers() -> list[str]:
  """Lists the names of all convolutions in order."""
  names = list(STEM)
  for block, chains in BLOCKS.items():
    for link in (link for chain in chains for link in chain):
      links = (link,) if isinstance(link, str) else link
      names += [f"{block}.{own.rstrip('!')}" for own in links if own not in ("avg", "max")]
  return names


def read_weights(path: str | os.PathLike[str], names_only: bool = False) -> Weights:
  """Reads the arrays of an .npz file with torchvision's names of InceptionV3.

  Args:
    path: the file.
    names_only: whether only to check that all arrays are present, without reading them.

  Raises:
    DataError: the file does not exist, is not an .npz, or lacks an array.
  """
  wanted = [f"{layer}.{part}" for layer in layers() for part in PARTS]
  with reading(os.fspath(path), "cannot be read as an .npz of weights"):
    with zipfile.ZipFile(path) as archive:
      there = {name.removesuffix(".npy") for name in archive.namelist()}
    missing = [name for name in wanted if name not in there]
    found = {} if names_only or missing else read_arrays(Path(path), wanted=wanted)
  if missing:
    raise DataError(
      f"{os.fspath(path)} is not InceptionV3 by torchvision's names: {len(missing)} arrays are missing, the"
      f" first is {missing[0]}. See studies/inception.py for how to write the file."
    )
  return {name: jnp.asarray(array) for name, array in found.items()}


def convolve(weights: Weights, name: str, x: jax.Array, stride: int = 1, padded: bool = True) -> jax.Array:
  """Computes relu(batch norm(conv x)) with stored statistics; with `padded` and stride 1 the size is kept."""
  kernel, scale, bias, mean, variance = (weights[f"{name}.{part}"] for part in PARTS)
  edges = [(side // 2 * padded,) * 2 for side in kernel.shape[2:]]
  x = lax.conv_general_dilated(x, kernel, (stride, stride), edges, dimension_numbers=("NHWC", "OIHW", "NHWC"))
  return jax.nn.relu((x - mean) * lax.rsqrt(variance + EPSILON) * scale + bias)


def pool(x: jax.Array, kind: str) -> jax.Array:
  """Pools 3 x 3 windows: "max" with stride 2, "avg" with stride 1 and zero padding included in the mean."""
  if kind == "max":
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")
  return lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME") / 9.0


def block(weights: Weights, name: str, x: jax.Array) -> jax.Array:
  """Concatenates the outputs of a block's chains, [B, H, W, sum of channels]."""
  results = []
  for chain in BLOCKS[name]:
    ends = [x]
    for link in chain:
      links = (link,) if isinstance(link, str) else link
      ends = [
        pool(ends[-1], own) if own in ("avg", "max")
        else convolve(weights, f"{name}.{own.rstrip('!')}", ends[-1], 1 + own.endswith("!"), own[-1] != "!")
        for own in links
      ]  # fmt: skip
    results += ends
  return jnp.concatenate(results, axis=3)


def inception_features(weights: Weights, x: jax.Array) -> jax.Array:
  """Computes InceptionV3's pooled features, means over the last 8 x 8 pixels, float32 [B, 2048].

  Args:
    weights: see `read_weights`.
    x: images in [0, 1], [B, H, W, 1 or 3]; grey ones are repeated, all are resized to 299 x 299 (bilinear)
      and mapped to [-1, 1], the range that the network was trained on.
  """
  x = jnp.broadcast_to(x, (*x.shape[:3], 3)).astype(jnp.float32)
  x = 2.0 * jax.image.resize(x, (x.shape[0], SIZE, SIZE, 3), "bilinear", antialias=False) - 1.0
  x = convolve(weights, STEM[0], x, 2, padded=False)
  x = convolve(weights, STEM[1], x, padded=False)
  x = pool(convolve(weights, STEM[2], x), "max")
  x = convolve(weights, STEM[3], x)
  x = pool(convolve(weights, STEM[4], x, padded=False), "max")
  for name in BLOCKS:
    x = block(weights, name, x)
  return x.mean(axis=(1, 2))
