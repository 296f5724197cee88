"""Compares runs on Flower's deployment engine with simulated ones; a SuperNode is killed on the way.

    python benchmarks/checks/flower_deployment.py [--methods fedavg scaffold ditto] [--rounds 4]

Needs the extra `flower`. A SuperLink and two SuperNodes run on this machine, on 127.0.0.1 alone. A quickstart
with two clients is run by `flwr run` from launch/flower, and by `python -m fedjax_het.run`. After the half of
the rounds the SuperNode of client 1 is killed with all of its processes, and started again with the same
command, so that it has a new identity for Flower, and only its folder. The script writes the largest
differences of models and figures, and fails above 1e-5. It measures no time.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.provenance import RAW, ROOT, provenance

METHODS, MOST = ("fedavg", "scaffold", "ditto"), 1e-5
FLAGS = ("num_clients=2", "cohort_size=2", "partition.alpha=1.0", "local.epochs=2")
PATIENCE = 1200.0  # seconds for what takes one on an idle machine


class Federation:
  """A SuperLink and two SuperNodes on this machine, with all of their files in one folder."""

  def __init__(self, folder: Path):
    self.folder = folder
    self.ports = [_free_port() for _ in range(3)]
    home = folder / "home"
    home.mkdir()
    (home / "config.toml").write_text(
      f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{self.link}"\ninsecure = true\n'
    )
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    programs = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    self.env = os.environ | {
      "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
      "PYTHONPATH": paths, "PATH": programs, "JAX_PLATFORMS": "cpu",
      "JAX_COMPILATION_CACHE_DIR": str(folder / "programs"),
    }  # fmt: skip
    self.started: dict[str, subprocess.Popen[bytes]] = {}

  @property
  def link(self) -> str:
    return f"127.0.0.1:{self.ports[0]}"

  def start_link(self) -> None:
    self._start(
      "link", "flower-superlink", "--insecure", "--host=127.0.0.1", f"--port={self.ports[0]}",
      "--disable-runtime-dependency-installation",
    )  # fmt: skip
    until(lambda: _listens(self.ports[0]), "the SuperLink does not listen")

  def start_node(self, k: int) -> None:
    config = f'partition-id={k} folder="{self.folder / f"node_{k}"}"'
    self._start(
      f"node_{k}", "flower-supernode", "--insecure", f"--superlink={self.link}", "--host=127.0.0.1",
      f"--port={self.ports[k + 1]}", f"--node-config={config}",
    )  # fmt: skip

  def kill(self, name: str) -> None:
    """Kills a program and all that it started, as if its machine were switched off."""
    program = self.started.pop(name)
    with contextlib.suppress(ProcessLookupError):
      os.killpg(program.pid, signal.SIGKILL)
    program.wait()

  def run(self, config: str, flags: str, out: Path) -> None:
    """Submits a run."""
    text = f'config="{config}" flags="{flags}" folder="{out}"'
    command = ["flwr", "run", str(ROOT / "launch" / "flower"), "here", "--run-config", text]
    subprocess.run(command, env=self.env, cwd=self.folder, check=True)

  def _start(self, name: str, *command: str) -> None:
    with (self.folder / f"{name}.log").open("ab") as log:
      self.started[name] = subprocess.Popen(
        command, env=self.env, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
      )


@contextlib.contextmanager
def federation(folder: Path) -> Iterator[Federation]:
  """Context manager with a running federation of two nodes."""
  made = Federation(folder)
  try:
    made.start_link()
    made.start_node(0)
    made.start_node(1)
    yield made
  finally:
    for name in [*made.started]:
      made.kill(name)


def until(done: Callable[[], Any], otherwise: str) -> None:
  """Waits until something is done; fails after PATIENCE."""
  last = time.monotonic() + PATIENCE
  while not done():
    if time.monotonic() > last:
      raise TimeoutError(otherwise)
    time.sleep(0.5)


def deployed(made: Federation, method: str, rounds: int) -> dict[str, Any]:
  """Runs a method simulated and deployed, and kills a node on the way; returns how far they differ."""
  half, config = rounds // 2, f"configs/quickstart.py:algorithm={method}"
  flags = [f"--config.{flag}" for flag in (*FLAGS, f"rounds={rounds}", f"eval_every={half}")]
  simulated, out = made.folder / f"simulated_{method}", made.folder / f"deployed_{method}"
  command = ["-m", "fedjax_het.run", f"--config={config}", f"--workdir={simulated}", "--mesh=clients:1"]
  subprocess.run([sys.executable, *command, *flags], env=made.env, cwd=ROOT, check=True)
  made.run(config, " ".join(flags), out)

  def lines() -> list[dict[str, Any]]:
    paths = [*out.glob("run_*/metrics.jsonl")]
    return [json.loads(line) for line in paths[0].read_text().splitlines()] if paths else []

  until(lambda: any(line["round"] == half for line in lines()), f"{method} is not at round {half}")
  made.kill("node_1")
  made.start_node(1)
  until(lambda: [*out.glob("run_*/model.npz")], f"{method} does not end")
  own = [json.loads(line) for line in (simulated / "metrics.jsonl").read_text().splitlines()]
  kept = [dict(zip(("personalized", "global"), _figures(line))) for line in lines()]
  with np.load(next(out.glob("run_*/model.npz"))) as ours, np.load(simulated / "model.npz") as theirs:
    shared = [name for name in theirs if not name.startswith("clients/")]
    assert sorted(shared) == sorted(ours), (sorted(ours), sorted(theirs))
    model = max(float(np.abs(ours[name] - theirs[name]).max()) for name in shared)
    largest = max(float(np.abs(theirs[name]).max()) for name in shared)
  rounds_of = [line["round"] for line in lines()]
  assert rounds_of == [line["round"] for line in own] == [half, rounds], (rounds_of, own)
  figures = max(_apart(mine, theirs) for mine, theirs in zip(lines(), own))
  return {
    "method": method, "rounds": rounds, "killed_after_round": half, "states": _states(made, method),
    "model_difference": model, "model_largest": largest, "figures_difference": figures, "figures": kept,
  }  # fmt: skip


def _figures(line: dict[str, Any]) -> list[float]:
  return [line["metrics"][kind]["top1"]["mean"] for kind in ("personalized", "global")]


def _apart(mine: Any, theirs: Any) -> float:
  """Returns the largest difference of two lines' train_loss, metrics and valid."""
  if isinstance(mine, dict):
    names = {*mine} & ({"train_loss", "metrics", "valid"} if "round" in mine else {*mine})
    return max(_apart(mine[name], theirs[name]) for name in names)
  if mine is None or theirs is None:
    return 0.0 if mine is theirs else float("inf")
  return abs(mine - theirs)


def _states(made: Federation, method: str) -> list[int]:
  """Returns how many files of states each node has of its last run."""
  of_runs = [sorted((made.folder / f"node_{k}").glob("run_*"), key=os.path.getmtime) for k in range(2)]
  return [0 if method == "fedavg" else len([*runs[-1].glob("client_*/*.npz")]) for runs in of_runs]


def _free_port() -> int:
  with socket.socket() as own:
    own.bind(("127.0.0.1", 0))
    return own.getsockname()[1]


def _listens(port: int) -> bool:
  with socket.socket() as own:
    return own.connect_ex(("127.0.0.1", port)) == 0


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--methods", nargs="+", default=METHODS)
  parser.add_argument("--rounds", type=int, default=4)
  parser.add_argument("--out", type=Path, default=RAW / "flower_deployment.json")
  given = parser.parse_args()
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that its programs end, too
  folder = Path(tempfile.mkdtemp(prefix="flower_"))
  with federation(folder) as made:
    found = [deployed(made, method, given.rounds) for method in given.methods]
  for one in found:
    print(json.dumps(one))
  words = "python benchmarks/checks/flower_deployment.py"
  record = {**provenance(), "flwr": version("flwr"), "command": words, "runs": found}
  given.out.write_text(json.dumps(record, indent=1) + "\n")
  assert all(max(one["model_difference"], one["figures_difference"]) <= MOST for one in found), folder
  shutil.rmtree(folder)


if __name__ == "__main__":
  main()
