"""Who may write in a folder: one program, there and below, as long as the folder is the one it claimed."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedjax_het.workdir import claim
from fedjax_het.workdir.claim import Claimed, Lost, check_claim, claimed
from fedjax_het.workdir.folder import write_atomic
from fedjax_het.workdir.tracking import Tracker


def refused(folder: Path, words: str) -> None:
  """Nobody else gets a claim on the folder; nothing is made there."""
  before = sorted(folder.parent.rglob("*")) if folder.parent.exists() else None
  with pytest.raises(Claimed, match=words), claimed(folder):
    pass
  assert (sorted(folder.parent.rglob("*")) if folder.parent.exists() else None) == before


def test_a_claim_covers_its_folder_and_all_around_and_below_it(tmp_path):
  run = tmp_path / "runs" / "a"
  with claimed(run):
    refused(run, rf"workdir = '{run}': another process is at this run \(process {os.getpid()} on ")
    refused(run / "members" / "seed=0", rf"at one around it, in {run} \(process")
    refused(run / "b" / "c" / "d", "at one around it")
    refused(tmp_path / "runs", rf"below it, in {run} ")
    refused(tmp_path, "below it")
    with claimed(tmp_path / "runs" / "other"):  # cells of one table, by two processes
      pass
  with claimed(tmp_path), pytest.raises(Claimed), claimed(run):
    pass
  with claimed(run / "members" / "seed=0"):
    refused(run, "below it")


def test_a_claim_by_a_link_is_one_by_the_folder(tmp_path):
  (tmp_path / "real").mkdir()
  (tmp_path / "link").symlink_to(tmp_path / "real")
  with claimed(tmp_path / "link" / "run"):
    refused(tmp_path / "real" / "run", "another process")
    refused(tmp_path / "real", "below it")
    refused(tmp_path / "real" / "run" / "x", "around it")
    check_claim(tmp_path / "real" / "run" / "checkpoints")
    shutil.rmtree(tmp_path / "real" / "run")
    for spelling in ("real", "link"):
      with pytest.raises(Lost):
        check_claim(tmp_path / spelling / "run" / "checkpoints")


@pytest.mark.slow
def test_a_claim_ends_with_its_process(tmp_path):
  program = (
    "import os, sys; from fedjax_het.workdir.claim import claimed\n"
    f"with claimed({str(tmp_path)!r}): print('has it', flush=True); os.kill(os.getpid(), 9)"
  )
  with subprocess.Popen([sys.executable, "-c", program], stdout=-1, text=True) as other:
    assert other.stdout.readline() == "has it\n"
  assert other.returncode == -9
  with claimed(tmp_path):
    assert json.loads((tmp_path / ".claim").read_text())["process"] == os.getpid()


def contents(folder: Path) -> dict[Path, bytes]:
  files = (path for path in folder.rglob("*") if path.is_file() and path.parent.name != "tensorboard")
  return {path: path.read_bytes() for path in files}


GONE = {
  "removed": lambda run: shutil.rmtree(run),
  "moved": lambda run: run.rename(run.with_name("elsewhere")),
  "made again": lambda run: (shutil.rmtree(run), run.mkdir()),
  "another's": lambda run: (run.rename(run.with_name("old")), shutil.copytree(run.with_name("old"), run)),
  "a file": lambda run: (shutil.rmtree(run), run.write_text("")),
}


@pytest.mark.parametrize("how", GONE)
def test_nothing_is_written_to_a_folder_that_is_no_longer_the_claimed_one(tmp_path, how):
  run = tmp_path / "run"
  with claimed(run):
    write_atomic(run / "config.json", "{}")
    with Tracker(run) as tracker:
      tracker.truncate(-1)
      tracker.log({"round": 1})
      GONE[how](run)
      before = contents(tmp_path)
      for write in (
        lambda: write_atomic(run / "summary.json", "{}"),
        lambda: tracker.log({"round": 2}),
        lambda: check_claim(run / "members" / "x" / "figures"),
      ):
        with pytest.raises(Lost, match=r"writes nothing more"):
          write()
  assert contents(tmp_path) == before


def test_a_folder_that_another_program_claims_anew_is_said_to_be_that_ones(tmp_path):
  run = tmp_path / "run"
  with claimed(run):
    held = dict(claim._held)
    run.rename(tmp_path / "old")
    claim._held.clear()  # as another process has it
    with claimed(run):
      theirs = dict(claim._held)
      claim._held.update(held)
      with pytest.raises(Claimed, match=r"another process has taken this run over \(process"):
        check_claim(run / "metrics.jsonl")
      claim._held.update(theirs)
    claim._held.update(held)


def test_without_locks_the_last_to_come_has_the_folder_and_the_first_is_told(tmp_path, monkeypatch):
  def no_locks(*args):
    raise OSError(errno.ENOLCK, "No locks available")

  monkeypatch.setattr(claim.fcntl, "flock", no_locks)
  run = tmp_path / "run"
  with claimed(run):
    write_atomic(run / "config.json", "{}")
    held = dict(claim._held)
    claim._held.clear()  # as another process has it
    with claimed(run):
      write_atomic(run / "summary.json", "{}")
      mine = dict(claim._held)
      claim._held.update(held)
      with pytest.raises(Claimed, match="has taken this run over"):
        write_atomic(run / "summary.json", "other")
      claim._held.update(mine)
    claim._held.update(held)
  assert (run / "summary.json").read_text() == "{}"
  assert sorted(path.name for path in run.iterdir()) == [".claim", "config.json", "summary.json"]


def test_files_that_no_claim_covers_are_anybodys(tmp_path):
  with claimed(tmp_path / "cell"):
    shutil.rmtree(tmp_path / "cell")
    write_atomic(tmp_path / "table.md", "made by several processes")
    (tmp_path / "cell").mkdir()


def test_a_folder_that_cannot_be_made_is_a_setting(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(ValueError, match=r"workdir = .*cannot be written"), claimed(tmp_path / "file" / "run"):
    pass
