"""How a run is asked to stop, and with which status a stopped program ends."""

import os
import signal

import pytest

from fedjax_het.experiment.launcher import told
from fedjax_het.experiment.stopping import Stopped, StopRequest


def test_the_first_ctrl_c_is_noted_and_the_second_interrupts(capfd, ctrl_c):
  with StopRequest() as stop:
    os.kill(os.getpid(), signal.SIGINT)
    assert stop.made and stop.by == signal.SIGINT
    assert "Ctrl-C once more" in capfd.readouterr().err
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), signal.SIGINT)
  assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_ctrl_c_that_is_ignored_stays_so(ctrl_c):
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  with StopRequest() as stop:
    os.kill(os.getpid(), signal.SIGINT)
    assert not stop.made
  assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_sigterm_is_noted_as_often_as_it_comes():
  with StopRequest() as stop:
    for _ in range(2):
      os.kill(os.getpid(), signal.SIGTERM)
    assert stop.made and stop.by == signal.SIGTERM
  assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
  ("error", "status"),
  [
    (Stopped("after round 3"), 143),
    (Stopped("after round 3", signal.SIGINT), 130),
    (KeyboardInterrupt(), 130),
  ],
)
def test_a_stopped_program_says_by_what(error, status, capfd):
  def run():
    raise error

  assert told(run) == status
  assert "after round 3" in (said := capfd.readouterr().err) or "Interrupted" in said
