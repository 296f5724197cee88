"""Berka: the tables at hand, tables made here, and what comes after a loan."""

import csv
import gzip

import jax
import numpy as np
import pytest
from realdata import real_data

from fedjax_het import data
from fedjax_het.data import berka
from fedjax_het.errors import DataError, SettingError

REGIONS = {  # loans and bad ones, counted apart from the loader
  "Prague": (84, 7), "central Bohemia": (90, 10), "east Bohemia": (84, 9), "north Moravia": (117, 18),
  "south Bohemia": (60, 9), "south Moravia": (129, 13), "west Bohemia": (57, 9),
}  # fmt: skip
PAYEE = '"AB";"111"'

DISTRICT = ";".join(berka.HEADERS["district"])
TABLES = {  # four accounts: three with loans in Prague, one in the region that is dropped
  "district": [
    DISTRICT,
    '1;"Hl.m. Praha";"Prague";1000;0;0;0;1;1;100.0;12541;0.29;0.43;167;85677;99107',
    '2;"Jesenik";"north Bohemia";42821;4;13;5;1;3;48.4;8173;?;7.01;124;?;1358',
  ],
  "account": [
    '"account_id";"district_id";"frequency";"date"',
    '1;1;"POPLATEK MESICNE";930101',
    '2;1;"POPLATEK TYDNE";930101',
    '3;2;"POPLATEK PO OBRATU";930101',
    '4;1;"POPLATEK PO OBRATU";930102',
  ],
  "loan": [
    '"loan_id";"account_id";"date";"amount";"duration";"payments";"status"',
    '51;1;930201;96396;12;8033.00;"B"',
    '52;2;940101;30276;24;1261.50;"C"',
    '53;3;940101;30276;24;1261.50;"D"',
    '54;4;940101;30276;24;1261.50;"A"',
  ],
  "order": [
    '"order_id";"account_id";"bank_to";"account_to";"amount";"k_symbol"',
    f'61;1;{PAYEE};100.00;"SIPO"',
    '62;1;"YZ";"222";8033.00;"UVER"',
    f'63;2;{PAYEE};50.00;""',
  ],
  "trans": [
    ";".join(f'"{name}"' for name in berka.HEADERS["trans"]),
    '71;1;930115;"PRIJEM";"VKLAD";1000.00;1000.00;"";;',
    f'72;1;930201;"VYDAJ";"PREVOD NA UCET";100.00;900.00;"SIPO";{PAYEE}',
    '73;1;930202;"VYDAJ";"PREVOD NA UCET";8033.00;-7133.00;"UVER";"YZ";"222"',
    '74;2;930115;"PRIJEM";"VKLAD";700.00;700.00;"";;',
  ],
}


@pytest.fixture
def tiny(tmp_path, monkeypatch):
  """data_dir with `TABLES`, CRLF at the ends of lines as its authors have."""
  monkeypatch.setattr(berka, "ROWS", {name: len(lines) - 1 for name, lines in TABLES.items()})
  (tmp_path / "berka-pkdd99").mkdir()
  for name in TABLES:
    write(tmp_path, name, TABLES[name])
  return tmp_path


def write(folder, name, lines):
  path = folder / "berka-pkdd99" / f"{name}.asc"
  path.write_text("".join(f"{line}\r\n" for line in lines), newline="")
  return path


def test_the_real_tables():
  source = data.load("berka", real_data("berka-pkdd99"))
  assert source.x.shape == (621, len(berka.FEATURES)) == (621, 15)
  assert (source.x.dtype, source.y.dtype, source.num_classes) == (np.float32, np.int32, 2)
  regions = np.unique(source.groups)
  assert {r: ((source.groups == r).sum(), source.y[source.groups == r].sum()) for r in regions} == REGIONS
  assert [len(part) for part in data.natural(source.groups)] == [n for n, _ in REGIONS.values()]
  missing = np.isnan(source.x).sum(0)
  assert missing.tolist() == [0] * 9 + [621 - 67, 0, 621 - 148, 621 - 148, 0, 0]
  assert source.notes[0] == (
    "transactions: trans_head.asc.gz, partial, 49,102 of 1,056,320 rows, 930101 to 940331"
  )
  assert "district.asc, line 70" in source.notes[-1]  # district 69
  assert source.files[-1] == "trans_head.asc.gz"
  parts = data.natural(source.groups)
  for standardize in ((), source.standardize):
    fed = data.federate(source.x, source.y, parts, jax.random.key(0), num_classes=2, standardize=standardize)
    assert np.isfinite(fed.x).all()
  assert set(np.unique(fed.x[:, 13:]).tolist()) == {0.0, 1.0}


@pytest.mark.slow
def test_the_real_tables_by_another_way():
  """Every feature again, loan by loan, from dictionaries."""
  folder = real_data("berka-pkdd99")
  tables = {}
  for name in ("loan", "account", "district", "order", "trans"):
    path = folder / "berka-pkdd99" / (f"{name}.asc" if name != "trans" else "trans_head.asc.gz")
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", newline="") as file:
      tables[name] = list(csv.DictReader(file, delimiter=";"))
  accounts = {row["account_id"]: row for row in tables["account"]}
  districts = {row["A1"]: row for row in tables["district"]}
  loans = [
    row
    for row in tables["loan"]
    if districts[accounts[row["account_id"]]["district_id"]]["A3"] != "north Bohemia"
  ]
  of = {row["account_id"]: [] for row in loans}
  for row in tables["trans"]:
    if row["account_id"] in of:
      of[row["account_id"]].append(row)

  def mean(values):
    values = [float(value) for value in values if value != "?"]
    return np.mean(values) if values else np.nan

  for leaky in (False, True):
    source = data.load("berka", folder, leaky=leaky)
    for i, row in enumerate(loans):
      seen = [t for t in of[row["account_id"]] if leaky or t["date"] <= row["date"]]
      orders = [
        o
        for o in tables["order"]
        if o["account_id"] == row["account_id"]
        and (
          leaky
          or any(
            (t["bank"], t["account"], t["amount"]) == (o["bank_to"], o["account_to"], o["amount"])
            for t in seen
          )
        )
      ]
      account = accounts[row["account_id"]]
      d = districts[account["district_id"]]
      days = [np.datetime64(f"19{r['date'][:2]}-{r['date'][2:4]}-{r['date'][4:]}") for r in (row, account)]
      wanted = [
        float(row["amount"]), float(row["duration"]), float(row["payments"]), (days[0] - days[1]).astype(int),
        float(d["A4"]), float(d["A11"]), float(d["A14"]), mean([d["A12"], d["A13"]]),
        mean([d["A15"], d["A16"]]), mean(o["amount"] for o in orders), len(seen),
        mean(t["amount"] for t in seen), mean(t["balance"] for t in seen),
        account["frequency"] == "POPLATEK PO OBRATU", account["frequency"] == "POPLATEK TYDNE",
      ]  # fmt: skip
      np.testing.assert_allclose(source.x[i], np.array(wanted, np.float64), rtol=1e-6)
      assert source.y[i] == (row["status"] in "BD")


def test_tiny_tables_by_hand(tiny):
  source = data.load("berka", tiny)
  district, nan = [1000, 12541, 167, (0.29 + 0.43) / 2, (85677 + 99107) / 2], np.nan
  wanted = [
    [96396, 12, 8033, 31, *district, 100, 2, 550, 950, 0, 0],
    [30276, 24, 1261.5, 365, *district, nan, 1, 700, 700, 0, 1],
    [30276, 24, 1261.5, 364, *district, nan, 0, nan, nan, 1, 0],
  ]
  np.testing.assert_allclose(source.x, wanted, rtol=1e-6)
  assert source.y.tolist() == [1, 0, 0]
  assert source.groups.tolist() == ["Prague"] * 3
  assert source.notes[0] == "transactions: trans.asc, complete, 930115 to 930202"
  leaky = data.load("berka", tiny, leaky=True)
  wanted[0][9:13] = [(100 + 8033) / 2, 3, 9133 / 3, (1000 + 900 - 7133) / 3]
  wanted[1][9] = 50
  np.testing.assert_allclose(leaky.x, wanted, rtol=1e-6)
  assert "leaky" in leaky.notes[1]


def test_a_region_without_the_question_mark_year(tiny):
  write(tiny, "district", [DISTRICT, TABLES["district"][1], TABLES["district"][2].replace("north", "south")])
  source = data.load("berka", tiny)
  np.testing.assert_allclose(source.x[2, 7:9], [7.01, 1358], rtol=1e-6)
  assert source.groups.tolist() == ["Prague", "Prague", "south Bohemia", "Prague"]


@pytest.mark.parametrize("leaky", [False, True])
def test_a_transaction_after_the_loan_changes_nothing_unless_leaky(tiny, monkeypatch, leaky):
  before = data.load("berka", tiny, leaky=leaky)
  later = [
    '75;2;940102;"VYDAJ";"VYBER";9999.00;-9299.00;"";;',
    f'76;2;940110;"VYDAJ";"PREVOD NA UCET";50.00;-9349.00;"";{PAYEE}',
  ]
  write(tiny, "trans", TABLES["trans"] + later)
  monkeypatch.setitem(berka.ROWS, "trans", 6)
  after = data.load("berka", tiny, leaky=leaky)
  changed = ~np.isclose(before.x, after.x, equal_nan=True)
  assert changed.any() == leaky
  assert np.flatnonzero(changed.any(0)).tolist() == ([10, 11, 12] if leaky else [])
  np.testing.assert_array_equal(before.y, after.y)


def test_a_partial_table_is_taken_and_said(tiny):
  folder = tiny / "berka-pkdd99"
  (folder / "trans.asc").unlink()
  (folder / "trans_head.asc.gz").write_bytes(gzip.compress("\r\n".join(TABLES["trans"][:3]).encode()))
  source = data.load("berka", tiny)
  assert source.notes[0] == "transactions: trans_head.asc.gz, partial, 2 of 4 rows, 930115 to 930201"
  write(tiny, "trans", TABLES["trans"])  # the complete one comes first
  assert data.load("berka", tiny).files[-1] == "trans.asc"


@pytest.mark.parametrize(
  ("table", "lines", "problem"),
  [
    ("loan", TABLES["loan"][:-1], "3 rows, not 4"),
    ("loan", [], "0 rows, not 4"),
    ("loan", TABLES["account"], "line 1 is truncated or damaged: 4 fields, not 7"),
    ("loan", ["a;b;c;d;e;f;g", *TABLES["loan"][1:]], "line 1 is not the header .*loan_id;account_id"),
    ("loan", [*TABLES["loan"][:-1], '54;4;940101;30276;24;1261.50;"E"'], "line 5 .*status 'E'"),
    ("loan", [*TABLES["loan"][:-1], '54;9;940101;30276;24;1261.50;"A"'], "line 5 .*account 9"),
    ("loan", [*TABLES["loan"][:-1], '54;4;941301;30276;24;1261.50;"A"'], "line 5 .*'941301' is no date"),
    ("account", [*TABLES["account"][:-1], '4;1;"WEEKLY";930102'], "line 5 .*frequency 'WEEKLY'"),
    ("order", [*TABLES["order"][:-1], TABLES["order"][-1][:12]], "truncated or damaged"),
    ("trans", [*TABLES["trans"][:-1], TABLES["trans"][-1][:30]], "truncated or damaged"),
    ("trans", TABLES["trans"][:1], "0 rows, not 4"),
    ("trans", [*TABLES["trans"], TABLES["trans"][-1]], "5 rows, not 4"),
    ("trans", [*TABLES["trans"], TABLES["trans"][1].replace("930115", "soon")], "line 6 .*'soon' is no date"),
    ("trans", [*TABLES["trans"][:-1], TABLES["trans"][1].replace("1000.00", "much")], "line 5 .*'much'"),
  ],
)
def test_a_damaged_table_is_named(tiny, table, lines, problem):
  path = write(tiny, table, lines)
  with pytest.raises(DataError, match=f"(?s){path}.*{problem}"):
    data.load("berka", tiny)


@pytest.mark.parametrize("table", ["account", "district", "order", "trans"])
def test_a_missing_table_is_named(tiny, table):
  (tiny / "berka-pkdd99" / f"{table}.asc").unlink()
  with pytest.raises(DataError, match=rf"wants {table}.asc.* too; looked in .*berka-pkdd99"):
    data.load("berka", tiny)


def test_nothing_there_and_a_wrong_option(tmp_path):
  with pytest.raises(DataError, match=r"(?s)loan.asc, .*https://"):
    data.load("berka", tmp_path)
  with pytest.raises(SettingError, match="Did you mean 'leaky'"):
    data.load("berka", tmp_path, leeky=True)
