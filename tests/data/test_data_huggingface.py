"""Data sets of Hugging Face's library: tables, texts and images, and what streams or has several splits."""

import numpy as np
import pytest
from PIL import Image

import fedjax_het as fh

pytest.importorskip("pandas")
datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def _without_fingerprints(monkeypatch):
  """Its hashes of tables fail with some versions of pyarrow, and are not what is tested."""
  monkeypatch.setattr(datasets.arrow_dataset, "generate_fingerprint", lambda own: "0")


def made(columns, **features):
  kinds = {name: features.get(name, datasets.Value("string" if isinstance(own[0], str) else "float32"))
           for name, own in columns.items()}  # fmt: skip
  return datasets.Dataset.from_dict(columns, features=datasets.Features(kinds))


def test_a_table_with_texts():
  columns = {"note": [f"{i} good" for i in range(60)], "who": ["Oslo", "Köln"] * 30, "mood": [0, 1, 1] * 20}
  dataset = made(columns, mood=datasets.ClassLabel(names=["sad", "glad"]))
  data = fh.data.from_huggingface(dataset, label="mood", client="who", text=("note",))
  assert data.encoder.labels == ("glad", "sad") and data.encoder.clients == ("Köln", "Oslo")
  assert data.x.shape == (60, 64)


def test_images():
  pictures = [Image.fromarray(np.full((8, 8, 3), i, np.uint8)) for i in range(20)]
  dataset = made(
    {"image": pictures, "label": [0, 1] * 10},
    image=datasets.Image(),
    label=datasets.ClassLabel(names=["a", "b"]),
  )
  data = fh.data.from_huggingface(dataset, label="label", num_clients=2, colour="grey")
  assert data.x.shape == (20, 8, 8, 1) and data.encoder.labels == ("a", "b")
  assert (np.asarray(data.y) == np.asarray(data.x)[:, 0, 0, 0] % 2).all()


def test_what_is_no_split_is_named():
  dataset = made({"x": [1.0] * 4, "y": ["a", "b"] * 2})
  with pytest.raises(fh.SettingError, match=r"has several splits. Give one, such as dataset\['train'\]"):
    fh.data.from_huggingface(datasets.DatasetDict({"train": dataset}), label="y")
  with pytest.raises(fh.SettingError, match="'IterableDataset': streams"):
    fh.data.from_huggingface(dataset.to_iterable_dataset(), label="y")
  with pytest.raises(fh.SettingError, match="label = 'z': unknown"):
    fh.data.from_huggingface(dataset, label="z")
