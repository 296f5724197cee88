"""The study of prototypes: its figures by hand, its file through a stop, its picture, and a whole run."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from changed_configs import with_values
from launching import records, small, start

from fedjax_het.studies import prototypes
from fedjax_het.studies.prototypes import Prototypes, plot_prototypes, report
from fedjax_het.workdir.tracking import to_json

MEAN = np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 4.0], [9.0, 9.0]], np.float32)
KNOWN = np.array([True, True, True, False])


def test_the_report_by_hand():
  assert report(MEAN, KNOWN) == {"known": 3, "apart": 3.0, "norm": 3.0}
  one, none = report(MEAN, [True, False, False, False]), report(MEAN, np.zeros(4, bool))
  assert one["known"] == 1 and np.isnan(one["apart"]) and one["norm"] == 5.0
  assert none["known"] == 0 and np.isnan(none["norm"])


def test_a_stored_report_of_one_prototype_is_shown():
  stored = json.loads(to_json({"prototypes": report(MEAN, [True, False, False, False])}))
  assert Prototypes.rows(stored).plain == "prototypes of 1 classes, the nearest two – apart"


def run_of(folder, prototypes=lambda broadcast: broadcast):
  client = SimpleNamespace(studies=SimpleNamespace(prototypes=prototypes))
  return SimpleNamespace(
    algorithm=SimpleNamespace(client=client), folder=folder, writes=True, figures=folder / "figures",
    title="a run",
  )  # fmt: skip


def moment(round, mean, known=KNOWN, **more):
  own = {"round": round, "evaluations": 1, "diverged": False, "broadcast": lambda: (mean, 1.0 * known)} | more
  return SimpleNamespace(**own)


def test_evaluations_are_kept_in_a_file_from_which_a_stopped_run_goes_on(tmp_path):
  study = Prototypes(run_of(tmp_path))
  study.resume(0, None)
  assert "moved" not in study.watch(None, moment(2, MEAN))["prototypes"]
  moved = MEAN + np.array([[3.0, 4.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0]], np.float32)
  assert study.watch(None, moment(4, moved))["prototypes"]["moved"] == pytest.approx(2.0)
  again = Prototypes(study.run)
  again.resume(2, None)  # the second evaluation is lost with the stop
  later = again.watch(None, moment(4, moved, KNOWN & [True, False, True, True]))["prototypes"]
  assert later["moved"] == pytest.approx(3.0) and later["known"] == 2
  with np.load(tmp_path / "prototypes.npz") as file:
    assert file["rounds"].tolist() == [2, 4] and file["known"].tolist()[1] == [True, False, True, False]
    np.testing.assert_array_equal(file["mean"], [MEAN, moved])
  for other in ({"evaluations": None}, {"diverged": True}):
    assert again.watch(None, moment(6, MEAN, **other)) == {}
  assert again.section(moment(6, MEAN, diverged=True)) == {}
  nobody = again.watch(None, moment(8, MEAN, np.array([False, False, False, True])))["prototypes"]
  assert nobody["moved"] == 0.0  # no class has a prototype in both
  summary = again.section(moment(8, MEAN))
  assert summary == {"prototypes": report(MEAN, KNOWN)}
  again.draw([], {})
  again.draw([], summary)
  path = tmp_path / "figures" / "prototypes.png"
  assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000
  assert Prototypes.rows(summary).plain == "prototypes of 3 classes, the nearest two 3 apart"
  assert Prototypes.rows({}) is None and not Prototypes.fits(run_of(tmp_path, None))
  assert {curve.of for curve in again.curves([{"prototypes": later}])} == {"apart", "moved"}


def test_a_kill_while_the_file_is_written_leaves_the_one_before(tmp_path, monkeypatch):
  study = Prototypes(run_of(tmp_path))
  study.watch(None, moment(2, MEAN))

  def killed(path, **arrays):
    path.write_bytes(b"PK")
    raise KeyboardInterrupt

  monkeypatch.setattr(prototypes.np, "savez_compressed", killed)
  with pytest.raises(KeyboardInterrupt):
    study.watch(None, moment(4, MEAN))
  monkeypatch.undo()
  again = Prototypes(study.run)
  again.resume(2, None)
  assert again.watch(None, moment(4, MEAN))["prototypes"]["moved"] == 0.0
  with np.load(tmp_path / "prototypes.npz") as file:
    assert file["rounds"].tolist() == [2, 4]


def test_a_damaged_file_begins_anew(tmp_path, caplog):
  (tmp_path / "prototypes.npz").write_bytes(b"PK")
  study = Prototypes(run_of(tmp_path))
  study.resume(2, None)
  assert "is damaged, and will hold only evaluations after round 2" in caplog.text
  assert "moved" not in study.watch(None, moment(4, MEAN))["prototypes"]


@pytest.mark.parametrize("known", [0, 1, 3])
def test_a_picture_of_few_prototypes(tmp_path, known):
  path = plot_prototypes(MEAN[None], (np.arange(4) < known)[None], tmp_path / "p.png")
  assert path.stat().st_size > 5000


@pytest.mark.slow
def test_fedproto_forgets_no_class(tmp_path):
  """With cohorts of two clients of few classes, a class once known stays known."""
  config = with_values(
    small(), {"algorithm": {"name": "fedproto"}, "cohort_size": 2, "rounds": 6, "eval_every": 1}
  )
  summary = start(config, str(tmp_path))
  known = [line["prototypes"]["known"] for line in records(tmp_path)]
  assert known == sorted(known) and known[-1] == summary["prototypes"]["known"] > known[0]
  assert (tmp_path / "figures" / "prototypes.png").exists()
