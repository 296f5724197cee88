"""Names that are made to do harm, in tables, on pages and on the terminal, stay names."""

import csv
import io
import logging
import re

import pytest
from run_folders import read_page, write_run
from test_output import HOSTILE

from fedjax_het.compare.content import content
from fedjax_het.compare.groups import grouped
from fedjax_het.compare.page import write_page
from fedjax_het.compare.plain import tables
from fedjax_het.compare.runs import find
from fedjax_het.experiment.report import report
from fedjax_het.output.terminal import console
from fedjax_het.program.command_line import as_text
from fedjax_het.tables import layout
from fedjax_het.tables.compare import Entry
from fedjax_het.tables.paper import Cell, Figure

UNSEEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
EVERYTHING = " ".join(HOSTILE)


def on_a_terminal(*what) -> str:
  out = io.StringIO()
  console(file=out, width=400).print(*what)
  return out.getvalue()


def table_of(text):
  """A table of which everything that is text is hostile."""
  cells = [Cell(method, {"key": text, "lr": "-0.1"}, {"top1": Figure(1.0)}) for method in (text, "B")]
  entries = [
    Entry(cell, text, Figure(1.0, 0.5), {} if place else {0: Figure(-2.0)}, {0: text} if place else {}, [])
    for place, cell in enumerate(cells)
  ]
  return entries, cells, "B", text, text, text


@pytest.mark.parametrize("text", [*HOSTILE, EVERYTHING])
def test_a_table_holds_hostile_text_as_text(text):
  entries, cells, than, title, made, changed = table_of(text)
  assert not UNSEEN.search(on_a_terminal(layout.drawn(entries, cells, than, title, made, changed)))
  markdown = layout.markdown(entries, cells, than, title, made, changed)
  assert not UNSEEN.search(markdown) and "<" not in markdown and "](" not in markdown.replace(r"\]", "")
  rows = [line for line in markdown.splitlines() if line.startswith("|")]
  assert len({len(re.findall(r"(?<!\\)\|", row.replace(r"\\", ""))) for row in rows}) == 1
  assert markdown.splitlines()[0].startswith("# ") and not re.search(r"(?<!\\)`", markdown)
  latex = layout.latex(entries, cells, than, title, made, changed)
  assert not UNSEEN.search(latex)
  inside = latex[latex.index(r"\toprule") : latex.index(r"\end{tabular}")].replace(" \\\\\n", "\n")
  known = r"toprule|midrule|bottomrule|text[a-z]+\{\}|[\\&%$#_{}]|pm"
  assert not re.search(rf"\\(?!{known})", inside)
  outside = latex.partition(r"\begin{tabular}")[0] + latex.rpartition(r"\end{tabular}")[2]
  assert all(line.startswith("%") for line in outside.splitlines() if line)
  for field in (
    field for row in csv.reader(io.StringIO(layout.as_csv(entries, cells, than, changed))) for field in row
  ):
    assert not UNSEEN.search(field)
    assert not re.match(r"\s*[-=+@＝]", field) or re.fullmatch(r"-\d+\.\d+", field), field


@pytest.mark.parametrize("text", [EVERYTHING, "</script><script>alert(1)</script>"])
def test_a_page_holds_hostile_text_as_text(text, tmp_path):
  write_run(tmp_path / "a", dataset=text, algorithm__name=text, local__note=text, line={text: 1.0})
  write_run(tmp_path / "b", seed=1)
  groups = grouped(find([tmp_path]))
  page = write_page(content(groups), tmp_path / "page.html", title=text)
  written = page.read_text(encoding="utf-8")
  assert "<script>alert" not in written and "<!--" not in written.rpartition("<script type=")[2]
  assert read_page(page)["runs"][0]["curves"].keys() > {"round"}
  assert not UNSEEN.search(on_a_terminal(tables(groups)))


def test_the_report_of_a_run_holds_hostile_text_as_text():
  summary = {"algorithm": EVERYTHING, "mixing": "[red]x[/red]", "dataset": EVERYTHING, "metrics": {}}
  out = on_a_terminal(report(summary))
  assert not UNSEEN.search(out) and "[red]x[/red]" in out


def test_a_message_of_the_log_is_text():
  record = logging.LogRecord("x", logging.WARNING, "x", 1, "a file %s", (EVERYTHING,), None)
  assert as_text(record) and not UNSEEN.search(record.getMessage()) and "[red]x" in record.getMessage()
