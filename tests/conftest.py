"""Eight CPU devices, compiled programs kept on disk, and two small federations."""

import ctypes
import gc
import os
import signal
import time
from pathlib import Path

import jax
import pytest
from quick_compiler import FLAGS, environment
from small_parts import SIZES, federation, mlp

from fedjax_het.engine.cpu import OPTIONS, prepare_cpu

prepare_cpu(devices=8)  # before the first array is made
gc.set_threshold(100_000, 20, 50)  # compiled programs are many objects that stay: a tenth of the tests' time

if FLAGS:
  _FLAGS = os.environ.get("XLA_FLAGS")
  os.environ["XLA_FLAGS"] = environment()["XLA_FLAGS"]
  OPTIONS.clear()  # a program's own options would outweigh these flags
  jax.devices()
  if _FLAGS is None:
    del os.environ["XLA_FLAGS"]
  else:
    os.environ["XLA_FLAGS"] = _FLAGS

_CACHE = os.environ.get("FEDJAX_HET_TEST_CACHE", str(Path.home() / ".cache" / "fedjax_het_tests"))
if _CACHE:  # empty: no cache. A folder a worker: JAX's cache has no locks
  jax.config.update(
    "jax_compilation_cache_dir", str(Path(_CACHE) / os.environ.get("PYTEST_XDIST_WORKER", ""))
  )
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
  jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_addoption(parser):
  parser.addoption(
    "--minutes", type=float, default=float("inf"), help="skip what has not begun after so many minutes"
  )
  parser.addoption("--turn", default="0", help="hex digits that say which test is the first; for --minutes")
  parser.addoption("--all", action="store_true", help="the whole suite, also the tests marked as slow")
  parser.addoption("--every", action="store_true", help="also the tests marked as by_hand, which take hours")


def pytest_collection_modifyitems(config, items):
  left = {
    "slow": config.getoption("--all") or config.getoption("--every"),
    "by_hand": config.getoption("--every"),
  }
  slow = [
    item for item in items if any(item.get_closest_marker(own) for own, taken in left.items() if not taken)
  ]
  config.hook.pytest_deselected(items=slow)
  left_over = [item for item in items if item not in slow]
  first = int(config.getoption("--turn"), 16) % max(len(left_over), 1)
  items[:] = left_over[first:] + left_over[:first]
  config.left_out = len(slow)
  config.begun = time.monotonic()


def pytest_runtest_setup(item):
  minutes = item.config.getoption("--minutes")
  if time.monotonic() - item.config.begun > 60 * minutes:
    pytest.skip(f"not begun within {minutes:g} minutes")


def pytest_sessionfinish(session):
  if hasattr(session.config, "workeroutput"):  # of a worker, each of which collects all tests
    session.config.workeroutput["left_out"] = session.config.left_out


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node, error):
  node.config.left_out = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter, config):
  if count := getattr(config, "left_out", 0):
    terminalreporter.write_line(f"{count} slower tests were left to --all")


@pytest.fixture(scope="session")
def model():
  """4 features - 5 hidden - 3 classes."""
  return mlp()


@pytest.fixture(scope="session")
def ragged():
  """K = 12 clients of 1 to 40 training examples."""
  return federation(SIZES)


@pytest.fixture(scope="session")
def uniform():
  """K = 6 clients of 8 training examples each."""
  return federation([8] * 6)


@pytest.fixture(scope="module", autouse=True)
def compiler(request):
  """Least optimised where no bits of two programs are compared, or of one with another process's."""
  exact = ("test_checkpoint", "test_clock", "test_devices", "test_examples", "test_launcher",
           "test_processes", "test_superfed", "test_sweep_launched",
           "test_synthetic", "test_tune")  # fmt: skip
  quick = os.environ.get("FEDJAX_HET_TEST_COMPILER", "quick") == "quick"
  jax.config.update("jax_disable_most_optimizations", quick and request.module.__name__ not in exact)


@pytest.fixture(scope="module", autouse=True)
def given_back():
  """What compilers freed goes back to the system, where glibc would keep gigabytes of it."""
  yield
  if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
    trim(0)


@pytest.fixture
def ctrl_c():
  """As a terminal has it; pytest's own worker processes ignore it."""
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  yield
  signal.signal(signal.SIGINT, before)
