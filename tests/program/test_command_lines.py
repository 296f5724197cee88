"""Command lines that cannot be: one line that names the flag, its value and the remedy."""

import sys

import pytest
from absl import flags
from ml_collections import ConfigDict

from fedjax_het import launcher
from fedjax_het.config.override import change
from fedjax_het.config.quickstart import get_config
from fedjax_het.errors import SettingError, check_whole
from fedjax_het.program import machine


@pytest.fixture
def parse(monkeypatch, capsys):
  """What the launcher says of some flags before it starts."""

  def said(*given):
    own = flags.FlagValues()
    monkeypatch.setattr(flags, "FLAGS", own)
    monkeypatch.setattr(sys, "argv", ["run", *given])
    with pytest.raises(SystemExit) as ended, launcher.mistakes_in_one_line():
      rest, config = launcher.take_config(launcher.take_sweep(sys.argv)[0])
      launcher.config_flags.DEFINE_config_dict(
        "config", config, flag_values=own, lock_config=False, accept_new_attributes=True, sys_argv=rest
      )
      own(rest)
    assert ended.value.code == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error

  return said


@pytest.mark.parametrize(
  ("flag", "message"),
  [
    ("--config.rounds=abc", "config.rounds = abc: is no whole number."),
    ("--config.local.lr=abc", "config.local.lr = abc: is no number."),
    (
      "--config.local=3",
      """config.local = 3: is a section of settings. Write --config.local="{'FIELD': VALUE}";""",
    ),
    ("--config.local={", "cannot be read as a dictionary"),
    ("--config.unseen=0.2", "Write --config.unseen=\"{'FIELD': VALUE}\""),
    ("--config.partition=iid", "Write --config.partition.name=iid;"),
    (
      "--config.local.lr.x=3",
      "config.local.lr is a value, which has no fields. Write --config.local.lr=VALUE.",
    ),
    ("--config.rounds.x=1", "config.rounds is a value, which has no fields."),
    ("--config.=3", "--config.: names no field. Write --config.FIELD=VALUE"),
    ("--config..x=3", "--config..x: names no field."),
    ("--config.local.=3", "--config.local.: names no field."),
    ("--config.locl.lr=3", "Unknown setting: 'locl' Did you mean \"local\""),
    ("--config.x.y=1", "Unknown setting: 'x'. Known: aggregation, algorithm, asynchronous, attack"),
    ("--roundz=3", "Settings are given as --config.NAME=VALUE; --help lists the flags."),
    ("--sweep.seed=a", "sweep.seed = 'a': 'a' is no number."),
  ],
)
def test_a_flag_that_cannot_be_is_one_line_with_the_remedy(flag, message, parse):
  assert message in parse(flag)


def test_a_field_of_a_tables_value():
  with pytest.raises(
    SettingError, match=r"config\.rounds\.x = 1: rounds is a value.*Write --config\.rounds="
  ):
    change(get_config(), {"rounds.x": 1})
  with pytest.raises(SettingError, match=r"config\.local\.lr\.x = 1: lr is a value"):
    change(get_config(), {"local.lr.x": 1})


def test_whole_numbers_that_32_bits_do_not_count():
  check_whole("rounds", 2**31 - 1, 1)
  check_whole("seed", 2**32 - 1, 0, 2**32 - 1)
  with pytest.raises(
    SettingError, match=r"rounds = 2147483648: out of range\. It must be at least 1 and at most 2147483647"
  ):
    check_whole("rounds", 2**31, 1)


@pytest.mark.parametrize(
  ("given", "message"),
  [
    ({"process": 0}, r"process = 0: needs --distributed"),
    ({"processes": 2}, r"processes = 2: needs --distributed"),
    ({"coordinator": "a:1"}, r"coordinator = 'a:1': needs --distributed"),
    (
      {"distributed": True, "coordinator": "127.0.0.1:1", "processes": 2, "process": 5},
      "process = 5: .*at most 1",
    ),
    (
      {"distributed": True, "coordinator": "127.0.0.1:1", "processes": 0, "process": 0},
      "processes = 0: .*least 1",
    ),
    ({"distributed": True, "coordinator": "127.0.0.1:1", "processes": 2, "process": -1}, "process = -1: "),
    ({"distributed": True, "coordinator": "127.0.0.1", "processes": 2, "process": 0}, "is not HOST:PORT"),
  ],
)
def test_processes_that_cannot_be(given, message, monkeypatch):
  own = flags.FlagValues()
  for name, default in (("mesh", ""), ("distributed", False), ("coordinator", None), ("processes", None),
                        ("process", None), ("compile_cache", "")):  # fmt: skip
    flags.DEFINE_string(name, default, "", flag_values=own) if isinstance(
      default, str
    ) or default is None else (flags.DEFINE_bool(name, default, "", flag_values=own))
  own(["run"])
  for name, value in given.items():
    own[name].value = value
  monkeypatch.setattr(machine.flags, "FLAGS", own)
  monkeypatch.setattr(machine.jax.distributed, "initialize", None)
  monkeypatch.setattr(machine, "prepare_cpu", None)
  before = machine.jax.config.jax_enable_preemption_service
  try:
    with pytest.raises(SettingError, match=message):
      machine.prepare_jax()
  finally:
    machine.jax.config.update("jax_enable_preemption_service", before)


def test_a_config_dict_is_what_the_flags_change():
  assert isinstance(launcher.take_config(["run"])[1], ConfigDict)
