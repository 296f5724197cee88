"""Connects nodes and server by Flower's messages; the only file that imports Flower, where it is called."""

import importlib.util
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedjax_het.engine.compile_cache import keep_programs
from fedjax_het.engine.run import in_short
from fedjax_het.errors import SettingError
from fedjax_het.flower.arrays import Parcel
from fedjax_het.flower.deployment import Deployment, configured
from fedjax_het.flower.node import Node
from fedjax_het.flower.server import serve
from fedjax_het.output.terminal import say
from fedjax_het.workdir.model import write_model
from fedjax_het.workdir.tracking import to_json

Made = Deployment | Callable[[Mapping[str, Any]], Deployment]
GLANCE = 1.0  # seconds between two looks at what has arrived
LOST = (3, 4, 5, 8)  # Flower's codes of an answer or a node that is gone, after which one asks again


def client_app(deployment: Made = configured) -> Any:
  """Returns the `flwr.clientapp.ClientApp` of a deployment, which is one `Node` in every node.

  A node's configuration (`flower-supernode --node-config`) has `partition-id`, the client's number from 0,
  and `folder`, where it keeps its state; from there the state survives a restart of the node.

  Args:
    deployment: what is run; or a function that makes it of Flower's configuration of the run, by default
      `configured`, which reads a configuration of the library's.

  Raises:
    SettingError: the extra `flower` is missing.
  """
  _check_installed()
  from flwr.app import Message
  from flwr.clientapp import ClientApp

  app = ClientApp()

  def answer(message: Any, context: Any) -> Any:
    keep_programs()  # Flower may start a process for every message
    node = Node(_made(deployment, context.run_config), context.node_config, str(context.run_id))
    answered = node.answer(message.metadata.message_type, _opened(message.content))
    return Message(_packed(answered), reply_to=message)

  for register in (app.query, app.train, app.evaluate):
    register()(answer)
  return app


def server_app(deployment: Made = configured) -> Any:
  """Returns the `flwr.serverapp.ServerApp` of a deployment.

  It waits for all clients' nodes, runs the rounds, and prints a line for each evaluation. If the run's
  configuration has a `folder`, folder/run_ID gets metrics.jsonl and model.npz, as a run's folder has them,
  the latter without the clients' states.

  Args:
    deployment: see `client_app`.

  Raises:
    SettingError: the extra `flower` is missing.
  """
  _check_installed()
  from flwr.serverapp import ServerApp

  app = ServerApp()

  def main(grid: Any, context: Any) -> None:
    keep_programs()
    made = _made(deployment, context.run_config)
    algorithm = made.checked().algorithm
    folder = Path(str(context.run_config.get("folder") or "")) / f"run_{context.run_id}"
    kept = bool(context.run_config.get("folder"))
    if kept:
      folder.mkdir(parents=True, exist_ok=True)

    def tell(line: dict[str, Any]) -> None:
      say(f"Round {line['round']}: {in_short(line['metrics'])}")
      if kept:
        with (folder / "metrics.jsonl").open("a") as file:
          file.write(to_json(line) + "\n")

    nodes = Nodes(grid, made)
    nodes.meet()
    state = serve(made, nodes.about, nodes.ask, tell)
    if kept:
      write_model(folder, algorithm, state)

  app.main()(main)
  return app


class Nodes:
  """The nodes of a deployment at their Flower grid, by client.

  A node that is started again is a new one for Flower. It is asked who it is, and takes its client's place;
  what the old one was asked for is asked again. A client whose node is gone is waited for.

  Args:
    grid: Flower's grid.
    deployment: what is run.

  Attributes:
    about: each client's answer to `query`.
  """

  def __init__(self, grid: Any, deployment: Deployment):
    self.about: dict[int, dict[str, Any]] = {}
    self._grid, self._deployment = grid, deployment
    self._at: dict[int, int] = {}  # client -> its node
    self._met: set[int] = set()
    self._sent: dict[str, tuple[int | None, int, float]] = {}  # message -> client or None, node, when

  def meet(self) -> None:
    """Returns when a node of each client has said who it is."""
    self._wait("", {}, self.about, range(self._deployment.num_clients))

  def ask(self, kind: str, parcels: Mapping[int, Parcel]) -> dict[int, Parcel]:
    """Returns the clients' answers, when all have answered.

    Args:
      kind: "train" or "evaluate".
      parcels: the request to each client.

    Raises:
      RuntimeError: a node's own error, such as a missing file.
    """
    answers: dict[int, Parcel] = {}
    self._wait(kind, parcels, answers, parcels)
    return answers

  def _wait(
    self, kind: str, parcels: Mapping[int, Parcel], answers: dict[int, Any], wanted: Iterable[int]
  ) -> None:
    """Meets new nodes and asks for `parcels`, until `answers` has those of all `wanted` clients."""
    last = time.monotonic()
    while True:
      there = {*self._grid.get_node_ids()}
      now, wait = time.monotonic(), self._deployment.wait
      self._sent = {name: own for name, own in self._sent.items() if now - own[2] < wait}
      asked = {own[:2] for own in self._sent.values()}
      new: list[Any] = [(None, node, ({}, {})) for node in there - self._met if (None, node) not in asked]
      left = [(k, self._at[k], parcel) for k, parcel in parcels.items() if k not in answers]
      self._send("query", new)
      self._send(kind, [own for own in left if own[1] in there and own[:2] not in asked])
      for reply in self._grid.pull_messages([*self._sent]):
        client, node, _ = self._sent.pop(reply.metadata.reply_to_message_id)
        last = time.monotonic()
        if reply.has_error():
          self._failed(reply.error, client, node)
        elif client is not None:
          answers[client] = _opened(reply.content)
        else:
          self._met.add(node)
          said = _opened(reply.content)[1]
          self.about[said["client"]], self._at[said["client"]] = said, node
          say(f"Client {said['client']} is at node {node}, with {said['size']} training examples.")
      missing = sorted({*wanted} - {*answers})
      if not missing:
        self._sent = {name: own for name, own in self._sent.items() if own[0] is None}
        return
      if time.monotonic() - last > 60:
        last = time.monotonic()
        say(f"Waiting for the nodes of clients {', '.join(map(str, missing))}.")
      time.sleep(GLANCE)

  def _failed(self, error: Any, client: int | None, node: int) -> None:
    """Raises a client's own error; a node that is gone will be asked again, a new one that fails is left."""
    if error.code in LOST:
      return
    problem = f"The node {node}{'' if client is None else f' of client {client}'} failed: {error.reason}"
    if client is not None:
      raise RuntimeError(problem)
    self._met.add(node)
    say(problem)

  def _send(self, kind: str, requests: Iterable[tuple[int | None, int, Parcel]]) -> None:
    asked = [*requests]
    ttl = self._deployment.wait + 60
    messages = [_message(parcel, node, kind, ttl) for _, node, parcel in asked]
    names = self._grid.push_messages(messages) if messages else []
    for (client, node, _), name in zip(asked, names):
      if name:
        self._sent[name] = client, node, time.monotonic()


def _made(deployment: Made, run: Mapping[str, Any]) -> Deployment:
  return deployment if isinstance(deployment, Deployment) else deployment(run)


def _message(parcel: Parcel, node: int, kind: str, ttl: float) -> Any:
  from flwr.app import Message

  return Message(_packed(parcel), node, kind, ttl=ttl)


def _packed(parcel: Parcel) -> Any:
  from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

  arrays, said = parcel
  record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
  return RecordDict({"arrays": record, "said": ConfigRecord(said)})


def _opened(content: Any) -> Parcel:
  return {name: array.numpy() for name, array in content["arrays"].items()}, dict(content["said"])


def _check_installed() -> None:
  """Raises `SettingError` without Flower."""
  if importlib.util.find_spec("flwr") is None:
    remedy = "pip install 'fedjax_het[flower]'."
    raise SettingError("flower", None, "the package flwr is not installed", remedy)
