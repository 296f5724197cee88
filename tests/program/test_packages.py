"""Packages of others that add to the tables when a program starts."""

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from fedjax_het.program.packages import load_packages

ROOT = Path(__file__).parents[2]
METHOD = '''
from typing import Unpack

import fedjax_het as fh
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.methods import METHODS, Method
from fedjax_het.models import Model


def lazy_average(model: Model, **local: Unpack[LocalSettings]):
  """Averages."""
  return fh.fedavg(model, **local)._replace(name="lazy_average")


def add():
  METHODS["algorithm"]["lazy_average"] = Method("lazy_average", lazy_average, "a stranger's", "nobody, 2026")
'''


def package(folder, entry, text=METHOD):
  (folder / "stranger.py").write_text(text)
  info = folder / "stranger-1.0.dist-info"
  info.mkdir()
  (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
  (info / "entry_points.txt").write_text(f"[fedjax_het]\nstranger = {entry}\n")
  return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}


def test_modules_are_imported_functions_called_and_failures_told(monkeypatch, tmp_path, capsys):
  called = []
  monkeypatch.setitem(sys.modules, "of_a_stranger", type(sys)("of_a_stranger"))
  sys.modules["of_a_stranger"].add = lambda: called.append("add")
  entries = [
    metadata.EntryPoint(name, value, "fedjax_het")
    for name, value in (("b", "of_a_stranger:add"), ("a", "of_a_stranger"), ("c", "not_there"))
  ]
  monkeypatch.setattr(metadata, "entry_points", lambda group: entries if group == "fedjax_het" else [])
  assert load_packages() == ["a", "b"] and called == ["add"]
  assert "package c (not_there) cannot be loaded" in capsys.readouterr().err


@pytest.mark.slow
def test_a_stranger_s_method_trains_without_a_fork(tmp_path):
  environment = package(tmp_path, "stranger:add")
  command = [
    sys.executable, "-m", "fedjax_het.run", "--config=configs/quickstart.py:algorithm=lazy_average",
    "--config.rounds=1", "--config.eval_every=1", f"--workdir={tmp_path / 'run'}",
  ]  # fmt: skip
  ran = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
  assert ran.returncode == 0, ran.stderr
  listed = subprocess.run(
    [*command[:3], "--list=lazy_average"], env=environment, cwd=ROOT, capture_output=True, text=True
  )
  assert "a stranger's" in listed.stdout and "label_smoothing" in listed.stdout
  text = f"import fedjax_het as fh; print(fh.load_run({str(tmp_path / 'run')!r}))"
  loaded = subprocess.run(
    [sys.executable, "-c", text], env=environment, cwd=ROOT, capture_output=True, text=True
  )
  assert "Run(lazy_average on digits" in loaded.stdout, loaded.stderr


@pytest.mark.slow
def test_a_package_that_fails_is_named_and_left_out(tmp_path):
  environment = package(tmp_path, "stranger:missing")
  ran = subprocess.run(
    [sys.executable, "-m", "fedjax_het.run", "--list=fedavg"],
    env=environment,
    cwd=ROOT,
    capture_output=True,
    text=True,
  )
  assert ran.returncode == 0 and "The package stranger (stranger:missing) cannot be loaded" in ran.stderr
