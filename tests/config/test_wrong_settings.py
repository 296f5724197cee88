"""Wrong settings of each section, given by flags: an error names the setting as written, value and remedy."""

import pytest
from absl import flags
from ml_collections import config_flags
from wrong_settings import WITHOUT_EFFECT, WRONG

from fedjax_het import launcher
from fedjax_het.config.grid import check_sweep
from fedjax_het.config.override import change, is_beyond_flags, leave_out_empty, with_empty_sections
from fedjax_het.config.plan import plan
from fedjax_het.errors import SettingError
from fedjax_het.experiment.build import build, engine_of, notes_of
from fedjax_het.program.command_line import take_changes
from fedjax_het.program.where import Where


def notes(given, monkeypatch) -> tuple[str, ...]:
  """What the launcher shows before it compiles a run with these flags; exits or raises where it would."""
  own = flags.FlagValues()
  monkeypatch.setattr(flags, "FLAGS", own)
  with launcher.mistakes_in_one_line():
    argv, grid = launcher.take_sweep(launcher.with_shipped(["run", *given], "config"))
    argv, config = launcher.take_config(argv)
    put_in = with_empty_sections(config)
    argv, elements = take_changes(argv, lambda path: is_beyond_flags(config, path))
    config_flags.DEFINE_config_dict(
      "config", config, flag_values=own, lock_config=False, accept_new_attributes=True, sys_argv=argv
    )
    flags.DEFINE_string("workdir", "", "", flag_values=own)
    flags.DEFINE_integer("client_batch", None, "", flag_values=own)
    flags.DEFINE_float("checkpoint_seconds", 1.0, "", flag_values=own)
    flags.DEFINE_bool("dry_run", False, "", flag_values=own)
    own(argv)
  change(own.config, elements)
  leave_out_empty(own.config, put_in)
  if grid:
    check_sweep(own.config, grid)
    return ()
  experiment = build(plan(own.config))
  engine_of(experiment, Where(devices=1))
  return notes_of(experiment)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("given", "message"),
  [pytest.param(*one, id=" ".join(one[0])) for section in WRONG.values() for one in section],
)
def test_a_wrong_setting_is_named_as_it_is_written(given, message, monkeypatch, capsys):
  try:
    with pytest.raises(SystemExit):
      notes(given, monkeypatch)
    said = capsys.readouterr().err
  except SettingError as error:
    said = str(error)
  assert message in said, said
  assert said.strip().count("\n") == 0


def test_five_or_more_of_every_section():
  assert all(len(section) >= 5 for section in WRONG.values())


@pytest.mark.slow
@pytest.mark.parametrize(("given", "message"), WITHOUT_EFFECT)
def test_a_value_without_effect_is_noted(given, message, monkeypatch):
  assert any(note.startswith(message) for note in notes(given, monkeypatch))
