"""Two processes with two devices each are one process: `launch/local.sh`, as a user would try it."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from quick_compiler import environment
from tiny_table import CONFIG, PRINTED

from fedjax_het.engine import processes
from fedjax_het.errors import SettingError
from fedjax_het.experiment.recorded import timeless
from fedjax_het.program.where import parse_mesh

ROOT = Path(__file__).parents[2]
FLAGS = (
  "--config.rounds=40", "--config.eval_every=15", "--config.algorithm.start=0.25",
  "--config.local.epochs=1",
  "--config.mixing.name=aaggff_d", "--checkpoint_seconds=0",
)  # fmt: skip


ENVIRONMENT = environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def together(workdir: Path, *flags: str, stdout=subprocess.PIPE) -> subprocess.Popen:
  """Two processes."""
  command = [ROOT / "launch" / "local.sh", f"--workdir={workdir}", *FLAGS, *flags]
  return subprocess.Popen(
    command, cwd=ROOT, env=ENVIRONMENT, stdout=stdout, stderr=subprocess.STDOUT, text=True
  )


def alone(workdir: Path, *flags: str) -> subprocess.CompletedProcess:
  command = [sys.executable, "-m", "fedjax_het.run", f"--workdir={workdir}", *FLAGS, *flags]
  return subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)


def record(workdir: Path):
  lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
  summary = json.loads((workdir / "summary.json").read_text())
  return timeless([*lines, summary])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """The run in one process on one device."""
  workdir = tmp_path_factory.mktemp("alone")
  done = alone(workdir, "--mesh=clients:1")
  assert done.returncode == 0, done.stderr
  return record(workdir)


@pytest.mark.slow
def test_two_processes_are_one_and_one_takes_up_what_two_left(whole, tmp_path):
  """SIGTERM in the middle of the two processes' run, one process from their checkpoint on."""
  run = together(tmp_path)
  for _ in range(600):
    if any((tmp_path / "checkpoints").glob("[0-9]*")):
      break
    time.sleep(0.05)
  run.send_signal(signal.SIGTERM)
  output, _ = run.communicate(timeout=60)
  assert run.returncode == 143, output
  assert "Stopped by SIGTERM" in output and not (tmp_path / "summary.json").exists()
  done = alone(tmp_path, "--mesh=clients:3")
  assert done.returncode == 0, done.stderr
  assert record(tmp_path) == whole


@pytest.mark.slow
def test_two_processes_write_once_and_end_alike(whole, tmp_path):
  run = together(tmp_path, "--device_states=8")
  output, _ = run.communicate(timeout=120)
  assert run.returncode == 0, output
  assert output.count("best common λ") == 1
  assert record(tmp_path) == whole


@pytest.mark.slow
def test_sigterm_ends_processes_that_do_not_train_yet(tmp_path):
  """They have met, and read the data; JAX must not keep the signal to itself."""
  run = together(tmp_path)
  while not (tmp_path / "config.json").exists() and run.poll() is None:
    time.sleep(0.01)
  run.send_signal(signal.SIGTERM)
  output, _ = run.communicate(timeout=60)
  assert run.returncode == 143, output
  assert not (tmp_path / "summary.json").exists()


@pytest.mark.slow
def test_a_mistake_ends_all_processes_with_its_one_line(tmp_path):
  log = tmp_path / "all.log"
  log.write_text("precious\n")
  with log.open("a") as file:  # which /dev/stdout would empty
    run = together(tmp_path, "--config.algorithm.name=superfed", stdout=file)
    run.wait(timeout=60)
  output = log.read_text()
  assert output.startswith("precious\n")
  assert run.returncode == 1 and output.count("superfed_") and "Traceback" not in output


@pytest.mark.slow
def test_a_run_that_another_program_is_at_ends_both_processes(tmp_path):
  """Only the first asks for the folder; the second would train on without it."""
  with (tmp_path / ".claim").open("w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    run = together(tmp_path)
    output, _ = run.communicate(timeout=60)
  other = (tmp_path / "process_1.log").read_text()
  assert run.returncode == 1 and "Traceback" not in output + other
  assert all("another process is at this run" in text for text in (output, other))


@pytest.mark.slow
def test_a_table_of_two_processes_leaves_a_run_to_who_is_at_it(tmp_path):
  """The other cell is run, by both, and the table says which was left."""
  (tmp_path / "tiny.py").write_text(CONFIG)
  (tmp_path / "tiny.csv").write_text(PRINTED)
  folder = tmp_path / "runs" / "algorithm=fedavg,lr=0.05,seed=0"
  folder.mkdir(parents=True)
  with socket.socket() as free:
    free.bind(("", 0))
    port = free.getsockname()[1]
  command = [
    sys.executable, "-m", "fedjax_het.reproduce", f"--table={tmp_path}/tiny.py", "--where=lr=0.05",
    f"--workdir={tmp_path}/runs", "--mesh=clients:2", "--distributed", f"--coordinator=localhost:{port}",
    "--processes=2",
  ]  # fmt: skip
  with (folder / ".claim").open("w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    both = [
      subprocess.Popen(
        [*command, f"--process={i}"], cwd=ROOT, env={**ENVIRONMENT, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
      )
      for i in range(2)
    ]  # fmt: skip
    texts = [run.communicate(timeout=120)[0] for run in both]
  assert [run.returncode for run in both] == [0, 0], texts
  assert "another process is at it" in texts[0]
  assert not (folder / "summary.json").exists()
  assert (tmp_path / "runs" / "algorithm=fedper,lr=0.05,seed=0" / "summary.json").exists()


def test_agreement_of_one_process_is_its_own_word():
  assert processes.agreed(3.0, False) == (3.0, False) and processes.writes()
  assert processes.of_the_first("α") == "α"


def test_a_mesh_is_a_name_and_a_number():
  assert parse_mesh("clients:4") == 4 and parse_mesh("") is None
  for text in ("clients", "clients:0", "clients:x", "4", "model:2"):
    with pytest.raises(SettingError, match="clients:4"):
      parse_mesh(text)


def test_scripts_are_well_formed():
  for script in (ROOT / "launch").glob("*.sh"):
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    assert os.access(script, os.X_OK)
    assert "Tested:" in script.read_text() and "Not tested:" in script.read_text()
  yaml = pytest.importorskip("yaml")
  jobset = yaml.safe_load((ROOT / "launch" / "jobset.yaml").read_text())
  job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
  args = job["template"]["spec"]["containers"][0]["args"]
  assert f"--processes={job['parallelism']}" in args and job["completions"] == job["parallelism"]
  assert f"{jobset['metadata']['name']}-workers-0-0.{jobset['metadata']['name']}" in " ".join(args)
  assert "--distributed" in args
