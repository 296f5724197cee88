"""The queue for a GPU: its order, its time, what it continues, what it packs and merges."""

import json
import subprocess
import sys
import threading

import numpy as np
import pytest

from benchmarks import gpu_data, gpu_entries, gpu_queue
from benchmarks.gpu_entries import ENTRIES, Entry


class Clock:
  """A clock that fake entries move on."""

  def __init__(self):
    self.now = 0.0

  def __call__(self):
    return self.now


def fake(clock, work, seen):
  """What starts fake entries: `work` is the minutes that each still needs; a limit cuts them short."""

  def start(entry, seconds):
    seen.append(entry.name)
    done = min(work[entry.name], seconds / 60)
    work[entry.name] -= done
    clock.now += 60 * done
    return work[entry.name] <= 1e-9

  return start


def called(tmp_path, entries, minutes, work):
  clock, seen, told = Clock(), [], []
  state = gpu_queue.State(tmp_path)
  gpu_queue.run(entries, state, minutes, fake(clock, work, seen), clock, told.append)
  assert clock.now <= 60 * minutes + 1e-6
  return seen, told


def test_entries_run_in_order_and_a_shorter_one_overtakes(tmp_path):
  entries = [
    Entry(name, "", minutes, "") for name, minutes in (("a", 4.0), ("b", 5.0), ("c", 1.5), ("d", 2.0))
  ]
  work = {"a": 4.0, "b": 5.0, "c": 1.5, "d": 2.0}
  seen, told = called(tmp_path, entries, 7.0, work)
  assert seen == ["a", "c"] and told[1] == "b: 5.0 minutes do not fit the 3.0 that are left"
  assert called(tmp_path, entries, 7.5, work)[0] == ["b", "d"]  # what has ended is passed over
  assert called(tmp_path, entries, 7.5, work) == ([], [])
  state = gpu_queue.State(tmp_path)
  assert [state.spent(entry) for entry in entries] == pytest.approx([4.0, 5.0, 1.5, 2.0])
  assert {*state.of(entries[0])["calls"][0]} >= {"seconds", "commit", "machine", "date"}


def test_a_long_entry_goes_on_in_the_next_call(tmp_path):
  entries = [Entry("long", "", 20.0, ""), Entry("next", "", 1.0, "")]
  work = {"long": 19.0, "next": 1.0}
  assert called(tmp_path, entries, 9.5, work)[0] == ["long"]
  assert work["long"] == pytest.approx(19.0 - gpu_entries.LONGEST)
  assert called(tmp_path, entries, 12.0, work)[0] == ["long", "next"]
  assert gpu_queue.expected(entries[0], 18.5) == 1.5 and gpu_queue.expected(entries[0], 40.0) == 1.0
  assert called(tmp_path, entries, 12.0, work)[0] == ["long"] and work["long"] == 0.0


def test_entries_together_share_the_time(tmp_path):
  """Three that wait for one another end only if they are started at once; one is recorded as one of three."""
  meeting, entries = threading.Barrier(3, timeout=30.0), [Entry(name, "", 1.0, "") for name in "abc"]

  def start(entry, seconds):
    meeting.wait()
    return True

  state = gpu_queue.State(tmp_path)
  gpu_queue.run(entries, state, 9.0, start, tell=lambda line: None, together=3)
  assert all(state.of(entry)["ended"] and state.of(entry)["calls"][0]["together"] == 3 for entry in entries)


def test_a_failure_does_not_stop_the_others(tmp_path):
  def start(entry, seconds):
    if entry.name == "bad":
      raise subprocess.CalledProcessError(3, [])
    return True

  told = []
  state, entries = gpu_queue.State(tmp_path), [Entry("bad", "", 1.0, ""), Entry("good", "", 1.0, "")]
  assert gpu_queue.run(entries, state, 9.0, start, tell=told.append) == 1
  assert (
    "failed with code 3" in told[0] and state.of(entries[1])["ended"] and not state.of(entries[0])["calls"]
  )


def test_what_is_merged_is_passed_over(tmp_path):
  entries, seen = [Entry("merged", "", 1.0, ""), Entry("new", "", 2.0, "")], []
  state = gpu_queue.State(tmp_path, {"merged"})
  gpu_queue.run(entries, state, 9.0, lambda entry, _: bool(seen.append(entry.name)), tell=lambda line: None)
  assert seen == ["new"] and gpu_queue.merged() <= {entry.name for entry in ENTRIES}
  lines = [*gpu_queue.listing(entries, gpu_queue.State(None, {"merged"}))]
  assert lines[0].startswith("ended merged") and lines[-1].startswith("2 minutes are left")


@pytest.mark.parametrize(
  "words, told",
  [
    (["--only", "nosuch", "--dry_run"], "no entry has nosuch in its name"),
    (["--only", "flute.lr", "--data_dir=nowhere"], "--data_dir=nowhere has no mnist"),
  ],
)
def test_what_cannot_run_is_an_error_before_any_start(words, told, tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(sys, "argv", ["gpu_queue.py", f"--runs={tmp_path}", *words])
  monkeypatch.setattr(gpu_queue, "starter", None)
  with pytest.raises(SystemExit) as error:
    gpu_queue.main()
  assert error.value.code == 2 and told in capsys.readouterr().err


def test_the_list_is_in_the_order_of_worth_and_every_call_is_short():
  names = [entry.name for entry in ENTRIES]
  kinds = list(dict.fromkeys(name.partition(".")[0] for name in names))
  assert kinds[:7] == [
    "table_2_3", "table_2_6", "table_2_7", "sosicfl_2", "sosicfl_3", "table_4_2", "why_low_cifar10",
  ]  # fmt: skip
  assert names[0] == "table_2_3.100.pfedme.seed=0" and len({*names}) == len(names)
  assert all(gpu_queue.expected(entry) <= gpu_entries.LONGEST < 10 for entry in ENTRIES)
  assert all({*entry.data} <= {*gpu_entries.DATA} for entry in ENTRIES)
  assert gpu_entries.minutes(("fedavg",), 1.0) == 1.5  # a start, and a million steps


def test_the_page_and_the_listing_have_every_entry():
  text = gpu_queue.PAGE.read_text(encoding="utf-8")
  assert text == gpu_queue.page(), "run gpu_queue.py --merge, or write gpu_queue.page() to the page"
  lines = [*gpu_queue.listing(ENTRIES, gpu_queue.State(None))]
  assert len(lines) == len(ENTRIES) + 1 and "minutes are left" in lines[-1]
  for entry, line in zip(ENTRIES, lines):
    assert f"| {entry.name} |" in text and f" {entry.name}: " in line


def test_cifar10_comes_back_byte_for_byte(tmp_path):
  rng = np.random.default_rng(0)
  content = {
    name: rng.integers(0, 256, 130 * 3073, np.uint8).tobytes()
    for name in ("data_batch_1", "data_batch_4", "test_batch_first130")
  }
  (tmp_path / "data" / "cifar10").mkdir(parents=True)
  for name, own in content.items():
    (tmp_path / "data" / "cifar10" / f"{name}.bin").write_bytes(own)
  packed = tmp_path / "packed"
  assert {path.name for path in gpu_data.pack_data(tmp_path / "data", packed)} == {*gpu_data.PARTS}
  gpu_data.unpack_data(packed)
  for name, own in content.items():
    assert (packed / "cifar10" / f"{name}.bin").read_bytes() == own


def test_a_zip_has_the_checkpoints_of_unfinished_runs_alone(tmp_path):
  runs, entry = tmp_path / "runs", next(own for own in ENTRIES if own.folder == "table_2_3")
  for name, file in (("done", "summary.json"), ("going", "metrics.jsonl")):
    folder = runs / entry.folder / name
    (folder / "checkpoints" / "3").mkdir(parents=True)
    for path in (folder / file, folder / "model.npz", folder / "checkpoints" / "3" / "state"):
      path.write_text("1")
  gpu_queue.pack(runs, gpu_queue.State(runs), tmp_path / "out.zip")
  import zipfile

  names = {name for name in zipfile.ZipFile(tmp_path / "out.zip").namelist()}
  assert names == {
    "table_2_3/done/summary.json", "table_2_3/going/metrics.jsonl", "table_2_3/going/checkpoints/3/state",
  }  # fmt: skip


@pytest.mark.slow
def test_a_toy_entry_is_stopped_continued_and_never_merged(tmp_path):
  words = [sys.executable, str(gpu_queue.ROOT / "benchmarks" / "gpu_queue.py"), f"--runs={tmp_path}"]
  entry = next(own for own in ENTRIES if own.name.startswith("flute.lr"))
  state = gpu_queue.State(tmp_path)
  start = gpu_queue.starter(tmp_path, tmp_path, toy=True)
  assert not start(entry, 0.5) and not (tmp_path / "flute" / "lr_mnist" / "summary.json").exists()
  done = subprocess.run([*words, "--toy", "--only", entry.name], capture_output=True, text=True)
  assert "ended after" in done.stdout, done.stdout + done.stderr
  assert state.of(entry)["ended"] and (tmp_path / "flute" / "lr_mnist" / "summary.json").exists()
  merged = subprocess.run([*words, "--merge"], capture_output=True, text=True)
  assert merged.returncode and "toy" in merged.stderr


def test_figures_are_merged_beside_those_of_earlier_calls(tmp_path, monkeypatch):
  monkeypatch.setattr(gpu_queue, "FIGURES", tmp_path / "figures.json")
  monkeypatch.setattr(gpu_queue, "PAGE", tmp_path / "page.md")
  monkeypatch.setattr(gpu_queue.coverage, "PAGE", tmp_path / "coverage.md")
  (tmp_path / "figures.json").write_text(
    json.dumps({"about": "x", "runs": {}, "entries": {"old": {"calls": []}}})
  )
  run = tmp_path / "runs" / "table_2_3" / "dataset=cifar10,clients=50,algorithm=fedavg,seed=0"
  run.mkdir(parents=True)
  figures = {"mean": 0.5, "std": 0.1, "worst10": 0.1}
  summary = {
    "algorithm": "fedavg", "rounds": 500, "num_clients": 50, "seconds": {"train": 61.0},
    "metrics": {"personalized": {"top1": figures}},
  }  # fmt: skip
  (run / "summary.json").write_text(json.dumps(summary))
  state, entry = gpu_queue.State(tmp_path / "runs"), ENTRIES[0]
  state.add(entry, 66.0, ended=True)
  (state.folder / f"{entry.name}.jsonl").write_text('{"a": 1}\n{"a": 2}\n')
  gpu_queue.merge(tmp_path / "runs", state)
  kept = json.loads((tmp_path / "figures.json").read_text())
  assert {*kept["entries"]} == {"old", entry.name} and kept["entries"][entry.name]["measured"][1] == {"a": 2}
  assert [*kept["runs"]] == [f"table_2_3/{run.name}"]
  page = (tmp_path / "page.md").read_text()
  assert "| 1.1 |" in page and "| top1 0.5000 (0.1000) | 500 | 61 |" in page
