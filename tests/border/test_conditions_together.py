"""Dropouts, 8-bit uploads, liars and a median together, beside methods of four kinds."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import chex
import jax
import numpy as np
import pytest
from cases import OWN, client, with_every
from launching import records
from quick_compiler import environment
from small_parts import SIZES, federation, mlp, scaffold

import fedjax_het as fh
from fedjax_het.engine.engine import Engine
from fedjax_het.methods import MIXINGS, SERVERS

ROOT = Path(__file__).parents[2]
ROUNDS, COHORT = 4, 9
NAMES = {  # (client, mixing, server)
  "superfed_mm": ("superfed_mm", "static", "sgd"),
  "aaggff_d": ("fedavg", "aaggff_d", "sgd"),
  "ditto": ("ditto", "static", "sgd"),
  "fedevg": ("fedevg", "static", "sgld"),
}
FLAGS = (
  "--config.participation={'name': 'available', 'probability': 0.9, 'dropout': 0.3}",
  "--config.uploads=({'name': 'quantize', 'bits': 8},)",
  "--config.attack={'name': 'sign_flip', 'share': 0.2}",
  "--config.aggregation={'name': 'median'}",
)


def together(name: str) -> fh.Algorithm:
  of_client, of_mixing, of_server = NAMES[name]
  return fh.federated(
    client(of_client, mlp(), rounds=ROUNDS, epochs=1, batch_size=6),
    MIXINGS[of_mixing].make({}),
    SERVERS[of_server].make({"rounds": ROUNDS, **OWN.get(of_server, {})}),
    participation=fh.participation.available(probability=0.9, dropout=0.3),
    uploads=[fh.uploads.quantize(bits=8)],
    attack=fh.attacks.sign_flip(share=0.2),
    aggregation=fh.aggregation.median(),
  )


def left(algorithm, devices, lengths=(ROUNDS,)):
  """All that a run leaves; between two lengths its state goes through the host, as through a file."""
  engine, infos = Engine(algorithm, federation(SIZES), COHORT, devices=devices), []
  state = engine.init(jax.random.key(5))
  for length in lengths:
    state, info = engine.advance(state, length)
    infos.append(info)
    raw = jax.tree.map(np.array, state._replace(key=jax.random.key_data(state.key)))
    state = jax.device_put(
      raw._replace(key=jax.random.wrap_key_data(raw.key)), engine.shardings(engine.init(jax.random.key(0)))
    )
  return jax.tree.map(np.array, raw), jax.tree.map(lambda *parts: np.concatenate(parts), *infos)


@pytest.mark.slow
@pytest.mark.parametrize("name", with_every(NAMES, "superfed_mm", "fedevg"))
def test_the_bits_are_the_same_on_one_device_and_on_two_and_after_a_stop(name):
  one, infos = left(together(name), 1)
  assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((one, infos.clients)))
  assert 0 < infos.present.mean() < 1
  chex.assert_trees_all_equal((one, infos), left(together(name), 2, (1, ROUNDS - 1)))


def launch(name: str, workdir: Path, *more: str) -> subprocess.Popen:
  of_client, of_mixing, of_server = NAMES[name]
  flags = [f"--config.mixing.name={of_mixing}", f"--config.server={{'name': '{of_server}'}}"]
  flags += ["--config.local.epochs=1", "--config.rounds=60", "--config.eval_every=5", "--config.seed=1"]
  command = [sys.executable, "-m", "fedjax_het.run", f"--workdir={workdir}", "--checkpoint_seconds=0"]
  command += [f"--config={ROOT}/configs/quickstart.py:algorithm={of_client}", *flags, *FLAGS, *more]
  env = environment(PYTHONPATH=str(ROOT), PATH=os.environ["PATH"])
  return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(process: subprocess.Popen) -> None:
  _, errors = process.communicate(timeout=600)
  assert process.returncode == 0, errors.decode()


@pytest.mark.slow
@pytest.mark.parametrize("name", with_every(NAMES, "superfed_mm"))
def test_a_killed_run_continues_on_other_devices_to_the_same_figures(name, tmp_path):
  finish(launch(name, tmp_path / "whole", "--mesh=clients:1"))
  process, metrics = launch(name, tmp_path / "killed", "--mesh=clients:1"), tmp_path / "killed/metrics.jsonl"
  deadline = time.monotonic() + 300
  while time.monotonic() < deadline and not (metrics.exists() and metrics.read_text().count("\n") >= 2):
    assert process.poll() is None, process.communicate()[1].decode()
    time.sleep(0.01)
  process.send_signal(signal.SIGKILL)
  process.communicate()
  assert not (tmp_path / "killed/summary.json").exists()
  finish(launch(name, tmp_path / "killed", "--mesh=clients:2"))
  assert records(tmp_path / "killed") == records(tmp_path / "whole")


def fedavg():
  return fh.fedavg(mlp(), lr=0.1)


def absent():
  return fh.participation.available(0.9, dropout=0.3)


REFUSED = {
  "participation, counts on a whole cohort": (
    lambda: fh.federated(fedavg(), fh.mixing.aaggff_s(), participation=absent()), "aaggff_s"
  ),
  "aggregation of updates, signals": (
    lambda: fh.federated(
      client("fedevg", mlp()), server=fh.server.sgld(ROUNDS), aggregation=fh.aggregation.centered_clipping()
    ),
    "centered_clipping.*fedevg uploads no model",
  ),
  "robust mixing, further field": (lambda: fh.federated(scaffold(mlp()), fh.mixing.krum()), "krum.*even"),
  "labels, no classes": (
    lambda: fh.federated(fedavg()._replace(task=fh.tasks.regression()), attack=fh.attacks.label_flip()),
    "label_flip.*classes",
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_go_together_is_refused_by_name_when_it_is_composed(name):
  make, words = REFUSED[name]
  with pytest.raises(fh.SettingError, match=words):
    make()
