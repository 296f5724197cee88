"""What numbers depend on beside code, configuration and data: options of XLA and of JAX, kept and noted."""

import json
import os
import subprocess
import sys

import jax
import pytest
from launching import config_of

from fedjax_het.engine import cpu
from fedjax_het.errors import SettingError
from fedjax_het.experiment import experiment
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.program.stopping import Stopped, StopRequest
from fedjax_het.program.where import Where
from fedjax_het.workdir.folder import Workdir, read_starts
from fedjax_het.workdir.provenance import check_start, numerics

LEVEL = "xla_backend_optimization_level"


@pytest.fixture
def as_users(monkeypatch):
  """The engine's own options, which tests are compiled without."""
  before = jax.config.values["jax_disable_most_optimizations"]
  jax.config.update("jax_disable_most_optimizations", False)
  monkeypatch.setitem(cpu.OPTIONS, LEVEL, 2)
  yield
  jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.parametrize(
  "flags, ours",
  [
    ("", {LEVEL: 2}),
    ("--xla_dump_to=/nowhere --xla_cpu_enable_fast_math", {LEVEL: 2}),
    (f"--{LEVEL}_of_another=1", {LEVEL: 2}),
    (f"--xla_dump_to='/a b' --{LEVEL}=3", None),
    (f"--{LEVEL} --xla_dump_to='no end", None),
  ],
)
def test_the_engine_keeps_its_options_but_for_those_that_the_user_sets(
  flags, ours, as_users, monkeypatch, tmp_path
):
  monkeypatch.setenv("XLA_FLAGS", flags)
  assert cpu.compiler_options() == ours
  (tmp_path / "flags").write_text(flags)
  monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "flags"))  # XLA reads them from a file as well
  assert cpu.compiler_options() == ours


def test_whoever_has_jax_optimise_nothing_gets_that(as_users):
  assert cpu.compiler_options() == {LEVEL: 2}
  jax.config.update("jax_disable_most_optimizations", True)
  assert cpu.compiler_options() is None


def test_flags_of_xla_are_read_as_xla_reads_them(monkeypatch):
  monkeypatch.setenv("XLA_FLAGS", " --a=1 --b  --c='x y=z' ")
  assert cpu.xla_flags() == {"a": "1", "b": "true", "c": "x y=z"}
  for nothing in ("", "no_such_file"):
    monkeypatch.setenv("XLA_FLAGS", nothing)
    assert cpu.xla_flags() == {}


def test_what_numbers_depend_on_is_told(as_users, monkeypatch):
  monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
  flags = "--xla_dump_to=/nowhere --xla_cpu_enable_fast_math=true --xla_force_host_platform_device_count=2"
  monkeypatch.setenv("XLA_FLAGS", flags)
  with jax.default_matmul_precision("float32"):
    found = numerics({"client_batch": 3})
  assert found["draws"]["jax_threefry_partitionable"] is True
  assert found["draws"]["jax_default_prng_impl"] == "threefry2x32"
  expected = {
    "jax_default_matmul_precision": "float32", "xla_flags": ["--xla_cpu_enable_fast_math=true"],
    "compiler_options": [f"{LEVEL}=2"], "environment": ["NVIDIA_TF32_OVERRIDE=0"], "platform": "cpu",
    "jax": jax.__version__, "client_batch": 3,
  }  # fmt: skip
  assert {name: found["bits"][name] for name in expected} == expected
  assert json.loads(json.dumps(found)) == found


def test_a_start_is_compared_with_what_was_noted_before(tmp_path):
  run, now = Workdir(tmp_path), numerics({"client_batch": 1})
  assert check_start(run, {}, now) == []
  (tmp_path / "starts.jsonl").write_text(
    '{"version": "0"}\n{"bits": 3, "draws": {}}\n'
  )  # of earlier versions
  assert check_start(run, {}, now) == []
  lines = [now, {**now, "bits": {**now["bits"], "jax": "0.1", "client_batch": 4}}]
  (tmp_path / "starts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  first, second = check_start(run, {}, now)
  assert first.startswith(f"This run goes on with jax = '{jax.__version__}' and had '0.1' before: ")
  assert "client_batch = 1 and had 4 before" in second
  for name, other in [("jax_threefry_partitionable", False), ("jax_default_prng_impl", "rbg")]:
    changed = {**now, "draws": {**now["draws"], name: other}}
    with pytest.raises(SettingError, match=rf"{name} = .*began with .* Set {name.upper()}=.*another workdir"):
      check_start(run, {}, changed)
  with run.starts_path.open("a") as file:
    file.write("garbage\n\n[]\n")
  assert check_start(run, {}, now)[0].startswith(f"2 of the lines of {run.starts_path} cannot be read;")


@pytest.mark.slow
def test_a_run_that_goes_on_says_what_is_rounded_otherwise_and_refuses_other_draws(
  tmp_path, monkeypatch, capsys
):
  config = config_of(rounds=4, eval_every=2, model__hidden=2, local__epochs=1)

  class Stop(StopRequest):
    made = property(lambda self: True, lambda self, value: None)

  with monkeypatch.context() as patch:
    patch.setattr(experiment, "StopRequest", Stop)
    with pytest.raises(Stopped, match="after round 1"):
      run_experiment(config, str(tmp_path), Where(devices=1))
  before = (tmp_path / "starts.jsonl").read_text()
  jax.config.update("jax_threefry_partitionable", False)
  try:
    with pytest.raises(
      SettingError, match=r"jax_threefry_partitionable = False.*Set JAX_THREEFRY_PARTITIONABLE=True"
    ):
      run_experiment(config, str(tmp_path), Where(devices=1))
  finally:
    jax.config.update("jax_threefry_partitionable", True)
  assert (tmp_path / "starts.jsonl").read_text() == before
  capsys.readouterr()
  with jax.default_matmul_precision("highest"):
    assert run_experiment(config, str(tmp_path), Where(devices=1, client_batch=2))["rounds"] == 4
  said = capsys.readouterr().out
  assert said.count("This run goes on with") == 2
  assert "jax_default_matmul_precision = 'highest' and had None before" in said
  assert "client_batch = 2 and had 1 before" in said
  assert [start["bits"]["client_batch"] for start in read_starts(tmp_path)] == [1, 2]


SUM = """
import fedjax_het as fh
fh.prepare_cpu()
import hashlib, jax, numpy as np
rng = np.random.default_rng(0)
x, y = rng.normal(size=(96, 12)).astype(np.float32), rng.integers(0, 3, 96)
data = fh.federate(x, y, np.arange(96).reshape(4, 24), jax.random.key(0), num_classes=3)
client = fh.superfed(fh.models.two_nn((12,), 3, hidden=9), epochs=2, batch_size=5)
engine = fh.Engine(fh.federated(client), data, 3)
state, infos = engine.advance(engine.init(jax.random.key(1)), 4)
leaves = jax.tree.leaves((state.broadcast, infos))
print(hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest())
"""


@pytest.mark.slow
def test_flags_of_xla_that_are_not_the_engines_change_no_bits(tmp_path):
  """Any of them made the engine leave out its own options; they are added to each other."""

  def run(flags):
    own = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "JAX_NUM_CPU_DEVICES": "2"}
    if "device_count" in flags:
      del own["JAX_NUM_CPU_DEVICES"]
    return subprocess.run(
      [sys.executable, "-c", SUM], env=own, text=True, capture_output=True, check=True
    ).stdout

  dump = tmp_path / "dump"
  plain = run("")
  assert len(plain.strip()) == 64
  assert run(f"--xla_dump_to={dump} --xla_dump_hlo_as_text") == plain
  assert run("--xla_force_host_platform_device_count=2") == plain
  options = [file.read_text() for file in dump.glob("*program*debug_options")]
  options += [file.read_text() for file in dump.glob("*lambda*debug_options")]
  assert options and all(f"{LEVEL}: 2" in text for text in options)
