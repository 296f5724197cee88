"""`reproduce --pick=valid`: a best round or λ is picked on validation parts, and the table says on which."""

import json

import pytest
from tiny_table import tiny_table

from fedjax_het.errors import SettingError
from fedjax_het.program.where import Where
from fedjax_het.studies.best import sooner
from fedjax_het.tables import layout
from fedjax_het.tables.compare import by_validation, entries, picked_on, read
from fedjax_het.tables.launcher import check_pick
from fedjax_het.tables.paper import Relative
from fedjax_het.tables.reproduce import reproduce, wanted
from fedjax_het.tables.runs import ended

BEST = ("best.personalized.value", 100.0)
SUMMARY = {
  "metrics": {"personalized": {"top1": {"mean": 0.7}}},
  "best": {
    "metric": "top1",
    "course": {"rounds": [1, 2, 3], "seconds": [1.0, 2.0, 3.0], "personalized": [0.6, 0.9, 0.7]},
    "personalized": {
      "value": 0.9, "round": 2, "seconds": 2.0, "valid": {"value": 0.7, "round": 3, "seconds": 3.0},
    },
    "global": {"value": 0.5, "round": 1, "seconds": 1.0},  # of a start without figures on validation parts
  },
  "lambda": {
    "picked_on": "validation", "validation": {"mean": 0.8, "std": 0.0},
    "least_loss": {"mean": 0.3, "std": 0.1, "at": 0.5, "valid": {"mean": 0.4, "std": 0.2, "at": 1.0}},
    "per_client_test_optimistic": {"mean": 0.95, "std": 0.0},
  },
}  # fmt: skip


def test_what_is_picked_on_test_is_picked_on_validation_instead():
  found = by_validation(SUMMARY)
  assert read(SUMMARY, BEST).mean == 90.0 and read(found, BEST).mean == pytest.approx(70.0)
  assert read(found, ("best.global.value", 1.0)) is None
  assert read(found, ("lambda.least_loss", 1.0)) == (0.4, 0.2)
  assert read(found, ("lambda.per_client_test_optimistic", 1.0)).mean == 0.8
  assert read(found, ("metrics.personalized.top1", 100.0)).mean == 70.0  # picks nothing
  # The level that a speed-up is to: 0.7 of round 3, which the other run has reached in round 2.
  assert sooner(SUMMARY["best"], found["best"], "personalized") == 3 / 2


def test_which_part_picked():
  personal, shared = ("metrics.personalized.top1", 1.0), ("metrics.global.top1", 1.0)
  assert picked_on(SUMMARY, BEST, "test") == {"round": "test", "λ": "validation"}
  assert picked_on(SUMMARY, BEST, "valid") == {"round": "validation", "λ": "validation"}
  assert picked_on(SUMMARY, personal, "test") == {"λ": "validation"}
  assert (
    picked_on(SUMMARY, shared, "test") == picked_on({"lambda": {"picked_on": "own"}}, personal, "test") == {}
  )
  assert picked_on({}, Relative("best", max, {}), "valid") == {"round": "validation"}
  assert picked_on(SUMMARY, ("lambda.least_loss", 1.0), "test") == {"λ": "test"}


def test_it_is_refused_without_validation_rows_and_says_where_it_does_nothing(tmp_path, capsys):
  table = tiny_table(tmp_path)
  with_rows, without = (
    wanted(table, table.cells[:1], [0], lambda config, share=share: config.update(valid_fraction=share))
    for share in (0.1, 0.0)
  )
  with pytest.raises(SettingError, match=r"pick = 'valid': .* have no validation .*valid_fraction=0\.1"):
    check_pick("valid", table, without)
  check_pick("test", table, without)
  check_pick("valid", table, with_rows)
  assert "pick = valid: has no effect" in capsys.readouterr().out
  check_pick("valid", table._replace(figures={"best": BEST}), with_rows)
  assert not capsys.readouterr().out


@pytest.mark.slow
def test_a_table_reports_the_round_that_is_best_on_validation(tmp_path):
  table = tiny_table(tmp_path)._replace(figures={"top1": BEST}, pick="valid")

  def change(config):
    config.update(rounds=4, eval_every=1)

  runs = wanted(table, table.cells[:1], [0], change)
  (entry,) = reproduce(table, runs, tmp_path / "runs", Where(devices=1))
  (folder,) = {*ended(tmp_path / "runs").values()}
  lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
  test, valid = (
    [line[part]["personalized"]["top1"]["mean"] for line in lines] for part in ("metrics", "valid")
  )
  assert entry.mean == pytest.approx(100 * test[valid.index(max(valid))])
  assert "The round was picked on the clients' validation parts: FedAvg." in layout.picked([entry])
  (entry,) = entries(table._replace(pick="test"), runs, ended(tmp_path / "runs"))
  assert entry.mean == pytest.approx(100 * max(test))
  assert "picked on the clients' test parts, which is optimistic: FedAvg." in layout.picked([entry])[0]
