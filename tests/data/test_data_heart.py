"""UCI heart: the four hospitals' files, tiny damaged ones, and the standardisation by training rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from realdata import real_data

from fedjax_het import data
from fedjax_het.data import heart
from fedjax_het.errors import DataError, SettingError

KEY = jax.random.key(0)
LINE = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n"
OTHER = "40,0,4,?,0,?,?,?,?,?,?,?,?,3\r\n"


@pytest.fixture
def tiny(tmp_path, monkeypatch):
  """data_dir with two rows a hospital: the first healthy, the second ill and almost all missing."""
  monkeypatch.setattr(heart, "ROWS", dict.fromkeys(heart.ROWS, 2))
  (tmp_path / "uci-heart-disease").mkdir()
  for hospital in heart.ROWS:
    path(tmp_path, hospital).write_text(LINE + OTHER + "\n", newline="")
  return tmp_path


def path(folder, hospital):
  return folder / "uci-heart-disease" / f"processed.{hospital}.data"


def test_the_real_files():
  source = data.load("heart", real_data("uci-heart-disease"))
  assert source.x.shape == (920, len(heart.FEATURES)) == (920, 15)
  assert (source.x.dtype, source.y.dtype, source.num_classes) == (np.float32, np.int32, 2)
  hospitals, rows = np.unique(source.groups, return_counts=True)
  assert dict(zip(hospitals.tolist(), rows.tolist())) == heart.ROWS
  ill = {h: int(source.y[source.groups == h].sum()) for h in heart.ROWS}
  assert ill == {"cleveland": 139, "hungarian": 106, "switzerland": 115, "va": 149}
  missing = {h: np.isnan(source.x[source.groups == h]).sum(0).tolist() for h in heart.ROWS}
  nothing = [0] * 7  # the dummies
  assert missing == {  # of age, sex, trestbps, chol, fbs, thalach, exang, oldpeak; counted with grep
    "cleveland": [0] * 8 + nothing,
    "hungarian": [0, 0, 1, 23, 8, 1, 1, 0, *nothing],
    "switzerland": [0, 0, 2, 0, 75, 1, 1, 6, *nothing],
    "va": [0, 0, 56, 7, 7, 53, 53, 56, *nothing],
  }
  assert (source.x[:, 8:12].sum(1) == 1).all() and (source.x[:, 12:].sum(1) == 1).all()
  assert [len(part) for part in data.natural(source.groups)] == [303, 294, 123, 200]
  assert "switzerland: 123 rows, 115 with disease, 86 values missing" in source.notes[2]
  first = [63, 1, 145, 233, 1, 150, 0, 2.3, 1, 0, 0, 0, 0, 0, 1]
  np.testing.assert_allclose(source.x[0], first, rtol=1e-6)


@pytest.mark.slow
def test_each_hospital_is_standardised_by_its_own_training_rows():
  source = data.load("heart", real_data("uci-heart-disease"))
  parts = data.natural(source.groups)
  fed = data.federate(source.x, source.y, parts, KEY, num_classes=2, standardize=source.standardize)
  raw = data.federate(np.arange(920), source.y, parts, KEY, num_classes=2)  # the same rows, by number
  for i in range(4):
    rows = {name: np.asarray(view(raw, name, i)) for name in ("train", "test")}
    train = source.x[rows["train"]].astype(np.float64)
    mean, deviation = np.nanmean(train, 0), np.where(np.isnan(train), np.nanmean(train, 0), train).std(0)
    for name in rows:
      x = source.x[rows[name]]
      x = np.where(np.isnan(x), mean, x) - mean
      wanted = np.where(deviation > 1e-9, x / np.maximum(deviation, 1e-9), 0.0)
      np.testing.assert_allclose(view(fed, name, i), wanted, atol=1e-4)
    assert not np.asarray(view(fed, "test", 2))[:, 3].any()  # Switzerland's cholesterol: always 0


def view(fed, part, i):
  client = fed.clients(jnp.array(i), part)
  return client.take(jnp.arange(int(client.size)))[0]


def test_test_rows_change_nothing_in_training_rows():
  x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
  x[::7, 1] = np.nan
  y, parts = np.zeros(40, int), [np.arange(15), np.arange(15, 40)]
  settings = {"num_classes": 1, "valid_fraction": 0.2, "standardize": (0, 1)}
  one = data.federate(x, y, parts, KEY, **settings)
  split = data.federate(np.arange(40), y, parts, KEY, num_classes=1, valid_fraction=0.2)
  for part in ("valid", "test"):
    for i in range(2):
      x[np.asarray(view(split, part, i))] *= 100
  other = data.federate(x, y, parts, KEY, **settings)
  for i in range(2):
    np.testing.assert_array_equal(view(one, "train", i), view(other, "train", i))
    assert np.abs(view(one, "test", i) - view(other, "test", i)).max() > 10
    np.testing.assert_array_equal(view(one, "train", i)[:, 2], x[np.asarray(view(split, "train", i)), 2])


def test_constant_and_wholly_missing_columns_become_zero_and_nothing_is_nan():
  x = np.full((10, 3), 0.1, np.float32)
  x[:4, 0], x[:, 1] = np.nan, np.nan
  for standardize in ((), (0, 1, 2)):
    fed = data.federate(x, np.zeros(10, int), [np.arange(10)], KEY, num_classes=1, standardize=standardize)
    wanted = [0.0, 0.0, 0.0] if standardize else [0.1, 0.0, 0.1]
    np.testing.assert_allclose(fed.x, np.tile(wanted, (10, 1)), rtol=1e-6)
  assert np.isnan(x[0, 0])  # the caller's array is left alone


@pytest.mark.parametrize("x", [np.zeros((5, 2), np.uint8), np.zeros((5, 2, 2)), np.zeros((5, 1))])
def test_what_cannot_be_standardised_is_named(x):
  with pytest.raises(SettingError) as error:
    data.federate(x, np.zeros(5, int), [np.arange(5)], KEY, num_classes=1, standardize=(1,))
  assert error.value.setting == "standardize"


def test_missing_values_of_a_tiny_file(tiny):
  source = data.load("heart", tiny)
  assert source.y.tolist() == [0, 1] * 4
  nan = np.nan
  np.testing.assert_array_equal(source.x[1], [40, 0, nan, 0, nan, nan, nan, nan, 0, 0, 0, 1, 1, 0, 0])
  assert source.notes[0] == (
    "cleveland: 2 rows, 1 with disease, 6 values missing in the columns used, cholesterol 0 in 1 rows"
  )


@pytest.mark.parametrize(
  ("content", "problem"),
  [
    (LINE, "1 rows, not 2"),
    ("", "0 rows, not 2"),
    (LINE + LINE[:20], "line 2 is truncated or damaged: 5 fields, not 14"),
    ("age" + LINE[4:] + LINE, "line 1 .*'age' should be a number"),
    (LINE + LINE.replace("145.0", "inf"), "line 2 .*'inf' should be a number"),
    (LINE + LINE[:-2] + "5\n", "line 2 .*column 14 is 5"),
    (LINE + LINE[:-2] + "?\n", "line 2 .*column 14 is missing"),
    (b"\xff\xfe\n", "truncated or damaged"),
    (LINE + '"' + LINE, "truncated or damaged"),
  ],
)
def test_a_damaged_file_is_named(tiny, content, problem):
  file = path(tiny, "va")
  file.write_bytes(content if isinstance(content, bytes) else content.encode())
  with pytest.raises(DataError, match=rf"(?s){file}.*{problem}"):
    data.load("heart", tiny)


def test_missing_files_are_named(tiny):
  path(tiny, "hungarian").unlink()
  with pytest.raises(DataError, match=r"wants processed.hungarian.data too; looked in .*uci-heart-disease"):
    data.load("heart", tiny)
  with pytest.raises(DataError, match=r"(?s)processed.cleveland.data.*https://") as error:
    data.load("heart", tiny / "elsewhere")
  assert "TFDS" not in str(error.value) and str(tiny / "elsewhere") in str(error.value)


@pytest.mark.parametrize("name", ["heart", "digits", "mnist"])
def test_an_unknown_option_is_an_error(tmp_path, name):
  with pytest.raises(SettingError, match=f"option of dataset '{name}' = 'leaky': unknown.*it has none"):
    data.load(name, tmp_path, leaky=True)
