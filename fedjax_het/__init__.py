"""fedjax_het: federated learning when clients' data differ, on one JAX engine."""

import importlib
from typing import Any

from fedjax_het import _starting as _starting
from fedjax_het import (
  aggregation,
  asynchronous,
  attacks,
  data,
  metrics,
  mixing,
  models,
  participation,
  privacy,
  server,
  system,
  tasks,
  uploads,
)  # fmt: skip
from fedjax_het.clients.apfl import apfl
from fedjax_het.clients.ditto import ditto
from fedjax_het.clients.fedadmm import fedadmm
from fedjax_het.clients.fedbabu import fedbabu
from fedjax_het.clients.fedbn import fedbn
from fedjax_het.clients.fedcm import fedcm, mofedsam
from fedjax_het.clients.feddc import feddc
from fedjax_het.clients.feddyn import feddyn, fedspeed
from fedjax_het.clients.fedem import fedem
from fedjax_het.clients.fedevg import fedevg
from fedjax_het.clients.fedper import fedper
from fedjax_het.clients.fedproto import fedproto
from fedjax_het.clients.fedrep import fedrep
from fedjax_het.clients.fedrod import fedrod
from fedjax_het.clients.finetuned import finetuned
from fedjax_het.clients.generative import fedcgan, fedcvae
from fedjax_het.clients.ifca import ifca
from fedjax_het.clients.label_skew import fedlc, fedntd, fedrs
from fedjax_het.clients.lg_fedavg import lg_fedavg
from fedjax_het.clients.local_only import local_only
from fedjax_het.clients.moon import moon
from fedjax_het.clients.per_fedavg import per_fedavg
from fedjax_het.clients.pfedme import pfedme
from fedjax_het.clients.regions import regions
from fedjax_het.clients.scaffold import scaffold
from fedjax_het.clients.sgd import fedavg, fedprox
from fedjax_het.clients.sosicfl import sosicfl, sosicfl_all, sosicfl_plus
from fedjax_het.clients.superfed import superfed, superfed_lm, superfed_mm
from fedjax_het.data.federate import federate
from fedjax_het.engine.compile_cache import keep_programs
from fedjax_het.engine.cpu import prepare_cpu
from fedjax_het.engine.elapsed import Clock
from fedjax_het.engine.engine import Engine
from fedjax_het.engine.run import Result, run
from fedjax_het.engine.state import State
from fedjax_het.engine.sweep import Sweep, sweep
from fedjax_het.engine.trained import Trained, load_model
from fedjax_het.errors import DataError, NonFiniteLoss, NoRoom, SettingError
from fedjax_het.federated import federated
from fedjax_het.models import Model
from fedjax_het.parts import (
  Aggregation,
  Algorithm,
  Asynchronous,
  Attack,
  ClientUpdate,
  Context,
  Draw,
  Feedback,
  Info,
  LocalTraining,
  Message,
  Mixing,
  Needs,
  Participation,
  Pooled,
  ServerUpdate,
  Speeds,
  Studies,
  System,
  Upload,
  Way,
  Wire,
  in_one_go,
)
from fedjax_het.tasks import Task

__all__ = [
  "Aggregation", "Algorithm", "Asynchronous", "Attack", "ClientUpdate", "Clock", "Context", "DataError",
  "Draw", "Engine", "Feedback", "Info", "LocalTraining", "Message", "Mixing", "Model", "Needs", "NoRoom",
  "NonFiniteLoss", "Participation", "Pooled", "Result", "ServerUpdate", "SettingError", "Speeds", "State",
  "Studies", "Sweep", "System", "Task", "Trained", "Upload", "Way", "Wire", "aggregation", "apfl",
  "asynchronous", "attacks", "data", "ditto", "fedadmm", "fedavg", "fedbabu", "fedbn", "fedcgan", "fedcm",
  "fedcvae", "feddc", "feddyn", "fedem", "federate", "federated", "fedevg", "fedlc", "fedntd", "fedper",
  "fedproto", "fedprox", "fedrep", "fedrod", "fedrs", "fedspeed", "finetuned", "flower", "ifca",
  "in_one_go", "keep_programs", "lg_fedavg", "load_model", "load_run", "local_only", "metrics", "mixing",
  "models", "mofedsam", "moon", "participation", "per_fedavg", "pfedme", "prepare_cpu", "privacy", "regions",
  "run", "scaffold", "server", "sosicfl", "sosicfl_all", "sosicfl_plus", "superfed", "superfed_lm",
  "superfed_mm", "sweep", "system", "tasks", "uploads",
]  # fmt: skip


def __getattr__(name: str) -> Any:
  """Imports `load_run`, `flower` and the field's client parts, such as `fedala`, when they are first used."""
  if name == "flower":
    return importlib.import_module("fedjax_het.flower")
  if name == "load_run":
    from fedjax_het.experiment.load import load_run

    return load_run
  if not name.startswith("_"):
    from fedjax_het.methods import CLIENTS

    if name in CLIENTS:
      return CLIENTS[name].factory
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
