"""Data sets of Hugging Face's library: tables, texts and images, and what streams or has several splits."""

import sys

import numpy as np
import pytest
from PIL import Image

import fedjax_het as fh
from fedjax_het.config.plan import plan
from fedjax_het.experiment.build import build

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


def pictures(rows=60):
  images = [Image.fromarray(np.full((8, 8, 3), i, np.uint8)) for i in range(rows)]
  columns = {"image": images, "label": [0, 1] * (rows // 2), "who": [None, *["b"] * (rows - 1)]}
  kinds = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
  return made(columns, **kinds, who=datasets.Value("string"))


def test_images():
  dataset = pictures()
  data = fh.data.from_huggingface(dataset, label="label", num_clients=2, colour="grey")
  with pytest.raises(fh.DataError, match="column 'who', row 1: nobody's row; 1 of 60"):
    fh.data.from_huggingface(dataset, label="label", client="who")
  assert data.x.shape == (60, 8, 8, 1) and data.encoder.labels == ("a", "b")
  assert (np.asarray(data.y) == np.asarray(data.x)[:, 0, 0, 0] % 2).all()


def test_what_is_no_split_is_named():
  dataset = made({"x": [1.0] * 4, "y": ["a", "b"] * 2})
  with pytest.raises(fh.SettingError, match=r"has several splits. Give one, such as dataset\['train'\]"):
    fh.data.from_huggingface(datasets.DatasetDict({"train": dataset}), label="y")
  with pytest.raises(fh.SettingError, match="'IterableDataset': streams"):
    fh.data.from_huggingface(dataset.to_iterable_dataset(), label="y")
  with pytest.raises(fh.SettingError, match="label = 'z': unknown"):
    fh.data.from_huggingface(dataset, label="z")


def visits(rows=60):
  columns = {"age": [float(i % 40) for i in range(rows)], "who": ["Oslo", "Köln"] * (rows // 2)}
  return made(columns | {"mood": [0, 1, 1] * (rows // 3)}, mood=datasets.ClassLabel(names=["sad", "glad"]))


def configured(name, **options):
  from fedjax_het.config.quickstart import get_config

  options = {"label": "mood", "client": "who"} | options
  return get_config("algorithm=fedavg").to_dict() | {
    "dataset": f"hf:{name}", "dataset_options": options, "num_clients": None, "cohort_size": 2,
    "partition": {"name": "natural"},
  }  # fmt: skip


def test_a_configuration_names_the_data_set(tmp_path, monkeypatch):
  """The same rows as from Python; what is wrong is named as it is written, offline with a way on."""
  visits().save_to_disk(tmp_path / "visits")
  built = build(plan(configured(tmp_path / "visits")))
  whole = fh.data.from_huggingface(visits(), label="mood", client="who")
  assert built.data.encoder.clients == whole.encoder.clients and built.source.name == "visits"
  assert built.data.encoder.columns == whole.encoder.columns and built.data.x.shape == whole.x.shape
  for options, message in [
    ({"label": "moood"}, "dataset_options.label = 'moood': unknown. Did you mean 'mood'"),
    ({"lable": "mood"}, "dataset_options.lable = 'mood': unknown to hf:.*Did you mean 'label'"),
    ({"size": 8}, "dataset_options.size = 8: is for images, and hf:.*visits is a table"),
    ({"client": None}, "Name the column that does: --config.dataset_options.client="),
  ]:
    with pytest.raises(fh.SettingError, match=message):
      build(plan(configured(tmp_path / "visits", **options)))
  datasets.DatasetDict({"train": visits(), "later": visits(30)}).save_to_disk(tmp_path / "both")
  assert len(build(plan(configured(tmp_path / "both", split="later"))).data.x) == 30
  with pytest.raises(fh.SettingError, match=r"dataset_options.split = 'test': unknown. Known: later, train"):
    build(plan(configured(tmp_path / "both", split="test")))

  def unreachable(name, subset, split):
    raise ConnectionError("Couldn't reach the hub\nRetrying")

  monkeypatch.setattr(datasets, "load_dataset", unreachable)
  with pytest.raises(
    fh.DataError, match=r"hf:a/b cannot be read: ConnectionError.*Without network, give a fo"
  ):
    build(plan(configured("a/b")))
  monkeypatch.setattr(datasets, "load_dataset", lambda name, subset, split: visits())
  assert build(plan(configured("a/b"))).source.files == ("hf:a/b",)
  monkeypatch.setitem(sys.modules, "datasets", None)
  with pytest.raises(fh.SettingError, match=r"needs the package datasets, .*pip install 'fedjax_het\[hf\]'"):
    build(plan(configured("a/b")))


class EveryThird:
  """As flwr-datasets' partitioners: a data set is assigned once, and each partition is a data set."""

  dataset, num_partitions = None, 3

  def load_partition(self, number):
    return self.dataset.select(range(number, 57, 3))


def test_partitioners_of_flwr_datasets_say_whose_rows_are():
  for dataset in (visits(), pictures()):
    label = "mood" if "mood" in dataset.features else "label"
    data = fh.data.from_huggingface(dataset, label=label, partitioner=EveryThird(), test_fraction=0.0)
    assert data.encoder.clients == ("0", "1", "2") and np.asarray(data.train.size).tolist() == [19] * 3
    names = [data.encoder.labels[y] for y in np.asarray(data.y)[data.train.rows(np.array([1]))]]
    known = dataset.features[label].names
    assert sorted(names) == sorted(known[dataset[i][label]] for i in range(1, 57, 3))
  for given, message in [
    ({"partitioner": EveryThird}, "partitioner = 'type': is no partitioner. Give one of flwr_datasets"),
    ({"partitioner": EveryThird(), "client": "who"}, "client = 'who': is given beside partitioner"),
  ]:
    with pytest.raises(fh.SettingError, match=message):
      fh.data.from_huggingface(visits(), label="mood", **given)


def test_partitioners_themselves():
  partitioners = pytest.importorskip("flwr_datasets.partitioner")
  make = partitioners.DirichletPartitioner(3, "mood", alpha=1.0, min_partition_size=1)
  data = fh.data.from_huggingface(visits(), label="mood", partitioner=make, test_fraction=0.0)
  sizes = [len(make.load_partition(i)) for i in range(3)]
  assert np.asarray(data.train.size).tolist() == sizes
  with pytest.raises(fh.SettingError, match="partitioner = 'DirichletPartitioner': refuses the data set"):
    fh.data.from_huggingface(visits(), label="mood", partitioner=make)
