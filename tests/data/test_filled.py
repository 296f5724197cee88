"""What a client's training rows lack entirely is said: which client, which column, and what it becomes."""

import dataclasses

import jax
import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.data import heart
from fedjax_het.data.encoder import Encoder
from fedjax_het.data.files import lacking
from fedjax_het.experiment.build import build, notes_of

KEY = jax.random.key(0)
THERE = "of x in its training rows: it becomes 0"
PARTS = [np.arange(5), np.arange(5, 10)]


def table():
  x = np.arange(30, dtype=np.float32).reshape(10, 3)
  x[5:, [0, 2]] = np.nan
  return x


def told(x, **settings):
  said = []
  data = fh.federate(x, np.arange(10) % 2, PARTS, KEY, num_classes=2, tell=said.append, **settings)
  return said, data


def test_a_column_that_a_client_lacks_is_named():
  said, data = told(table())
  assert said == [f"client 1 has no value of columns 0, 2 {THERE} where a value is missing"]
  assert (data.x[5:, [0, 2]] == 0).all() and not (data.x[:5] == 0).all(0).any()
  said, data = told(table(), standardize=(0, 2))
  assert said == [
    "client 1 has no value of columns 0, 2 of x in its training rows: it becomes 0 in all its rows"
  ]
  assert (data.x[5:, [0, 2]] == 0).all()
  x = table()
  x[5:7, 0] = 7.0
  assert told(x)[0] == [f"client 1 has no value of column 2 {THERE} where a value is missing"]
  x[5:, 2] = 3.0
  said, data = told(x)
  assert not said and (data.x[5:, 0] == 7).all()


def test_places_of_other_examples_are_counted(caplog):
  x = np.zeros((10, 2, 3), np.float32)
  x[:5, 0] = np.nan
  assert told(x)[0] == [
    "client 0 has no value in its training rows at 3 of 6 places of an example, which become 0"
  ]
  fh.data.from_groups(KEY, x, np.arange(10) % 2, np.arange(10) // 5)
  assert "client 0 has no value in its training rows at 3 of 6 places" in caplog.text


def test_what_is_infinite_is_not_averaged():
  x = np.zeros((10, 2), np.float32)
  x[6, 1], x[7, 1] = np.inf, np.nan
  with pytest.raises(fh.SettingError, match="x = 'inf': row 6 is infinite"):
    told(x)
  mask = {"x": np.zeros((10, 2), np.float32), "mask": np.where(np.eye(10, 4), -np.inf, 0).astype(np.float32)}
  assert np.isinf(told(mask)[1].x["mask"]).any()


def test_loaders_name_groups_and_columns():
  x = np.ones((3, 2), np.float32)
  x[:2, 1] = np.nan
  said = lacking(x, np.array(["b", "b", "a"]), ("age", "sex"))
  assert said == ("b has no value of sex in any row: it becomes 0",)


def test_a_run_notes_it(tmp_path, monkeypatch):
  monkeypatch.setattr(heart, "ROWS", {"va": 40, "zurich": 40})
  folder = tmp_path / "uci-heart-disease"
  folder.mkdir()
  rng = np.random.default_rng(0)
  for hospital, blood in (("va", "100"), ("zurich", "?")):
    rows = [f"{rng.integers(30, 70)},{i % 2},1,{blood},0,{i % 2},0,90,0,1,?,?,?,{i % 3}" for i in range(40)]
    (folder / f"processed.{hospital}.data").write_text("\n".join(rows))
  config = get_config()
  config.update({"dataset": "heart", "data_dir": str(tmp_path), "num_clients": None, "cohort_size": 2})
  config.partition = {"name": "natural"}
  notes = notes_of(build(plan(config)))
  assert "zurich has no value of trestbps in any row: it becomes 0" in notes
  assert "client 1 has no value of column 2 of x in its training rows: it becomes 0 in all its rows" in notes
  assert any("zurich" in note and "all rows: it was not measured" in note for note in notes)


def test_the_constants_are_kept_and_give_the_rows_again():
  """Each client's own, or with `pooled` those of all training rows, against NumPy."""
  x = np.random.default_rng(0).normal(3, 2, (10, 3)).astype(np.float32)
  x[2, 0] = np.nan
  for pooled in (False, True):
    data = fh.federate(x, np.arange(10) % 2, PARTS, KEY, num_classes=2, standardize=(0, 2), pooled=pooled)
    rows = np.concatenate(PARTS if pooled else PARTS[:1])
    last = data.x[:, 1]  # only filled, so that it says which row is which
    train = [int(np.flatnonzero(x[:, 1] == last[i])[0]) for i in data.train.rows()]
    own = x[[row for row in train if row in rows]].astype(np.float64)
    np.testing.assert_allclose(data.encoder.scaling.mean[0], np.nanmean(own, 0), rtol=1e-12)
    filled = np.where(np.isnan(own), np.nanmean(own, 0), own)
    np.testing.assert_allclose(data.encoder.scaling.deviation[0], filled.std(0), rtol=1e-12)
    again = data.encoder.encode(x[PARTS[0]], 0)
    assert {tuple(row) for row in again} == {tuple(row) for row in data.x[:5]}


def test_what_a_client_lacks_becomes_the_mean_where_nothing_is_standardised():
  pd = pytest.importorskip("pandas")
  frame = pd.DataFrame({
    "who": ["a"] * 6 + ["b"] * 6, "age": [np.nan] * 6 + [50.0, 52, 54, 56, 58, 60], "y": ["p", "q"] * 6,
  })  # fmt: skip
  for standardize, becomes in (
    ("none", "the mean of all clients' training rows"),
    ("all", "0"),
    ("client", "0"),
  ):
    said = []
    data = fh.data.from_table(frame, label="y", client="who", standardize=standardize, tell=said.append)
    assert f"table: a has no value of age in any row: it becomes {becomes}" in said
    train = np.asarray(data.x)[data.train.rows()][:, 0]
    first, mean = data.train.size[0], 0.0 if standardize != "none" else train[data.train.size[0] :].mean()
    np.testing.assert_allclose(train[:first], mean, rtol=1e-6)


def test_later_rows_may_lack_what_all_training_rows_had():
  """The mean takes its place, also where nothing is standardised; encoders that kept none say so."""
  pd = pytest.importorskip("pandas")
  frame = pd.DataFrame({"age": np.arange(12.0), "note": ["a b"] * 12, "y": ["p", "q"] * 6})
  data = fh.data.from_table(frame, label="y", num_clients=2, standardize="none", text="note")
  row, train = {"age": [None, 3.0], "note": ["a", ""]}, np.asarray(data.x)[data.train.rows()]
  encoder = Encoder.of_arrays(data.encoder.arrays())
  found = encoder.encode(row)
  assert found.dtype == np.float32 and found[1, 0] == 3.0
  assert found[0, 0] == pytest.approx(train[:, 0].mean(), rel=1e-6)
  assert encoder.encode({"age": [], "note": []}).shape == (0, train.shape[1])
  earlier = dataclasses.replace(encoder, scaling=None)
  assert earlier.encode({"age": [3.0], "note": [""]})[0, 0] == 3.0
  with pytest.raises(fh.DataError, match="rows, column 'age', row 1: no value, and the model keeps no mean"):
    earlier.encode(row)
