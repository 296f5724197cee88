"""The page that counts the papers' figures with ours beside them is what the script writes, and adds up."""

import csv
import re

import pytest

from benchmarks.papers import coverage, coverage_readers
from benchmarks.provenance import END, START, write_tables


@pytest.fixture(scope="module")
def known():
  return coverage.tables()


def test_the_page_is_what_the_script_writes():
  text = coverage.PAGE.read_text(encoding="utf-8")
  assert text == coverage.page(), "run python benchmarks/papers/coverage.py"
  total = re.fullmatch(
    r"total: (\d+) of 809 beside, (\d+) at the paper's size", text.rstrip().splitlines()[-1]
  )
  rows = re.findall(r"^\| .*? \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", text, re.M)
  sums = [sum(map(int, column)) for column in zip(*rows)]
  assert total and sums[:3] == [809, int(total[1]), int(total[2])] and sums[1] == sums[2] + sums[3]


def test_every_printed_figure_is_counted_once(known):
  figures = coverage.printed(known)
  assert len({*figures}) == len(figures) == 809
  prose = [figure for figure in figures if figure.table in coverage.OTHER_TABLES]
  with coverage.PROSE.open(newline="") as file:
    assert len(prose) == len([*csv.DictReader(file)]) == 30


def test_every_figure_that_is_left_is_in_one_part(known):
  figures = coverage.printed(known)
  found = coverage.beside(figures, known)
  missing = [figure for figure in figures if figure not in found]
  for figure in missing:
    parts = [
      own for own in coverage.LEFT if own.table == figure.table and {*own.where.items()} <= figure.keys
    ]
    assert len(parts) == 1, figure


def test_a_figure_counts_for_its_own_cell_and_at_its_own_size(known):
  table = known["table_2_7"]
  given = {"start": "0.4", "algorithm": "superfed_mm"}
  row = {"metrics": {"personalized": {"top1": {"mean": 0.9}}}, "rounds": 200, "num_clients": 100}
  (own,) = coverage_readers.of_run(table, given, row)
  assert own.full and own.metric == "top1" and ("start", "0.4") in own.keys
  (shorter,) = coverage_readers.of_run(table, given, row | {"rounds": 60})
  (fewer,) = coverage_readers.of_run(table, given, row | {"num_clients": 50})
  assert not shorter.full and not fewer.full
  assert not [*coverage_readers.of_run(table, given | {"start": "0.5"}, row)], "no cell of the table"


def test_a_figure_of_synthetic_examples_counts_at_the_rounds_of_the_thesis_or_of_the_commands(known):
  """FedCVAE's cell with 100 clients has T = 1000 in the commands and 500 in the thesis."""
  table = known["table_4_2"]
  given = {"dataset": "mnist", "alpha": "0.01", "clients": "100", "algorithm": "fedcvae"}
  judged = {"downstream": {"local": {"mean": 0.5, "std": 0.1}, "official": 0.5}}

  def full(rounds: int, clients: int = 100) -> bool:
    row = {"synthetic": judged, "rounds": rounds, "num_clients": clients}
    return {own.metric: own.full for own in coverage_readers.of_run(table, given, row)}["top1"]

  assert full(500) and full(1000) and not full(100) and not full(500, clients=50)


def test_tables_of_a_page_are_replaced_and_its_other_text_stays(tmp_path):
  page = tmp_path / "page.md"
  page.write_text(f"By hand.\n\n{START}\nold\n{END}\n\nBy hand, too.\n")
  for _ in range(2):
    write_tables(page, "| new |\n")
  assert page.read_text() == f"By hand.\n\n{START}\n\n| new |\n\n{END}\n\nBy hand, too.\n"
  write_tables(tmp_path / "other.md", "| new |")
  assert (tmp_path / "other.md").read_text() == f"{START}\n\n| new |\n\n{END}\n"
  for text in ("By hand.", f"By hand.\n{START}\n", f"{END}\n"):
    page.write_text(text)
    with pytest.raises(ValueError, match="lacks the marks"):
      write_tables(page, "| new |")
    assert page.read_text() == text
