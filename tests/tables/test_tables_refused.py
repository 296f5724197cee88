"""What a table's command, files and folder may hold that they should not: refused, said, or left alone."""

import csv
import io
import json

import pytest
from rich.console import Console
from tiny_table import CONFIG, PRINTED, SHOWN, made, unchanged

from fedjax_het.config.cell import parse_cell
from fedjax_het.config.override import change
from fedjax_het.errors import SettingError
from fedjax_het.program.where import Where
from fedjax_het.tables import layout, reproduce
from fedjax_het.tables.board import Board
from fedjax_het.tables.compare import entries, read
from fedjax_het.tables.launcher import check_changes, parse_seeds, told_of
from fedjax_het.tables.paper import Relative, chosen, method_of, parse_where, read_table, with_keys
from fedjax_het.tables.runs import Program, ended, programs

BROKEN = [  # what may stand in a config.json that no run of ours has written
  "[1, 2]", "5", '"x"', "null", "{", '{"a.b": {"c": [1]}}', '{"sweep": {"seed": [0, 1]}}',
  '{"sweep": {"seed": [0]}, "config": 3}', '{"sweep": 5, "config": {}}',
  '{"sweep": {"seed": 5}, "config": {}}',
  '{"sweep": {"seed": []}, "config": {}}', '{"sweep": {"no.such": [1]}, "config": {"seed": 0}}',
  '{"sweep": {}, "config": {}}', '{"sweep": {"seed": [0]}, "config": {"a.b": 1}}',
]  # fmt: skip


@pytest.fixture
def table(tmp_path):
  return table_of(tmp_path)


def table_of(folder, config=CONFIG, printed=PRINTED, encoding="utf-8"):
  (folder / "tiny.py").write_text(config)
  (folder / "tiny.csv").write_text(printed, encoding=encoding)
  return read_table(folder / "tiny.py")


def run_of(folder, one, **contents):
  """A folder of a wanted run, with what some of its files hold."""
  folder.mkdir(parents=True)
  (folder / "config.json").write_text(json.dumps(dict(one.plan.written)))
  for name, text in contents.items():
    (folder / f"{name}.json").write_text(text)


def test_a_key_of_where_twice():
  with pytest.raises(SettingError, match=r"algorithm=ditto\|scaffold"):
    parse_where("algorithm=ditto,algorithm=scaffold")
  with pytest.raises(SettingError, match=r"lr=0\.1\|0\.2\|0\.3"):
    parse_where("lr = 0.1|0.2, lr=0.3")


def test_what_is_no_column_is_a_cell_s_key(table):
  with pytest.raises(SettingError, match=r"where's key = 'alpha'.*--cell=alpha=1\.0"):
    chosen(table.cells, parse_where("alpha=1.0"))
  for text, named in (
    ("alpha", r"^cell = .*--cell=key=value"),
    ("alpha=1,alpha=2", r"^cell = .*Give it once"),
  ):
    with pytest.raises(SettingError, match=named):
      with_keys(table, table.cells, text)


def test_a_key_of_a_cell_twice():
  defaults = {"dataset": "mnist", "clients": 100}
  assert parse_cell("clients=50, dataset=cifar10", defaults) == {"dataset": "cifar10", "clients": 50}
  for text in ("dataset=mnist,dataset=cifar10", "clients=5, clients =5"):
    with pytest.raises(SettingError, match=r"is given twice.*Give it once\."):
      parse_cell(text, defaults)


def test_seeds_that_are_no_whole_numbers():
  assert parse_seeds(["0", "12"]) == [0, 12]
  for text in ("--5", "1.5", "a", "²", "9" * 5000):
    with pytest.raises(SettingError, match=r"^seeds = .*whole numbers"):
      parse_seeds(["0", text])


def test_the_seed_is_no_change():
  with pytest.raises(SettingError, match=r"^config\.seed = 7: .* Use --seeds=7\.$"):
    check_changes({"seed": 7})


def test_a_method_by_either_name(table):
  assert [method_of(name, table.cells) for name in ("", "FedPer", "fedper")] == ["", "FedPer", "FedPer"]
  with pytest.raises(SettingError, match=r"^against = 'fedpr': unknown\. Did you mean 'fedper'"):
    method_of("fedpr", table.cells)


@pytest.mark.parametrize("name", ["tiny.csv", "", ".", "tiny", "tiny.py:lr=0.1"])
def test_what_is_no_configuration_file(table, tmp_path, name):
  with pytest.raises(SettingError, match=r"^table = .* is not a \.py file.*configs/table_2_3\.py"):
    read_table(tmp_path / name if name else "")


@pytest.mark.parametrize("line", ["import nosuchmodule", "x = ", "1 / 0", "nosuchname"])
def test_a_configuration_file_that_cannot_be_read(tmp_path, line):
  with pytest.raises(SettingError, match=r"tiny\.py'\)?: cannot be read \(\w+Error: .*Mend it"):
    table_of(tmp_path, CONFIG + line)


def test_a_get_config_that_raises(tmp_path):
  line = '  if "fedavg" in cell:\n    raise TypeError("oops")\n'
  head, sign, rest = CONFIG.partition(":\n")
  found = table_of(tmp_path, head + sign + line + rest)
  with pytest.raises(SettingError, match=r"table = .*fedavg.*: .*tiny.py cannot make it \(TypeError: oops\)"):
    found.get_config("algorithm=fedavg")
  assert found.get_config("algorithm=ditto")


def test_a_method_that_no_run_has(table, tmp_path):
  with pytest.raises(SettingError, match="against = 'scafold'"):
    reproduce.reproduce(table, [], tmp_path / "runs", than="scafold")


@pytest.mark.parametrize(
  ("printed", "named"),
  [
    (PRINTED + "FedPer,fedper,0.2,top1,90,1,7\n", "line 7 has not as many fields"),
    (PRINTED + "FedPer,fedper,0.2\n", "line 7 has not as many fields"),
    (PRINTED.splitlines()[0] + "\n", r"tiny\.csv': has no cells"),
    (PRINTED.replace("80.5", "nan"), "'nan' is no figure"),
    (PRINTED.replace("2.5", "inf"), "'inf' is no figure"),
  ],
)
def test_lines_that_are_no_cells(tmp_path, printed, named):
  with pytest.raises(SettingError, match=named):
    table_of(tmp_path, printed=printed)


def test_a_csv_as_a_spreadsheet_writes_it(table, tmp_path):
  assert table_of(tmp_path, encoding="utf-8-sig").cells == table.cells
  with pytest.raises(SettingError, match="UTF-8"):
    table_of(tmp_path, printed=PRINTED.replace("FedPer", "FédPer"), encoding="latin-1")


@pytest.mark.parametrize(
  "source", ['"metrics.top1"', '("metrics.top1",)', '("metrics.top1", "100")', "(1, 2)"]
)
def test_a_metric_without_a_path_and_a_factor(tmp_path, source):
  config = CONFIG.replace('("metrics.personalized.top1", 100.0)', source)
  with pytest.raises(SettingError, match=r"^FIGURES\['top1'\] = .*is not \(dotted path, factor\)"):
    table_of(tmp_path, config)


@pytest.mark.parametrize("text", BROKEN)
def test_another_program_s_config_is_left_alone(table, tmp_path, text):
  wanted = reproduce.wanted(table, table.cells[:1], [0, 1], unchanged)
  folder = tmp_path / "runs"
  run_of(folder / "mine", wanted[0], summary="{}")
  for name in ("other", "other/members/seed=0"):
    (folder / name).mkdir(parents=True)
    (folder / name / "config.json").write_text(text)
    (folder / name / "summary.json").write_text("{}")
  assert folder / "mine" in ended(folder).values()
  assert [len(program.runs) for program in programs(wanted, folder)] == [1]
  reproduce.show(table, wanted, folder, "FedAvg")


@pytest.mark.parametrize("text", ["[]", "5", '"x"', "{"])
def test_a_damaged_end_is_none(table, tmp_path, text):
  (wanted,) = reproduce.wanted(table, table.cells[:1], [0], unchanged)
  run_of(tmp_path / "run", wanted, summary=text)
  assert not ended(tmp_path) and programs([wanted], tmp_path)[0].folder == tmp_path / "run"
  assert entries(table, [wanted], ended(tmp_path))[0].missing == [0]
  (tmp_path / "run" / "failed.json").write_text('{"failed": "diverged: nan\\n in round 3."}')
  assert entries(table, [wanted], ended(tmp_path))[0].failed == {0: "diverged: nan in round 3"}


@pytest.mark.parametrize(
  "text",
  [
    '{"metrics": {}}', '{"metrics": [1]}', '{"metrics": {"personalized": {"top1": {"mean": "0.5"}}}}',
    '{"metrics": {"personalized": {"top1": true}}, "seconds": {"train": "long"}}',
    '{"seconds": 5, "diverged": true}', '{"seconds": [], "diverged": {}}', '{"failed": 5}',
  ],
)  # fmt: skip
def test_a_summary_without_what_is_asked_of_it(table, tmp_path, text):
  """It says so in the table, and tells the board nothing; the others go on."""
  wanted = reproduce.wanted(table, table.cells[:1], [0], unchanged)
  run_of(tmp_path / "run", wanted[0], summary=text)
  found = reproduce.reproduce(table, wanted, tmp_path, Where(devices=1))
  assert not found[0].ours and found[0].failed[0]
  (row, _) = csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text()))
  assert row["ours"] == "" and row["missing"] == f"seed 0: {found[0].failed[0]}"
  todo = [Program(tmp_path, wanted[0].plan, {}, wanted)]
  board = Board(todo, [(wanted[0].plan, json.loads(text))], Console(file=io.StringIO()))
  assert board.left() == "time left not known yet"


def test_only_numbers_are_figures():
  for value in ("0.5", True, [1.0], {"mean": "0.5"}, {"mean": [1]}, {"mean": None}, float("inf")):
    assert read({"a": value}, ("a", 1.0)) is None
  assert read({"a": {"mean": 0.5, "std": "x"}}, ("a", 100.0)) == (50.0, None)
  ratio = Relative("a", lambda own, other: own["b"] / other["b"], {})
  assert read({"a": {"b": 3.0}}, ratio, {"a": {"b": 2.0}}) == (1.5, None)
  for damaged in ({"c": 1}, {"b": "x"}, 5, "x"):
    assert read({"a": {"b": 3.0}}, ratio, {"a": damaged}) is None


def test_a_folder_that_cannot_be_made(table, tmp_path):
  wanted = reproduce.wanted(table, table.cells[:1], [0], unchanged)
  (tmp_path / "afile").write_text("")
  for folder in (tmp_path / "afile", tmp_path / "afile" / "below"):
    with pytest.raises(SettingError, match=r"^workdir = .*afile.*Name a folder that you may write to"):
      reproduce.reproduce(table, wanted, folder)


def test_changes_that_a_table_is_to_tell(table, tmp_path, capsys):
  configs = [table.get_config(cell.text) for cell in table.cells]
  changes = {"rounds": 3, "seed": 0, "local.lr": 0.1, "data_dir": "/data", "record_losses": True}
  assert told_of(changes, configs) == "rounds=3, local.lr=0.1"
  assert told_of({"rounds": 2, "data_dir": "/data"}, configs) == "" == told_of({}, configs)
  assert told_of({"new.field": "x"}, configs) == "new.field=x"

  wanted = reproduce.wanted(table, table.cells[:1], [0], lambda config: change(config, {"rounds": 3}))
  run_of(tmp_path / "run", wanted[0], summary='{"metrics": {"personalized": {"top1": 0.5}}}')
  reproduce.write(table._replace(changed="rounds=3"), wanted, tmp_path, "")
  note = "Other than in the table: rounds=3."
  assert note in (tmp_path / "table.md").read_text().splitlines()
  assert f"% {note}" in (tmp_path / "table.tex").read_text().splitlines()
  rows = csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text()))
  assert [row["changed"] for row in rows] == ["rounds=3"] * 2
  reproduce.show(table._replace(changed="rounds=3"), wanted, tmp_path, "")
  assert note in capsys.readouterr().out
  reproduce.write(table, wanted, tmp_path, "")
  for name in ("table.md", "table.tex"):
    assert "Other than" not in (tmp_path / name).read_text()


def test_signs_that_markdown_and_latex_take_otherwise():
  odd = made(r"A\B & 5% $x$ #1 a_b {c} ~ ^ | d", {0: 1.0, 1: 2.0})
  first, _ = layout.latex([odd], [odd.cell], "", "T").split(r"\midrule")[1].split(" & 1.50 ")
  assert first.strip() == (
    r"A\textbackslash{}B \& 5\% \$x\$ \#1 a\_b \{c\} \textasciitilde{} \textasciicircum{} | d"
  )
  text = layout.markdown([odd], [odd.cell], "", "T")
  assert r"| A\\B & 5% $x$ #1 a_b {c} \~ ^ \| d | 1.50 ± 0.71 (1.00) |" in text


def test_notes_say_only_what_is_so():
  pairs = "Differences between methods: over shared seeds, ± standard error."
  assert pairs in layout.footnotes(SHOWN, "A")[0] and pairs not in " ".join(layout.footnotes(SHOWN, ""))
  long = "diverged: The training loss became nan in round 3 at client 2. Lower local.lr"
  alone = made("B", {}, failed={0: long, 1: "diverged in round 3"})
  assert layout.ours(alone) == "diverged" == layout.ours(made("B", {}, failed={0: long}))
  notes = layout.footnotes([alone], "")
  assert not any(".." in note or note.startswith("Ours") for note in notes) and len(notes) == 2
  assert layout.footnotes([made("B", {}, missing=[0])], "") == ["Nothing has run yet."]


def test_a_csv_says_why_a_figure_is_missing():
  shown = [*SHOWN, made("D", {0: 1.0}, failed={2: "diverged in round 3"}, missing=[1])]
  rows = csv.DictReader(io.StringIO(layout.as_csv(shown, [entry.cell for entry in shown], "")))
  assert [row["missing"] for row in rows] == [
    "", "", "", "seed 0: diverged in round 3", "seed 0: not run; seed 1: not run",
    "seed 1: not run; seed 2: diverged in round 3",
  ]  # fmt: skip
