"""`--list`: everything that a configuration can name, with its settings and what they mean."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedjax_het.config import listing
from fedjax_het.errors import SettingError
from fedjax_het.methods import METHODS, Method
from fedjax_het.settings import documented

ROOT = Path(__file__).parents[2]
ENTRIES = [(field, entry) for field, group in listing.entries().items() for entry in group]


def printed(capsys, name: str = "") -> str:
  listing.print_list(name)
  return capsys.readouterr().out


def test_every_setting_of_everything_is_explained():
  unexplained = {
    (field, entry.name): [name for name, own in entry.settings.items() if not own.about]
    for field, entry in ENTRIES
  }
  assert not {where: names for where, names in unexplained.items() if names}
  assert all(entry.about for _, entry in ENTRIES)


def test_what_a_docstring_says():
  def factory(one, two, three):
    """First.

    Args:
      one: an argument: with a colon,
        over two lines.
      two: another.

    Returns:
      three: no argument.
    """

  assert documented(factory) == {
    "one": "an argument: with a colon, over two lines.",
    "two": "another.",
  }


@pytest.mark.parametrize(
  "names, text", [("abcd", "any"), ("abc", "any but d"), ("ad", "a, d"), ("b", "b"), ("", "")]
)
def test_among(names, text):
  assert listing.among(names, "abcd") == text


@pytest.mark.slow
def test_all_names_are_printed_as_plain_text(capsys):
  out = printed(capsys)
  assert "\x1b" not in out and max(map(len, out.splitlines())) <= listing.WIDTH
  for field, entry in ENTRIES:
    assert f"--config.{field}" in out and f"\n{entry.name} " in out
  assert "with mixing: any but fedmgda, fednova, fedexp, norm_bound; server: sgld, particles" in out
  assert listing.of_models() == ["sgd", "avgm", "adam", "yogi", "adagrad"]
  assert listing.goes_with("mixing", "fedmgda") == "algorithm: any but fedevg; server: models"
  assert listing.goes_with("algorithm", "feddyn") == "mixing: its own; server: its own"
  assert out.count("clip_norm") == 1 and "model=" not in out and " rounds=" not in out


def test_one_method_is_explained(capsys):
  lines = [line.split() for line in printed(capsys, "superfed_mm").splitlines()]
  assert "granularity" not in [line[0] for line in lines if line]
  assert ["source", "Hahn,", "Jeong,", "Lee,", "KDD", "2022"] in lines
  assert ["file", "clients/superfed.py"] in lines
  assert ["mu", "0.01", "μ", ">=", "0,", "weight", "of", "the", "proximal", "term,", "eq.", "2.4."] in lines
  assert ["start", "None", "start_round,", "as", "a", "share", "of", "the", "rounds"] in lines


def test_a_name_without_settings_and_an_unknown_one(capsys):
  assert "--config.partition=\"{'name': 'natural'}\"" in printed(capsys, "natural")
  with pytest.raises(SettingError, match=r"list = 'superfed': unknown\. Did you mean 'superfed_mm'"):
    listing.print_list("superfed")


@pytest.mark.slow
def test_a_new_entry_is_listed(capsys, monkeypatch):
  qffl = METHODS["mixing"]["qffl"]
  monkeypatch.setitem(METHODS["mixing"], "mine", Method("mine", qffl.factory, "a [new] one", "nobody"))
  assert "a [new] one" in printed(capsys)
  assert re.search(r"^q +1 +q >= 0", printed(capsys, "mine"), re.M)


@pytest.mark.slow
def test_the_command_line_lists_without_an_accelerator(tmp_path):
  def launched(flag):
    command = [sys.executable, "-m", "fedjax_het.run", flag, f"--workdir={tmp_path / 'run'}"]
    env = {**os.environ, "JAX_PLATFORMS": "none_such"}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, env=env)

  everything, one, typo = map(launched, ("--list", "--list=fedevg", "--list=fedevv"))
  assert everything.returncode == one.returncode == 0 and not everything.stderr
  assert "--config.partition.name\n" in everything.stdout
  assert "synthetic examples per class" in one.stdout and "fedavg" not in one.stdout
  assert typo.returncode == 1 and typo.stderr.startswith("SettingError: list = 'fedevv'")
  assert not (tmp_path / "run").exists()


def test_a_data_sets_options_are_listed_with_those_of_all(capsys):
  out = printed(capsys, "ham10000")
  assert "one_per_lesion" in out and "resize" in out
