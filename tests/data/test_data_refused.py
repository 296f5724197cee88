"""Files that are refused: LEAF's json of other counts, users or rows, FEMNIST's arrays, CelebA's lists."""

import json
import os

import numpy as np
import pytest
from face_files import faces
from pictures import refused, scrambled, write

from fedjax_het.data import sources
from fedjax_het.data.files import below
from fedjax_het.data.shakespeare import SYMBOLS
from fedjax_het.errors import DataError

IMAGE, TEXT = [1.0] * 784, ("To be, or not to be: " * 4)[:80]
ROWS = {"femnist": (IMAGE, 3), "shakespeare": (TEXT, "a"), "reddit": ([["w"] * 10], [["w"] * 10])}


def leaf(name, count=2):
  """What a json file of LEAF's holds, of two users with as many rows each."""
  x, y = ROWS[name]
  return {
    "users": ["a", "b"],
    "num_samples": [count, count],
    "user_data": {user: {"x": [x] * count, "y": [y] * count} for user in "ab"},
  }


def test_a_folder_that_may_not_be_read_is_named(tmp_path, monkeypatch):
  write(tmp_path / "mnist", {"deep/a.txt": "x"})

  def refuse(folder, *_):
    raise PermissionError(13, "Permission denied", str(folder))

  monkeypatch.setitem(sources.FOLDERS, "mnist", ("mnist", refuse, "files"))
  with pytest.raises(DataError, match=r"mnist may not be read\. Ask its owner"):
    sources.load("mnist", tmp_path)
  monkeypatch.setattr(os, "scandir", refuse)
  with pytest.raises(PermissionError):
    list(below(tmp_path))


@pytest.mark.parametrize("name", sources.FOLDERS)
def test_data_that_are_not_there_are_asked_for(name, tmp_path):
  with pytest.raises(DataError, match=f"{name} was not found: looked in"):
    sources.load(name, tmp_path)


def load(tmp_path, name, files):
  write(tmp_path / name, {file: json.dumps(content) for file, content in files.items()})
  return sources.load(name, tmp_path)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize(
  ("change", "says"),
  [
    (
      lambda c: c.update(users=["a", "b", "b"], num_samples=[2, 2, 2]),
      "user b is not once in users and once",
    ),
    (lambda c: c.update(users=["a"], num_samples=[2]), "user b is not once in users and once in user_data"),
    (lambda c: c["user_data"].pop("a"), "user a is not once in users and once in user_data"),
    (lambda c: c.update(num_samples=[2]), "2 users, and num_samples of 1"),
    (lambda c: c.update(num_samples=[2, 1]), "user b: 2 rows, where num_samples says 1"),
    (lambda c: c.update(num_samples=["2", 2]), "user a: 2 rows, where num_samples says 2"),
    (lambda c: c.pop("num_samples"), "not a json file of LEAF's, or a damaged one: KeyError: 'num_samples'"),
    (lambda c: c["user_data"].update(a={"x": 7, "y": 7}), "user a: its x and y are not lists"),
    (lambda c: c.update(users=[], num_samples=[], user_data={}), "is empty.*: no user has a row"),
  ],
)
def test_json_that_is_not_leaf_s(tmp_path, name, change, says):
  content = leaf(name)
  change(content)
  with pytest.raises(DataError, match=says):
    load(tmp_path, name, {"all_data_train_9.json": content})


def test_counts_are_those_of_the_rows_where_leaf_keeps_them_so(tmp_path):
  more = leaf("femnist") | {"num_samples": [81, 81]}
  with pytest.raises(DataError, match="user a: 2 rows, where num_samples says 81"):
    load(tmp_path, "femnist", {"train/a_train_9.json": more})
  for name in ("shakespeare", "reddit"):  # counted before rows were taken away
    assert len(load(tmp_path, name, {"train/a_train_9.json": leaf(name) | {"num_samples": [81, 81]}}).y) == 4


def test_one_file_is_not_two(tmp_path):
  with pytest.raises(DataError, match=r"a_test_9\.json is the same file as .*a_train_9\.json. Delete one"):
    load(tmp_path, "femnist", {f"{part}/a_{part}_9.json": leaf("femnist") for part in ("train", "test")})
  empty = {"users": [], "num_samples": [], "user_data": {}}
  (tmp_path / "femnist" / "test" / "a_test_9.json").unlink()
  files = {
    "train/a_train_9.json": leaf("femnist"),
    "train/b_train_9.json": empty,
    "test/b_test_9.json": empty,
  }
  assert len(load(tmp_path, "femnist", files).y) == 4


@pytest.mark.parametrize(
  ("x", "y"),
  [
    ([TEXT[:79], TEXT + "a"], ["a", "a"]),
    ([TEXT, TEXT], ["", "aa"]),
    ([TEXT, TEXT], ["a", 5]),
    ([TEXT, [*TEXT]], ["a", "a"]),
    ([TEXT, TEXT[:79] + "—"], ["a", "a"]),  # no letter of Latin-1
    ([TEXT, TEXT[:79] + "é"], ["a", "a"]),
  ],
)
def test_every_text_of_shakespeare_s_has_eighty_letters_and_the_next(tmp_path, x, y):
  content = leaf("shakespeare")
  content["user_data"]["b"] = {"x": x, "y": y}
  with pytest.raises(DataError, match="user b: its examples are not texts of 80"):
    load(tmp_path, "shakespeare", {"train/a_train_9.json": content})
  content["user_data"]["b"] = {"x": [TEXT, TEXT], "y": ["?", "5"]}
  source = load(tmp_path, "shakespeare", {"train/a_train_9.json": content})
  assert [SYMBOLS[letter] for letter in source.y] == ["a", "a", "?", "5"]


@pytest.mark.parametrize(
  ("x", "y"),
  [
    ([["w" * 10]], [["w" * 10]]),
    ([[[["w"]] * 10]], [[["w"] * 10]]),
    ([7], [7]),
    ([[["w"] * 10]], [{"target": [["w"] * 10]}]),
  ],
)
def test_a_line_of_reddit_s_is_ten_words(tmp_path, x, y):
  content = leaf("reddit", 1)
  content["user_data"]["b"] = {"x": x, "y": y}
  with pytest.raises(DataError, match="user b: its comments are not lines of 10 words"):
    load(tmp_path, "reddit", {"train_data.json": content})


def by_writer(**change):
  rng = np.random.default_rng(0)
  arrays = {"users": np.array(["u", "v"])}
  for part, count in (("train", 6), ("test", 2)):
    arrays[f"{part}_images"] = rng.integers(0, 256, (count, 28, 28), np.uint8)
    arrays[f"{part}_labels"], arrays[f"{part}_user"] = np.arange(count), np.arange(count) % 2
  return arrays | change


@pytest.mark.parametrize(
  ("change", "says"),
  [
    ({"users": np.array(["u", "u"])}, r"its users are \(2,\), 1 names"),
    ({"users": np.array("u")}, r"its users are \(\), 1 names"),
    ({"train_user": np.zeros(6)}, "train_user does not number its 2 users"),
    ({"test_user": np.array([0, -1])}, "test_user does not number its 2 users"),
    ({"train_labels": np.array(3)}, "train_labels: its labels are not whole numbers"),
  ],
)
def test_arrays_that_are_not_femnist_by_writer(tmp_path, change, says):
  (tmp_path / "femnist").mkdir()
  np.savez(tmp_path / "femnist" / "femnist_by_writer.npz", **by_writer(**change))
  with pytest.raises(DataError, match=says):
    sources.load("femnist", tmp_path)


def test_femnist_by_writer_that_cannot_be_unpacked(tmp_path):
  (tmp_path / "femnist").mkdir()
  scrambled(tmp_path / "femnist" / "femnist_by_writer.npz", by_writer())
  with pytest.raises(DataError, match="truncated or damaged"):
    sources.load("femnist", tmp_path)


def test_writers_need_not_be_tested_but_there_have_to_be_some(tmp_path):
  path = tmp_path / "femnist" / "femnist_by_writer.npz"
  path.parent.mkdir()
  whole = by_writer()
  none = {f"test_{name}": whole[f"test_{name}"][:0] for name in ("images", "labels", "user")}
  np.savez(path, **whole | none)
  source = sources.load("femnist", tmp_path)
  assert len(source.y) == 6 and source.split is None and source.notes == ("2 users, 6 rows, not divided",)
  np.savez(path, **whole | none | {f"train_{key.removeprefix('test_')}": own for key, own in none.items()})
  with pytest.raises(DataError, match=r"femnist_by_writer\.npz is empty"):
    sources.load("femnist", tmp_path)


def again(files, name, line):
  files[name] += line


@pytest.mark.parametrize(
  ("change", "says"),
  [
    (lambda f: f.update({"list_attr_celeba.txt": ""}), "list_attr_celeba.txt is not .* it begins ''"),
    (lambda f: f.update({"list_attr_celeba.txt": "15\n"}), "list_attr_celeba.txt is not .* it begins '15'"),
    (lambda f: f.update({"list_attr_celeba.txt": "Smiling\n1\n"}), "it begins 'Smiling'"),
    (
      lambda f: f.update({"list_attr_celeba.txt": b"\xff\xfe"}),
      "list_attr_celeba.txt is truncated or damaged",
    ),
    (lambda f: f.update({"identity_CelebA.txt": b"\xff\xfe"}), "identity_CelebA.txt is truncated or damaged"),
    (lambda f: again(f, "list_attr_celeba.txt", "999999.jpg 1 1 1\n"), "16 rows, not 15"),
    (lambda f: again(f, "identity_CelebA.txt", "000001.jpg 7\n"), "16 rows, not 15"),
    (
      lambda f: f.update(
        {"identity_CelebA.txt": f["identity_CelebA.txt"].replace("000001.jpg", "000002.jpg")}
      ),
      "identity_CelebA.txt, list_attr_celeba.txt name 000002.jpg twice",
    ),
  ],
)
def test_lists_that_are_not_celeba_s(tmp_path, change, says):
  refused(tmp_path / "celeba", "celeba", faces(), change, says)


@pytest.mark.parametrize(
  ("x", "y", "says"),
  [
    (["000001.jpg"] * 2, [0, 1], "all_data_train_9.json name 000001.jpg twice"),
    ([1, 2], [0, 1], "user 7: not LEAF's CelebA"),
    (["000001.jpg", "000002.jpg"], [[0], [1]], "user 7: not LEAF's CelebA"),
    (["000001.jpg", "000002.jpg"], [0, 2], "user 7: not LEAF's CelebA"),
  ],
)
def test_json_that_is_not_celeba_s(tmp_path, x, y, says):
  files = {name: content for name, content in faces().items() if name.endswith(".jpg")}
  files["all_data_train_9.json"] = json.dumps(
    {"users": ["7"], "num_samples": [2], "user_data": {"7": {"x": x, "y": y}}}
  )
  refused(tmp_path / "celeba", "celeba", files, lambda f: None, says)
