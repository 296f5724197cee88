"""Tables of one's own: what columns become, names, splits, and bad input, which is named and remedied."""

import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het.data.columns import encode
from fedjax_het.data.encoder import Encoder
from fedjax_het.data.table import read_source

pd = pytest.importorskip("pandas")
CITIES = ("Oslo", "Köln", "Århus")


def frame(rows=60, seed=0):
  rng = np.random.default_rng(seed)
  age = rng.normal(60, 12, rows).round(1)
  age[::7] = np.nan
  return pd.DataFrame({
    "hospital": np.array(CITIES)[np.arange(rows) % 3],
    "age": age,
    "pressure": rng.integers(90, 180, rows),
    "smoker": np.array(["yes", "no", None], object)[rng.integers(0, 3, rows)],
    "seen": [f"2024-01-{1 + day:02d}" for day in rng.integers(0, 28, rows)],
    "diagnosis": np.array(["ill", "well"])[rng.integers(0, 2, rows)],
  })  # fmt: skip


def written(tmp_path, table=None, name="hospitals.csv", **how):
  path = tmp_path / name
  (frame() if table is None else table).to_csv(path, index=False, **how)
  return path


def test_label_and_client_are_enough(tmp_path):
  data = fh.data.from_table(written(tmp_path), label="diagnosis", client="hospital")
  encoder = data.encoder
  assert encoder.clients == ("Köln", "Oslo", "Århus") and encoder.labels == ("ill", "well")
  assert [feature for column in encoder.columns for feature in column.features] == [
    "age", "age is missing", "pressure", "smoker=no", "smoker=yes", "smoker is missing", "seen",
  ]  # fmt: skip
  assert repr(data) == (
    "FederatedData(hospitals: 3 clients, 48 / 0 / 12 rows to train / validate / test on, examples float32"
    " [7], 2 classes)"
  )
  x = np.asarray(data.x)[data.train.rows()]
  gone = x[:, 1] == 1
  assert gone.any() and (x[gone, 0] == 0).all()
  np.testing.assert_allclose(x[:, [0, 2, 6]].mean(0), 0, atol=1e-6)
  np.testing.assert_allclose(x[:, [0, 2, 6]].std(0), 1, atol=1e-6)


def test_each_row_is_encoded_again_as_it_was_laid_out(tmp_path):
  """Against NumPy: constants are of training rows alone, of all clients or of the client."""
  table = frame()
  table["set"] = np.where(np.arange(60) % 5 == 4, "test", "train")
  for standardize in ("all", "client"):
    data = fh.data.from_table(
      table, label="diagnosis", client="hospital", split="set", standardize=standardize
    )
    encoder = Encoder.of_arrays(data.encoder.arrays())
    for number, name in enumerate(encoder.clients):
      own = table[table.hospital == name]
      test = np.asarray(data.x)[data.test.rows(np.array([number]))]
      again = encoder.encode(own[own["set"] == "test"].sample(frac=1, random_state=1), number)
      assert {tuple(row) for row in test} == {tuple(row) for row in again}
      train = table[table["set"] == "train"] if standardize == "all" else own[own["set"] == "train"]
      held = own[own["set"] == "test"].pressure.to_numpy()
      wanted = (held - train.pressure.mean()) / train.pressure.std(ddof=0)
      np.testing.assert_allclose(np.sort(test[:, 2]), np.sort(wanted), rtol=1e-5, atol=1e-6)


def test_parquet_words_and_a_table_without_clients(tmp_path):
  pytest.importorskip("pyarrow")
  table = frame()
  table["note"] = [f"patient {i} coughs" for i in range(60)]
  table.to_parquet(tmp_path / "t.parquet")
  said = []
  data = fh.data.from_table(
    tmp_path / "t.parquet", label="diagnosis", num_clients=4, drop=("hospital",), tell=said.append
  )
  assert data.num_clients == 4 and not data.encoder.clients
  assert any("column 'note' has 60 different texts and is left out" in one for one in said)
  counted = fh.data.from_table(tmp_path / "t.parquet", label="diagnosis", client="hospital", text="note")
  assert counted.x.shape[1] == data.x.shape[1] + 64
  (tmp_path / "cut.parquet").write_bytes((tmp_path / "t.parquet").read_bytes()[:500])
  with pytest.raises(fh.DataError, match=r"cut.parquet cannot be read, it is truncated"):
    fh.data.from_table(tmp_path / "cut.parquet", label="diagnosis")


@pytest.mark.parametrize(("label", "names"), [
  ([2, 7] * 30, (2, 7)), ([1.0, 3.0] * 30, (1, 3)), ([True, False] * 30, (False, True)),
  (["b ", "a"] * 30, ("a", "b")),
])  # fmt: skip
def test_labels_keep_their_names(label, names):
  data = fh.data.from_table(frame().assign(diagnosis=label), label="diagnosis", client="hospital")
  assert data.encoder.labels == names and set(np.unique(data.y)) == {0, 1}


def test_small_clients_work(tmp_path):
  table = frame()
  table.loc[0, "hospital"] = "Bergen"  # one row, and so no test row
  table.loc[table.hospital == "Oslo", "diagnosis"] = "ill"
  table.loc[table.hospital == "Köln", "age"] = np.nan
  said = []
  data = fh.data.from_table(table, label="diagnosis", client="hospital", tell=said.append)
  assert data.num_clients == 4 and int(data.test.size[0]) == 0
  assert "table: Köln has no value of age in any row: it becomes 0" in said


def half_empty(table):
  return table.assign(diagnosis=[None, "ill"] * 30)


@pytest.mark.parametrize(("change", "more", "message"), [
  (half_empty, {}, r"column 'diagnosis', row 1: no label; 30 of 60 rows.*unlabelled='drop'"),
  (lambda t: t.assign(diagnosis=np.arange(60) + 0.5), {}, r"row 1: 0.5 is no class.*fh.tasks.regression"),
  (lambda t: t.assign(diagnosis=np.arange(60)), {}, "60 different values in 60 rows"),
  (lambda t: t.assign(diagnosis="ill"), {}, "one value, 'ill', in all rows"),
  (lambda t: t.assign(hospital=[None] + ["Oslo"] * 59), {}, "column 'hospital', row 1: nobody's row"),
  (lambda t: t.assign(cost=["1,234"] + ["7"] * 59), {}, r"column 'cost', row 1: '1,234' is no number.*thous"),
  (lambda t: t.assign(cost=["7"] * 59 + ["?"]), {}, r"column 'cost', row 60: '\?' is no number.*missing="),
  (lambda t: t.assign(set="valid"), {"split": "set"}, "row 1: 'valid' is none of train"),
  (lambda t: t, {"split": "sets"}, "split = 'sets': unknown"),
  (lambda t: t, {"standardize": "each"}, "standardize = 'each': unknown"),
  (lambda t: t, {"split": "diagnosis"}, "split = 'diagnosis': names the column that label names"),
  (lambda t: t, {"numeric": "age", "drop": ("age",)}, "drop = 'age': names the column that numeric names"),
  (lambda t: t.assign(diagnosis=[np.inf, 1] * 30), {}, "row 1: inf is no class"),
  (lambda t: t[["hospital", "diagnosis"]], {}, "no column to learn from"),
  (lambda t: t.iloc[:0], {}, "has no rows"),
  (lambda t: t.assign(seen="31.12.2024"), {}, r"csv, column 'seen', row 1: '31.12.2024' may be.*2024-12-31"),
  (lambda t: t.assign(seen=[None] + ["1/2/2024"] * 59), {}, r"'seen', row 2: '1/2/2024' may be a date"),
  (lambda t: t.assign(age=[1.0] * 59 + [np.inf]), {}, r"csv, column 'age', row 60: inf is infinite.*missing"),
])  # fmt: skip
def test_what_cannot_be_is_named(tmp_path, change, more, message):
  with pytest.raises((fh.DataError, fh.SettingError), match=message):
    fh.data.from_table(written(tmp_path, change(frame())), label="diagnosis", client="hospital", **more)


def test_words_for_missing_values_hold_in_frames_and_for_later_rows(tmp_path):
  table = frame().assign(cost=["?", "7", "8.5"] * 20)  # also a column of numbers that are written as texts
  how = {"label": "diagnosis", "client": "hospital", "missing": ("?",)}
  of_file, of_frame = (fh.data.from_table(own, **how) for own in (written(tmp_path, table), table))
  np.testing.assert_array_equal(of_file.x, of_frame.x)
  encoder = Encoder.of_arrays(of_frame.encoder.arrays())
  assert "cost is missing" in [feature for column in encoder.columns for feature in column.features]
  again = encoder.encode(table.assign(smoker="?"))
  np.testing.assert_array_equal(again, encoder.encode(table.assign(smoker=None, cost=[None, 7, 8.5] * 20)))
  with pytest.raises(fh.DataError, match=r"'age', row 1: 'old' is no number. Write a number, or leave"):
    encoder.encode(table.assign(age="old"))
  with pytest.raises(
    fh.SettingError, match=r"rows = 'new.csv': is a path, no table. Read it: pandas.read_csv"
  ):
    encoder.encode("new.csv")
  with pytest.raises(
    fh.SettingError, match=r"delimiter = ';': is for files that are read as CSV, and the table"
  ):
    fh.data.from_table(table, **how, delimiter=";")


def test_a_column_of_amounts_as_label_is_noted():
  table, said = frame().assign(diagnosis=[*range(30)] * 2), []
  fh.data.from_table(table, label="diagnosis", client="hospital", tell=said.append)
  assert any("'diagnosis' has 30 different numbers, each a class of its own" in one for one in said)


def test_files_as_people_have_them(tmp_path):
  path = written(tmp_path, encoding="latin-1")
  with pytest.raises(fh.DataError, match=r"hospitals.csv, line 3: byte 0xf6 is not utf-8.*latin-1"):
    fh.data.from_table(path, label="diagnosis", client="hospital")
  latin = fh.data.from_table(path, label="diagnosis", client="hospital", encoding="latin-1")
  assert "Köln" in latin.encoder.clients
  table = frame().assign(cost=["1.234,5"] * 60)
  path = written(tmp_path, table, sep=";")
  with pytest.raises(fh.DataError, match="delimiter=';'"):
    fh.data.from_table(path, label="diagnosis", client="hospital")
  how = {"delimiter": ";", "decimal": ",", "thousands": "."}
  source = read_source(path, label="diagnosis", client="hospital", drop="age", **how)
  assert 1234.5 in source.x[0]
  path.write_text("a,b,a\n1,2,3\n")
  with pytest.raises(fh.DataError, match="two columns called 'a'"):
    fh.data.from_table(path, label="b")
  path.write_text('a,b\n1,"2\n')
  with pytest.raises(fh.DataError, match=r"hospitals.csv"):
    fh.data.from_table(path, label="b")
  with pytest.raises(fh.DataError, match="no such file"):
    fh.data.from_table(tmp_path / "none.csv", label="b")
  with pytest.raises(fh.DataError, match=r"a.xlsx is a spreadsheet. Save it as CSV"):
    fh.data.from_table(tmp_path / "a.xlsx", label="b")
  path.write_text("hospital,age,diagnosis\nOslo,1,ill\nOslo,2,well,9\n")
  with pytest.raises(fh.DataError, match=r"hospitals.csv cannot be read.*Expected 3 fields in line 3, saw 4"):
    fh.data.from_table(path, label="diagnosis")
  twice = frame().rename(columns={"age": "pressure"})
  with pytest.raises(fh.DataError, match="table has two columns called 'pressure'"):
    fh.data.from_table(twice, label="diagnosis", client="hospital")
  path = written(tmp_path, frame().assign(cost=[f"1,{i:03d}" for i in range(60)]))
  source = read_source(path, label="diagnosis", client="hospital", drop="age", thousands=",")
  assert 1059.0 in source.x[-1]
  for encoding in ("utf-16", "utf-8-sig"):
    path.write_bytes(frame().to_csv(index=False).encode(encoding))
    if encoding == "utf-16":
      with pytest.raises(fh.DataError, match=r"line 1: byte 0xff is not utf-8.*'utf-16'"):
        fh.data.from_table(path, label="diagnosis", client="hospital")
    how = {"encoding": encoding} if encoding == "utf-16" else {}
    assert fh.data.from_table(path, label="diagnosis", client="hospital", **how).num_clients == 3
  dropped = fh.data.from_table(
    half_empty(frame()).assign(diagnosis=[None, "ill", "well"] * 20), label="diagnosis", unlabelled="drop"
  , num_clients=2)  # fmt: skip
  assert len(dropped.y) == 40


def test_a_file_s_ending_says_how_it_is_read_unless_the_delimiter_is_named(tmp_path):
  how = {"label": "diagnosis", "client": "hospital"}
  wanted = read_source(written(tmp_path), **how)
  for name, sign, more in (
    ("a.tsv", "\t", {}), ("a.TSV", "\t", {}), ("b.tsv", ";", {"delimiter": ";"}), ("c.CSV", ",", {}),
  ):  # fmt: skip
    found = read_source(written(tmp_path, name=name, sep=sign), **how, **more)
    np.testing.assert_array_equal(found.x, wanted.x)
  frame().to_parquet(tmp_path / "d.PARQUET")
  np.testing.assert_array_equal(read_source(tmp_path / "d.PARQUET", **how).x, wanted.x)
  with pytest.raises(fh.DataError, match=r"one column.*delimiter=';'"):
    read_source(tmp_path / "b.tsv", **how)


def test_new_rows_are_checked():
  columns = read_source(frame(), label="diagnosis", client="hospital").columns
  row = {"age": [50], "pressure": [120], "smoker": ["no"], "seen": ["2024-03-01"]}
  assert encode(columns, row).shape == (1, 7)
  for change, message in [
    ({"smoker": ["si"]}, "rows, column 'smoker', row 1: 'si' is none of the values in training: no, yes"),
    ({"pressure": ["high"]}, "column 'pressure', row 1: 'high' is no number"),
    ({"seen": ["May"]}, "column 'seen', row 1: 'May' is no date"),
  ]:
    with pytest.raises(fh.DataError, match=message):
      encode(columns, row | change)
  for change in ({"age": 50}, {"pressure": [120, 130]}):
    with pytest.raises(fh.DataError, match=r"not one for each row. Give each column a list"):
      encode(columns, row | change)
  with pytest.raises(fh.DataError, match="lacks the column 'age'"):
    encode(columns, {"pressure": [120]})


def test_numbers_are_predicted(tmp_path):
  data = fh.data.from_table(frame(), label="pressure", client="hospital", task=fh.tasks.regression())
  assert data.y.dtype == np.float32 and data.num_classes == 1


def test_a_configuration_names_the_file(tmp_path):
  """The same rows as from Python, and what is missing or without effect is named."""
  from fedjax_het.config.plan import plan
  from fedjax_het.config.quickstart import get_config
  from fedjax_het.experiment.build import build

  config = get_config("algorithm=fedavg").to_dict()
  options = {"label": "diagnosis", "client": "hospital"}
  config |= {"dataset": f"file:{written(tmp_path)}", "dataset_options": options, "num_clients": None}
  config |= {"partition": {"name": "natural"}, "cohort_size": 2}
  built = build(plan(config))
  whole = fh.data.from_table(tmp_path / "hospitals.csv", **options)
  assert built.data.encoder.clients == whole.encoder.clients and built.data.x.shape == whole.x.shape
  assert built.data.encoder.columns == whole.encoder.columns
  for change, message in [
    ({"dataset": "fil:x.csv"}, "dataset = 'fil:x.csv': is a path.*Write dataset=file:x.csv for a file of"),
    ({"dataset_options": {"client": "hospital"}}, "dataset_options.label = None: is missing"),
    ({"dataset_options": {"labels": "x"}}, "labels"),
    ({"partition": {"name": "iid"}, "num_clients": 3}, "does not use the column dataset_options.client"),
    (
      {"dataset_options": {"label": "diagnosis"}},
      "Name the column that does: --config.dataset_options.client=",
    ),
  ]:
    with pytest.raises(fh.SettingError, match=message):
      build(plan(config | change))
  written(tmp_path, frame().assign(diagnosis=[None, "ill", "well"] * 20))
  message = "unlabelled='drop'. In configurations, unlabelled is --config.dataset_options.unlabelled."
  with pytest.raises(fh.DataError, match=message):
    build(plan(config))


@pytest.mark.parametrize("bad", [3, 2.5, b"x", [1, 2], {"a": 1}, np.zeros(3), object(), float("nan"), [None]])
def test_what_is_no_setting_is_refused(bad):
  """Whatever a user passes ends in the library's own error, or works."""
  names = ("table", "label", "client", "key", "numeric", "categorical", "text", "drop", "standardize",
           "split", "unlabelled", "task", "encoding", "delimiter", "missing", "min_size")  # fmt: skip
  refused = 0
  for name in names:
    given = {"table": frame(), "label": "diagnosis", "client": "hospital", name: bad}
    try:
      fh.data.from_table(**given)
    except (fh.SettingError, fh.DataError):
      refused += 1
  assert refused >= 12
  for function in (fh.data.from_folder, fh.load_model, fh.load_run):
    with pytest.raises(fh.SettingError, match="is no path"):
      function(bad)
  with pytest.raises(fh.SettingError, match="num_clients = None: is missing"):
    fh.data.from_table(frame(), label="diagnosis")
