"""Loads a finished run from its folder, to look at it and to predict with its models."""

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.clients.local_settings import LocalSettings, at_evaluations
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.clients.sgd import run_steps, start
from fedjax_het.config.plan import plan
from fedjax_het.data.container import FederatedData
from fedjax_het.data.encoder import Encoder, as_table
from fedjax_het.data.federate import federate
from fedjax_het.data.filled import Scaling
from fedjax_het.engine.state import State
from fedjax_het.engine.trained import Trained, trained
from fedjax_het.errors import SettingError, check_range, check_whole
from fedjax_het.experiment.build import Experiment, build
from fedjax_het.experiment.experiment import BEST
from fedjax_het.models import MODELS, Model
from fedjax_het.modes import in_float32
from fedjax_het.parts import Context
from fedjax_het.program.packages import load_packages
from fedjax_het.workdir.encoder import read_encoder
from fedjax_het.workdir.folder import Workdir, read_json_lines, read_record, workdir_of
from fedjax_het.workdir.model import MODEL, read_model
from fedjax_het.workdir.provenance import check_start, numerics


@dataclasses.dataclass(frozen=True, eq=False)
class Run(Trained):
  """A finished run: what was configured, what came of it, and its models, see `Trained`.

  Attributes:
    folder: the run's folder.
    config: the configuration, as in config.json.
    metrics: the lines of metrics.jsonl, one for each evaluation.
    summary: the content of summary.json.
    experiment: the run's data, model and algorithm.
  """

  folder: Workdir
  config: Mapping[str, Any]
  metrics: list[dict[str, Any]]
  summary: Mapping[str, Any]
  experiment: Experiment

  def __repr__(self) -> str:
    """Returns the run in a line."""
    what = f"{self.summary['algorithm']} on {self.summary['dataset']}"
    return f"Run({what}, {self.num_clients} clients, {self.summary['rounds']} rounds, {self.folder.root})"

  @in_float32()
  def adapted(self, rows: Any, labels: Any = None, *, steps: int = 10, lr: float | None = None) -> Trained:
    """Returns the global model after local steps on the rows of a client that was not in training.

    The steps are SGD from the global model, as those of the setting `unseen`, with the run's momentum, weight
    decay and batch size. The result has this one client, called "new", and predicts for it by
    `predict(rows, "new")`. Where each client's rows were standardised by its own constants, those of `rows`
    are used.

    Args:
      rows: the client's rows, see `predict`; a table may hold the label's column.
      labels: their labels by name; None takes the table's label column.
      steps: number of local steps.
      lr: learning rate; None is the run's.

    Raises:
      SettingError: the method has no global model that could be trained, or a label is unknown.
    """
    check_whole("steps", steps, 1)
    model, client, data = self.experiment.model, self.experiment.algorithm.client, self.experiment.data
    shared = self.model_of()
    if not isinstance(model, Model) or not client.needs.uploads_model:
      raise SettingError(
        "steps", steps, f"{client.name} shares no model that could be trained on", "Predict."
      )
    if labels is None:
      label = self.config["dataset_options"].get("label")
      if label is None or label not in (table := as_table(rows)):
        remedy = f"Give labels=[...]{f', or rows with the column {label!r}' if label else ''}."
        raise SettingError("labels", None, "are missing", remedy)
      labels = table[label]
    y = self._numbers(labels)
    encoder = _for_one(self.encoder, rows)
    x = encoder.encode(rows, 0)
    own = federate(
      x, y, [np.arange(len(y))], jax.random.key(0), num_classes=data.num_classes, task=client.task,
      test_fraction=0.0, scale=data.scale,
    )  # fmt: skip
    given = self.experiment.plan.client.settings
    settings = cast(LocalSettings, at_evaluations(given))
    settings |= {} if lr is None else {"lr": lr}
    check_range("lr", settings.setdefault("lr", 0.01), above=0.0, below=np.inf)
    recipe = recipe_of(model, {**settings, "epochs": steps})  # as many passes hold at least so many steps
    optimizer = recipe.optimizer(Context())

    @jax.jit
    def tune(params: Any, own: FederatedData) -> Any:
      local = start(*model.split(params), optimizer)
      order = jax.random.fold_in(self.experiment.key, 1_000_005)
      local = run_steps(order, recipe, own.clients(jnp.int32(0)), local, optimizer, first=0, last=steps)
      return model.joined(local.params, local.stats)

    params = tune(shared, own)
    return Trained(self.program, self.example, encoder, 1, shared, lambda _: params)

  def _numbers(self, labels: Any) -> np.ndarray:
    """Returns labels by name as numbers of classes."""
    found = np.asarray(labels)
    names = np.asarray(self.encoder.labels)
    if found.ndim < 1 or not len(found) or (len(names) and found.ndim > 1):
      what = f"{found.dtype} {[*found.shape]}"
      raise SettingError("labels", what, "is no list of labels", "Give one label for each row.")
    if not len(names):
      return found
    if len(wrong := np.flatnonzero(~np.isin(found, names))):
      what, known = found[wrong[0]].item(), ", ".join(map(str, names))
      raise SettingError("labels", what, "is no label of training", f"Known: {known}.")
    return np.argmax(found[:, None] == names, axis=1).astype(np.int32)


_known_packages = functools.cache(load_packages)  # once in a process


def load_run(
  workdir: str | os.PathLike[str],
  *,
  model: Model | Callable[..., Model] | None = None,
  data_dir: str | os.PathLike[str] | None = None,
  best: bool = False,
) -> Run:
  """Loads a finished run: its configuration, its metrics, and its models from model.npz.

  What installed packages add to the tables is loaded first, as programs do, see `load_packages`. The run's
  data are read again, since some methods' models depend on them; `Run.save` writes a file that needs them no
  more.

  Args:
    workdir: the run's folder; of a sweep or a table, that of a member or a cell's run.
    model: for a run of a model that is not the library's: the model, or the factory (shape, num_classes,
      **options) that the configuration named.
    data_dir: where the data sets are, if not where they were.
    best: whether its models are those of the best round by validation, which `stopping.keep_best` keeps; by
      default those of the last round.

  Raises:
    SettingError: the folder holds no finished run, or a run that diverged, or no model of the best round.
    DataError: the data, or model.npz, are missing or others than the run's.
  """
  _known_packages()
  run = workdir_of(workdir)
  config, summary = read_record(run.config_path), read_record(run.summary_path)
  if config is None or summary is None or "sweep" in config:
    members = sorted(path.parent.name for path in run.root.glob("members/*/summary.json"))
    remedy = f"Name a member: {', '.join(members[:5])}." if members else "Name a run's folder."
    if config is not None and not members:
      remedy = "Start the run's command again, which goes on from the last checkpoint."
    raise SettingError("workdir", str(run.root), "holds no finished run", remedy)
  if summary.get("diverged"):
    raise SettingError("workdir", str(run.root), "holds a run that diverged", "Name another.")
  if data_dir is not None:
    config["data_dir"] = os.fspath(data_dir)
  with _known(config["model"]["name"], model):
    planned = plan(config)
    experiment = build(planned)
  check_start(run, experiment.digests, numerics({}))
  if (encoder := read_encoder(run.root)) is not None:
    experiment = experiment._replace(data=dataclasses.replace(experiment.data, encoder=encoder))
  algorithm = experiment.algorithm
  stopped = summary.get("stopping", {})
  if best and not (run.root / BEST / MODEL).is_file():
    kept = planned.stopping.get("keep_best")
    remedy = f"{BEST}/{MODEL} was removed." if kept else "Set --config.stopping.keep_best=True in the run."
    raise SettingError("best", best, f"{run.root} has no model of its best round", remedy)
  sent, clients = read_model(run.root / BEST if best else run.root, algorithm, experiment.data)
  done = stopped["round"] if best else summary["rounds"]
  state = State(experiment.key, jnp.int32(done), sent.broadcast, sent.server, (), clients)
  column = stopped["column"] if best else _column(algorithm.client.studies.lambdas, summary)
  used = trained(algorithm, experiment.data, state, planned.cohort_size, column)
  fields = {field.name: getattr(used, field.name) for field in dataclasses.fields(used)}
  return Run(
    **fields, folder=run, config=config, metrics=read_json_lines(run.metrics_path), summary=summary,
    experiment=experiment,
  )  # fmt: skip


def _column(lambdas: tuple[float, ...], summary: Mapping[str, Any]) -> int:
  """Returns the index of the λ that the run selected for its personalised models."""
  if len(lambdas) == 1:
    return 0
  common = summary["lambda"]["common"]
  return int(np.argmin(np.abs(np.asarray(lambdas) - common)))


@contextlib.contextmanager
def _known(name: str, model: Model | Callable[..., Model] | None) -> Iterator[None]:
  """Context manager in which a user's model stands in the table of models."""
  if model is None:
    yield
    return
  before = MODELS.get(name)
  MODELS[name] = (lambda shape, num_classes: model) if isinstance(model, Model) else model
  try:
    yield
  finally:
    del MODELS[name]
    if before is not None:
      MODELS[name] = before


def _for_one(encoder: Encoder, rows: Any) -> Encoder:
  """Returns the encoder of one client, "new", with the constants of its rows if each client has its own."""
  scaling = encoder.scaling
  if scaling is not None and len(scaling.mean) > 1:
    x = np.asarray(encoder.raw(rows))
    x = x.astype(np.float32) if encoder.columns else x
    scaling = Scaling.of(x.astype(np.float64), scaling.standardize)
  return dataclasses.replace(encoder, clients=("new",), scaling=scaling)
