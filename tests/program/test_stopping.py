"""How a run is asked to stop, and with which status a stopped program ends."""

import io
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from rich.console import Console
from rich.file_proxy import FileProxy

from fedjax_het.errors import NonFiniteLoss, NoRoom, SettingError
from fedjax_het.program.command_line import told
from fedjax_het.program.stopping import (
  LATER,
  NOW,
  PATIENCE,
  SAVING,
  SOON,
  Stopped,
  StopRequest,
  heard,
  outlive_save,
)


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


def test_sigusr1_asks_for_a_checkpoint_and_for_no_stop(capfd):
  with StopRequest() as outer, StopRequest() as stop:
    os.kill(os.getpid(), signal.SIGUSR1)
    assert stop.save and not stop.made and not outer.made
    stop.save = False
    os.kill(os.getpid(), signal.SIGUSR1)
    assert stop.save
  assert capfd.readouterr().err == 2 * SAVING.decode()
  assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_sigusr1_ends_no_program_that_has_no_checkpoint_yet_and_stays_with_others_who_hear_it():
  with heard():
    os.kill(os.getpid(), signal.SIGUSR1)
    with StopRequest() as stop:
      os.kill(os.getpid(), signal.SIGUSR1)
      assert stop.save
  assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
  outlive_save()
  os.kill(os.getpid(), signal.SIGUSR1)
  with heard(), StopRequest() as stop:
    os.kill(os.getpid(), signal.SIGUSR1)
    assert stop.save
  signal.signal(signal.SIGUSR1, signal.SIG_DFL)
  theirs = []
  before = signal.signal(signal.SIGUSR1, lambda *_: theirs.append(1))
  with heard(), StopRequest() as stop:
    os.kill(os.getpid(), signal.SIGUSR1)
    assert theirs == [1] and not stop.save
  signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
  ("error", "status"),
  [
    (Stopped("after round 3"), 143),
    (Stopped("after round 3", signal.SIGINT), 130),
    (NonFiniteLoss("after round 3"), 3),
    (SettingError("after round 3"), 1),
    (NoRoom("after round 3"), 1),
  ],
)
def test_a_stopped_program_says_by_what(error, status, capfd):
  def run():
    raise error

  assert told(run) == status
  assert "after round 3" in capfd.readouterr().err


def test_an_interrupted_program_ends_there(capfd, monkeypatch):
  """XLA's threads crash an interpreter that ends in order while they compile."""

  def run():
    print("before")
    raise KeyboardInterrupt

  def leave(status):
    raise SystemExit(status)

  monkeypatch.setattr(os, "_exit", leave)
  with pytest.raises(SystemExit) as ended:
    told(run)
  assert ended.value.code == 130
  assert capfd.readouterr() == ("before\n", NOW.decode())


DEAF = """
import contextlib, hashlib, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for jobs behind &
from fedjax_het.program.command_line import told
from fedjax_het.program.stopping import StopRequest

def run():
  with {opened}:
    os.write(1, b"ready")
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # an hour without the interpreter

sys.exit(told(run))
"""


@pytest.mark.slow
@pytest.mark.parametrize("opened", ["StopRequest()", "contextlib.nullcontext()"])
def test_ctrl_c_is_answered_where_python_cannot_hear_it_and_the_second_ends(opened):
  program = [sys.executable, "-c", DEAF.format(opened=opened)]
  with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as child:
    try:
      assert child.stdout.read(5) == b"ready"
      time.sleep(0.2)
      child.send_signal(signal.SIGINT)
      assert child.stderr.read(len(LATER)) == LATER
      child.send_signal(signal.SIGINT)
      assert child.wait(timeout=10.0) == 130
      assert child.stderr.read() == NOW
    finally:
      child.kill()


DROPPED = """
import gc, os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from fedjax_het.program.command_line import told

def interrupted(phase, info):
  gc.callbacks.clear()
  signal.raise_signal(signal.SIGINT)
  time.sleep(0.1)  # where Python runs the handler, and drops what it raises

def run():
  gc.callbacks[:] = [interrupted]
  gc.collect()
  print("went on", flush=True)
  time.sleep(30.0)
  print("to the end", flush=True)

sys.exit(told(run))
"""


@pytest.mark.slow
def test_an_interrupt_that_python_dropped_is_repeated():
  ended = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, timeout=20.0)
  assert (ended.returncode, ended.stdout.strip()) == (130, "went on")  # perhaps before the line's end
  assert "Exception ignored in" in ended.stderr and ended.stderr.endswith(LATER.decode() + NOW.decode())


def test_a_request_within_a_request_is_both_s(capfd, ctrl_c):
  with StopRequest() as outer:
    with StopRequest() as inner:
      os.kill(os.getpid(), signal.SIGINT)
      assert inner.made and outer.made and outer.by == signal.SIGINT
    with StopRequest() as later:
      assert later.made and later.by == signal.SIGINT
      with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
  assert capfd.readouterr().err == SOON.decode()
  assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_is_said_stands_above_a_live_bar(capfd, ctrl_c, monkeypatch):
  screen = io.StringIO()
  proxy = FileProxy(Console(file=screen, width=100), sys.stderr)  # as a live bar puts it in place
  monkeypatch.setattr(sys, "stderr", proxy)
  with StopRequest():
    os.kill(os.getpid(), signal.SIGINT)
  assert screen.getvalue() == SOON.decode().lstrip() and capfd.readouterr().err == ""

  def within_a_write(text):
    raise RuntimeError("reentrant call inside <_io.BufferedWriter>")

  monkeypatch.setattr(proxy, "write", within_a_write)
  with StopRequest():
    os.kill(os.getpid(), signal.SIGINT)
  assert capfd.readouterr().err == SOON.decode()


def test_where_python_hears_ctrl_c_nothing_is_added(capfd, ctrl_c):
  with heard():
    with StopRequest():
      os.kill(os.getpid(), signal.SIGINT)
      time.sleep(2 * PATIENCE)
    with pytest.raises(KeyboardInterrupt):
      os.kill(os.getpid(), signal.SIGINT)
  assert capfd.readouterr().err == SOON.decode()
  assert signal.set_wakeup_fd(-1) == -1
  for thread in threading.enumerate():
    if thread.name == "ctrl-c":
      thread.join(5.0)
      assert not thread.is_alive()
