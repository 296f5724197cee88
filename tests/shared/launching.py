"""Short launched runs, and the records that they leave."""

import json
from pathlib import Path

from ml_collections import ConfigDict

from fedjax_het.experiment import experiment
from fedjax_het.experiment.quickstart import get_config
from fedjax_het.experiment.record import timeless
from fedjax_het.experiment.values import with_values
from fedjax_het.experiment.where import Where


def small(**changes) -> ConfigDict:
  """The quickstart, cut to a few seconds; changes as field__subfield=value."""
  config = get_config()
  config.update(rounds=7, eval_every=3, model={"name": "two_nn", "hidden": 8})
  config.local.epochs = 1
  config.algorithm.start = 0.3
  return with_values(config, {name.replace("__", "."): value for name, value in changes.items()})


def start(config: ConfigDict, workdir: str, devices: int = 1, **settings) -> dict:
  return experiment.run_experiment(config, workdir, Where(devices=devices), **settings)


def records(workdir: Path) -> list[dict]:
  return timeless([json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()])


def config_of(cell="algorithm=fedavg", **changes):
  config = get_config(cell)
  for name, value in changes.items():
    section, _, field = name.rpartition("__")
    with config.ignore_type():
      (config[section] if section else config)[field] = value
  return config
