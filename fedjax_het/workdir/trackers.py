"""Sends a run's figures to experiment trackers, MLflow and Weights & Biases, beside its own files.

A tracker is a client of a service that may fail at any time. Its failure is a warning: the run goes on
without it. trackers.json in the run's folder has the run's identity at each tracker and the last round sent,
so that a run that is continued goes on in the same place.
"""

import abc
import contextlib
import importlib.util
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import logging

from fedjax_het.errors import SettingError
from fedjax_het.workdir.folder import Workdir, read_record, write_atomic
from fedjax_het.workdir.tracking import plain_record, scalars

FILE = "trackers.json"
AT_ONCE = 100  # most values that MLflow takes at once


class Service(abc.ABC):
  """One run at one tracker. Every method may raise anything, which `Trackers` reports.

  Attributes:
    identity: what `begin` needs to go on with the same run in a later process, for JSON.
  """

  identity: Mapping[str, str] = {}

  @abc.abstractmethod
  def begin(self, name: str, group: str, config: Mapping[str, Any], known: Mapping[str, str]) -> None:
    """Opens the run.

    Args:
      name: its name.
      group: name of the sweep that it is a member of; "" for none.
      config: dotted field of the configuration -> value.
      known: `identity` of an earlier start; {} for none.
    """

  @abc.abstractmethod
  def log(self, round: int, numbers: Mapping[str, float]) -> None:
    """Sends the figures of an evaluation."""

  @abc.abstractmethod
  def finish(self, numbers: Mapping[str, float], files: Sequence[Path]) -> None:
    """Sends the summary's figures and files, and marks the run as finished."""

  @abc.abstractmethod
  def close(self, failed: bool = False) -> None:
    """Closes a run that did not come to its end."""


class Mlflow(Service):
  """A run of MLflow, by its client interface, which needs no active run; a sweep is a parent run."""

  def __init__(self, uri: str, project: str, run: Workdir):
    """Makes the client of a server or store."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # by default it waits for minutes
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    from mlflow.entities import Metric, Param
    from mlflow.tracking import MlflowClient

    self._metric, self._param, self._client = Metric, Param, MlflowClient(tracking_uri=uri)
    self._project, self._run = project, run
    self._id = ""

  def begin(self, name: str, group: str, config: Mapping[str, Any], known: Mapping[str, str]) -> None:
    """See `Service.begin`."""
    if known:
      self._id, self.identity = known["run"], known
      self._client.update_run(self._id, status="RUNNING")
      return
    found = self._client.get_experiment_by_name(self._project)
    experiment = found.experiment_id if found else self._client.create_experiment(self._project)
    tags = {"mlflow.parentRunId": self._parent(experiment, group), "group": group} if group else {}
    self._id = self._client.create_run(experiment, tags=tags, run_name=name).info.run_id
    self.identity = {"run": self._id}
    parameters = [self._param(field, str(value)[:6000]) for field, value in config.items()]
    for first in range(0, len(parameters), AT_ONCE):
      self._client.log_batch(self._id, params=parameters[first : first + AT_ONCE])

  def _parent(self, experiment: str, group: str) -> str:
    """Returns the run that stands for the sweep, which its first member makes."""
    path = str(_sweep_of(self._run))
    sign = '"' if "'" in path else "'"
    query = f"tags.sweep = {sign}{path}{sign}"
    if found := self._client.search_runs([experiment], query, max_results=1):
      return found[0].info.run_id
    made = self._client.create_run(experiment, tags={"sweep": path}, run_name=group)
    self._client.set_terminated(made.info.run_id)
    return made.info.run_id

  def log(self, round: int, numbers: Mapping[str, float]) -> None:
    """See `Service.log`."""
    self._send(numbers, round)

  def finish(self, numbers: Mapping[str, float], files: Sequence[Path]) -> None:
    """See `Service.finish`."""
    self._send({f"summary/{name}": value for name, value in numbers.items()}, 0)
    for path in files:
      self._client.log_artifact(self._id, os.fspath(path), "figures" if path.suffix == ".png" else None)
    self._client.set_terminated(self._id)

  def close(self, failed: bool = False) -> None:
    """See `Service.close`."""
    self._client.set_terminated(self._id, "FAILED" if failed else "KILLED")

  def _send(self, numbers: Mapping[str, float], step: int) -> None:
    now = int(1000 * time.time())
    metrics = [self._metric(name, float(value), now, step) for name, value in numbers.items()]
    for first in range(0, len(metrics), AT_ONCE):
      self._client.log_batch(self._id, metrics=metrics[first : first + AT_ONCE])


class Wandb(Service):
  """A run of Weights & Biases; a sweep is a group, and the x axis of all charts is `round`."""

  def __init__(self, mode: str, project: str, run: Workdir):
    """Keeps the settings."""
    import wandb

    self._wandb, self._mode, self._project, self._root = wandb, mode, project, run.root
    self._run: Any = None

  def begin(self, name: str, group: str, config: Mapping[str, Any], known: Mapping[str, str]) -> None:
    """See `Service.begin`."""
    self.identity = known or {"run": secrets.token_hex(4)}
    self._run = self._wandb.init(
      project=self._project, name=name, group=group or None, id=self.identity["run"], resume="allow",
      mode=self._mode, dir=os.fspath(self._root), config=dict(config), reinit="create_new",
      settings=self._wandb.Settings(silent=True, console="off", init_timeout=30),
    )  # fmt: skip
    self._run.define_metric("*", step_metric="round")

  def log(self, round: int, numbers: Mapping[str, float]) -> None:
    """See `Service.log`."""
    self._run.log({**numbers, "round": round})

  def finish(self, numbers: Mapping[str, float], files: Sequence[Path]) -> None:
    """See `Service.finish`."""
    self._run.summary.update(dict(numbers))
    artifact = self._wandb.Artifact(f"run-{self.identity['run']}", type="run")
    for path in files:
      artifact.add_file(os.fspath(path))
    self._run.log_artifact(artifact)
    self._run.finish()

  def close(self, failed: bool = False) -> None:
    """See `Service.close`."""
    self._run.finish(exit_code=1 if failed else 0)


SERVICES: dict[str, Callable[[str, str, Workdir], Service]] = {"mlflow": Mlflow, "wandb": Wandb}


def check_installed(tracking: Mapping[str, Any]) -> None:
  """Raises `SettingError` if a tracker's package is not installed."""
  for name in SERVICES:
    if tracking.get(name) and importlib.util.find_spec(name) is None:
      remedy = f"Install it by pip install '.[{name}]', or leave it out."
      raise SettingError(f"tracking.{name}", tracking[name], f"the package {name} is not installed", remedy)


class Trackers:
  """The trackers of one run, none of which can stop it.

  Args:
    run: the run's folder.
    tracking: the section `tracking`, see `TrackingSettings`.
    config: dotted field of the configuration -> value.
  """

  def __init__(self, run: Workdir, tracking: Mapping[str, Any], config: Mapping[str, Any]):
    """Begins the run at each tracker, or goes on with it."""
    self._path = run.root / FILE
    self._services: dict[str, Service] = {}
    self._known: dict[str, Any] = read_record(self._path) or {}
    member = run.root.parent.name == "members"
    group = _sweep_of(run).name if member else ""
    name = tracking.get("name") or (f"{group}/{run.root.name}" if member else run.root.name)
    for tracker, make in SERVICES.items():
      if not (where := tracking.get(tracker)):
        continue
      before = self._known.get(tracker, {})
      same = before.get("where") == where
      with self._guarded(tracker):
        service = make(where, tracking.get("project") or "fedjax_het", run)
        service.begin(name, group, config, before["identity"] if same else {})
        self._services[tracker] = service
        self._known[tracker] = {
          "where": where, "identity": dict(service.identity), "round": before["round"] if same else -1,
        }  # fmt: skip
    if self._services:
      self._keep()

  def log(self, record: Mapping[str, Any]) -> None:
    """Sends the numbers of a line of metrics.jsonl, unless an earlier start has sent them."""
    record = plain_record(record)
    numbers = {tag: value for tag, value in scalars(record) if tag != "round"}
    for tracker, service in [*self._services.items()]:
      if record["round"] <= self._known[tracker]["round"]:
        continue
      with self._guarded(tracker):
        service.log(record["round"], numbers)
        self._known[tracker]["round"] = record["round"]
    if self._services:
      self._keep()

  def finish(self, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
    """Sends the summary, its file and the pictures, and ends the run at each tracker."""
    numbers, there = dict(scalars(plain_record(summary))), [path for path in files if path.is_file()]
    for tracker, service in [*self._services.items()]:
      with self._guarded(tracker):
        service.finish(numbers, there)
    self._services.clear()

  def close(self, failed: bool = False) -> None:
    """Closes what has not been finished; a second call does nothing."""
    for tracker, service in [*self._services.items()]:
      with self._guarded(tracker):
        service.close(failed)
    self._services.clear()

  def _keep(self) -> None:
    write_atomic(self._path, json.dumps(self._known, indent=2) + "\n")

  @contextlib.contextmanager
  def _guarded(self, tracker: str) -> Iterator[None]:
    """Context manager by which a tracker that raises is reported, and left out from then on."""
    try:
      yield
    except Exception as error:  # of a service and its client, which may raise anything
      self._services.pop(tracker, None)
      said = " ".join(str(error).split())[:300]
      logging.warning(
        "%s failed (%s: %s); the run goes on without it, and its files have all figures.",
        tracker, type(error).__name__, said,
      )  # fmt: skip


def _sweep_of(run: Workdir) -> Path:
  return run.root.resolve().parent.parent
