"""A data set of Hugging Face's `datasets`: images, or a table of numbers, categories and texts."""

from typing import Any

import jax
import numpy as np

from fedjax_het.data.columns import as_text
from fedjax_het.data.container import FederatedData
from fedjax_het.data.files import Source
from fedjax_het.data.folder import pixels_of
from fedjax_het.data.own import of_source
from fedjax_het.data.table import from_table
from fedjax_het.errors import DataError, SettingError, check_choice, check_memory


def from_huggingface(
  dataset: Any,
  *,
  label: str,
  client: str | None = None,
  key: jax.Array | None = None,
  size: int | None = None,
  colour: str = "rgb",
  **settings: Any,
) -> FederatedData:
  """Makes clients of a `datasets.Dataset`, one of each value of the column `client`, or by a partition.

  A data set with a column of images learns from that column alone; any other is a table, see `from_table`.
  Columns of `ClassLabel` keep the names of their classes.

  Args:
    dataset: one split, in memory or mapped from disk.
    label: the column that is predicted.
    client: the column that says whose each row is; None deals the rows out, see `from_arrays`.
    key: typed key of the partition and the splits; by default `jax.random.key(0)`.
    size: height and width to which images are resized; None keeps theirs, which must then all be equal.
    colour: "rgb" or "grey", for images.
    **settings: those of `from_table`, or for images of `from_groups` or `from_arrays`.

  Raises:
    SettingError: the data set streams, has several splits, or lacks a column.
    DataError: see `from_table`; or an image has another size than the first.
  """
  if hasattr(dataset, "keys"):
    raise SettingError(
      "dataset", [*dataset.keys()], "has several splits", "Give one, such as dataset['train']."
    )
  if not all(hasattr(dataset, name) for name in ("features", "to_pandas", "__len__")):
    remedy = "Take some rows: datasets.Dataset.from_list([*dataset.take(10_000)])."
    if not hasattr(dataset, "features"):
      remedy = "Give what datasets.load_dataset(NAME, split='train') returns."
    raise SettingError("dataset", type(dataset).__name__, "streams, or is no data set", remedy)
  for setting, name in (("label", label), ("client", client)):
    if name is not None:
      check_choice(setting, name, dataset.features)
  check_choice("colour", colour, ("rgb", "grey"))
  kinds = {name: type(feature).__name__ for name, feature in dataset.features.items()}
  images = [name for name, kind in kinds.items() if kind == "Image"]
  if not images:
    frame = dataset.to_pandas()
    for name, kind in kinds.items():
      if kind == "ClassLabel":
        frame[name] = _named(dataset, name)
    return from_table(frame, label=label, client=client, key=key, **settings)
  y = np.array([*map(as_text, _named(dataset, label))])
  if (y == "None").any():
    row = int(np.flatnonzero(y == "None")[0])
    raise DataError(f"column {label!r}, row {row + 1}: no label. Leave such rows out by dataset.filter.")
  labels, y = np.unique(y, return_inverse=True)
  x = _images(dataset, images[0], size, colour)
  groups = None if client is None else np.array([*map(as_text, _named(dataset, client))])
  name = getattr(getattr(dataset, "info", None), "dataset_name", None) or "huggingface"
  source = Source(
    x, y.astype(np.int32), x[:0], y[:0], max(len(labels), 2), name, groups, labels=tuple(labels.tolist())
  )
  return of_source(key, source, **settings)


def _named(dataset: Any, column: str) -> list[Any]:
  """Returns a column's values, classes by name, None where a value is missing."""
  names, values = getattr(dataset.features[column], "names", None), [*dataset[column]]
  if names is None:
    return values
  return [None if value is None or value < 0 else names[value] for value in values]


def _images(dataset: Any, column: str, size: int | None, colour: str) -> np.ndarray:
  found = None
  for i in range(len(dataset)):
    picture = dataset[i][column]
    if picture is None:
      raise DataError(f"column {column!r}, row {i + 1}: no image. Leave such rows out by dataset.filter.")
    pixels = pixels_of(picture, size, colour)
    if found is None:
      check_memory("size", size or max(pixels.shape), len(dataset) * pixels.nbytes, f"{len(dataset)} images")
      found = np.empty((len(dataset), *pixels.shape), np.uint8)
    if pixels.shape != found.shape[1:]:
      raise DataError(
        f"column {column!r}, row {i + 1}: an image of {[*pixels.shape]}, and the first has"
        f" {[*found.shape[1:]]}. Resize all by size=N."
      )
    found[i] = pixels
  assert found is not None
  return found
