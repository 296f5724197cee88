"""A run knows its data: it goes on with no other, and runs on other data are not averaged."""

import json

import numpy as np
import pytest
from launching import config_of
from run_folders import write_run

from fedjax_het.compare.groups import grouped, unlike
from fedjax_het.compare.runs import find
from fedjax_het.data import load
from fedjax_het.data.files import digest
from fedjax_het.errors import DataError
from fedjax_het.experiment import build as building
from fedjax_het.experiment import experiment
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.program.stopping import Stopped, StopRequest
from fedjax_het.program.where import Where
from fedjax_het.tables.compare import made
from fedjax_het.workdir.folder import read_starts


def test_a_digest_tells_values_types_shapes_and_places_apart():
  rows = np.arange(6, dtype=np.int32)
  several = [
    (rows,), (rows[::-1],), (rows.astype(np.int64),), (rows.reshape(2, 3),), ({"a": rows},), ({"b": rows},),
    (rows, rows[:0]), (rows[:3], rows[3:]), (rows.astype(str),), (np.array(["a", None], object),), ([],),
  ]  # fmt: skip
  assert len({digest(*own) for own in several}) == len(several)
  assert digest(rows) == digest(np.repeat(rows, 2)[::2]) and len(digest(rows)) == 16


@pytest.mark.slow
@pytest.mark.parametrize(
  "changed, older, says",
  [
    (
      "data",
      False,
      r"began with other data \(data_digest [0-9a-f]{16}; now [0-9a-f]{16}; version .*the same files",
    ),
    ("clients", True, r"began with the same data, divided otherwise .*Use the code that began it"),
    ("regions", False, r"began with other things made of the same data .*Use the code that began"),
  ],
)
def test_a_run_goes_on_with_the_data_that_it_began_with(changed, older, says, tmp_path, monkeypatch, capsys):
  """And says at every start what of its settings comes to nothing."""
  own = {"algorithm": {"name": "sosicfl", "start": 0.2}} if changed == "regions" else {}
  config = config_of(rounds=4, eval_every=2, model__hidden=2, local__epochs=1, **own)

  class Stop(StopRequest):
    made = property(lambda self: True, lambda self, value: None)

  with monkeypatch.context() as patch:
    patch.setattr(experiment, "StopRequest", Stop)
    with pytest.raises(Stopped, match="after round 1"):
      run_experiment(config, str(tmp_path), Where(devices=1))
  first = (tmp_path / "starts.jsonl").read_text()
  (tmp_path / "starts.jsonl").write_text(first + first[:20])  # cut short by a full disk
  if older:
    (tmp_path / "starts.jsonl").write_text('{"version": "0"}\n{"data": 3}\n' + first)
  before = (tmp_path / "starts.jsonl").read_text(), (tmp_path / "metrics.jsonl").read_text()
  if changed == "data":
    source = load("digits")
    x = np.array(source.x)
    x[0, 0, 0] += 1
    monkeypatch.setattr(building.datasets, "load", lambda *_, **__: source._replace(x=x))
  elif changed == "regions":
    made_of = building.prepared_of
    other = lambda *own: {"regions": made_of(*own)["regions"]._replace(radius=0.1)}  # noqa: E731
    monkeypatch.setattr(building, "prepared_of", other)
  else:
    whole = building.datasets.partition
    monkeypatch.setattr(building.datasets, "partition", lambda *own, **options: whole(*own, **options)[::-1])
  with pytest.raises(DataError, match=says):
    run_experiment(config, str(tmp_path), Where(devices=1))
  assert before == ((tmp_path / "starts.jsonl").read_text(), (tmp_path / "metrics.jsonl").read_text())
  monkeypatch.undo()
  assert run_experiment(config, str(tmp_path), Where(devices=1))["rounds"] == 4
  starts = read_starts(tmp_path)
  assert len(starts) == 2 + 2 * older
  if changed == "regions":
    note = "algorithm.start = 0.2 is none of 4 rounds: the run is as with 0."
    assert capsys.readouterr().out.count(note) == 3  # once before it was refused
    assert [start["data"]["notes"] for start in starts] == [[note], [note]]


def test_runs_on_other_data_of_one_size_are_other_runs(tmp_path):
  for seed, value in enumerate("aab"):
    folder = write_run(tmp_path / str(seed), seed=seed)
    data = {"examples": 60, "data_digest": value}
    (folder / "starts.jsonl").write_text(json.dumps({"data": data}) + "\n")
  same, other = grouped(find([tmp_path]))
  assert [len(own.runs) for own in (same, other)] == [2, 1] and unlike(same.data, other.data) == [
    "data_digest"
  ]
  (folder / "starts.jsonl").write_text('{"data": ["no fields"]}\n')
  assert find([tmp_path])[2].found == {}


def test_a_table_says_where_its_runs_are_of_other_data(tmp_path):
  folders = []
  for i, (options, value) in enumerate((({}, "a"), ({}, "a"), ({"resize": 8}, "b"), ({}, "c"))):
    folders.append(write_run(tmp_path / str(i), seed=i, dataset="mnist", dataset_options=options))
    (folders[-1] / "starts.jsonl").write_text(
      json.dumps({"version": "1", "data": {"data_digest": value}}) + "\n"
    )
  assert made(folders[:3]) == "version 1"
  assert made(folders) == "version 1; mnist was not the same data in all runs: data_digest a, c"


def test_runs_on_a_part_of_the_data_are_other_runs(tmp_path):
  for seed, (name, examples) in enumerate((("few", 60), ("all", 600), ("more", 600))):
    folder = write_run(tmp_path / name, seed=seed)
    (folder / "starts.jsonl").write_text(json.dumps({"data": {"examples": examples}}) + "\n")
  few, whole = grouped(find([tmp_path / "few", tmp_path / "all", tmp_path / "more"]))
  assert [run.name for run in few.runs] == ["few"] and len(whole.runs) == 2
  assert unlike(few.data, whole.data) == ["examples"]
  write_run(tmp_path / "old", seed=7)  # of a version that did not write it down
  assert [len(own.runs) for own in grouped(find([tmp_path]))] == [2, 1, 1]  # all and more, few, old
  assert len(grouped(find([tmp_path / "all", tmp_path / "more", tmp_path / "old"]))) == 1
  other = write_run(tmp_path / "other", seed=8, dataset="mnist")
  (other / "starts.jsonl").write_text('{"data": {"examples": 5}}\n')
  alone = grouped(find([tmp_path / "all", tmp_path / "old", tmp_path / "other"]))
  assert [set(own.fields) for own in alone] == [{"dataset"}] * 2
