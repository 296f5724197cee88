"""A folder of images: classes and clients by the names of folders."""

import numpy as np
import pytest
from PIL import Image

import fedjax_het as fh


def images(root, *paths, size=8):
  for i, path in enumerate(paths):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size, size, 3), i, np.uint8)).save(root / path)


def test_a_folder_for_each_class_or_client(tmp_path):
  images(tmp_path / "a", *(f"{name}/{i}.png" for name in ("cat", "dog") for i in range(6)))
  data = fh.data.from_folder(tmp_path / "a", num_clients=2)
  assert data.encoder.labels == ("cat", "dog") and data.num_clients == 2 and data.x.shape == (12, 8, 8, 3)
  pixels = np.asarray(data.x)[:, 0, 0, 0]
  assert (np.asarray(data.y) == (pixels >= 6)).all()
  places = (
    f"{city}/{name}/{i}.png" for city in ("Oslo", "Köln") for name in ("cat", "dog") for i in range(3)
  )
  images(tmp_path / "b", *places)
  data = fh.data.from_folder(tmp_path / "b", size=4, colour="grey")
  assert data.encoder.clients == ("Köln", "Oslo") and data.x.shape == (12, 4, 4, 1)


def test_a_folder_that_cannot_be(tmp_path):
  images(tmp_path / "flat", "1.png", "2.png")
  images(tmp_path / "sizes", "a/1.png")
  images(tmp_path / "sizes", "b/1.png", size=9)
  images(tmp_path / "one", "a/1.png")
  images(tmp_path / "torn", "a/1.png", "b/1.png")
  (tmp_path / "torn" / "b" / "1.png").write_bytes(b"not")
  (tmp_path / "empty").mkdir()
  for name, message in [
    ("flat", "in no class. Images belong in CLASS/NAME.jpg"), ("sizes", "9 x 9 pixels.*size=N"),
    ("one", "one class, 'a'"), ("torn", "1.png is no image"), ("empty", "has no .jpg"),
    ("none", "no such folder"),
  ]:  # fmt: skip
    with pytest.raises(fh.DataError, match=message):
      fh.data.from_folder(tmp_path / name, num_clients=2)
