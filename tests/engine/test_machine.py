"""What JAX is told of the machine: coordinator, cores, platform, compile cache, a user without a home."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

import fedjax_het as fh
from fedjax_het.engine import compile_cache, cpu
from fedjax_het.errors import SettingError, check_here
from fedjax_het.program import coordinator, machine
from fedjax_het.program.coordinator import bind_address, parse_coordinator

ROOT = Path(__file__).parents[2]
TERMINATE = "xla_cpu_collective_call_terminate_timeout_seconds"


def resolving(monkeypatch, **names):
  """Host names lead to these addresses; those that begin with 10., 127., ::1 or fd00: are this machine's."""

  def found(host, port, type):
    if host.replace(".", "").isdecimal() or ":" in host:
      return [(0, 0, 0, "", (host, port))]
    if host not in names:
      raise socket.gaierror(-2, "Name or service not known")
    return [(0, 0, 0, "", (address, port)) for address in names[host]]

  monkeypatch.delenv("JAX_COORDINATOR_BIND_ADDRESS", raising=False)
  monkeypatch.setattr(coordinator.socket, "getaddrinfo", found)
  monkeypatch.setattr(coordinator, "_is_own", lambda own: own.startswith(("10.", "127.", "::1", "fd00:")))


@pytest.mark.parametrize(
  ("given", "bound"),
  [
    ("127.0.0.1:1234", "127.0.0.1:1234"),
    ("localhost:1234", "127.0.0.1:1234"),
    ("[::1]:1234", "[::1]:1234"),
    ("node1:1234", "10.0.0.7:1234"),  # Debian has a machine's own name at 127.0.1.1, too
    ("six:1234", "[fd00::7]:1234"),
    ("10.0.0.9:80", "10.0.0.9:80"),
  ],
)
def test_the_coordinator_listens_at_the_address_that_it_was_given(given, bound, monkeypatch, capsys):
  resolving(monkeypatch, localhost=["::1", "127.0.0.1"], node1=["127.0.1.1", "10.0.0.7"], six=["fd00::7"])
  assert bind_address(given) == bound
  assert not capsys.readouterr().err


def test_a_name_that_a_cluster_knows_a_little_later(monkeypatch):
  resolving(monkeypatch, pod=["10.0.0.3"])
  known, waited = coordinator.socket.getaddrinfo, []

  def later(*args, **settings):
    if len(waited) < 3:
      raise socket.gaierror(-2, "Name or service not known")
    return known(*args, **settings)

  monkeypatch.setattr(coordinator.socket, "getaddrinfo", later)
  monkeypatch.setattr(coordinator.time, "sleep", waited.append)
  assert bind_address("pod:1234") == "10.0.0.3:1234" and len(waited) == 3


@pytest.mark.parametrize("given", ["own:1234", "service:1234", "192.0.2.1:1234"])
def test_an_address_of_no_interface_is_said(given, monkeypatch, capsys):
  resolving(monkeypatch, own=["127.0.1.1"], service=["192.0.2.8"])
  assert bind_address(given, tells=False) is None and not capsys.readouterr().err
  assert bind_address(given) is None
  assert "listens at all addresses" in capsys.readouterr().err
  monkeypatch.setenv("JAX_COORDINATOR_BIND_ADDRESS", "10.0.0.1:1234")
  assert bind_address(given) is None and not capsys.readouterr().err


def test_coordinators_that_cannot_be(monkeypatch):
  for text in ("", "127.0.0.1", ":1", "a:", "a:x", "a:0", "a:65536", "a:-1"):
    with pytest.raises(SettingError, match="is not HOST:PORT"):
      parse_coordinator(text)
  resolving(monkeypatch)
  monkeypatch.setattr(coordinator, "PATIENCE", 0)
  with pytest.raises(SettingError, match="its host is not known"):
    bind_address("nowhere:1234")
  assert coordinator.__name__  # the module's own test of an address:
  monkeypatch.undo()
  assert coordinator._is_own("127.0.0.1") and not coordinator._is_own("192.0.2.1")


@pytest.mark.parametrize(
  ("flags", "configured", "asked"),
  [("", -1, 2000), ("--xla_force_host_platform_device_count=2000", -1, None), ("", 2000, None)],
)
def test_more_devices_than_cores_can_serve_are_refused_before_they_are_made(
  flags, configured, asked, monkeypatch
):
  monkeypatch.setattr(cpu, "usable_cores", lambda: 4)
  monkeypatch.setenv("XLA_FLAGS", flags)
  made = []

  class Config:
    jax_num_cpu_devices = configured

    @staticmethod
    def update(name, value):
      made.append((name, value))

  monkeypatch.setattr(cpu.jax, "config", Config)
  with pytest.raises(SettingError, match=r"clients:2000'.*4 cores.*--mesh=clients:4.*at most clients:256"):
    cpu.prepare_cpu(asked)
  assert not made
  cpu.prepare_cpu(256)
  assert made == [("jax_num_cpu_devices", 256)]
  for bad in (0, -1, 2.5, "8"):
    with pytest.raises(SettingError, match="devices = "):
      cpu.prepare_cpu(bad)


@pytest.mark.parametrize("given", ["", f"--{TERMINATE}=5 --xla_dump_to=x"])
def test_devices_may_wait_for_each_other_unless_xla_flags_says_how_long(given, monkeypatch):
  monkeypatch.setenv("XLA_FLAGS", given)
  cpu.wait_long()
  wanted = {name: str(value) for name, value in cpu.WAITING.items()}
  assert cpu.xla_flags() == wanted | ({TERMINATE: "5", "xla_dump_to": "x"} if given else {})
  before = os.environ["XLA_FLAGS"]
  cpu.wait_long()
  assert os.environ["XLA_FLAGS"] == before
  monkeypatch.setenv("XLA_FLAGS", "options.txt")
  cpu.wait_long()
  assert os.environ["XLA_FLAGS"] == "options.txt"


LATE = """
import jax, numpy as np, sys
import fedjax_het as fh
from jax.sharding import Mesh, PartitionSpec as P
fh.prepare_cpu(2)
def late(x):
  steps = jax.numpy.where(jax.lax.axis_index("c") == 0, int(sys.argv[1]), 1)
  y = jax.lax.fori_loop(0, steps, lambda i, a: jax.numpy.tanh(a @ a), jax.numpy.ones((300, 300)) * x[0])
  return jax.lax.psum(y.sum(), "c")
mesh = Mesh(np.array(jax.devices()), ("c",))
print(jax.jit(jax.shard_map(late, mesh=mesh, in_specs=P("c"), out_specs=P()))(jax.numpy.ones(2)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("seconds", "steps"), [("1", 20_000), ("", 1)])
def test_xla_knows_the_options_and_ends_a_process_by_them(seconds, steps):
  flags = " ".join(f"--{name}={seconds}" for name in cpu.WAITING if seconds)
  environment = {**os.environ, "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
  ended = subprocess.run([sys.executable, "-c", LATE, str(steps)], env=environment, capture_output=True)
  assert (ended.returncode == 0) == (not seconds), ended.stderr


@pytest.mark.parametrize(
  ("asked", "raised", "message"),
  [
    (
      "cuda",
      AssertionError(),
      r"JAX_PLATFORMS = 'cuda': JAX cannot start this platform\. Set JAX_PLATFORMS=cpu",
    ),
    ("gpuu", RuntimeError("Unable to initialize"), r"\(Unable to initialize\)\. Did you mean 'gpu'"),
    (None, RuntimeError("no driver"), r"JAX_PLATFORMS = None: .*\(no driver\)"),
  ],
)
def test_a_platform_that_cannot_start_is_named(asked, raised, message, monkeypatch):
  class Config:
    jax_platforms = asked

  def devices():
    raise raised

  monkeypatch.setattr(machine.jax, "config", Config)
  monkeypatch.setattr(machine.jax, "devices", devices)
  with pytest.raises(SettingError, match=message):
    machine.start_devices()


def test_a_user_without_a_home_has_no_compile_cache(monkeypatch):
  def home():
    raise RuntimeError("Could not determine home directory.")

  monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
  assert compile_cache.default_cache() == str(Path.home() / ".cache" / "fedjax_het")
  monkeypatch.setattr(compile_cache.Path, "home", home)
  assert compile_cache.default_cache() == ""
  for own in ("/cache", ""):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", own)
    assert compile_cache.default_cache() == own


def test_a_cache_that_cannot_be_written_is_said_and_left_out(tmp_path, capsys, monkeypatch):
  before = jax.config.jax_compilation_cache_dir
  try:
    (tmp_path / "file").write_text("")
    compile_cache.keep_programs(tmp_path / "file" / "cache")
    assert jax.config.jax_compilation_cache_dir is None
    assert "compile_cache = " in (said := capsys.readouterr().err) and "are not kept" in said
    compile_cache.keep_programs(tmp_path / "a" / "b")
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "a" / "b") and not capsys.readouterr().err
    fh.keep_programs()  # from Python, where JAX has a folder already
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "a" / "b")
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setattr(compile_cache, "default_cache", lambda: str(tmp_path / "home"))
    fh.keep_programs()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "home")
  finally:
    jax.config.update("jax_compilation_cache_dir", before)


def test_a_working_folder_that_is_gone(tmp_path, monkeypatch):
  (tmp_path / "gone").mkdir()
  monkeypatch.chdir(tmp_path / "gone")
  (tmp_path / "gone").rmdir()
  with pytest.raises(SettingError, match=r"working folder.*removed or renamed.*Change to one that is there"):
    check_here()
  monkeypatch.chdir(tmp_path)
  check_here()


@pytest.mark.slow
def test_every_command_says_that_its_folder_is_gone_and_help_ends_with_0(tmp_path):
  environment = os.environ | {"PYTHONPATH": str(ROOT)}
  for module in ("run", "reproduce", "compare", "models.convert"):
    (tmp_path / "gone").mkdir()
    own = f"cd {tmp_path}/gone && rmdir {tmp_path}/gone && {sys.executable} -m fedjax_het.{module}"
    done = subprocess.run(["sh", "-c", f"{own} a"], env=environment, capture_output=True, text=True)
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr
    assert "removed or renamed" in done.stderr or module == "models.convert"
    done = subprocess.run(
      [sys.executable, "-m", f"fedjax_het.{module}", "--help"], cwd=ROOT, capture_output=True
    )
    assert done.returncode == 0 and done.stdout


@pytest.mark.slow
def test_the_coordinators_port_is_closed_at_other_addresses(tmp_path):
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
  others = {own[4][0] for own in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
  outside = [own for own in others if not own.startswith("127.")]
  if not outside:
    pytest.skip("this machine has no address but its loopback")
  command = [sys.executable, "-m", "fedjax_het.run", f"--workdir={tmp_path}", "--distributed",
             f"--coordinator=127.0.0.1:{port}", "--processes=2", "--process=0"]  # fmt: skip
  with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
    try:
      for _ in range(600):
        with socket.socket() as asked:
          if asked.connect_ex(("127.0.0.1", port)) == 0:
            break
        time.sleep(0.1)
      else:
        pytest.fail("the coordinator does not listen")
      with socket.socket() as asked:
        assert asked.connect_ex((outside[0], port)) != 0
    finally:
      run.kill()
