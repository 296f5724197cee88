"""Rules of the data sets and partitions, a rule a test, by files that just keep or just break it."""

import json
import unicodedata
from io import BytesIO

import jax
import numpy as np
import pytest
from pictures import jpeg, write
from PIL import Image
from small_files import write_small

from fedjax_het.data import dirichlet, images, isic2019, primary_class, reddit, sources, wordpiece
from fedjax_het.errors import DataError
from fedjax_het.studies.partition import counts_of

# Partitions


def test_the_other_fifth_of_five_folds_goes_to_all_other_groups_alike():
  labels = np.repeat(np.arange(10), 60)
  counts = counts_of(primary_class(jax.random.key(0), labels, 10, 5), labels, 10)
  own = np.kron(np.eye(5, dtype=int), np.ones((1, 2), int))  # [group, class]
  np.testing.assert_array_equal(counts[::2] + counts[1::2], np.where(own, 48, 3))


def test_a_class_of_one_row_is_anybody_s_by_the_balanced_dirichlet_too():
  """Three clients of equal shares and a row each, of which one is of class 0."""
  parts = [dirichlet(jax.random.key(seed), [0, 1, 1], 3, 1e6, min_size=1, balance=True) for seed in range(90)]
  holders = [[0 in rows for rows in own].index(True) for own in parts]
  assert min(np.bincount(holders, minlength=3)) > 15


# Pictures


@pytest.mark.parametrize("bring", [images.middle, images.squeezed])
def test_pictures_are_resized_bilinearly(bring):
  step = np.tile(np.array([0, 200], np.uint8)[:, None], (2, 1, 3))
  larger = np.asarray(bring(Image.fromarray(step), 4))
  np.testing.assert_array_equal(larger, np.tile(np.array([0, 50, 150, 200])[:, None], (4, 1, 3)))
  stripes = np.asarray(bring(Image.fromarray(np.tile(step, (8, 8, 1))), 8))
  np.testing.assert_array_equal(stripes[:, 1:-1], 100)  # no column is passed over


def test_isic2019_keeps_the_middle_200_pixels_of_a_short_side_of_224(tmp_path, monkeypatch):
  write_small("isic2019", tmp_path, monkeypatch)
  picture = jpeg(234, 224)
  write(tmp_path / "isic2019", {"ISIC_2019_Training_Input/ISIC_0.jpg": picture})
  pixels = np.asarray(Image.open(BytesIO(picture)))
  np.testing.assert_array_equal(sources.load("isic2019", tmp_path, size=200).x[0], pixels[12:212, 17:217])


@pytest.mark.parametrize("missing", ["age_approx", "anatom_site_general", "sex"])
def test_complete_images_of_isic2019_have_age_site_and_sex(tmp_path, monkeypatch, missing):
  write_small("isic2019", tmp_path, monkeypatch)
  path = tmp_path / "isic2019" / isic2019.METADATA
  header, *rows = path.read_text().split("\n")
  place = header.split(",").index(missing)
  rows[7] = ",".join("" if i == place else field for i, field in enumerate(rows[7].split(",")))
  path.write_text("\n".join([header, *rows]))
  every, complete = (sources.load("isic2019", tmp_path, size=8, complete=only) for only in (False, True))
  assert len(every.x) == 60
  np.testing.assert_array_equal(complete.x, np.delete(every.x, 7, 0))


@pytest.mark.parametrize("line", ["0.JPEG\tn1", "0.JPEG\tn1\t0\t0\t9", "0.JPEG\tn1\t0\t0\t9\t9\t9", "0.JPEG"])
def test_a_validation_image_of_tiny_imagenet_has_six_fields(tmp_path, monkeypatch, line):
  write_small("tiny_imagenet", tmp_path, monkeypatch)
  folder, whole = tmp_path / "tiny-imagenet" / "val", "0.JPEG\tn3\t0\t0\t9\t9\n"
  write(folder, {"images/0.JPEG": jpeg(64, 64), "val_annotations.txt": whole})
  assert sources.load("tiny_imagenet", tmp_path).y_test.tolist() == [2]
  write(folder, {"val_annotations.txt": f"{whole}{line}\n"})
  with pytest.raises(DataError, match=r"val_annotations\.txt is not what its authors ship: '0\.JPEG"):
    sources.load("tiny_imagenet", tmp_path)


@pytest.mark.parametrize("channels", [(1,), (2,), (4,), (3, 1)])
def test_images_of_medmnist_have_one_channel_or_three(tmp_path, channels):
  x, y = np.zeros((2, 28, 28, *channels), np.uint8), np.zeros((2, 1), np.uint8)
  (tmp_path / "medmnist").mkdir()
  arrays = {"train_images": x, "train_labels": y, "test_images": x, "test_labels": y}
  np.savez(tmp_path / "medmnist" / "dermamnist.npz", **arrays)
  if channels == (1,):
    assert sources.load("dermamnist", tmp_path, size=28).x.shape == x.shape
  else:
    with pytest.raises(DataError, match=r"train_images are uint8 \(2, 28, 28, .*, not uint8"):
      sources.load("dermamnist", tmp_path, size=28)


# Words


def test_reddit_s_vocabulary_is_of_training_lines_alone(tmp_path):
  rare, frequent = ["a"] * 10, ["zebra"] * 10
  for part, comments in (("train", [[rare]]), ("test", [[frequent, frequent]])):
    user = {"x": comments, "y": comments}
    content = {"users": ["u"], "num_samples": [1], "user_data": {"u": user}}
    write(tmp_path / "reddit", {f"{part}_data.json": json.dumps(content)})
  for size in (5, 9):
    source = sources.load("reddit", tmp_path, size=size)
    assert source.x.tolist() == [[4] * 10, *[[reddit.UNK] * 10] * 2]


@pytest.mark.parametrize(
  ("first", "last"),
  [
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B738), (0x2B740, 0x2B81D),
    (0x2B820, 0x2CEA1), (0xF900, 0xFAD9), (0x2F800, 0x2FA1D),
  ],
)  # fmt: skip
def test_ideographs_of_every_block_are_words(first, last):
  """The first and the last letter of each of BERT's blocks; those for compatibility become plain ones."""
  for letter in map(chr, (first, last)):
    assert wordpiece.words(f"a{letter}b") == ["a", unicodedata.normalize("NFD", letter), "b"]
