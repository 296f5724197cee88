"""A table's sweep that was killed before its own table: the next start makes it good."""

import json
import shutil

import pytest
from tiny_table import tiny_table, unchanged

from fedjax_het.experiment import sweep
from fedjax_het.program.where import Where
from fedjax_het.tables import reproduce
from fedjax_het.tables.runs import programs
from fedjax_het.workdir.folder import Workdir, prepare, write_atomic


@pytest.fixture(scope="module")
def table(tmp_path_factory):
  return tiny_table(tmp_path_factory.mktemp("table"))


def test_a_sweep_whose_table_is_missing_or_damaged_is_gone_on_with(table, tmp_path):
  """All its members have their summaries: a kill came before sweep.json."""
  wanted = reproduce.wanted(table, table.cells[:1], [0, 1], unchanged)
  (program,) = programs(wanted, tmp_path)
  whole = {"config": dict(program.plan.written), "sweep": program.grid}
  prepare(program.folder, whole)
  for one in program.runs:
    member = prepare(program.folder / "members" / f"seed={one.seed}", dict(one.plan.written))
    assert programs(wanted, tmp_path) == [program]
    member.summary_path.write_text("{}")
  assert programs(wanted, tmp_path) == [program]
  for text, todo in (("", [program]), ('[{"mem', [program]), ("[]", [])):
    (program.folder / "sweep.json").write_text(text)
    assert programs(wanted, tmp_path) == todo
  (program.folder / "sweep.json").unlink()
  assert programs(wanted[:1], tmp_path) == []  # nobody asks for the other member
  for one in program.runs:  # each has diverged: there is no table to come
    member = Workdir(program.folder / "members" / f"seed={one.seed}")
    member.summary_path.rename(member.failed_path)
  assert programs(wanted, tmp_path) == []


@pytest.mark.slow
def test_a_kill_before_a_sweeps_table_is_made_good(table, tmp_path, monkeypatch):
  class Killed(BaseException):
    pass

  def write(path, text):
    if path.name == "sweep.json":
      raise Killed
    write_atomic(path, text)

  wanted = reproduce.wanted(table, table.cells[:1], [0, 1], unchanged)
  with monkeypatch.context() as patch:
    patch.setattr(sweep, "write_atomic", write)
    with pytest.raises(Killed):
      reproduce.reproduce(table, wanted, tmp_path, Where(devices=1))
  assert not [*tmp_path.rglob("sweep.json")] and len([*tmp_path.rglob("summary.json")]) == 2
  for path in tmp_path.glob("*/members/*/checkpoints/2"):
    shutil.rmtree(path)  # as a kill leaves it that comes before these, too
  metrics = [path.read_text() for path in sorted(tmp_path.rglob("metrics.jsonl"))]
  found = reproduce.reproduce(table, wanted, tmp_path, Where(devices=1))
  assert len(json.loads(next(tmp_path.rglob("sweep.json")).read_text())) == 2
  assert len([*tmp_path.glob("*/members/*/checkpoints/2")]) == 2
  assert [path.read_text() for path in sorted(tmp_path.rglob("metrics.jsonl"))] == metrics
  assert found[0].mean and programs(wanted, tmp_path) == []
