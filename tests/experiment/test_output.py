"""Terminals that are not UTF-8, full or gone, and hostile text on the way to terminal, tables and pages."""

import csv
import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cases import with_every
from markdown_it import MarkdownIt
from rich.table import Table

from fedjax_het.output import escape, terminal

ROOT = Path(__file__).parents[2]
HOSTILE = (
  "\x1b[31mred\x1b[0m", "\x9b2J", "a\rb", "\x07", "\u202egnp.exe", "\udcff", "[red]x[/red]", ":smile:", "|",
  "a\nb", "\\input{x}", "$x$", "100 %", "&", "<script>alert(1)</script>", "<!--", "`x`", "*x*",
  "[a](javascript:b)",   "=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "＝1",
)  # fmt: skip


@pytest.fixture
def streams(monkeypatch):
  """Standard streams of an encoding on a device, and what reaches the devices."""

  class Device(io.RawIOBase):
    def __init__(self, fails):
      self.fails, self.content = fails, b""

    def writable(self):
      return True

    def write(self, data):
      if self.fails:
        raise OSError(self.fails, os.strerror(self.fails))
      self.content += bytes(data)
      return len(data)

  def make(encoding="utf-8", fails=0, error_fails=0, errors="strict"):
    devices = Device(fails), Device(error_fails)
    for name, device in zip(("stdout", "stderr"), devices):
      stream = io.TextIOWrapper(io.BufferedWriter(device), encoding, errors, line_buffering=True)
      monkeypatch.setattr(sys, name, stream)
    terminal.protect_streams()
    return devices

  return make


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "cp437", "cp936", "koi8-r"])
def test_an_encoding_without_our_signs_shows_look_alikes(streams, encoding):
  out, error = streams(encoding)
  terminal.say("12 ± 3 · λ – … θ ∞")
  terminal.say("λ", "\u4e2d\U0001f600", error=True)
  terminal.console(width=30).print(Table("a ± b", title="é"))
  shown = out.content.decode(encoding)
  assert shown.startswith(
    f"12 +/- 3 - lambda - ... {'θ' if encoding in ('cp936', 'mac_greek') else 'theta'} "
  )
  assert "a +/- b" in shown and "+---" in shown
  chinese = "\u4e2d" if encoding == "cp936" else "\\u4e2d"
  assert error.content.decode(encoding) == f"lambda\n{chinese}\\U0001f600\n"


def test_utf_8_shows_every_sign_and_a_name_that_is_none(streams):
  out, _ = streams(errors="surrogateescape")
  terminal.say("± λ \u4e2d", "name \udcff")
  print("name \udcff")
  assert out.content.decode().splitlines() == ["± λ \u4e2d", "name \\udcff", "name \\udcff"]


def test_a_choice_of_the_users_is_kept(streams):
  out, _ = streams("ascii", errors="replace")
  terminal.say("é")
  assert out.content == b"?\n"


def test_a_closed_pipe_is_no_news_and_a_full_disk_is_said_once(streams):
  for number, said in (
    (errno.EPIPE, b""),
    (errno.ENOSPC, b"Standard output cannot be written (No space left"),
  ):
    out, error = streams(fails=number)
    for _ in range(3):
      terminal.say("text")
      terminal.console().print("text")
      sys.stdout.flush()
    assert not out.content and error.content.startswith(said) and error.content.count(b"\n") == bool(said)


def test_both_streams_may_be_gone_or_closed(streams, monkeypatch):
  streams(fails=errno.ENOSPC, error_fails=errno.EPIPE)
  terminal.say("text")
  terminal.say("text", error=True)
  monkeypatch.setattr(sys, "stdout", None)
  terminal.protect_streams()
  terminal.say("text")
  terminal.console().print("text")
  opened = sys.stdout
  monkeypatch.undo()
  opened.close()


def test_protecting_twice_is_protecting_once(streams):
  streams()
  once = sys.stdout, sys.stderr
  terminal.protect_streams()
  assert (sys.stdout, sys.stderr) == once
  own = io.StringIO()
  assert terminal._protected(own, tells=True) is own  # such as a notebook's


@pytest.mark.parametrize("text", HOSTILE)
def test_no_control_character_reaches_a_terminal(text, streams):
  out, _ = streams()
  terminal.say(text)
  table = Table(text)
  table.add_row(text)
  console = terminal.console(width=200, highlight=False)
  console.print(text)
  console.print(table)
  console.out(text)
  shown = out.content.decode()
  assert not {*shown} & {chr(code) for code in escape._HIDDEN if chr(code) not in "\t\n"}
  if text.startswith(("[", ":")):
    assert shown.count(escape.terminal(text)) == 5  # neither markup nor an emoji


@pytest.mark.parametrize(
  "text",
  [
    "_i_ snake_case __b__ _",
    "# h",
    "&lt;b&gt; A &amp; B",
    "~~s~~",
    "![x](y) <b>",
    "`c`\\_x_",
    "1.5 ± 0.2 (K=5)",
  ],
)
def test_a_reader_of_markdown_sees_the_text_alone(text):
  (paragraph,) = [
    token for token in MarkdownIt().enable("strikethrough").parse(escape.markdown(text)) if token.children
  ]
  assert {token.type for token in paragraph.children} <= {"text", "text_special"}
  assert "".join(token.content for token in paragraph.children) == text


def test_bare_addresses_are_no_links_in_markdown():
  said = escape.markdown("https://a.example www.a.example a@a.example")
  assert said == r"https:\//a.example www\.a.example a\@a.example"


@pytest.mark.parametrize("text", HOSTILE)
def test_a_line_stays_one_line_and_opens_nothing(text):
  for own in (escape.one_line, escape.markdown, escape.latex, escape.latex_comment):
    assert len(own(text).splitlines()) <= 1
  assert not {*escape.html(text)} & {*"<>\"'"} and not {*escape.markdown(text)} & {*"<>"}
  left = escape.latex(text)
  for known in (r"\textbackslash{}", r"\textasciitilde{}", r"\textless{}", r"\textgreater{}", r"\textbar{}",
                "{[}", "{]}", "{*}", r"\&", r"\%", r"\$", r"\#", r"\_", r"\{", r"\}"):  # fmt: skip
    left = left.replace(known, "")
  assert not {*left} & {*"\\{}$&#%_^~[*"}


def test_formulas_are_text_and_numbers_numbers():
  formulas = ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", " =1", "＝1", "-cmd|' /C calc'!A0"]
  plain = ["-1", "+1e5", "-inf", "fedavg", "a-b", "", "0+1", "–"]
  out = io.StringIO()
  csv.writer(out).writerows(
    [map(escape.csv_field, [*formulas, *plain]), map(escape.csv_field, (-1.5, 2, None))]
  )
  first, second = csv.reader(io.StringIO(out.getvalue()))
  assert first == [f"'{text}" for text in formulas] + plain and second == ["-1.5", "2", ""]


@pytest.mark.slow
@pytest.mark.parametrize(
  "way", with_every(["ascii", "full", "closed pipe", "closed"], "ascii", "closed pipe")
)
def test_a_run_ends_with_0_and_its_files_whatever_shows_it(way, tmp_path):
  command = [sys.executable, "-m", "fedjax_het.run", "--config=configs/quickstart.py:algorithm=fedavg",
             "--config.rounds=2", "--config.model.hidden=8", "--config.local.epochs=1",
             f"--workdir={tmp_path}"]  # fmt: skip
  environment = os.environ | ({"PYTHONIOENCODING": "ascii"} if way == "ascii" else {})
  output = subprocess.PIPE
  if way == "full":
    if not Path("/dev/full").exists():
      pytest.skip("no /dev/full")
    output = os.open("/dev/full", os.O_WRONLY)
  elif way == "closed pipe":
    reader, output = os.pipe()
    os.close(reader)
  elif way == "closed":
    command = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
  done = subprocess.run(
    command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.PIPE, check=False
  )
  assert done.returncode == 0 and b"Traceback" not in done.stderr
  assert (tmp_path / "summary.json").exists()
