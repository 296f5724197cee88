"""Test examples that train as well are counted in a note; a test set that is a copy is refused."""

import json

import numpy as np
import pytest
from pictures import write

from fedjax_het.data import sources
from fedjax_het.data.repeated import check_apart, check_divided
from fedjax_het.errors import DataError

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.int64])
@pytest.mark.parametrize("shape", [(), (3,), (5, 5, 3)])
def test_repetitions_are_counted(dtype, shape):
  x = (250 * RNG.random((200, *shape))).astype(dtype)
  x = np.unique(x, axis=0)
  train, test = x[: len(x) // 2], x[len(x) // 2 :]
  assert check_apart("a", train, test) == ()
  again = np.concatenate([test, train[:7]])
  said = f"7 of {len(again)} test examples equal a training example, value for value"
  assert check_apart("a", train, again) == (said,)
  tree = {"tokens": again, "mask": np.ones((len(again), 2), bool)}
  assert check_apart("a", {"tokens": train, "mask": np.ones((len(train), 2), bool)}, tree) == (said,)
  other = {"tokens": train, "mask": np.zeros((len(train), 2), bool)}
  assert check_apart("a", other, tree) == ()


def test_one_changed_bit_is_another_example():
  x = RNG.integers(0, 256, (1, 784), np.uint8)
  changed = np.repeat(x, 784 * 8, axis=0)
  for i in range(784 * 8):
    changed[i, i // 8] ^= 1 << (i % 8)
  assert check_apart("a", changed, x) == ()


def test_a_copy_is_refused():
  x = RNG.random((60, 4)).astype(np.float32)
  with pytest.raises(DataError, match="all 30 test examples are training examples too"):
    check_apart("a", x, x[:30])
  assert "10 of 10" in check_apart("a", x, x[:10])[0]  # too few to be sure


def test_users_may_say_the_same_but_not_be_tested_on_what_they_trained_on():
  x = np.arange(40)[:, None] % 20
  users = np.repeat(["a", "b"], 20)
  assert check_divided("a", x, users, (np.arange(40) >= 20).astype(np.int8)) == ()
  split = np.repeat([0, 1, 0, 1], 10).astype(np.int8)
  x[[12, 35]] = x[[2, 25]]
  assert check_divided("a", x, users, split) == (
    "2 of 20 test examples equal a training example of the same user, value for value",
  )


def leaf(folder, train, test):
  """FEMNIST of two writers with these images to train and to test on."""
  for part, images in (("train", train), ("test", test)):
    rows = {user: {"x": (images / 255).tolist(), "y": [3] * len(images)} for user in "ab"}
    content = {"users": ["a", "b"], "num_samples": [len(images)] * 2, "user_data": rows}
    write(folder / "femnist" / part, {f"all_data_{part}_9.json": json.dumps(content)})
  return sources.load("femnist", folder)


def test_leaf_s_files_that_share_rows(tmp_path):
  images = RNG.integers(0, 256, (40, 784))
  assert leaf(tmp_path, images[:25], images[25:]).notes == ("2 users, 80 rows, 30 to test on",)
  found = leaf(tmp_path, images[:26], images[25:])
  assert found.notes[0].endswith(
    "; 2 of 30 test examples equal a training example of the same user, value for value"
  )
  with pytest.raises(DataError, match="LEAF's files of tests: all 30 test examples are training"):
    leaf(tmp_path, images[:25], images[:15])


def test_arrays_that_share_rows(tmp_path):
  x, y = RNG.integers(0, 256, (40, 28, 28), np.uint8), np.zeros((40, 1), np.uint8)
  arrays = {"train_images": x, "train_labels": y, "test_images": x[35:], "test_labels": y[35:]}
  (tmp_path / "medmnist").mkdir()
  np.savez(tmp_path / "medmnist" / "bloodmnist.npz", **arrays)
  assert sources.load("bloodmnist", tmp_path, size=28).notes[-1].startswith("5 of 5 test examples equal")
  np.savez(tmp_path / "medmnist" / "bloodmnist.npz", **arrays | {"test_images": x, "test_labels": y})
  with pytest.raises(DataError, match=r"bloodmnist .*: all 40 test examples are training examples too"):
    sources.load("bloodmnist", tmp_path, size=28)
