"""A run's folder: files written in one step by any number of processes, and whose folder it is."""

import fcntl
import json
import os
import stat
import threading

import pytest

from fedjax_het.errors import SettingError
from fedjax_het.workdir.folder import Workdir, check, prepare, write_atomic

CONFIG = {"seed": 0, "rounds": 7}


def names(folder) -> list[str]:
  return sorted(path.name for path in folder.iterdir())


def test_writers_of_one_number_in_two_containers_tear_nothing(tmp_path, monkeypatch):
  """Each writes while the other is between its content and the final name."""
  monkeypatch.setattr(os, "getpid", lambda: 1)
  path, real, inner = tmp_path / "table.csv", os.fsync, []

  def meanwhile(descriptor):
    real(descriptor)
    if not inner and stat.S_ISREG(os.fstat(descriptor).st_mode):
      inner.append(path.read_text() if path.exists() else "")
      write_atomic(path, "b" * 100_000)
      assert path.read_text() == "b" * 100_000

  monkeypatch.setattr(os, "fsync", meanwhile)
  write_atomic(path, "a" * 50_000)
  assert path.read_text() == "a" * 50_000 and names(tmp_path) == ["table.csv"]


def test_many_writers_at_once(tmp_path, monkeypatch):
  monkeypatch.setattr(os, "getpid", lambda: 1)
  failed, path = [], tmp_path / "table.csv"

  def writer(letter):
    try:
      for _ in range(20):
        write_atomic(path, letter * 20_000)
        assert len({*path.read_text()}) == 1 and path.stat().st_size == 20_000
    except BaseException as error:
      failed.append(error)

  threads = [threading.Thread(target=writer, args=letter) for letter in "abc"]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert not failed and names(tmp_path) == ["table.csv"]


def test_partial_files_of_killed_writers_go_and_a_live_ones_stays(tmp_path):
  dead, live, young, old, earlier = (
    tmp_path / f".table.md.{end}" for end in ("a" * 16, "b" * 16, "c" * 16, "31", "32")
  )
  for path in (dead, live, old, earlier):
    path.write_text("half a ta")
  young.touch()  # between its making and its lock
  editor, other = tmp_path / ".table.md.swp", tmp_path / f".table.mdx.{'d' * 16}"
  editor.touch()
  other.write_text("of another file")
  os.utime(earlier, (0, 0))
  for path in (editor, other):
    os.utime(path, (0, 0))
  with live.open("r+") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    write_atomic(tmp_path / "table.md", "whole")
    assert names(tmp_path) == sorted(
      ["table.md", live.name, young.name, old.name, editor.name, other.name]
    )  # fmt: skip
  os.utime(young, (0, 0))
  write_atomic(tmp_path / "table.md", "whole")
  assert names(tmp_path) == sorted(["table.md", old.name, editor.name, other.name])


def test_a_files_new_name_is_brought_to_the_disk(tmp_path, monkeypatch):
  synced, real = [], os.fsync

  def fsync(descriptor):
    synced.append((stat.S_ISDIR(os.fstat(descriptor).st_mode), (tmp_path / "f").exists()))
    real(descriptor)

  monkeypatch.setattr(os, "fsync", fsync)
  write_atomic(tmp_path / "f", "text")
  assert synced == [(False, False), (True, True)]
  assert stat.S_IMODE((tmp_path / "f").stat().st_mode) & 0o600 == 0o600


TRACES = (
  "summary.json",
  "sweep.json",
  "starts.jsonl",
  "failed.json",
  "metrics.jsonl",
  "checkpoints/7",
  "members/a",
)


@pytest.mark.parametrize("trace", TRACES)
def test_a_run_without_its_configuration_is_no_other_configurations(tmp_path, trace):
  path = tmp_path / trace
  if "/" in trace:
    path.mkdir(parents=True)
  else:
    path.write_text("{}\n")
  for start in (check, prepare):
    with pytest.raises(SettingError, match=rf"holds {trace.partition('/')[0]} of a run without its config"):
      start(tmp_path, CONFIG)
  assert not (tmp_path / "config.json").exists()


def test_a_start_that_was_killed_before_its_configuration_is_taken_up(tmp_path):
  run = Workdir(tmp_path)
  for folder in (run.checkpoints, run.figures, tmp_path / "members"):
    folder.mkdir()
  for file in (run.metrics_path, tmp_path / ".claim"):
    file.touch()
  assert prepare(tmp_path, CONFIG) == run
  assert json.loads(run.config_path.read_text()) == CONFIG


@pytest.mark.parametrize("text", ["", "[]", "3", '"sweep"', "null", "{", "\ud800", "[" * 100_000])
def test_a_damaged_configuration_is_nobodys(tmp_path, text):
  (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
  with pytest.raises(SettingError, match=r"config\.json cannot be read.*Put it back"):
    prepare(tmp_path, CONFIG)
