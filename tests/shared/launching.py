"""Short launched runs, and the records that they leave."""

import contextlib
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from changed_configs import with_values
from ml_collections import ConfigDict

from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.engine.engine import Engine
from fedjax_het.experiment import experiment
from fedjax_het.experiment.recorded import timeless
from fedjax_het.program.stopping import Stopped
from fedjax_het.program.where import Where
from fedjax_het.workdir.checkpoint import Checkpoints


def small(**changes) -> ConfigDict:
  """The quickstart, cut to a few seconds; changes as field__subfield=value."""
  config = get_config()
  config.update(rounds=7, eval_every=3, model={"name": "two_nn", "hidden": 8})
  config.local.epochs = 1
  config.algorithm.start = 0.3
  return with_values(config, {name.replace("__", "."): value for name, value in changes.items()})


def start(config: ConfigDict, workdir: str, devices: int = 1, **settings) -> dict:
  return experiment.run_experiment(config, workdir, Where(devices=devices), **settings)


@contextlib.contextmanager
def stopped_at(monkeypatch, round: int):
  """The run that is started inside stops once so many rounds are done, as after a signal."""
  real = experiment.chunks

  def chunks(*args):
    for chunk in real(*args):
      yield chunk
      if int(chunk.state.round) >= round:
        raise Stopped("asked", None)

  with monkeypatch.context() as patch, pytest.raises(Stopped):
    patch.setattr(experiment, "chunks", chunks)
    yield


def records(workdir: Path) -> list[dict]:
  return timeless([json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()])


def final_state(workdir: Path, config: ConfigDict | None = None) -> tuple[list[np.ndarray], int]:
  """The arrays of a run's last checkpoint, and the client steps in its books."""
  built = experiment.build(plan(config or small()))
  engine = Engine(built.algorithm, built.data, 5, devices=1)
  with contextlib.closing(Checkpoints(workdir / "checkpoints")) as checkpoints:
    state, books = checkpoints.restore(engine.init(jax.random.key(0)))
  leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(state._replace(key=jax.random.key_data(state.key)))]
  return leaves, books["runs"][0]["client_steps"]


def config_of(cell="algorithm=fedavg", **changes):
  config = get_config(cell)
  for name, value in changes.items():
    section, _, field = name.rpartition("__")
    with config.ignore_type():
      (config[section] if section else config)[field] = value
  return config
