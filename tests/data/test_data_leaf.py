"""LEAF's data: FEMNIST, Shakespeare and Reddit, from files of their format that are written here."""

import gzip
import json
import zipfile

import jax
import numpy as np
import pytest
from realdata import real_data

from fedjax_het import data
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.data import leaf, reddit, shakespeare, sources
from fedjax_het.errors import DataError, SettingError
from fedjax_het.experiment.build import build

RNG = np.random.default_rng(6)


def write(path, users, gz=False):
  """A json file of LEAF's of {user: (x, y)}."""
  path.parent.mkdir(parents=True, exist_ok=True)
  content = json.dumps(
    {
      "users": [*users],
      "num_samples": [len(y) for _, y in users.values()],
      "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
  ).encode()
  path.write_bytes(gzip.compress(content) if gz else content)


def test_which_files_are_of_which_set(tmp_path):
  for name in (
    "data/train/a_train_9.json",
    "data/test/a_test_9.json.gz",
    "data/all_data/all_data.json",
    "other.json",
  ):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
  assert [(path.name, test) for path, test in leaf.leaf_files(tmp_path)] == [
    ("a_train_9.json", False),
    ("a_test_9.json.gz", True),
  ]
  (tmp_path / "data/train/a_train_9.json").unlink()
  (tmp_path / "data/test/a_test_9.json.gz").unlink()
  assert [path.name for path, _ in leaf.leaf_files(tmp_path)] == ["all_data.json"]
  (tmp_path / "val_data.json").write_text("{}")
  (tmp_path / "test_data.json").write_text("{}")
  with pytest.raises(
    DataError, match=r"test_data\.json is a file of tests, and none of training.*train_data"
  ):
    leaf.leaf_files(tmp_path)
  (tmp_path / "train_data.json").write_text("{}")
  assert [(path.name, test) for path, test in leaf.leaf_files(tmp_path)] == [
    ("train_data.json", False), ("test_data.json", True),
  ]  # fmt: skip


# FEMNIST

PIXELS = RNG.integers(0, 256, (9, 28, 28), np.uint8)
LABELS = np.array([0, 61, 10, 36, 5, 5, 7, 1, 2])


def letters(rows):
  return (PIXELS[rows].reshape(len(rows), -1) / 255).tolist(), LABELS[rows].tolist()


def femnist(folder):
  """Writer b with rows 0 to 2 and 6, a with 3 to 5 and 7, c with 8 alone; 6 and 7 to test on."""
  write(folder / "femnist" / "train" / "all_data_0_niid_05_keep_0_train_9.json.gz", {
    "b": letters([0, 1, 2]), "a": letters([3, 4, 5]), "c": letters([8]),
  }, gz=True)  # fmt: skip
  write(
    folder / "femnist" / "test" / "all_data_0_niid_05_keep_0_test_9.json",
    {"b": letters([6]), "a": letters([7])},
  )


def test_femnist_of_json(tmp_path):
  femnist(tmp_path)
  source = sources.load("femnist", tmp_path)
  order = [0, 1, 2, 3, 4, 5, 8, 6, 7]
  np.testing.assert_array_equal(source.x[..., 0], PIXELS[order])
  np.testing.assert_array_equal(source.y, LABELS[order])
  assert "".join(source.groups) == "bbbaaacba" and source.split.tolist() == [0, 0, 0, 0, 0, 0, -1, 1, 1]
  assert source.x.dtype == np.uint8 and source.num_classes == 62
  assert source.notes == ("3 users, 9 rows, 2 to test on; 1 of users in one set alone",)


def test_a_run_keeps_the_split_that_data_came_with(tmp_path):
  femnist(tmp_path)
  config = get_config()
  config.update(
    dataset="femnist", data_dir=str(tmp_path), num_clients=None, test_fraction=None, cohort_size=2
  )
  config.partition = {"name": "natural", "min_size": 2}
  config.valid_fraction = 0.0
  built = build(plan(config))
  assert built.data.num_clients == 2 and built.data.train.size.tolist() == [3, 3]
  test = np.asarray(built.data.y)[built.data.test.rows()]
  assert test.tolist() == [LABELS[7], LABELS[6]]  # a before b
  config.dataset, config.partition = "digits", {"name": "iid"}
  config.num_clients = 3
  with pytest.raises(SettingError, match="test_fraction = None: digits does not come divided"):
    build(plan(config))
  config.test_fraction, config.partition = 0.2, {"name": "natural"}
  with pytest.raises(SettingError, match="digits does not say whose its rows are"):
    build(plan(config))


def test_femnist_of_bytes_goes_first(tmp_path):
  femnist(tmp_path)
  arrays = {
    "train_images": PIXELS[:6], "train_labels": LABELS[:6], "train_user": np.array([1, 0, 1, 0, 0, 1]),
    "test_images": PIXELS[6:], "test_labels": LABELS[6:], "test_user": np.array([1, 0, 0]),
    "users": np.array(["u", "v"]),
  }  # fmt: skip
  path = tmp_path / "femnist" / "femnist_by_writer.npz"
  np.savez(path, **arrays)
  source = sources.load("femnist", tmp_path)
  order = [1, 3, 4, 0, 2, 5, 7, 8, 6]
  np.testing.assert_array_equal(source.x[..., 0], PIXELS[order])
  np.testing.assert_array_equal(source.y, LABELS[order])
  assert "".join(source.groups) == "uuuvvvuuv" and source.split.tolist() == [0] * 6 + [1] * 3
  for change, says in (
    ({"users": np.array(["u"])}, "train_user does not number its 1 users"),
    ({"test_labels": LABELS[6:] + 61}, "not whole numbers from 0 to 61"),
    ({"train_images": PIXELS[:6] / 255}, "train_images are float64"),
    ({"train_user": np.array([0])}, "train_images are uint8 .6, 28, 28., of 6 labels"),
  ):
    np.savez(path, **{**arrays, **change})
    with pytest.raises(DataError, match=says):
      sources.load("femnist", tmp_path)
  np.savez(path, users=arrays["users"])
  with pytest.raises(DataError, match="has no train_images"):
    sources.load("femnist", tmp_path)
  path.write_bytes(path.read_bytes()[:50])
  with pytest.raises(DataError, match="truncated or damaged"):
    sources.load("femnist", tmp_path)


@pytest.mark.parametrize(
  ("x", "y", "says"),
  [
    ([[0.0] * 784], [62], "not whole numbers from 0 to 61"),
    ([[0.0] * 783], [1], "not 784 numbers each"),
    ([[0.3] * 784], [1], "not bytes divided by 255"),
    ([[255.0] * 784], [1], "not bytes divided by 255"),
    ([[0.0] * 784], [1, 2], "user u: 1 examples and 2 labels"),
  ],
)
def test_femnist_of_something_else(tmp_path, x, y, says):
  write(tmp_path / "femnist" / "all_data_0.json", {"u": (x, y)})
  with pytest.raises(DataError, match=says):
    sources.load("femnist", tmp_path)
  (tmp_path / "femnist" / "all_data_0.json").write_text('{"users": ["u"], "user_data": {}}')
  with pytest.raises(DataError, match="is not a json file of LEAF's"):
    sources.load("femnist", tmp_path)


def test_users_divided_into_sets_and_not_at_all(tmp_path):
  write(tmp_path / "femnist" / "all_data_train_9.json", {"a": letters([0, 1])})
  write(tmp_path / "femnist" / "all_data_test_9.json", {"b": letters([2])})
  source = sources.load("femnist", tmp_path)
  assert source.split is None and "users divided into training and test users" in source.notes[0]
  assert "".join(source.groups) == "aab"
  groups, split, note = leaf.joined(
    [leaf.Rows("", "a", [], [0, 0], False), leaf.Rows("", "b", [], [0], False)]
  )
  assert split is None and note == "2 users, 3 rows, not divided" and groups.tolist() == ["a", "a", "b"]


@pytest.mark.slow
def test_the_real_femnist():
  """The arrays and LEAF's own json pair are of the same pictures."""
  folder = real_data("femnist")
  source = sources.load("femnist", folder)
  assert source.x.shape == (45_960, 28, 28, 1) and (source.split == 1).sum() == 4_734
  assert len(set(source.groups.tolist())) == 300 and set(source.y.tolist()) == set(range(62))
  assert np.median(source.x) == 255
  both = [
    {image.tobytes() for image in source.x[source.groups == rows.user]}
    >= {(255 * np.array(x)).round().astype(np.uint8).tobytes() for x in rows.x}
    for rows in leaf.read_leaf(leaf.leaf_files(folder / "femnist"))
    if rows.user in source.groups
  ]
  assert len(both) >= 6 and all(both)


# Shakespeare

BITES = [f"word{'abcdefghijklmnopqrstuvwxyz'[i]} and some more of them here," for i in range(12)]


def old_text(count=21):
  """Plays as in the release of 1994: the author's name below each title."""
  lines = ["header", "", "THE SONNETS", "", "by William Shakespeare", "  KING. a sonnet.", ""]
  for i in range(count):
    lines += [f"PLAY {i}", "", "", "by William Shakespeare", "", "  KING. " + BITES[0]]
    lines += [f"    {bite}" for bite in BITES[1:]] + ["Enter a QUEEN", "  Queen. " + BITES[3], "    <more>"]
    lines += [f"  QUEEN. {bite}" for bite in BITES[:3]] + ["  FOOL. A word.", ""]
  return "\n".join(lines)


def new_text():
  """Plays as in the release of 2018: titles listed in the contents; one of them without indentation."""
  titles = [shakespeare.ERRORS, *(f"PLAY {i}" for i in range(40)), "VENUS AND ADONIS"]
  lines = ["by William Shakespeare", "", "      Contents", "", *(f"       {title}" for title in titles), ""]
  for title in titles:
    indent = 0 if title == shakespeare.ERRORS else 2
    roles = [name for name in ("DUKE", "SON", "Fool") for _ in range(4)]
    lines += [title, "", "ACT I. Scene one. They speak." if not indent else ""]
    lines += [" " * indent + f"{role}. {bite}" for role, bite in zip(roles, BITES)]
    lines += ["<a stage direction>", "not spoken by the fool"] if not indent else []
  return "﻿" + "\n".join(lines)


def test_roles_of_both_releases():
  old = shakespeare.roles(shakespeare.plays(old_text()))
  assert (
    len(old) == 42 and ("PLAY 20", "QUEEN") in old
  )  # FOOL says one line; the sonnets are before the plays
  assert old["PLAY 3", "KING"] == " ".join(BITES) + " "
  assert old["PLAY 3", "QUEEN"] == " ".join([BITES[3], "more>", *BITES[:3]]) + " "
  new = shakespeare.roles(shakespeare.plays(new_text().removeprefix("﻿")))
  assert len(new) == 3 * 41 and not any(play == "VENUS AND ADONIS" for play, _ in new)
  assert new[shakespeare.ERRORS, "FOOL"] == " ".join(BITES[8:]) + " "  # no further than the stage direction
  assert new["PLAY 7", "SON"] == " ".join(BITES[4:8]) + " "


def test_letters_are_brought_to_the_symbols():
  lines = ["  A. It’s “an   old—café”", "    {x} =", "    " + 90 * "y", "  B. none"]
  said = shakespeare.roles({"P": lines})["P", "A"]
  assert said == 'It\'s "an old-cafe" x}  ' + 90 * "y" + " " and len(shakespeare.SYMBOLS) == 80


def test_windows_and_leaf_s_split(tmp_path):
  (tmp_path / "shakespeare").mkdir()
  with zipfile.ZipFile(tmp_path / "shakespeare" / "100-0.zip", "w") as archive:
    archive.writestr("100-0.txt", new_text())
  source = sources.load("shakespeare", tmp_path, train=None)
  assert source.split is None and source.x.dtype == np.int8 and source.num_classes == 80
  said = shakespeare.roles(shakespeare.plays(new_text().removeprefix("﻿")))
  assert len(set(source.groups.tolist())) == len(said) == 123
  words = next(iter(said.values()))
  own = source.groups == 0
  assert own.sum() == len(words) - 80
  for i in (0, 1, own.sum() - 1):
    assert "".join(shakespeare.SYMBOLS[c] for c in source.x[own][i]) == words[i : i + 80]
    assert shakespeare.SYMBOLS[source.y[own][i]] == words[i + 80]
  few = sources.load("shakespeare", tmp_path, train=None, stride=10)
  np.testing.assert_array_equal(few.x[few.groups == 0], source.x[own][::10])
  with pytest.raises(DataError, match=r"none of 123 roles is long enough.*A smaller stride"):
    sources.load("shakespeare", tmp_path)  # of 158 characters none is left 79 on


def test_windows_to_test_on_share_a_character_at_most(tmp_path):
  (tmp_path / "shakespeare").mkdir()
  (tmp_path / "shakespeare" / "100.txt").write_text(old_text(60))
  for stride in (1, 7, 80):
    source = sources.load("shakespeare", tmp_path, train=0.5, stride=stride)
    own = np.flatnonzero(source.groups == 0)
    train, test = (own[source.split[own] == part] for part in (0, 1))
    count = len(own)
    assert len(train) == max(1, count // 2) and test[-1] == own[-1]
    begin = (test[0] - own[0]) * stride  # of the first window to test on
    end = (train[-1] - own[0]) * stride + 80  # the last letter that is trained on
    assert begin >= end and begin - stride < end


def test_shakespeare_of_json(tmp_path):
  text = "Now is the winter of our discontent Made glorious summer by this sun of York; and all"
  for part, rows in (("train", (0, 1, 2)), ("test", (3,))):
    users = {"KING": ([text[i : i + 80] for i in rows], [text[i + 80] for i in rows])}
    write(tmp_path / "shakespeare" / part / f"all_data_niid_1_{part}_8.json", users)
  source = sources.load("shakespeare", tmp_path)
  assert source.split.tolist() == [0, 0, 0, 1]
  assert "".join(shakespeare.SYMBOLS[c] for c in source.x[3]) == text[3:83]
  assert "".join(shakespeare.SYMBOLS[c] for c in source.y) == text[80:84]
  with pytest.raises(SettingError, match="come cut and divided"):
    sources.load("shakespeare", tmp_path, stride=2)
  write(tmp_path / "shakespeare" / "train" / "b_train_8.json", {"A": (["short"], ["x"])})
  with pytest.raises(DataError, match="user A: its examples are not texts of 80"):
    sources.load("shakespeare", tmp_path)


def test_a_text_of_something_else(tmp_path):
  (tmp_path / "shakespeare").mkdir()
  (tmp_path / "shakespeare" / "pg100.txt").write_text(old_text(25)[:9000])
  with pytest.raises(DataError, match=r"pg100\.txt is not the whole of Shakespeare's plays"):
    sources.load("shakespeare", tmp_path)
  for option in ({"train": 1.0}, {"stride": 0}):
    with pytest.raises(SettingError, match=next(iter(option))):
      sources.load("shakespeare", tmp_path, **option)


@pytest.mark.slow
def test_the_real_shakespeare():
  source = sources.load("shakespeare", real_data("shakespeare"))
  assert (
    source.groups[-1] == 629 and "907 roles" in source.notes[0] and "277 of them too short" in source.notes[0]
  )
  first = "".join(shakespeare.SYMBOLS[c] for c in source.x[0])
  assert first.startswith("In delivering my son from me, I bury a second husband.")
  assert np.bincount(source.y, minlength=80)[1] / len(source.y) > 0.15  # spaces


# Reddit


def comment(*words):
  """A comment's lines and the lines of its next words, as LEAF cuts them."""
  x, y = ["<BOS>", *words, "<EOS>"], [*words, "<EOS>", "<PAD>"]
  fill = ["<PAD>"] * (-len(x) % 10)
  return [[*x, *fill][i : i + 10] for i in range(0, len(x), 10)], [
    [*y, *fill][i : i + 10] for i in range(0, len(x), 10)
  ]


def test_reddit(tmp_path):
  long, short, other = comment(*"abcabcabca"), comment("a", "b"), comment("a", "zebra")
  write(tmp_path / "reddit" / "train_data.json", {
    "u": ([long[0], short[0]], [{"target_tokens": long[1], "subreddit": "r"}, {"target_tokens": short[1]}]),
    "v": ([short[0]], [short[1]]),
  })  # fmt: skip
  write(
    tmp_path / "reddit" / "test_data.json", {"u": ([other[0]], [other[1]]), "v": ([short[0]], [short[1]])}
  )
  write(tmp_path / "reddit" / "val_data.json", {"u": ([], [])})
  source = sources.load("reddit", tmp_path, size=6)
  a, b = 4, 5  # the most frequent words; c is as unknown as zebra
  assert source.x.dtype == np.int16 and source.x.shape == (6, 10)
  assert source.x[0].tolist() == [2, a, b, 1, a, b, 1, a, b, 1] and source.y[0].tolist() == [
    *source.x[0][1:],
    a,
  ]
  assert source.x[1].tolist() == [a, 3, 0, 0, 0, 0, 0, 0, 0, 0] and source.y[1].tolist() == [3, *[0] * 9]
  assert source.x[4].tolist()[:4] == [2, a, 1, 3]
  assert "".join(source.groups) == "uuuvuv" and source.split.tolist() == [0, 0, 0, 0, 1, 1]
  assert source.task.name == "next_token" and "60.9% of the target words count" in source.notes[0]
  parts = data.natural(source.groups)
  made = data.federate(
    source.x, source.y, parts, jax.random.key(0), num_classes=6, task=source.task, split=source.split
  )
  assert made.train.size.tolist() == [3, 1]
  assert reddit.vocabulary(["b", "a", "c", "c", "<EOS>"], 6) == {
    **{word: i for i, word in enumerate(reddit.SPECIAL)}, "c": 4, "a": 5,
  }  # fmt: skip


@pytest.mark.parametrize(
  ("x", "y"),
  [([[["a"] * 9]], [[["a"] * 9]]), ([[["a"] * 10]], [[["a"] * 9]]), ([[["a"] * 10]], [[["a"] * 10] * 2])],
)
def test_reddit_of_something_else(tmp_path, x, y):
  write(tmp_path / "reddit" / "train_data.json", {"u": (x, y)})
  with pytest.raises(DataError, match="user u: its comments are not lines of 10 words"):
    sources.load("reddit", tmp_path)
  for size in (4, 40_000):
    with pytest.raises(SettingError, match=f"size = {size}"):
      sources.load("reddit", tmp_path, size=size)
