"""Runs that go on: after a checkpoint that was asked for, and for more rounds than they were begun with."""

import os
import signal

import pytest
from test_launcher import records, small, start

from fedjax_het.engine import run as engine_run
from fedjax_het.experiment import experiment
from fedjax_het.experiment.checkpoint import Checkpoints


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """An uninterrupted run and its summary."""
  workdir = tmp_path_factory.mktemp("whole")
  return workdir, start(small(), str(workdir))


@pytest.mark.slow
def test_a_run_that_is_asked_for_a_checkpoint_writes_one_and_goes_on(whole, tmp_path, monkeypatch):
  saved, real, save = [], experiment.chunks, Checkpoints.save

  def asked(*args):
    for chunk in real(*args):
      if int(chunk.state.round) == 5:  # between two evaluations
        os.kill(os.getpid(), signal.SIGUSR1)
      yield chunk

  monkeypatch.setattr(experiment, "chunks", asked)
  monkeypatch.setattr(engine_run, "SECONDS_A_CHUNK", 0.0)  # a round a chunk
  monkeypatch.setattr(
    Checkpoints, "save", lambda self, done, *args: (saved.append(done), save(self, done, *args))
  )
  assert start(small(), str(tmp_path))["metrics"] == whole[1]["metrics"]
  assert saved == [3, 5, 6, 7] and records(tmp_path) == records(whole[0])
