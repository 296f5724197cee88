"""Data sets by name: read from the authors' files, else (images) through TFDS, else an error that instructs.

`load` looks in `data_dir/<folder>` for the raw files; `data_dir` is the argument, else the environment
variable FEDJAX_HET_DATA, else `data`. A damaged file is an error and never skipped.
"""

import functools
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import logging

from fedjax_het.data.berka import HEADERS, load_berka
from fedjax_het.data.celeba import load_celeba
from fedjax_het.data.cifar import MD5, load_cifar10
from fedjax_het.data.cifar100 import load_cifar100
from fedjax_het.data.femnist import load_femnist
from fedjax_het.data.files import Source
from fedjax_het.data.folder import read_folder
from fedjax_het.data.from_tfds import HOSTS, load_tfds
from fedjax_het.data.fsdd import load_fsdd
from fedjax_het.data.ham10000 import load_ham10000
from fedjax_het.data.heart import ROWS, file_name, load_heart
from fedjax_het.data.huggingface import read_huggingface
from fedjax_het.data.idx import SHAPES, load_idx
from fedjax_het.data.isic2019 import load_isic2019
from fedjax_het.data.medmnist import CLASSES, load_medmnist
from fedjax_het.data.medmnist import file_name as medmnist_file
from fedjax_het.data.mqp import FILE, load_mqp
from fedjax_het.data.reddit import load_reddit
from fedjax_het.data.repeated import check_apart
from fedjax_het.data.shakespeare import load_shakespeare
from fedjax_het.data.speech_commands import load_speech_commands
from fedjax_het.data.table import TABLES, read_source
from fedjax_het.data.text import read_text
from fedjax_het.data.tiny_imagenet import load_tiny_imagenet
from fedjax_het.errors import (
  DataError,
  SettingError,
  check_choice,
  check_memory,
  check_whole,
  folder_of,
  reading,
)
from fedjax_het.modes import in_float32
from fedjax_het.settings import Count, check_settings, settings_of

__all__ = ["FOLDERS", "OWN", "Source", "check_dataset", "kind_of", "load", "names"]

_BLOCK = 10_000  # images resized at once
_LEAF = "LEAF's train/*.json and test/*.json, by its data/{}/preprocess.sh, see https://github.com/TalwalkarLab/leaf"
_IDX = "{} (.gz or not; or torchvision's folder {}/raw) from {}".format(", ".join(SHAPES), "{}", "{}")

# name -> (folder, loader, the files that belong in the folder and where to get them).
FOLDERS: dict[str, tuple[str, Callable[..., Source | None], str]] = {
  "mnist": (
    "mnist",
    functools.partial(load_idx, "mnist"),
    _IDX.format("MNIST", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
  ),
  "fashion_mnist": (
    "fashion-mnist",
    functools.partial(load_idx, "fashion_mnist"),
    _IDX.format("FashionMNIST", "https://github.com/zalandoresearch/fashion-mnist/tree/master/data/fashion"),
  ),
  "cifar10": (
    "cifar10",
    load_cifar10,
    f"{', '.join(MD5)} (.gz or not; one training batch is enough), unpacked from"
    " https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz, or the folder cifar-10-batches-py of"
    " cifar-10-python.tar.gz",
  ),
  "cifar100": (
    "cifar100",
    load_cifar100,
    "train.bin and test.bin (.gz or not), unpacked from https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz,"
    " or the pickles train and test of cifar-100-python.tar.gz",
  ),
  "tiny_imagenet": (
    "tiny-imagenet",
    load_tiny_imagenet,
    "tiny-imagenet-200.zip, unpacked or not, from http://cs231n.stanford.edu/tiny-imagenet-200.zip",
  ),
  "femnist": ("femnist", load_femnist, f"{_LEAF.format('femnist')}, or femnist_by_writer.npz"),
  "shakespeare": (
    "shakespeare",
    load_shakespeare,
    "100.txt or 100-0.txt, unpacked or not, from https://www.gutenberg.org/files/100/ (LEAF's own:"
    f" old/1994-01-100.zip there); or {_LEAF.format('shakespeare')}",
  ),
  "celeba": (
    "celeba",
    load_celeba,
    "identity_CelebA.txt, list_attr_celeba.txt and img_align_celeba.zip, unpacked or not, from"
    f" https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html; or {_LEAF.format('celeba')}",
  ),
  "reddit": (
    "reddit",
    load_reddit,
    "train_data.json and test_data.json, from the small set that LEAF's data/reddit/README.md links to, see"
    " https://github.com/TalwalkarLab/leaf",
  ),
  "speech_commands": (
    "speech_commands",
    load_speech_commands,
    "speech_commands_v0.02.tar.gz, unpacked or not, from"
    " http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz",
  ),
  "fsdd": (
    "fsdd",
    load_fsdd,
    "recordings/DIGIT_SPEAKER_TAKE.wav, unpacked or in a .zip or .tar.gz, from"
    " https://github.com/Jakobovski/free-spoken-digit-dataset",
  ),
  "isic2019": (
    "isic2019",
    load_isic2019,
    "ISIC_2019_Training_GroundTruth.csv, ISIC_2019_Training_Metadata.csv and ISIC_2019_Training_Input.zip,"
    " unpacked or not, from https://challenge.isic-archive.com/data/#2019, and HAM10000_metadata from"
    " https://doi.org/10.7910/DVN/DBW86T",
  ),
  "ham10000": (
    "ham10000",
    load_ham10000,
    "HAM10000_metadata and HAM10000_images_part_1.zip and _2.zip, these unpacked, from"
    " https://doi.org/10.7910/DVN/DBW86T",
  ),
  "heart": (
    "uci-heart-disease",
    load_heart,
    f"{', '.join(map(file_name, ROWS))}, unpacked from"
    " https://archive.ics.uci.edu/static/public/45/heart+disease.zip",
  ),
  "berka": (
    "berka-pkdd99",
    load_berka,
    f"{', '.join(f'{table}.asc' for table in HEADERS)}, unpacked from"
    " https://sorry.vse.cz/~berka/challenge/pkdd1999/data_berka.zip",
  ),
  "mqp": (
    "medical-question-pairs",
    load_mqp,
    f"{FILE} from https://github.com/curai/medical-question-pair-dataset",
  ),
  **{
    name: (
      "medmnist",
      functools.partial(load_medmnist, name),
      f"{medmnist_file(name, 64)} (or another size: dataset_options.size) from https://zenodo.org/records/10519652",
    )
    for name in CLASSES
  },
}


# A data set of one's own, whose path or name stands behind the colon -> its reader, which takes it.
OWN: dict[str, Callable[..., Source]] = {
  "file:PATH": read_source, "folder:PATH": read_folder, "hf:NAME": read_huggingface,
  "text:PATH": read_text,
}  # fmt: skip
OF_PATH = ("table", "folder", "dataset", "corpus")  # the argument of a reader that is the path


def kind_of(name: str) -> str:
  """Returns the entry of a data set: its name, or "file:PATH" for "file:hospitals.csv"."""
  kind, _, path = name.partition(":") if isinstance(name, str) else (name, "", "")
  return next((own for own in OWN if path and own.startswith(f"{kind}:")), name)


def check_dataset(name: str) -> None:
  """Raises `SettingError` for an unknown data set; the error names the nearest, or how a path is written."""
  if isinstance(name, str) and name not in names() and kind_of(name) not in OWN:
    path = Path(name.partition(":")[2] or name)
    if os.sep in name or path.suffix.lower() in TABLES:
      kind = "file" if path.suffix.lower() in TABLES else "folder"
      remedy = f"Write dataset={kind}:{path} for a {kind} of your own."
      raise SettingError("dataset", name, "is a path, and of no known kind", remedy)
  if not isinstance(name, str) or kind_of(name) not in OWN:
    check_choice("dataset", name, (*names(), *OWN))


def names() -> tuple[str, ...]:
  """Returns the names of all data sets: "digits", which scikit-learn bundles, and the keys of `FOLDERS`."""
  return "digits", *FOLDERS


def load(
  name: str,
  data_dir: str | os.PathLike[str] | None = None,
  resize: Count | None = None,
  examples: Count | None = None,
  **options: Any,
) -> Source:
  """Loads the data set `name`; "digits" is bundled with scikit-learn and needs no folder.

  Args:
    name: one of `names()`, or file:PATH (.csv, .parquet), folder:PATH (of images), text:PATH (of texts), or
      hf:NAME (of Hugging Face).
    data_dir: the folder with the data sets' folders; None or "" is $FEDJAX_HET_DATA, else ./data.
    resize: height and width in pixels to which images are resized; None keeps their size. Refused for other
      data.
    examples: how many examples to keep, drawn at random, the same in every run; None keeps all. An official
      test set is kept whole.
    **options: options of the data set's loader, such as `leaky` of berka.

  Raises:
    SettingError: the name or an option is unknown (the error names the nearest one), `resize` is no size or
      the data are no images, or there are fewer than `examples`.
    DataError: files are missing, truncated or differ from what their authors ship; the error says which,
      where they belong, and how to get them.
  """
  check_dataset(name)
  if not isinstance(data_dir, str | os.PathLike | None) or "\0" in os.fspath(data_dir or ""):
    raise SettingError("data_dir", data_dir, "not the path of a folder", "Give a path, such as 'data'.")
  if resize is not None:
    check_whole("resize", resize, 1)
    resize = int(resize)
    return resized(load(name, data_dir, examples=examples, **options), resize)
  if examples is not None:
    check_whole("examples", examples, 1)
    return fewer(load(name, data_dir, **options), int(examples))
  kind = kind_of(name)
  known = OWN.get(kind) or (load_digits if name == "digits" else FOLDERS[name][1])
  check_settings(f"option of dataset {name!r}", known, options, ("folder", "name", *OF_PATH))
  if kind in OWN:
    for option, setting in settings_of(known).items():
      if setting.required and option not in (*OF_PATH, *options):
        option = f"dataset_options.{option}"
        raise SettingError(option, None, f"is missing for {name}", f"Give it: --config.{option}=...")
    return OWN[kind](folder_of("dataset", name.partition(":")[2]), **options)
  if name == "digits":
    return load_digits()
  folder, loader, wanted = FOLDERS[name]
  if data_dir and not folder_of("data_dir", data_dir).is_dir():
    raise DataError(
      f"data_dir = {os.fspath(data_dir)!r}: no such folder. Name one with a folder {folder}: {wanted}."
    )
  where = (_data_dir(data_dir) / folder).resolve()
  with reading(f"{name}: a file in {where}"):
    source = loader(where, **options)
  looked = (
    f"{name} was not found: looked in {where} (data_dir, else FEDJAX_HET_DATA, else ./data, with the folder"
    f" {folder})"
  )
  if source is None and name not in HOSTS:
    raise DataError(f"{looked}. Put there {wanted}.")
  if source is None:
    try:
      source = load_tfds(name, **options)
    except DataError as error:
      raise DataError(
        f"{looked}, then asked TFDS. Either put there {wanted}. Or let TFDS prepare it. {error}"
      ) from error
  if len(source.y_test):
    again = check_apart(f"{name} ({', '.join(source.files[:5])})", source.x, source.x_test)
    source = source._replace(notes=(*source.notes, *again))
  logging.info(
    "%s: %d training and %d test examples from %s",
    name, len(source.y), len(source.y_test), ", ".join(source.files),
  )  # fmt: skip
  for note in source.notes:
    logging.info("%s: %s", name, note)
  return source


def fewer(source: Source, count: int) -> Source:
  """Returns a source with `count` of its examples, in their order, drawn at random from a fixed seed.

  Raises:
    SettingError: there are fewer.
  """
  whole = len(source.y)
  if count > whole:
    raise SettingError("examples", count, f"{source.name} has {whole}", f"Use at most {whole}.")
  rows = np.sort(np.random.default_rng(0).permutation(whole)[:count])
  groups, split = (None if own is None else own[rows] for own in (source.groups, source.split))
  note = f"{count:,} of {whole:,} examples, drawn at random, the same in every run"
  x = jax.tree.map(lambda leaf: leaf[rows], source.x)
  return source._replace(x=x, y=source.y[rows], groups=groups, split=split, notes=(*source.notes, note))


@in_float32()
def resized(source: Source, size: int) -> Source:
  """Resizes all images of a source to size x size pixels, bilinearly with antialiasing.

  Raises:
    SettingError: the examples are no images, or would not fit in memory at this size.
  """
  if not isinstance(source.x, np.ndarray) or source.x.ndim != 4:
    raise SettingError("resize", size, f"{source.name} has no images", "Leave it out.")

  pixels, count = size * size * source.x.shape[3], len(source.x) + len(source.x_test)
  made = 2 * count * source.x.dtype.itemsize + 2 * min(count, _BLOCK) * np.dtype(np.float32).itemsize
  check_memory("resize", size, pixels * made, f"{count} images of {size} x {size} pixels")

  @jax.jit
  def resize(x):
    shape = (x.shape[0], size, size, x.shape[3])
    y = jax.image.resize(x.astype(np.float32), shape, "bilinear", antialias=True)
    return y.round().astype(x.dtype) if np.issubdtype(x.dtype, np.integer) else y

  def all_of(x: np.ndarray) -> np.ndarray:
    blocks = [np.asarray(resize(x[i : i + _BLOCK])) for i in range(0, len(x), _BLOCK)]
    return np.concatenate(blocks) if blocks else np.zeros((0, size, size, x.shape[3]), x.dtype)

  return source._replace(x=all_of(source.x), x_test=all_of(source.x_test))


def load_digits() -> Source:
  """Loads scikit-learn's 1,797 handwritten digits, float32 [1797, 8, 8, 1], multiples of 1/16 in [0, 1]."""
  table = find_digits()
  if table is None:
    from sklearn import datasets  # the import takes a second

    rows = datasets.load_digits()
    pixels, y = rows.data, rows.target
  else:
    *pixels, y = np.loadtxt(table, delimiter=",", unpack=True)
    pixels = np.stack(pixels, axis=1)
  x, y = (pixels / 16.0).astype(np.float32).reshape(-1, 8, 8, 1), y.astype(np.int32)
  return Source(x, y, x[:0], y[:0], 10, "digits", None, ("scikit-learn",))


def find_digits() -> Path | None:
  """Finds the digits' table among scikit-learn's files without importing it; None where it is elsewhere."""
  package = importlib.util.find_spec("sklearn")
  path = Path(package.origin or "").parent / "datasets" / "data" / "digits.csv.gz" if package else Path()
  return path if path.is_file() else None


def _data_dir(data_dir: str | os.PathLike[str] | None) -> Path:
  return folder_of("data_dir", data_dir or os.environ.get("FEDJAX_HET_DATA") or "data")
