"""Runs an algorithm for many rounds, in chunks, with evaluations between them."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_het.data.container import FederatedData
from fedjax_het.engine.algorithm_maker import maker
from fedjax_het.engine.base import Runs
from fedjax_het.engine.capacity import in_words
from fedjax_het.engine.checks import tell_untested, warn
from fedjax_het.engine.divergence import Divergence
from fedjax_het.engine.engine import Engine
from fedjax_het.engine.evaluate import Evaluation
from fedjax_het.engine.judged import (
  EvalClients,
  all_are_judged,
  check_eval_clients,
  check_rounds,
  fewer_late_rounds,
  judged_clients,
)
from fedjax_het.engine.lambda_selection import Evaluations, Pick, headline, pick, without_attackers
from fedjax_het.engine.processes import agreed, writes
from fedjax_het.engine.round import MAX_CHUNK, RoundInfo, of_rounds, over_rounds
from fedjax_het.engine.state import State
from fedjax_het.engine.trained import Trained, trained
from fedjax_het.metrics.fairness import left_out_of_models, summarize_all, weighted_of_models
from fedjax_het.metrics.late import is_due, late, late_rounds
from fedjax_het.modes import in_float32
from fedjax_het.output.progress import Progress, of_library
from fedjax_het.parts import Algorithm

SECONDS_A_CHUNK = 5.0
Metrics = dict[str, dict[str, dict[str, float]]]  # model -> metric -> figure over the clients -> value


class Chunk(NamedTuple):
  """Some consecutive rounds that were run; leading axes of several runs are as in `Runs`.

  Attributes:
    state: the state after the rounds; its buffers are consumed by the next chunk.
    infos: records of the rounds, NumPy arrays [rounds, S].
    diverged: for each run where it diverged in these rounds, or None.
    evaluations: the judged clients' metrics after the rounds if an evaluation was due, else None.
    late: these metrics if `late_evaluations` alone had them judged, else None.
  """

  state: State
  infos: RoundInfo
  diverged: list[Divergence | None]
  evaluations: Evaluations | None
  late: Evaluations | None = None


def chunks(
  engine: Runs, state: State, rounds: int, eval_every: int | None, late_evaluations: int = 0,
  eval_clients: EvalClients = None, judge: Callable[[Runs, State], Evaluations] | None = None,
) -> Iterator[Chunk]:  # fmt: skip
  """Trains until `rounds` are done in chunks of about five seconds, with an evaluation every `eval_every`.

  So many late evaluations are spread over the last fifth of the rounds, see `late_rounds`. `judge` evaluates;
  by default it is `evaluate`, of `judged_clients` before the last round and of all clients after it.
  """
  done = engine.rounds_done(state)
  length, late_ones = 1, late_rounds(rounds, eval_every, late_evaluations)
  while done < rounds:
    due = rounds if not eval_every else min(rounds, (done // eval_every + 1) * eval_every)
    due = min([due, *(t for t in late_ones if t > done)])
    length = max(1, min(length, due - done, MAX_CHUNK))
    started = time.perf_counter()
    state, infos = engine.advance(state, length)
    seconds = (time.perf_counter() - started) / length
    done += length
    found = engine.diverged(state, infos)
    judged = None
    if done == due and judge is None:
      some = eval_clients if done < rounds else None
      judged = evaluate(engine, state, *judged_clients(engine, some, state, infos))
    elif done == due and judge is not None:
      judged = judge(engine, state)
    regular = is_due(done, rounds, eval_every)
    yield Chunk(state, infos, found, judged if regular else None, None if regular else judged)
    length = int(agreed(np.clip(np.ceil(SECONDS_A_CHUNK / seconds), 1, 4 * length + 1))[0])


def evaluate(engine: Runs, state: State, clients: Any = None, rows: int = 1) -> Evaluations:
  """Evaluates clients on their test parts and, where there are any, on their validation parts.

  The arguments are those of `Runs.evaluate`.
  """
  test = engine.evaluate(state, clients=clients, rows=rows)
  valid = engine.evaluate(state, "valid", clients=clients, rows=rows) if engine.has_validation else None
  return honest(Evaluations(test, valid, engine.task.headline, clients=clients), engine, state)


def honest(evaluations: Evaluations, engine: Runs, state: State) -> Evaluations:
  """Returns the evaluations with those of dishonest clients apart, if there are some."""
  who = engine.dishonest(state)
  return evaluations if who is None else without_attackers(evaluations, who)


def per_client(evaluations: Evaluations) -> dict[str, dict[str, np.ndarray]]:
  """Returns {"personalized", "global"} -> metric -> values [K] on the test parts, at the selected λ.

  "global" is absent if the method has no global model. The headline is the first metric.
  """
  return _at(evaluations.test, pick(evaluations).column, evaluations.headline)


def _at(seen: Evaluation, column: int, first: str) -> dict[str, dict[str, np.ndarray]]:
  """Returns an evaluation's metrics at the λ of a column, with `first` as the first; see `per_client`."""
  names = sorted(seen.personalized, key=lambda name: name != first)
  return {
    "personalized": {name: seen.personalized[name][:, column] for name in names},
    **({"global": {name: seen.global_[name] for name in names}} if seen.global_ else {}),
  }


def summarize(evaluations: Evaluations) -> Metrics:
  """Returns {"personalized", "global"} -> metric -> mean, std, worst10, best10, gini, gap over clients."""
  return _summary(evaluations, evaluations.test)


def on_validation(evaluations: Evaluations) -> Metrics:
  """Returns `summarize` of the validation parts, of the same models at the same λ; {} without such parts."""
  return _summary(evaluations, evaluations.valid)


def on_attackers(evaluations: Evaluations) -> Metrics:
  """Returns `summarize` of the dishonest clients; {} without an attack."""
  return _summary(evaluations, evaluations.attackers)


def _summary(evaluations: Evaluations, seen: Evaluation | None) -> Metrics:
  if seen is None:
    return {}
  values = _at(seen, pick(evaluations).column, evaluations.headline)
  return {kind: summarize_all(own) for kind, own in values.items()}


def judged(evaluations: Evaluations) -> dict[str, Any]:
  """Returns {"metrics": `summarize`}, and, where there are some, "valid" and "attackers".

  `valid` is `on_validation`, and `attackers` is as `metrics`, over the dishonest clients. Where not all
  clients were evaluated, "evaluated" is how many were.
  """
  found: dict[str, Any] = {"metrics": summarize(evaluations)}
  if evaluations.clients is not None:
    found["evaluated"] = int(evaluations.clients.sum())
  more = {"valid": on_validation(evaluations), "attackers": on_attackers(evaluations)}
  return found | {name: own for name, own in more.items() if own}


def headlines(metrics: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
  """Returns {headline metric: its mean over the clients} of the personalised models."""
  name = headline(metrics["personalized"])
  return {name: metrics["personalized"][name]["mean"]}


@contextlib.contextmanager
def showing(engine: Runs, rounds: int, wanted: bool | None) -> Iterator[Progress]:
  """Context manager that shows an engine's rounds and compilations, and turns full memory into `NoRoom`."""
  with in_words(), of_library(rounds, wanted, writes()) as progress:
    engine.doing = progress.doing
    yield progress


def in_short(metrics: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
  """Returns one line with the headline's mean over the clients, for each model."""
  name = headline(metrics["personalized"])
  return ", ".join(f"{model} {name} {figures[name]['mean']:.4f}" for model, figures in metrics.items())


def without(left_out: Mapping[str, Mapping[str, int]]) -> str:
  """Returns a note on the clients that the headline's mean leaves out; "" if it leaves out none."""
  own = left_out.get("personalized", {})
  count = max(own.values(), default=0)
  return f" (without {count} client{'s' if count > 1 else ''} that lack test examples)" if count else ""


class Result(NamedTuple):
  """The result of `run`.

  Attributes:
    state: the final state.
    history: a dict for each evaluation: `round`, `train_loss` (mean over the rounds since the last
      evaluation of `eval_every`), `metrics`, `valid` where clients have validation parts,
      `attackers`, whom `metrics` leaves out, where there are some, and `evaluated`, the number of clients
      that were evaluated if these were not all.
    metrics: the final {"personalized", "global"} -> metric -> {mean, std, worst10, best10, gini, gap}.
    clients: the final values of each client: {"personalized", "global"} -> metric -> [K].
    evaluation: the final evaluation at every λ, on the test parts.
    infos: cohorts, coefficients and training losses of every round, NumPy arrays [T, S].
    weighted: model -> metric -> mean over the clients, weighted by their test examples, n_i / Σ n_j.
    picked: the selected λ of the personalised models in `metrics` and `clients`.
    validation: the final evaluation at every λ on the validation parts; None without such parts.
    test_sizes: numbers of test examples of the clients, int [K].
    models: () -> the trained models, see the property `trained`.
    dishonest: which clients attack, bool [K]; None without an attack.
    left_out: model -> metric -> number of clients without a value, such as clients without test examples,
      which do not count in `metrics`; and "validation" -> metric -> number of clients without a value when λ
      was selected. Empty if all clients count.
    late: model -> metric -> {count, min, max, std} of the mean over the clients, see `metrics.late`.
    valid: as `metrics`, of the same models on the clients' validation parts; {} without such parts.
  """

  state: State
  history: list[dict]
  metrics: dict[str, dict[str, dict[str, float]]]
  clients: dict[str, dict[str, np.ndarray]]
  evaluation: Evaluation
  infos: RoundInfo
  picked: Pick
  validation: Evaluation | None
  test_sizes: np.ndarray | None = None
  models: Callable[[], Trained] | None = None
  dishonest: np.ndarray | None = None

  @property
  def trained(self) -> Trained:
    """The trained models, to predict with."""
    assert self.models is not None
    return self.models()

  def model_of(self, client: Any = None) -> Any:
    """Returns the parameters of a client's model, by name or number, or of the global model."""
    return self.trained.model_of(client)

  @property
  def weighted(self) -> dict[str, dict[str, float]]:
    """See the class."""
    return weighted_of_models(self.clients, () if self.test_sizes is None else self.test_sizes)

  @property
  def left_out(self) -> dict[str, dict[str, int]]:
    """See the class."""
    models: dict[str, Mapping[str, Any]] = dict(self.clients)
    if self.validation is not None and self.picked.on == "validation":
      models["validation"] = {self.picked.by: self.validation.personalized[self.picked.by][:, 0]}
    return left_out_of_models(models, self.dishonest)

  @property
  def late(self) -> dict[str, dict[str, dict[str, Any]]]:
    """See the class."""
    return late(((own["round"], own["metrics"]) for own in self.history), len(self.infos.cohort))

  @property
  def valid(self) -> Metrics:
    """See the class."""
    return self.history[-1].get("valid", {})

  def __repr__(self) -> str:
    """Returns the headline's mean over the clients and the names of the fields, without arrays."""
    rounds = len(self.infos.cohort)
    fields = ", ".join((*self._fields, "late", "left_out", "valid", "weighted"))
    return f"Result({rounds} rounds: {in_short(self.metrics)}{without(self.left_out)}; has {fields})"


@in_float32()
def run(
  algorithm: Algorithm | Callable[..., Algorithm],
  data: FederatedData,
  *,
  rounds: int,
  cohort_size: int,
  key: jax.Array,
  eval_every: int | None = None,
  late_evaluations: int = 0,
  eval_clients: EvalClients = None,
  client_batch: int | None = None,
  devices: int | None = None,
  device_rows: int | None = None,
  device_states: int | None = None,
  states_folder: str | None = None,
  settings: Mapping[str, Any] | None = None,
  progress: bool | None = None,
) -> Result:
  """Runs an algorithm on the clients' data and evaluates it on every client.

  If the method has several personalised models per client, one λ is selected for all clients: on the clients'
  validation parts if they have any (`federate(valid_fraction=...)`), else on the test parts; see `Pick`.

  Args:
    algorithm: see `federated`; together with `settings` a function (**settings) -> algorithm, as for a sweep.
    data: the clients' data, see `federate`.
    rounds: T >= 1, number of rounds. A method whose training changes in some round refuses to end before it.
    cohort_size: S, clients sampled each round without replacement.
    key: typed key, the run's only source of randomness.
    eval_every: rounds between evaluations; by default only at the end.
    late_evaluations: judged rounds that the last fifth of the run has at least, those of `eval_every` counted
      among them; they show whether the last round's figures have settled.
    eval_clients: whom evaluations before the end are of: None for all clients, "participants" for those of
      the round whose uploads arrived, or n for a sample of n, drawn once by the run's key. The end has all.
    client_batch: number of clients that a device trains at once; see `Engine`.
    devices: number of devices to use; by default all.
    device_rows: examples that a device holds at once if not all fit; see `Engine`.
    device_states: clients' states that the devices hold at once if not all fit; see `Engine`.
    states_folder: a folder on a disk for the states that the host stores; see `Engine`.
    settings: name -> number that the program takes as a value; see `Engine`.
    progress: whether standard error shows the finished rounds and the time left: a bar on a terminal, a line
      every few seconds in a file or a notebook. By default only on a terminal, where the bar disappears at
      the end.

  Raises:
    SettingError: a setting is out of range, or parts, model and data do not go together.
    NonFiniteLoss: a training loss became NaN or infinite.
    NoRoom: memory does not suffice.
  """
  made = maker(algorithm, settings)(**settings or {})
  check_rounds(rounds, eval_every, made, late_evaluations=late_evaluations)
  with in_words():
    engine = Engine(
      algorithm, data, cohort_size, client_batch=client_batch, devices=devices, device_rows=device_rows,
      device_states=device_states, states_folder=states_folder, settings=settings,
    )  # fmt: skip
  check_eval_clients(eval_clients, engine.num_clients)
  none = all_are_judged(eval_clients, rounds, eval_every, late_evaluations, engine.num_clients)
  warn([made], [data], [*fewer_late_rounds(rounds, late_evaluations), *none], cohort_size)
  tell_untested([data])
  history: list[dict] = []
  losses: list[float] = []
  infos: list[RoundInfo] = []
  with showing(engine, rounds, progress) as bar:
    for chunk in chunks(engine, engine.init(key), rounds, eval_every, late_evaluations, eval_clients):
      infos.append(chunk.infos)
      losses.extend(of_rounds(chunk.infos, chunk.infos.clients.loss))
      figures = {"train_loss": over_rounds(losses)}
      if chunk.evaluations is not None:
        last = chunk.evaluations
        history.append({"round": int(chunk.state.round), **figures, **judged(last)})
        losses, figures = [], figures | headlines(metrics := history[-1]["metrics"])
      elif chunk.late is not None:
        history.append({"round": int(chunk.state.round), **figures, **judged(chunk.late)})
      bar.update(engine.rounds_done(chunk.state), **figures)
  every_round = jax.tree.map(lambda *parts: np.concatenate(parts), *infos)
  picked = pick(last)
  return Result(
    chunk.state, history, metrics, per_client(last), last.test, every_round, picked, last.valid,
    np.asarray(data.test.size),
    functools.cache(lambda: trained(made, data, chunk.state, cohort_size, picked.column)), last.dishonest,
  )  # fmt: skip
