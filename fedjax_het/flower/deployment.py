"""What is deployed: the algorithm and its numbers, from Python or from a configuration."""

import functools
import shlex
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import logging

from fedjax_het.config.algorithm import algorithm_maker
from fedjax_het.config.file import read_config
from fedjax_het.config.override import change
from fedjax_het.config.plan import plan
from fedjax_het.config.shipped import shipped
from fedjax_het.config.values import chosen
from fedjax_het.data.container import FederatedData
from fedjax_het.engine.algorithm_maker import maker
from fedjax_het.engine.checks import check_cohort
from fedjax_het.engine.cpu import compiler_options
from fedjax_het.engine.run import check_rounds
from fedjax_het.errors import SettingError, check_run_key, check_whole
from fedjax_het.experiment.build import build, settled
from fedjax_het.program.command_line import take_changes


class Deployment(NamedTuple):
  """What the server and all nodes have to agree on.

  Attributes:
    algorithm: the parts, see `federated`; or together with `settings` a function (**settings) -> parts.
    data: (the node's configuration) -> its rows, `FederatedData` of one client, or of all K for the k-th.
    num_clients: K, the number of nodes; the first round waits for all of them.
    rounds: T >= 1.
    key: typed key, the run's only source of randomness; the server sends it.
    cohort_size: S, nodes sampled each round without replacement; None for all.
    eval_every: rounds between two evaluations of all clients; None for one after the last round.
    settings: name -> number, which programs take as values, see `Engine`; XLA may round constants otherwise.
    wait: seconds after which a request is sent again; above what a client needs for a round.
  """

  algorithm: Any
  data: Callable[[Mapping[str, Any]], FederatedData]
  num_clients: int
  rounds: int
  key: jax.Array
  cohort_size: int | None = None
  eval_every: int | None = None
  settings: Mapping[str, Any] | None = None
  wait: float = 3600.0

  @property
  def size(self) -> int:
    """S, the number of nodes in a round."""
    return self.num_clients if self.cohort_size is None else self.cohort_size

  def made(self, **settings: Any) -> "Deployment":
    """Returns the deployment with its algorithm made, for `settings` if there are any."""
    return self._replace(algorithm=maker(self.algorithm, self.settings)(**settings), settings=None)

  def compiled(self, function: Callable[..., Any], *static: int) -> Callable[..., Any]:
    """Compiles a function of (deployment with its algorithm made, ...), the settings as values.

    Args:
      function: the function.
      static: which of its further arguments, from 0, are no arrays.
    """
    places = tuple(place + 1 for place in static)
    program = jax.jit(self._program(function), static_argnums=places, compiler_options=compiler_options())
    return functools.partial(program, self._values)

  def shapes(self, function: Callable[..., Any], *args: Any) -> Any:
    """Returns the shapes of what `compiled`(function) returns."""
    return jax.eval_shape(self._program(function), self._values, *args)

  def _program(self, function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda settings, *args: function(self.made(**settings), *args)

  @property
  def _values(self) -> dict[str, Any]:
    return jax.tree.map(np.asarray, dict(self.settings or {}))

  def checked(self) -> "Deployment":
    """Returns the deployment with its algorithm made.

    Raises:
      SettingError: numbers cannot be, or the algorithm has parts that a deployment cannot have.
    """
    made = self.made(**(self.settings or {}))
    made._check()
    return made

  def _check(self) -> None:
    algorithm = self.algorithm
    participation, attack, system = algorithm.participation, algorithm.attack, algorithm.system
    check_whole("num_clients", self.num_clients, 1)
    check_whole("cohort_size", self.size, 1, self.num_clients)
    check_rounds(self.rounds, self.eval_every, algorithm)
    check_run_key(self.key)
    check_cohort(algorithm, self.size, self.num_clients)
    if attack.there:
      raise SettingError("attack", attack.name, "is simulated: nodes are honest or not", "Leave it out.")
    if participation.draw is not None:
      problem = "is simulated: a node is there or not"
      raise SettingError("participation", participation.name, problem, "Leave it out, and set cohort_size.")
    if (asynchronous := algorithm.asynchronous).there:
      problem = "is simulated: nodes are waited for"
      raise SettingError("asynchronous", asynchronous.name, problem, "Leave it out, and set cohort_size.")
    if system.there:
      raise SettingError("system", system.name, "simulates time, and nodes take their own", "Leave it out.")
    if algorithm.client.first_pass is not None:
      problem = "has a pass before each round, which is not deployed"
      raise SettingError("algorithm", algorithm.client.name, problem, "Use another, such as scaffold.")


def configured(run: Mapping[str, Any]) -> Deployment:
  """Returns the deployment of a configuration, with its data set at every node.

  Args:
    run: Flower's configuration of the run: `config`, a file of `--config`; `flags`, such as
      "--config.rounds=5 --config.local.lr=0.1", may be absent.

  Raises:
    SettingError: see `plan`; or the configuration has what needs all clients' data, or a loop of its own.
  """
  config = read_config(shipped(str(run.get("config", ""))))
  rest, changes = take_changes(shlex.split(str(run.get("flags", ""))))
  if rest:
    remedy = "Give --config.FIELD=VALUE alone; start a run of Flower's for each value of a sweep."
    raise SettingError("flags", rest[0], "is not deployed", remedy)
  change(config, changes)
  planned = plan(config)
  for field in ("stopping", "unseen_fraction"):
    if found := getattr(planned, field):
      section = field.partition("_")[0]
      raise SettingError(section, found, "is not deployed", f"Leave the section {section} out.")
  for place, method, _ in chosen(planned.parts):
    if method.prepares is not None:
      problem = "is made of the clients' data, which no server has"
      raise SettingError(f"{place}.name", method.name, problem, "Use another, see --list.")
  experiment = build(planned)
  planned = settled(experiment._replace(plan=planned), seen=True).plan  # as `serve` has the rounds' clients
  if idle := [
    name for name in ("tracking", "studies", "late_evaluations", "eval_clients") if getattr(planned, name)
  ]:
    logging.warning("%s: without effect on Flower's engine.", ", ".join(idle))
  return Deployment(
    algorithm_maker(planned, experiment.model), lambda node: experiment.data, experiment.data.num_clients,
    planned.rounds, experiment.key, planned.cohort_size, planned.eval_every, planned.numbers,
  )  # fmt: skip
