"""A data set of Hugging Face's `datasets`: images, or a table of numbers, categories and texts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np

from fedjax_het.data.columns import as_text
from fedjax_het.data.container import FederatedData
from fedjax_het.data.files import Source
from fedjax_het.data.folder import pixels_of
from fedjax_het.data.own import of_source
from fedjax_het.data.table import from_table, groups_of, read_source
from fedjax_het.errors import DataError, SettingError, check_choice, check_memory
from fedjax_het.settings import Choice, Count, checked, settings_of

OWNER, ROW = "number of the partition", "number of the row"  # columns that `_partitioned` adds


def from_huggingface(
  dataset: Any,
  *,
  label: str,
  client: str | None = None,
  partitioner: Any = None,
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
    partitioner: a partitioner of flwr-datasets, in the place of `client`; client i has the rows of its
      partition i.
    key: typed key of the partition and the splits; by default `jax.random.key(0)`.
    size: height and width to which images are resized; None keeps theirs, which must then all be equal.
    colour: "rgb" or "grey", for images.
    **settings: those of `from_table`, or for images of `from_groups` or `from_arrays`.

  Raises:
    SettingError: the data set streams, has several splits, or lacks a column; or the partitioner refuses it.
    DataError: see `from_table`; or an image has another size than the first.
  """
  _check_split(dataset)
  if partitioner is not None:
    if client is not None:
      raise SettingError("client", client, "is given beside partitioner", "Give one of the two.")
    dataset, client = _partitioned(dataset, partitioner), OWNER
  _check_columns(dataset, label, client)
  check_choice("colour", colour, ("rgb", "grey"))
  if _column_of_images(dataset) is None:
    return from_table(_frame(dataset), label=label, client=client, key=key, **settings)
  return of_source(key, _source(dataset, label, client, size, colour), **settings)


@checked
def read_huggingface(
  dataset: Path,
  *,
  label: str,
  client: str | None = None,
  subset: str | None = None,
  split: str = "train",
  size: Count | None = None,
  colour: Annotated[str, Choice(("rgb", "grey"))] = "rgb",
  numeric: Sequence[str] = (),
  categorical: Sequence[str] = (),
  text: Sequence[str] = (),
  drop: Sequence[str] = (),
  standardize: Annotated[str, Choice(("all", "client", "none"))] = "all",
  unlabelled: Annotated[str, Choice(("error", "drop"))] = "error",
  task: Annotated[str, Choice(("classification", "binary", "regression"))] = "classification",
  missing: Sequence[str] = (),
) -> Source:
  """Reads a data set of Hugging Face's hub, or of a folder: images, or a table as `read_source` reads it.

  Args:
    dataset: its name, such as ylecun/mnist, or the folder that `save_to_disk` wrote, or one with files of
      data.
    label: the column that is predicted.
    client: the column that says whose each row is.
    subset: one of several that it has, the second argument of `datasets.load_dataset`.
    split: which rows, such as "train" or "train+test".
    size: height and width to which images are resized; None keeps theirs, which must then all be equal.
    colour: "rgb" or "grey", for images.
    numeric: columns of numbers.
    categorical: columns whose different values are one-hot features.
    text: columns of words, which are counted by their hash.
    drop: columns to leave out.
    standardize: "all", by mean and deviation of all clients' training rows; "client", by each client's own;
      "none".
    unlabelled: "drop" leaves out rows without a label, in place of an error.
    task: "regression" predicts numbers.
    missing: words that mean a missing value, besides nothing, NA, NaN, null and None.
  """
  name = str(dataset)
  found = _loaded(name, subset, split)
  _check_columns(found, label, client)
  of_tables: dict[str, Any] = {
    "numeric": numeric, "categorical": categorical, "text": text, "drop": drop, "standardize": standardize,
    "unlabelled": unlabelled, "task": task, "missing": missing,
  }  # fmt: skip
  if _column_of_images(found) is not None:
    _check_unused(of_tables, f"is for tables, and hf:{name} has images")
    source = _source(found, label, client, size, colour)
  else:
    _check_unused({"size": size, "colour": colour}, f"is for images, and hf:{name} is a table")
    source = read_source(_frame(found), label=label, client=client, **of_tables)
  return source._replace(name=Path(name).name, files=(f"hf:{name}",))


def _check_unused(given: Mapping[str, Any], problem: str) -> None:
  """Raises `SettingError` for a setting without effect that differs from its default."""
  for name, value in given.items():
    plain = tuple(value) if isinstance(value, list) else value
    if plain != settings_of(read_huggingface)[name].default:
      raise SettingError(name, value, problem, "Leave it out.")


def _loaded(name: str, subset: str | None, split: str) -> Any:
  """Returns a split of a data set of the hub or of a folder; raises if it cannot be had."""
  try:
    import datasets
  except ImportError as error:
    raise SettingError(
      "dataset", f"hf:{name}", "needs the package datasets, which is not installed",
      "pip install 'fedjax_het[hf]'.",
    ) from error  # fmt: skip
  saved = any((Path(name) / one).is_file() for one in ("state.json", "dataset_dict.json"))
  try:
    if not saved:
      return datasets.load_dataset(name, subset, split=split)
    found = datasets.load_from_disk(name)
  except ValueError as error:  # an unknown subset or split, which its message names
    problem = f"cannot be read: {_first_line(error)}"
    remedy = "dataset_options.subset and dataset_options.split choose what is read."
    raise SettingError("dataset", f"hf:{name}", problem, remedy) from error
  except Exception as error:  # network and file errors, among them kinds that only the package has
    remedy = "Without network, give a folder that Dataset.save_to_disk wrote: hf:FOLDER."
    raise DataError(
      f"hf:{name} cannot be read: {type(error).__name__}: {_first_line(error)}. {remedy}"
    ) from error
  if hasattr(found, "keys"):
    check_choice("split", split, found)
    return found[split]
  return found


def _first_line(error: Exception) -> str:
  return str(error).strip().splitlines()[0][:300].rstrip(".") if str(error).strip() else "no reason given"


def _check_split(dataset: Any) -> None:
  """Raises `SettingError` unless it is one split of a data set."""
  if hasattr(dataset, "keys"):
    raise SettingError(
      "dataset", [*dataset.keys()], "has several splits", "Give one, such as dataset['train']."
    )
  if not all(hasattr(dataset, name) for name in ("features", "to_pandas", "__len__")):
    remedy = "Take some rows: datasets.Dataset.from_list([*dataset.take(10_000)])."
    if not hasattr(dataset, "features"):
      remedy = "Give what datasets.load_dataset(NAME, split='train') returns."
    raise SettingError("dataset", type(dataset).__name__, "streams, or is no data set", remedy)


def _check_columns(dataset: Any, label: str, client: str | None) -> None:
  for setting, name in (("label", label), ("client", client)):
    if name is not None:
      check_choice(setting, name, dataset.features)


def _partitioned(dataset: Any, partitioner: Any) -> Any:
  """Returns the rows that a partitioner of flwr-datasets gives to some client, with the column `OWNER`."""
  if not all(hasattr(type(partitioner), name) for name in ("load_partition", "num_partitions", "dataset")):
    remedy = "Give one of flwr_datasets.partitioner, such as IidPartitioner(num_partitions=10)."
    raise SettingError("partitioner", type(partitioner).__name__, "is no partitioner", remedy)
  owners = np.full(len(dataset), -1)
  try:
    partitioner.dataset = dataset.add_column(ROW, np.arange(len(dataset)))
    for i in range(partitioner.num_partitions):
      owners[np.asarray(partitioner.load_partition(i)[ROW], int)] = i
  except Exception as error:  # partitioners raise any kind, such as for too many partitions
    raise SettingError(
      "partitioner", type(partitioner).__name__, f"refuses the data set: {_first_line(error)}",
      "Give a new one with other settings.",
    ) from error  # fmt: skip
  kept = np.flatnonzero(owners >= 0)
  return dataset.select(kept).add_column(OWNER, owners[kept])


def _kinds(dataset: Any) -> dict[str, str]:
  return {name: type(feature).__name__ for name, feature in dataset.features.items()}


def _column_of_images(dataset: Any) -> str | None:
  return next((name for name, kind in _kinds(dataset).items() if kind == "Image"), None)


def _frame(dataset: Any) -> Any:
  """Returns a table as a pandas frame, with classes by name."""
  frame = dataset.to_pandas()
  for name, kind in _kinds(dataset).items():
    if kind == "ClassLabel":
      frame[name] = _named(dataset, name)
  return frame


def _source(dataset: Any, label: str, client: str | None, size: int | None, colour: str) -> Source:
  """Returns images and their labels."""
  y = np.array([*map(as_text, _named(dataset, label))])
  if (y == "None").any():
    row = int(np.flatnonzero(y == "None")[0])
    raise DataError(f"column {label!r}, row {row + 1}: no label. Leave such rows out by dataset.filter.")
  labels, y = np.unique(y, return_inverse=True)
  x = _images(dataset, str(_column_of_images(dataset)), size, colour)
  groups = None
  if client is not None:
    groups = groups_of(np.asarray(_named(dataset, client)), f"column {client!r}")
  name = getattr(getattr(dataset, "info", None), "dataset_name", None) or "huggingface"
  return Source(
    x, y.astype(np.int32), x[:0], y[:0], max(len(labels), 2), name, groups, labels=tuple(labels.tolist())
  )


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
