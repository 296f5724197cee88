"""Disks and memory that do not suffice: one error that says what is needed, and nothing written is lost."""

import contextlib
import errno
import resource
from pathlib import Path

import jax
import numpy as np
import pytest
from launching import records, small

import fedjax_het as fh
from fedjax_het.engine import capacity
from fedjax_het.engine import engine as engine_module
from fedjax_het.errors import NoRoom, in_bytes, memory_there
from fedjax_het.experiment import experiment
from fedjax_het.program.command_line import told
from fedjax_het.program.where import Where
from fedjax_het.workdir.tracking import Tracker

OOM = "RESOURCE_EXHAUSTED: Out of memory allocating 144000000000 bytes."
WRITING = 'RESOURCE_EXHAUSTED: Error writing "round/0" in OCDBT database: No space left on device'


def test_bytes_have_a_unit():
  found = [in_bytes(count) for count in (0, 999, 13_100_000_000, 999_400_000, 999_600_000, 10**400)]
  assert found == ["0 bytes", "999 bytes", "13.1 GB", "999 MB", "1 GB", "more than 1000 PB"]


@pytest.mark.parametrize(
  ("error", "kind"),
  [
    (MemoryError(), "memory"),
    (jax.errors.JaxRuntimeError(OOM), "memory"),
    (RuntimeError("std::bad_alloc"), "memory"),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
    (OSError(errno.ENOSPC, "No space"), "disk"),
    (OSError(errno.EDQUOT, "Quota"), "disk"),
    (OSError(errno.EFBIG, "File too big"), "disk"),
    (ValueError(WRITING), "disk"),
    (OSError(errno.EACCES, "Permission denied"), ""),
    (ValueError("a setting"), ""),
    (KeyError("x"), ""),
  ],
  ids=str,
)  # fmt: skip
def test_what_does_not_suffice(error, kind, tmp_path):
  assert capacity.full(error) == kind
  wrapped = RuntimeError("a library's own")
  wrapped.__cause__ = error
  assert capacity.full(wrapped) == kind
  with pytest.raises(NoRoom if kind else type(error)) as found, capacity.in_words(tmp_path):
    raise error
  if kind == "disk":
    assert f"{tmp_path} has no room for what is written" in str(found.value)
  if kind == "memory":
    assert "client_batch" in str(found.value) and "--dry_run" in str(found.value)


def data() -> fh.data.FederatedData:
  rng = np.random.default_rng(0)
  x, y = rng.random((40, 3), np.float32), rng.integers(0, 2, 40)
  parts = np.split(np.arange(40), 4)
  return fh.federate(x, y, parts, jax.random.key(0), num_classes=2, test_fraction=0.25)


def run(**how):
  model = fh.models.make("two_nn", (3,), 2, hidden=4)
  algorithm = fh.federated(fh.ditto(model, lr=0.1), fh.mixing.static(), fh.server.sgd())
  return fh.run(algorithm, data(), rounds=1, cohort_size=2, key=jax.random.key(0), **how)


def test_a_state_that_has_no_room_is_refused_before_it_is_made(monkeypatch):
  monkeypatch.setattr(capacity, "memory_there", lambda: 100)
  with pytest.raises(
    NoRoom, match=r"the first state's arrays need [\d,]+ bytes, and there are 100 bytes\. --dry_run"
  ):
    run()


def test_states_on_the_host_that_have_no_room_are_refused(monkeypatch):
  monkeypatch.setattr(engine_module, "memory_there", lambda: 100)
  with pytest.raises(NoRoom, match=r"all clients' states on the host need .* states_folder"):
    run(device_states=2)


def test_what_xla_says_of_memory_comes_out_of_a_run_in_words(monkeypatch):
  def failing(*args):
    raise jax.errors.JaxRuntimeError(OOM)

  monkeypatch.setattr(fh.Engine, "advance", failing)
  with pytest.raises(NoRoom, match=r"allocating 144000000000 bytes.*client_batch"):
    run()


def test_a_program_that_may_need_more_than_there_is_is_warned_of(monkeypatch):
  class Compiled:
    def memory_analysis(self):
      kinds = ("argument", "output", "alias", "temp")
      return type("Found", (), {f"{kind}_size_in_bytes": 100 for kind in kinds})

  devices = len(jax.local_devices())
  monkeypatch.setattr(capacity, "memory_there", lambda: 150 * devices)
  with pytest.warns(UserWarning, match=f"the rounds may need {in_bytes(200 * devices)} of memory"):
    capacity.check_program("the rounds", Compiled())
  monkeypatch.setattr(capacity, "memory_there", lambda: 50 * devices)
  with pytest.raises(NoRoom):
    capacity.check_program("the rounds", Compiled())


@pytest.mark.parametrize("controllers", ["memory", "cpu,memory", "memory,io", "cpu,memory,io"])
def test_a_control_group_of_the_first_kind_limits_the_memory(controllers, monkeypatch):
  def read_text(path):
    limit = "/sys/fs/cgroup/memory/own/memory.limit_in_bytes"
    texts = {"/proc/self/cgroup": f"4:{controllers}:/own\n", limit: "4096"}
    if str(path) not in texts:
      raise OSError
    return texts[str(path)]

  monkeypatch.setattr(Path, "read_text", read_text)
  assert memory_there() == 4096


def test_the_memory_there_is_no_more_than_the_process_may_have():
  soft, hard = resource.getrlimit(resource.RLIMIT_AS)
  resource.setrlimit(resource.RLIMIT_AS, (2**44, hard))
  try:
    assert 10**8 < memory_there() < 2**44
  finally:
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@contextlib.contextmanager
def files_of_at_most(count: int):
  """As on a disk that is full: no file may have more bytes."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (count, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_events_on_a_full_disk_are_an_error_and_no_thread_that_dies(tmp_path):
  """tensorboardX's own writer waited for ever once its thread had died."""
  with Tracker(tmp_path) as tracker, files_of_at_most(5000), pytest.raises(OSError, match="File too large"):
    for i in range(500):
      tracker._open_events(i).write_event(tracker._event(i, summary=tracker._scalar("loss", 1.0)))
      tracker._open_events(i).flush()


def launched(folder, capsys, at_most: int | None = None) -> tuple[int, str]:
  """(status, what is said of it)."""
  config = small(rounds=4, eval_every=2, algorithm={"name": "ditto"}, model__hidden=100)
  capsys.readouterr()
  with files_of_at_most(at_most) if at_most else contextlib.nullcontext():
    status = told(lambda: experiment.run_experiment(config, str(folder), Where(devices=1)) and None)
  return status, capsys.readouterr().err


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_the_same_command_goes_on(tmp_path, capsys):
  """Whichever file it strikes: the configuration, metrics, a checkpoint, pictures, events."""
  assert launched(tmp_path / "whole", capsys)[0] == 0
  for at_most in (1, 400, 2_000, 20_000, 60_000, 120_000):
    folder = tmp_path / str(at_most)
    status, said = launched(folder, capsys, at_most)
    assert status == 1 and said.count("NoRoom") == 1 and "Traceback" not in said, (at_most, said)
    assert not [path for path in folder.rglob("*orbax-checkpoint-tmp*")]
    assert launched(folder, capsys)[0] == 0
    assert records(folder) == records(tmp_path / "whole")
