"""A paper's table: reading it, what runs together and what is done, a stop, the command."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from forked import forked
from tiny_table import CONFIG, PRINTED, tiny_table, unchanged

from fedjax_het.config.override import change
from fedjax_het.errors import DataError, SettingError
from fedjax_het.experiment import experiment
from fedjax_het.program.command_line import take_changes
from fedjax_het.program.stopping import Stopped
from fedjax_het.program.where import Where
from fedjax_het.tables import reproduce
from fedjax_het.tables.compare import columns, entries
from fedjax_het.tables.paper import chosen, parse_where, read_table, with_keys
from fedjax_het.tables.runs import ended, identity, programs
from fedjax_het.workdir.folder import Workdir, claimed

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
  return tiny_table(tmp_path_factory.mktemp("table"))


def test_a_table_s_cells_and_what_is_printed(table):
  assert table.name == "tiny" and table.title == "Two methods on the digits. Not printed anywhere"
  assert [(cell.method, cell.text) for cell in table.cells] == [
    ("FedAvg", "algorithm=fedavg,lr=0.05"), ("FedAvg", "algorithm=fedavg,lr=0.1"),
    ("FedPer", "algorithm=fedper,lr=0.05"), ("FedPer", "algorithm=fedper,lr=0.1"),
  ]  # fmt: skip
  assert table.cells[0].paper == {"top1": (80.5, 2.5), "loss": (1.5, None)}
  assert table.cells[3].paper == {"top1": (None, None)}
  assert columns(table.cells) == ["lr"]


@pytest.mark.parametrize(
  ("config", "printed", "named"),
  [
    (CONFIG, None, "tiny.csv"),
    ("def get_config(cell): ...", PRINTED, "FIGURES"),
    (CONFIG, PRINTED.replace("top1", "top_1"), "top1"),
    (CONFIG, PRINTED.replace("mean,", ""), "mean"),
    (CONFIG, PRINTED.replace("80.5", "eighty"), "eighty"),
    (CONFIG, PRINTED + "FedAvg,fedavg,0.05,top1,80.5,2.5\n", "twice"),
  ],
)
def test_what_is_no_table(tmp_path, config, printed, named):
  (tmp_path / "tiny.py").write_text(config)
  if printed:
    (tmp_path / "tiny.csv").write_text(printed)
  with pytest.raises(SettingError, match=named):
    read_table(tmp_path / "tiny.py")


def test_only_the_cells_asked_for(table):
  where = parse_where("lr=0.05|0.1, algorithm=fedper")
  assert [cell.text for cell in chosen(table.cells, where)] == [
    "algorithm=fedper,lr=0.05", "algorithm=fedper,lr=0.1",
  ]  # fmt: skip
  assert chosen(table.cells, parse_where("method=FedAvg,lr=0.1")) == [table.cells[1]]
  assert chosen(table.cells, {}) == list(table.cells)
  for text, named in (
    ("lr", "key=value"),
    ("rl=0.1", "lr"),
    ("lr=0.2", "0.05"),
    ("algorithm=fedp", "fedper"),
  ):
    with pytest.raises(SettingError, match=named):
      chosen(table.cells, parse_where(text))


def test_keys_that_are_no_columns():
  table = read_table(ROOT / "configs" / "table_2_6.py")
  cells = chosen(table.cells, parse_where("dataset=mnist,noise=pair,ratio=0.1,algorithm=ditto"))
  more = with_keys(table, cells, "alpha=100.0")
  assert more.changed == "alpha=100.0" and more.get_config(cells[0].text).partition.alpha == 100.0
  assert more.cells == table.cells and with_keys(table, cells, "") is table
  assert with_keys(table, cells, "alpha=10.0").changed == ""
  for text, named in (("noise=pair", "--where=noise=pair"), ("seed=3", "--seeds=3"), ("alpah=1.0", "alpha")):
    with pytest.raises(SettingError, match=named):
      with_keys(table, cells, text)


def test_changes_of_the_command_line_and_what_follows_from_them():
  rest, changes = take_changes(["x", "--config.rounds=20", "--seeds=0", "--config.algorithm.name=fedavg"])
  assert rest == ["x", "--seeds=0"] and changes == {"rounds": 20, "algorithm.name": "fedavg"}
  config = read_table(ROOT / "configs" / "table_2_3.py").get_config("")
  change(config, {"rounds": 20, "algorithm.start": 0.5})
  assert config.eval_every == 2 and config.algorithm.start == 0.5
  with pytest.raises(SettingError, match=r"config\.rounds"):
    change(config, {"rounds": "many"})
  with pytest.raises(SettingError, match=r"locale.*'local'"):
    change(config, {"locale.lr": 0.1})


def test_a_home_folder_is_found(table, tmp_path, monkeypatch):
  monkeypatch.setenv("HOME", str(tmp_path))
  monkeypatch.chdir(tmp_path)
  (tmp_path / "x").mkdir()
  monkeypatch.setattr(reproduce, "programs", lambda runs, folder, together: [])
  runs = reproduce.wanted(table, table.cells, [0], unchanged)
  reproduce.reproduce(table, runs, Path("~/x"))
  assert (tmp_path / "x" / "table.md").is_file() and not (tmp_path / "~").exists()


def test_a_complete_table_is_shown_where_nobody_may_write(table, tmp_path, monkeypatch):
  monkeypatch.setattr(reproduce, "programs", lambda runs, folder, together: [])
  monkeypatch.setattr(reproduce, "check_writable", None)
  monkeypatch.setattr(reproduce.os, "access", lambda *_: False)
  found = reproduce.reproduce(table, reproduce.wanted(table, table.cells, [0], unchanged), tmp_path)
  assert len(found) == 6 and not [*tmp_path.iterdir()]


def test_wrong_seeds_and_cells_that_are_one_run(table):
  for seeds in ([], [0, 0]):
    with pytest.raises(SettingError, match="seeds"):
      reproduce.wanted(table, table.cells, seeds, unchanged)
  with pytest.raises(SettingError, match="same run"):
    reproduce.wanted(table, table.cells, [0], lambda config: change(config, {"local.lr": 0.1}))


@pytest.fixture(scope="module")
def ran(table, tmp_path_factory):
  """A table of one learning rate, asked to stop at the end of its first run, and continued."""
  folder = tmp_path_factory.mktemp("ran") / "runs"
  wanted = reproduce.wanted(table, chosen(table.cells, {"lr": ["0.05"]}), [0], unchanged)
  called, whole, chunks = [], reproduce.run_experiment, experiment.chunks

  def counted(config, *args, **kwargs):
    called.append(config.client.name)
    return whole(config, *args, **kwargs)

  def asked_after_the_last(*args):
    yield from chunks(*args)
    os.kill(os.getpid(), signal.SIGTERM)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(reproduce, "run_experiment", counted)
    with pytest.MonkeyPatch.context() as once:
      once.setattr(experiment, "chunks", asked_after_the_last)
      with pytest.raises(Stopped, match="by SIGTERM with 1 of 2 programs to go"):
        reproduce.reproduce(table, wanted, folder, Where(devices=1))
    between = (folder / "table.md").read_text()
    found = reproduce.reproduce(table, wanted, folder, Where(devices=1), than="FedAvg")
  return folder, wanted, called, between, found


@pytest.mark.slow
def test_a_stopped_table_goes_on(ran):
  _, _, called, between, found = ran
  assert called == ["fedavg", "fedper"]
  assert "| FedPer | not run |" in between and "| FedAvg | not run |" not in between
  assert [(entry.cell.method, entry.metric) for entry in found] == [
    ("FedAvg", "top1"), ("FedAvg", "loss"), ("FedPer", "top1"), ("FedPer", "loss"),
  ]  # fmt: skip


def test_ours_is_what_the_runs_say(ran, table):
  folder, wanted, _, _, found = ran
  own = [json.loads((ended(folder)[identity(one.plan)] / "summary.json").read_text()) for one in wanted]
  for entry, summary in zip(found[::2], own):
    figures = summary["metrics"]["personalized"]["top1"]
    assert entry.ours == {0: (100 * figures["mean"], 100 * figures["std"])}
    assert entry.paper == entry.cell.paper["top1"]
  lines = (folder / "table.csv").read_text().splitlines()
  rows = {(row["method"], row["metric"]): row for row in csv.DictReader(lines)}
  assert float(rows["FedPer", "top1"]["ours"]) == found[2].mean
  assert float(rows["FedPer", "top1"]["ours_less_method"]) == found[2].mean - found[0].mean
  starts = [json.loads(line) for line in next(folder.rglob("starts.jsonl")).read_text().splitlines()]
  assert len(starts) == 1 and starts[0]["jax"] and starts[0]["machine"]


def test_a_whole_table_is_shown_without_a_run(ran, table, monkeypatch, capsys):
  folder, wanted, *_ = ran
  monkeypatch.setattr(reproduce, "run_experiment", lambda *args, **kwargs: pytest.fail("a run was started"))
  found = reproduce.reproduce(table, wanted, folder, Where(devices=1))
  reproduce.show(table, wanted, folder, "")
  out = capsys.readouterr().out
  assert f"{found[0].mean:.2f}" in out and "Made by version" in out
  assert f"jax {jax.__version__}; date 20" in (folder / "table.md").read_text()


@pytest.mark.slow
def test_a_run_that_diverges_is_noted_and_the_others_go_on(table, tmp_path):
  def wild(config):
    if config.algorithm.name == "fedavg":
      config.local.lr = 1e30

  wanted = reproduce.wanted(table, chosen(table.cells, {"lr": ["0.05"]}), [0], wild)
  first = reproduce.reproduce(table, wanted, tmp_path, Where(devices=1))
  assert "diverged" in first[0].failed[0] and first[2].mean > 0
  assert programs(wanted, tmp_path) == []


@pytest.mark.slow
def test_a_run_whose_data_cannot_be_made_stops_no_other(table, tmp_path, monkeypatch):
  def without(config, *args, **kwargs):
    if config.client.name == "fedavg":
      raise SettingError("num_clients", 9, "none of the draws", "Draw again.")
    return experiment.run_experiment(config, *args, **kwargs)

  monkeypatch.setattr(reproduce, "run_experiment", without)
  wanted = reproduce.wanted(table, chosen(table.cells, {"lr": ["0.05"]}), [0], unchanged)
  with pytest.raises(SettingError, match=r"1 of 2 programs were refused; this one: num_clients = 9"):
    reproduce.reproduce(table, wanted, tmp_path, Where(devices=1))
  assert len(programs(wanted, tmp_path)) == 1


@pytest.mark.slow
def test_a_run_that_another_process_is_at_is_left_to_it(table, tmp_path, capsys):
  wanted = reproduce.wanted(table, table.cells[:1], [0], unchanged)
  (program,) = programs(wanted, tmp_path)
  other = "import sys; from pathlib import Path; from fedjax_het.workdir.folder import Workdir, claimed\n"
  other += (
    f"with claimed(Workdir(Path({str(program.folder)!r}))): print('has it', flush=True); sys.stdin.read()"
  )
  program.folder.mkdir(parents=True)
  with subprocess.Popen([sys.executable, "-c", other], stdin=-1, stdout=-1, text=True, cwd=ROOT) as process:
    assert process.stdout.readline() == "has it\n"
    found = reproduce.reproduce(table, wanted, tmp_path, Where(devices=1))
    assert found[0].missing == [0] and "another process is at it" in capsys.readouterr().out
    with pytest.raises(SettingError, match="another process"):
      experiment.run_experiment(wanted[0].plan, str(program.folder), Where(devices=1))
    process.stdin.close()
  with claimed(Workdir(program.folder)):  # its claim ended with it
    assert not (program.folder / "starts.jsonl").exists()


def test_data_that_are_not_there_are_found_before_anything_runs(tmp_path):
  table = read_table(ROOT / "configs" / "table_2_3.py")
  cells = chosen(table.cells, parse_where("dataset=mnist,clients=100,algorithm=fedavg"))
  wanted = reproduce.wanted(
    table, cells, [0], lambda config: change(config, {"data_dir": str(tmp_path / "no")})
  )
  with pytest.raises(DataError, match=r"no such folder.*mnist"):
    reproduce.reproduce(table, wanted, tmp_path / "runs")
  assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_seeds_as_one_program_are_their_own_runs(table, tmp_path):
  wanted = reproduce.wanted(table, chosen(table.cells, {"algorithm": ["fedavg"]}), [0, 1], unchanged)
  found = reproduce.reproduce(table, wanted, tmp_path / "one", Where(devices=2))
  assert len(list((tmp_path / "one").rglob("sweep.json"))) == 1
  for one in wanted:
    experiment.run_experiment(
      one.plan, str(tmp_path / "own" / one.cell.text / str(one.seed)), Where(devices=1)
    )
  own = entries(table, wanted, ended(tmp_path / "own"))
  for one, other in zip(found, own):
    assert one.values == pytest.approx(other.values, rel=1e-6)


@pytest.mark.slow
def test_the_command(tmp_path):
  (tmp_path / "tiny.py").write_text(CONFIG)
  (tmp_path / "tiny.csv").write_text(PRINTED)
  flags = [f"--table={tmp_path}/tiny.py", "--where=lr=0.05", f"--workdir={tmp_path}/runs", "--seeds=0,1",
           "--against=FedAvg", "--config.rounds=3"]  # fmt: skip
  with forked(COLUMNS="100") as run:
    check_command(lambda *more: run("fedjax_het.reproduce", [*flags, *more], tmp_path), tmp_path)


def check_command(start, tmp_path):
  planned = start("--dry_run")
  assert "0 of 4 runs" in planned.stdout and not (tmp_path / "runs").exists(), planned.stderr
  whole = start()
  assert whole.returncode == 0, whole.stderr
  assert "table ETA" in whole.stdout and "FedPer" in whole.stdout and "less FedAvg" in whole.stdout
  assert {"table.md", "table.csv", "table.tex"} <= {path.name for path in (tmp_path / "runs").iterdir()}
  again = start(f"--runs={tmp_path}/runs", "--data_dir=elsewhere")
  assert "table ETA" not in again.stdout and "Other than in the table: rounds=3." in again.stdout
  assert "2 of 2 runs" in start("--where=algorithm=fedavg", "--dry_run").stdout  # flags add up
  for flag, named in (
    ("--seeds=a", "seeds"), ("--against=Fed", "FedAvg"), ("--table=x.py", "x.py"), ("--where=lr", "where"),
    ("--config.rounds=-1", "rounds"), ("--mesh=1", "mesh"), ("--nonsense=1", "nonsense"),
    ("--config.seed=7", "--seeds=7"),
  ):  # fmt: skip
    wrong = start(flag, "--dry_run")
    assert wrong.returncode == 1 and named in wrong.stderr and "Traceback" not in wrong.stderr, wrong.stderr
