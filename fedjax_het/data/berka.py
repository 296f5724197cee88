"""Berka, the PKDD'99 financial data: predict whether a loan goes bad. Seven Czech regions are the clients.

Its tables are text files separated by ";", with a header line and dates written as YYMMDD. A loan's status is
A (finished, paid), B (finished, not paid), C (running, paid so far) or D (running, in debt).

Source: Berka and Sochorova, PKDD'99 Discovery Challenge; the features are those of AAggFF's code, without its
use of transactions made after a loan was granted.
"""

from collections import defaultdict
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedjax_het.data.files import Source, check_rows, find, lacking, number, read_table
from fedjax_het.errors import DataError, reading

HEADERS = {
  "loan": ("loan_id", "account_id", "date", "amount", "duration", "payments", "status"),
  "account": ("account_id", "district_id", "frequency", "date"),
  "district": tuple(f"A{i}" for i in range(1, 17)),
  "order": ("order_id", "account_id", "bank_to", "account_to", "amount", "k_symbol"),
  "trans": (
    "trans_id", "account_id", "date", "type", "operation", "amount", "balance", "k_symbol", "bank", "account",
  ),
}  # fmt: skip
ROWS = {"loan": 682, "account": 4500, "district": 77, "order": 6471, "trans": 1_056_320}
DROPPED = "north Bohemia"
CUT = "trans_head"  # name of a transactions table that holds the beginning only
STATUS = {"A": 0, "B": 1, "C": 0, "D": 1}
FREQUENCIES = ("POPLATEK MESICNE", "POPLATEK PO OBRATU", "POPLATEK TYDNE")
FEATURES = (
  "loan amount", "duration", "payments", "days from account to loan", "A4 inhabitants", "A11 salary",
  "A14 entrepreneurs", "A12, A13 unemployment", "A15, A16 crimes", "mean order", "transactions",
  "mean transaction", "mean balance", "statement after transaction", "statement weekly",
)  # fmt: skip


def load_berka(folder: Path, leaky: bool = False) -> Source | None:
  """Loads 15 features of each loan, float32 [621, 15], and binary labels, int32 [621], 1 for a bad loan.

  `FEATURES` names the columns, and `groups` has the region of each loan.

  The statuses B and D have label 1, and A and C have label 0. Each region (column A3) is a client; "north
  Bohemia" (61 loans, one of them bad) is dropped. Columns 0 to 12 are to be standardised, the two dummies are
  not.

  The features of a loan use only what was known on the day it was granted: later transactions are left out.
  Orders have no date, so an order counts from its first payment, a transaction of the same account to the
  same bank and account; one without a payment by that day is left out, as is the loan's own repayment, which
  starts later and is an order of every loan account. A mean over no transaction or no order is NaN, which
  `federate` fills in. Crime and unemployment are means over two years, and a "?" in the district table is
  left out of them.

  Args:
    folder: the folder with the tables, .gz or not. Transactions are read from trans.asc, complete or cut at
      the end of a line, else from trans_head.asc; `Source.notes` says from which and how many rows it has.
    leaky: count all transactions and orders whatever their date, as the paper's code does.

  Returns:
    The data set, or None where `folder` has no loan table.

  Raises:
    DataError: a table is missing while others are present, is truncated, or differs from what its authors
      ship.
  """
  if find(folder, "loan.asc") is None:
    return None
  loans, accounts, districts, orders = (
    list(_rows(folder, name)) for name in ("loan", "account", "district", "order")
  )
  account_of = {fields[0]: (where, fields) for where, fields in accounts}
  district_of = {fields[0]: _district(where, fields) for where, fields in districts}
  last_day = {}
  for where, (_, account, day, *_, status) in loans:
    if account not in account_of or account_of[account][1][1] not in district_of or status not in STATUS:
      raise DataError(f"{where} is not what its authors ship: account {account}, status {status!r}.")
    last_day[account] = "999999" if leaky else day
  history = _history(folder, last_day)
  order_amounts = defaultdict(list)
  for where, (_, account, bank, payee, amount, _) in orders:
    if leaky or (account, bank, payee) in history.paid:
      order_amounts[account].append(number(where, amount))

  x, y, groups = [], [], []
  for where, (_, account, day, *terms, status) in loans:
    opened_at, (_, district, frequency, opened) = account_of[account]
    region, about = district_of[district]
    if region == DROPPED:
      continue
    if frequency not in FREQUENCIES:
      raise DataError(f"{opened_at} is not what its authors ship: frequency {frequency!r}.")
    age = (_date(where, day) - _date(opened_at, opened)).days
    amounts, balances = history.amounts[account], history.balances[account]
    past = [_mean(order_amounts[account]), len(amounts), _mean(amounts), _mean(balances)]
    dummies = [frequency == other for other in FREQUENCIES[1:]]
    x.append([*(number(where, term) for term in terms), age, *about, *past, *dummies])
    y.append(STATUS[status])
    groups.append(region)
  x_all, y_all = np.array(x, np.float32), np.array(y, np.int32)
  unknown = [where.rsplit("/")[-1] for where, fields in districts if "?" in fields]
  notes = (
    history.note,
    "every transaction and order counted, whatever its date (leaky)"
    if leaky
    else "counted: transactions up to the loan's day, and orders with a payment up to then",
    f"{len(y)} loans, {sum(y)} of them bad; {int((x_all[:, 10] > 0).sum())} have a transaction that counts,"
    f" {int((~np.isnan(x_all[:, 9])).sum())} an order; the means of the others are missing",
    f"'?' left out of the mean of two years: {', '.join(unknown) or 'nowhere'}",
    *lacking(x_all, np.array(groups), FEATURES),
  )
  return Source(
    x_all, y_all, x_all[:0], y_all[:0], 2, "berka", np.array(groups),
    tuple(sorted(path.name for name in HEADERS if (path := _path(folder, name)))), notes, tuple(range(13)),
  )  # fmt: skip


class _History(NamedTuple):
  """The transactions that count for each loan account: amounts, balances and payees, and a note."""

  amounts: dict[str, list[float]]
  balances: dict[str, list[float]]
  paid: set[tuple[str, str, str]]
  note: str


def _history(folder: Path, last_day: dict[str, str]) -> _History:
  """Reads the transactions; only those of account a dated up to `last_day[a]` (YYMMDD) count."""
  amounts, balances, paid = defaultdict(list), defaultdict(list), set()
  count, first, last = 0, "999999", ""
  for where, (_, account, day, _, _, amount, balance, _, bank, payee) in _rows(folder, "trans"):
    count, first, last = count + 1, min(first, day), max(last, day)
    if len(day) != 6 or not day.isdigit():
      raise DataError(f"{where} is not what its authors ship: {day!r} is no date YYMMDD.")
    if day <= last_day.get(account, ""):
      amounts[account].append(number(where, amount))
      balances[account].append(number(where, balance))
      paid.add((account, bank, payee))
  path = _path(folder, "trans")
  if not 0 < count <= ROWS["trans"]:
    check_rows(path, count, ROWS["trans"])
  whole = "complete" if count == ROWS["trans"] else f"partial, {count:,} of {ROWS['trans']:,} rows"
  return _History(amounts, balances, paid, f"transactions: {path.name}, {whole}, {first} to {last}")


def _path(folder: Path, name: str) -> Path:
  """Returns the path of the table `name`; raises `DataError` where it is missing."""
  path = find(folder, f"{name}.asc") or (find(folder, f"{CUT}.asc") if name == "trans" else None)
  if path is None:
    other = f" (or the beginning of it, {CUT}.asc)" if name == "trans" else ""
    raise DataError(f"berka wants {name}.asc, .gz or not,{other} too; looked in {folder.resolve()}.")
  return path


def _rows(folder: Path, name: str) -> Iterator[tuple[str, list[str]]]:
  """Yields the rows of a table without its header.

  The header is checked, and so is the number of rows, except that of "trans".
  """
  path, header, count = _path(folder, name), HEADERS[name], -1
  for where, fields in read_table(path, len(header), ";"):
    count += 1
    if count:
      yield where, fields
    elif tuple(fields) != header:
      raise DataError(f"{where} is not the header that its authors ship: {';'.join(header)}.")
  if name != "trans":
    check_rows(path, max(count, 0), ROWS[name])


def _district(where: str, fields: list[str]) -> tuple[str, list[float]]:
  """Returns the name of a district's region and the district's five features."""
  a4, *_, a11, a12, a13, a14, a15, a16 = (number(where, field) for field in fields[3:])
  return fields[2], [a4, a11, a14, _mean([a12, a13]), _mean([a15, a16])]


def _mean(values: list[float]) -> float:
  """Returns the mean of the values that are not NaN, or NaN where all are."""
  there = [value for value in values if value == value]
  return sum(there) / len(there) if there else float("nan")


def _date(where: str, text: str) -> date:
  """Parses a date written as YYMMDD in the years 1900 to 1999; raises `DataError` for anything else."""
  with reading(where, f"is not what its authors ship: {text[:20]!r} is no date YYMMDD"):
    return date(1900 + int(text[:2]), int(text[2:4]), int(text[4:]))
