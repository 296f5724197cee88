"""What launch/slurm.sh decides, with SLURM's commands as SLURM 22.05 was seen to behave."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "launch" / "slurm.sh"

# A step of one process, which takes 0.2 s to its end once it is told. SIGTERM to srun itself kills it.
SRUN = """#!/bin/bash
echo "$*" > step
{
  trap 'sleep 0.2; exit 143' TERM
  trap 'touch saved' USR1
  echo $BASHPID > new; mv new task
  for i in {1..200}; do sleep 0.05; [ -e fail ] && exit 143; done
} &
trap 'kill -KILL %1; exit 137' TERM
wait %1
"""
# Tells the step; not any more where SLURM is already ending the job.
SCANCEL = """#!/bin/bash
echo "scancel $*" >> calls
[ ! -e cancelled ] && kill -"${2#--signal=}" "$(cat task)"
"""
SCONTROL = '#!/bin/bash\necho "scontrol $*" >> calls\n'


@pytest.fixture
def job(tmp_path):
  """Starts the script as a job whose step already runs, with some variables more."""
  for name, text in (("srun", SRUN), ("scancel", SCANCEL), ("scontrol", SCONTROL)):
    (tmp_path / name).write_text(text)
    (tmp_path / name).chmod(0o755)
  started = []

  def start(*arguments: str, **variables: str) -> subprocess.Popen:
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"} | variables
    started.append(subprocess.Popen([SCRIPT, *(arguments or ("--workdir=a",))], cwd=tmp_path, env=env))
    while not (tmp_path / "task").exists():
      time.sleep(0.01)
    return started[-1]

  yield start
  for process in started:
    process.kill()
    process.wait()


def calls(folder: Path) -> list[str]:
  path = folder / "calls"
  return path.read_text().splitlines() if path.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize(
  ("variables", "number"),
  [({}, "7"), ({"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}, "7_3")],
  ids=["job", "member of an array"],
)
def test_time_limit_tells_the_processes_and_requeues_once(job, tmp_path, variables, number):
  run = job(**variables)
  run.send_signal(signal.SIGTERM)
  assert run.wait(20) == 143
  assert calls(tmp_path) == [f"scancel --quiet --signal=TERM {number}.0", f"scontrol requeue {number}"]


@pytest.mark.slow
@pytest.mark.parametrize("warned", [False, True])
def test_cancelled_job_is_not_requeued(job, tmp_path, warned):
  """SLURM itself tells the processes then, and the script; also while they stop at their time limit."""
  run = job()
  if warned:
    run.send_signal(signal.SIGTERM)
    while not calls(tmp_path):
      time.sleep(0.01)
  (tmp_path / "cancelled").touch()
  os.kill(int((tmp_path / "task").read_text()), signal.SIGTERM)
  run.send_signal(signal.SIGTERM)
  assert run.wait(20) == 143
  assert "scontrol requeue 7" not in calls(tmp_path)


@pytest.mark.slow
def test_usr1_asks_the_processes_for_a_checkpoint_and_the_job_goes_on(job, tmp_path):
  run = job()
  run.send_signal(signal.SIGUSR1)
  while not (tmp_path / "saved").exists():
    time.sleep(0.01)
  assert run.poll() is None and calls(tmp_path) == ["scancel --quiet --signal=USR1 7.0"]
  run.send_signal(signal.SIGTERM)
  assert run.wait(20) == 143 and calls(tmp_path)[-1] == "scontrol requeue 7"


@pytest.mark.slow
def test_job_whose_process_failed_is_not_requeued(job, tmp_path):
  """srun stops the others then, which end with 143, and reports the largest."""
  run = job()
  (tmp_path / "fail").touch()
  assert run.wait(20) == 143
  assert calls(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
  ("arguments", "step"),
  [
    (("--workdir=a b",), "fedjax_het.run --distributed --workdir=a b"),
    (("run", "--workdir=a"), "fedjax_het.run --distributed --workdir=a"),
    (("reproduce", "--table=t.py"), "fedjax_het.reproduce --distributed --table=t.py"),
  ],
)
def test_what_a_step_runs(job, tmp_path, arguments, step):
  job(*arguments, SLURM_CPUS_PER_TASK="8")
  text = f"--cpus-per-task=8 --kill-on-bad-exit=1 python3 -m {step}\n"
  assert (tmp_path / "step").read_text() == text


def test_a_job_that_was_given_no_number_of_cores(job, tmp_path, monkeypatch):
  monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
  job()
  assert (tmp_path / "step").read_text().startswith("--kill-on-bad-exit=1 ")
