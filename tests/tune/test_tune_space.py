"""The space, the rungs and the refusals of a study; nothing is trained."""

import math
import sys
import types

import pytest
from absl import flags

from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.errors import SettingError
from fedjax_het.tune import launcher, study
from fedjax_het.tune.checks import about_study, import_optuna
from fedjax_het.tune.report import Trial, in_short, plot_trials, trials_table
from fedjax_het.tune.rung import Rung
from fedjax_het.tune.rungs import batches, better_half, budget, members, rung_rounds
from fedjax_het.tune.space import Span, checked_space, default_space, parse, take_space

CONFIG = get_config("algorithm=fedavg")
LR = {"local.lr": Span(0.01, 0.1, log=True)}


def test_rungs_against_numbers_by_hand():
  assert rung_rounds(30) == [10, 20, 30] and rung_rounds(100) == [34, 67, 100]
  assert rung_rounds(1) == [1] and rung_rounds(2) == [1, 2]
  assert batches(20, 8) == [range(0, 8), range(8, 16), range(16, 20)] and batches(3, 8) == [range(0, 3)]
  assert members(8, 3) == [8, 4, 2] and members(5, 3) == [5, 3, 2] and members(1, 3) == [1, 1, 1]
  # 8 trials: 8 x 10 + 4 x 10 + 2 x 10 rounds; and 4 more: 4 x 10 + 2 x 10 + 1 x 10.
  assert budget(8, 8, 30) == 140 and budget(12, 8, 30) == 140 + 70
  assert budget(5, 8, 100) == 5 * 34 + 3 * 33 + 2 * 33


def test_the_better_half_goes_on():
  nan = math.nan
  assert better_half([0.1, 0.4, 0.3, 0.2], True) == [1, 2] and better_half([0.1, 0.4, 0.3, 0.2], False) == [
    0,
    3,
  ]
  assert better_half([0.3, 0.3, 0.3], True) == [0, 1]  # the first of equal ones
  assert better_half([nan, 0.1, nan, nan], True) == [1] and better_half([nan, nan], False) == []


def test_a_space_is_read_from_flags():
  argv = [
    "tune",
    "--space.local.lr=0.001:0.3:log",
    "--trials=4",
    "--space.algorithm.mu=0,0.1",
    "-space.a.b=0:1",
  ]
  rest, space = take_space(argv)
  assert rest == ["tune", "--trials=4"]
  assert space == {
    "local.lr": Span(0.001, 0.3, log=True), "algorithm.mu": (0, 0.1), "a.b": Span(0, 1),
  }  # fmt: skip
  assert str(space["local.lr"]) == "numbers from 0.001 to 0.3, log-uniform"
  for text, problem in [
    ("a:1", "is no number"), ("0.1:nan", "is no number"), ("", "is no number"), ("True:2", "is no number"),
    ("1:0.1", "ends where it begins"), ("0:1:log", "no logarithm"), ("1:2:lin", "'lin', which is no scale"),
    ("0.1,0.1", "a number twice"),
  ]:  # fmt: skip
    with pytest.raises(SettingError, match=problem) as refused:
      parse("space.local.lr", text)
    assert refused.value.setting == "space.local.lr"
  with pytest.raises(SettingError, match=r"space\.local\.lr = '1:2': was given before"):
    take_space([*argv, "--space.local.lr=1:2"])


def test_the_default_is_a_range_around_the_learning_rate():
  config = plan({**CONFIG.to_dict(), "local": {"lr": 0.3}})
  assert default_space(config) == {"local.lr": Span(0.3 / 30, 0.3 * 30, log=True)}


def test_whole_settings_draw_whole_numbers():
  superfed = get_config("algorithm=superfed_mm")
  del superfed.algorithm["start"]
  space = {"algorithm.start_round": Span(0, 4), "algorithm.nu": Span(0, 4)}
  found = checked_space(superfed, space)
  assert found["algorithm.start_round"].whole and not found["algorithm.nu"].whole
  assert str(found["algorithm.start_round"]) == "whole numbers from 0 to 4, uniform"


@pytest.mark.parametrize(
  ("space", "problem"),
  [
    ({"lr": Span(0.1, 1.0)}, r"space\.lr = .* is in a section\. Write --space\.local\.lr"),
    ({"seed": Span(0, 5)}, r"space\.seed = \[0, 5\]: the trials share the seed"),
    ({"rounds": Span(1, 5)}, r"space\.rounds = .* Start a run of its own for each value"),
    ({"local.epochs": (1, 2)}, r"space\.local\.epochs = .* changes the program itself"),
    ({"local.momentum": Span(0.0, 2.0)}, r"space\.local\.momentum = 2\.0: out of range"),
    ({}, r"space = \{\}: has no field .* give None for a range of learning rates"),
    ({"local.lr": Span(0.3, 0.1)}, r"space\.local\.lr = \[0\.3, 0\.1\]: ends where it begins, or before"),
    ({"local.momentum": Span(0.0, 0.9, True)}, r"space\.local\.momentum = .* no logarithm"),
    ({"local.lr": (0.1, 0.1)}, r"space\.local\.lr = \[0\.1, 0\.1\]: has a number twice"),
    ({"local.lrr": Span(0.0, 2.0)}, r"space\.local\.lrr = 0\.0: unknown to fedavg\. Did you mean 'lr'"),
  ],
)
def test_what_cannot_vary_in_one_program_is_refused(space, problem):
  with pytest.raises(SettingError, match=problem):
    checked_space(CONFIG, space)


def test_a_study_is_refused_before_data_are_read(tmp_path, monkeypatch):
  monkeypatch.setattr(study, "build", None)
  without = {**CONFIG.to_dict(), "valid_fraction": 0.0}
  for config, given, problem in [
    (without, {}, r"valid_fraction = 0\.0: .*Add --config\.valid_fraction=0\.1"),
    (CONFIG, {"trials": 0}, "trials = 0"),
    (CONFIG, {"batch": 1}, "batch = 1"),
    (CONFIG, {"space": {"local.epochs": (1, 2)}}, "changes the program itself"),
    (
      CONFIG,
      {"space": {"local.lr": (0.1,)}},
      r"space.local.lr = \[0.1\]: leaves nothing to choose. Give a range",
    ),
  ]:
    with pytest.raises(SettingError, match=problem):
      study.run_tune(config, **{"space": LR, "trials": 4, "workdir": str(tmp_path / "none")} | given)
  assert not (tmp_path / "none").exists()
  (tmp_path / "run").mkdir()
  (tmp_path / "run" / "config.json").write_text("{}")
  with pytest.raises(SettingError, match="holds a run or a sweep, not a study"):
    study.run_tune(CONFIG, LR, str(tmp_path / "run"), trials=4)


def test_a_study_says_what_it_draws_and_costs():
  lines = about_study({**CONFIG.to_dict(), "rounds": 30, "eval_every": 30}, None, 12, 8)
  assert lines[0].startswith("space: local.lr: numbers from 0.0016") and lines[0].endswith("1.5, log-uniform")
  assert lines[1] == (
    "12 trials, 8 at once, of which train 8 to round 10, 4 to round 20, 2 to round 30: "
    "210 rounds in all, as many as 7 whole runs"
  )
  assert "trials" not in flags.FLAGS  # of the command alone
  few = about_study(CONFIG, {"local.lr": (0.1, 0.2), "server.lr": (0.5, 1.0)}, 6, 8)
  assert few[2] == "the space has 4 points, fewer than trials: some are trained more than once"
  assert few[3].startswith("6 trials, 6 at once, ")


def test_a_missing_optuna_is_an_error_that_names_the_extra(monkeypatch):
  monkeypatch.setitem(sys.modules, "optuna", None)
  with pytest.raises(SettingError, match=r"needs Optuna, .*pip install 'fedjax_het\[tuning\]'"):
    import_optuna()


def test_a_dry_run_of_the_command_says_the_space_and_the_cost(monkeypatch):
  said, given = [], types.SimpleNamespace(dry_run=True, trials=4, batch=8)
  monkeypatch.setattr(launcher, "flags", types.SimpleNamespace(FLAGS=given))
  monkeypatch.setattr(launcher, "say", said.append)
  launcher.tune(CONFIG, LR, None)
  assert said == [*about_study(CONFIG, LR, 4, 8)] and "4 trials" in said[1]


def test_the_table_and_the_picture_of_a_study(tmp_path):
  """The best trial first, those that diverged last; a picture only where some value is known."""
  trials = [
    Trial(0, 0, {"local.lr": 0.1}, "pruned", "top1", {3: 0.5}, 10),
    Trial(1, 0, {"local.lr": 0.2}, "complete", "top1", {3: 0.6, 6: 0.75}, 30),
    Trial(2, 0, {"local.lr": 9.0}, "diverged", "top1", {3: math.nan}, 10),
  ]
  table = trials_table(trials, trials[1])
  assert [*table.columns[0].cells] == ["1", "0", "2"] and next(iter(table.columns[-1].cells)) == "best"
  assert in_short(trials, trials[1]) == "Best of 3 trials (50 client steps): --config.local.lr=0.2"
  assert plot_trials(trials, True, tmp_path / "a.png", title="t").is_file()
  assert plot_trials(trials[2:], True, tmp_path / "b.png", title="t") is None


def test_a_rung_has_begun_with_its_first_checkpoint(tmp_path):
  rung = Rung(tmp_path / "rung", 0, 3)
  assert not rung.begun
  (tmp_path / "rung" / "tmp").mkdir(parents=True)
  assert not rung.begun
  (tmp_path / "rung" / "2").mkdir()
  assert rung.begun
