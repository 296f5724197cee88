"""Loads a finished run from its workdir, for benchmarks that evaluate its models in other ways."""

import json
import shutil
import tempfile
from pathlib import Path

from ml_collections import ConfigDict

from fedjax_het.config.plan import plan
from fedjax_het.engine.engine import Engine
from fedjax_het.engine.state import State
from fedjax_het.experiment.build import Experiment, build, engine_of
from fedjax_het.program.where import Where
from fedjax_het.workdir.checkpoint import Checkpoints


def ended(folder: Path) -> tuple[ConfigDict, Experiment, Engine, State]:
  """Its configuration, what that names, an engine of it, and the state of its last checkpoint."""
  config = ConfigDict(json.loads((folder / "config.json").read_text()))
  experiment = build(plan(config))
  engine = engine_of(experiment, Where())
  with tempfile.TemporaryDirectory() as copy:  # a reader may move what it finds damaged
    shutil.copytree(folder / "checkpoints", copy, dirs_exist_ok=True)
    found = Checkpoints(Path(copy)).restore(engine.init(experiment.key))
  if found is None:
    raise SystemExit(f"{folder} has no checkpoint.")
  return config, experiment, engine, found[0]
