"""MedMNIST's .npz files, by small ones of the same format."""

import numpy as np
import pytest
from pictures import scrambled

from fedjax_het import data
from fedjax_het.data import medmnist
from fedjax_het.errors import DataError, SettingError

RNG = np.random.default_rng(0)


def arrays(size=28, color=True, classes=7, rows=(9, 3, 5)):
  shape = (size, size, 3) if color else (size, size)
  found = {}
  for part, n in zip(("train", "val", "test"), rows):
    found[f"{part}_images"] = RNG.integers(0, 256, (n, *shape), dtype=np.uint8)
    found[f"{part}_labels"] = RNG.integers(0, classes, (n, 1), dtype=np.uint8)
  return found


def write(folder, name, found):
  (folder / "medmnist").mkdir(exist_ok=True)
  np.savez_compressed(folder / "medmnist" / name, **found)


@pytest.mark.parametrize(
  "name, size, color, classes",
  [("dermamnist", 28, True, 7), ("organcmnist", 64, False, 11), ("bloodmnist", 64, True, 8)],
)
def test_a_file_is_read(tmp_path, name, size, color, classes):
  found = arrays(size, color, classes)
  write(tmp_path, f"{name}.npz" if size == 28 else f"{name}_{size}.npz", found)
  source = data.load(name, tmp_path, size=size)
  assert source.x.shape == (9, size, size, 3 if color else 1) and source.x.dtype == np.uint8
  np.testing.assert_array_equal(source.x.reshape(found["train_images"].shape), found["train_images"])
  np.testing.assert_array_equal(source.y_test, found["test_labels"][:, 0])
  assert (source.y.dtype, source.num_classes, len(source.x_test)) == (np.int32, classes, 5)
  assert source.notes[-1] == "3 validation rows are left out."


def test_fewer_images_than_are_shipped_are_told(tmp_path, monkeypatch):
  write(tmp_path, "dermamnist.npz", arrays())
  assert data.load("dermamnist", tmp_path, size=28).notes[:2] == (
    "9 of 7,007 training images",
    "5 of 2,005 test images",
  )
  monkeypatch.setitem(medmnist.ROWS, "dermamnist", (9, 5))
  assert data.load("dermamnist", tmp_path, size=28).notes == ("3 validation rows are left out.",)


@pytest.mark.parametrize(
  "change, says",
  [
    (lambda f: f.pop("test_labels"), "it has no test_labels"),
    (lambda f: f.update(train_labels=f["train_labels"] + 7), "9 train images, 9 labels from"),
    (lambda f: f.update(test_images=f["test_images"][:2]), "2 test images, 5 labels"),
    (lambda f: f.update(train_images=f["train_images"][:, :20]), r"uint8 \(9, 20, 28, 3\), not uint8"),
    (lambda f: f.update(train_images=f["train_images"] / 255), "float64"),
    (lambda f: f.update(test_labels=f["test_labels"] + 0.5), "test_labels are float64, not whole numbers"),
    (lambda f: f.update(test_labels=f["test_labels"].astype(str)), "test_labels are <U"),
    (lambda f: f.update(test_images=f["test_images"][..., 0]), "training images are .*, test images"),
  ],
)
def test_a_file_of_something_else_is_refused(tmp_path, change, says):
  found = arrays()
  change(found)
  write(tmp_path, "dermamnist.npz", found)
  with pytest.raises(DataError, match=says):
    data.load("dermamnist", tmp_path, size=28)


def test_no_file_a_torn_file_and_an_unknown_size(tmp_path):
  with pytest.raises(DataError, match=r"dermamnist was not found.*dermamnist_64.npz"):
    data.load("dermamnist", tmp_path)
  write(tmp_path, "dermamnist_64.npz", arrays(64))
  path = tmp_path / "medmnist" / "dermamnist_64.npz"
  path.write_bytes(path.read_bytes()[:500])
  with pytest.raises(DataError, match="truncated or damaged"):
    data.load("dermamnist", tmp_path)
  with path.open("wb") as file:
    np.save(file, np.zeros(3))
  with pytest.raises(DataError, match="truncated or damaged"):
    data.load("dermamnist", tmp_path)
  scrambled(path, arrays(64))
  with pytest.raises(DataError, match="truncated or damaged"):
    data.load("dermamnist", tmp_path)
  with pytest.raises(SettingError, match="size = 32: not a size"):
    data.load("dermamnist", tmp_path, size=32)
