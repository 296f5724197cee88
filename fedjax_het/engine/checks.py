"""Checks before any compile that parts, model, task and clients' data go together."""

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import logging

from fedjax_het.data.container import FederatedData
from fedjax_het.data.rows import count_rows
from fedjax_het.data.scale import as_read
from fedjax_het.engine.border import check_mixing, check_send, check_task, first_context
from fedjax_het.engine.state import init_client
from fedjax_het.errors import SettingError, check_whole
from fedjax_het.parts import Algorithm
from fedjax_het.tasks.task import check_metrics


def check_fit(
  make_algorithm: Callable[..., Algorithm],
  data: Sequence[FederatedData],
  cohort_size: int,
  settings: Mapping[str, Any],
) -> None:
  """Checks that an algorithm can be trained on these data.

  Args:
    make_algorithm: (**settings) -> algorithm.
    data: data sets of the same shapes; the labels of all rows that clients use are checked.
    cohort_size: S.
    settings: name -> number.

  Raises:
    SettingError: a cohort is empty or larger than the number of clients; a part refuses the clients or their
      examples, see `Needs`; a label is invalid for the task or does not fit the model's outputs (with label,
      row and remedy); the task has an unknown metric; the model cannot be applied to an example (with the
      model's error); or the mixing part or the task returns other shapes than a round needs, see `border`.
  """
  num_clients = data[0].num_clients
  check_whole("cohort_size", cohort_size)
  if not 1 <= cohort_size <= num_clients:
    problem = f"there are {num_clients} clients"
    raise SettingError("cohort_size", cohort_size, problem, f"Use 1 to {num_clients}.")
  algorithm = make_algorithm(**settings)
  cohort_size = algorithm.clients_in_a_round(int(cohort_size))
  for role in Algorithm._fields:
    part = getattr(algorithm, role)
    if part.needs.num_clients not in (None, data[0].num_clients):
      raise SettingError(
        "num_clients", data[0].num_clients, f"the {role} part was made for {part.needs.num_clients} clients",
        "Make it again for these clients.",
      )  # fmt: skip
  checks = [part.needs.check_examples for part in algorithm if part.needs.check_examples is not None]
  for each in data if checks else ():
    ends = extent(each)
    for check in checks:
      check(*ends)
  used = [np.concatenate([part.rows() for part in (each.train, each.valid, each.test)]) for each in data]
  task = algorithm.client.task
  for each, rows in zip(data, used):
    if each.weights not in (None, task.weights):
      raise SettingError(
        "task", f"weights {each.weights}", f"is the data's, and the model's has {task.weights or 'none'}",
        "Give the model this task, which trains it: fh.models.make(..., task=task).",
      )  # fmt: skip
    task.check(np.asanyarray(each.y), count_rows(each.x), rows, None)

  def outputs(key, data, settings):
    client = make_algorithm(**settings).client
    own, broadcast = data.clients(0), client.init_broadcast(key)
    context = first_context(data, cohort_size)
    state, (x, _) = init_client(client, key, broadcast, own, context), own.take(jnp.arange(1))
    shown = client.shown("personalize", own)
    params = client.personalize(broadcast, state, shown, context, jnp.float32(client.studies.lambdas[0]))
    try:
      return client.apply(params, x)
    except SettingError:  # raised by the model, with a remedy
      raise
    except Exception as error:
      first = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
      shapes, dtypes = (jax.tree.map(of, x) for of in (lambda a: a.shape[1:], lambda a: str(a.dtype)))
      raise SettingError(
        "model", shapes, f"it cannot be applied to an example of this shape, {dtypes}: {first}",
        "Make the model for the examples' shape, or reshape x.",
      ) from error  # fmt: skip

  check_cohort(algorithm, cohort_size, data[0].num_clients)
  check_send(algorithm)
  check_mixing(algorithm, data[0], cohort_size)
  found = jax.eval_shape(outputs, jax.random.key(0), data[0], dict(settings))
  for each, rows in zip(data, used):
    task.check_outputs(np.asarray(each.y), rows, found.shape[1:], each.num_classes)
  label = jax.ShapeDtypeStruct((1, *data[0].y.shape[1:]), data[0].y.dtype)
  check_task(task, found, label)
  check_metrics(task, found, label)


def extent(data: FederatedData) -> tuple[float, float]:
  """Returns the least and the largest number in all examples after scaling."""
  ends = [
    as_read(np.array([leaf.min(), leaf.max()]).reshape(2, *[1] * (leaf.ndim - 1)), data.scale)
    for leaf in map(np.asarray, jax.tree.leaves(data.x))
  ]
  return float(min(own[0].item() for own in ends)), float(max(own[1].item() for own in ends))


def check_cohort(algorithm: Algorithm, cohort_size: int, num_clients: int) -> None:
  """Raises `SettingError` if a part refuses cohorts of S clients out of K, or how they are drawn."""
  for part in algorithm:
    if part.needs.check_cohort is not None:
      part.needs.check_cohort(algorithm.clients_in_a_round(cohort_size), num_clients)
  if algorithm.aggregation.check_sampling is not None:
    algorithm.aggregation.check_sampling(algorithm.sampled(num_clients, cohort_size))


def check_ahead(algorithm: Algorithm, **flags: int | None) -> None:
  """Raises `SettingError` for flags that need the cohorts before the rounds are trained."""
  chosen, asynchronous = algorithm.participation, algorithm.asynchronous
  for flag, value in flags.items():
    if value is not None and asynchronous.overlaps:
      problem = f"asynchronous {asynchronous.name} starts clients as others are done"
      raise SettingError(flag, value, problem, "Leave one of them out.")
    if value is not None and chosen.draw is not None and not chosen.ahead:
      problem = f"participation {chosen.name} draws a cohort only after the round before it"
      raise SettingError(flag, value, problem, "Leave it out, or use another participation.")


def remarks_of(algorithm: Algorithm, data: FederatedData, cohort_size: int = 0) -> Iterator[str]:
  """Yields what the parts remark on these clients, see `Needs.remarks`, and on cohorts of a size."""
  yield from (text for part in algorithm for text in part.needs.remarks(data))
  if not (algorithm.aggregation.uses_mixing or algorithm.mixing.even):
    yield f"aggregation = {algorithm.aggregation.name}: every upload counts alike, whatever mixing says."
  if cohort_size:
    yield from too_many_attackers(algorithm, data.num_clients, cohort_size)
    if (taken := algorithm.clients_in_a_round(cohort_size)) != cohort_size:
      yield f"cohort_size: {algorithm.asynchronous.name} takes {taken} uploads in each step of the server."


def too_many_attackers(algorithm: Algorithm, num_clients: int, cohort_size: int) -> Iterator[str]:
  """Yields a sentence if more uploads are dishonest on average than a part withstands, see `Needs`.

  Args:
    algorithm: the parts; nothing is said of a share that is a program's value.
    num_clients: K.
    cohort_size: S.
  """
  share = algorithm.attack.share
  if not algorithm.attack.there or isinstance(share, jax.core.Tracer):
    return
  count, size = float(np.round(np.float32(share) * num_clients)), algorithm.clients_in_a_round(cohort_size)
  said = f"attack.share = {float(share):.3g}"
  if count == num_clients:
    yield f"{said}: no client is honest, and the metrics, which are of honest clients, have no value."
  for role in ("mixing", "aggregation"):
    withstands = getattr(algorithm, role).needs.withstands
    if withstands is None:
      continue
    most, dishonest = withstands(size), size * count / num_clients
    if dishonest > most:
      yield (
        f"{said}: of {size} uploads, {dishonest:.3g} are dishonest on average, and the {role} withstands "
        f"{most:.3g} at most."
      )


def warn(
  algorithms: Iterable[Algorithm],
  data: Iterable[FederatedData],
  more: Iterable[str] = (),
  cohort_size: int = 0,
) -> None:
  """Issues the remarks of `remarks_of`, and `more`, as warnings at the line of the user's call."""
  said = (text for one in algorithms for clients in data for text in remarks_of(one, clients, cohort_size))
  for text in dict.fromkeys((*said, *more)):
    warnings.warn(text, stacklevel=_users_level())


def _users_level() -> int:
  """Returns the `stacklevel` with which a warning of the caller names the first line outside the library."""
  inside = (str(Path(__file__).parents[1]), contextlib.__file__)  # contextlib holds the frames of decorators
  frame, level = sys._getframe(1), 1
  while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
    frame, level = frame.f_back, level + 1
  return level


def tell_untested(data: Iterable[FederatedData]) -> None:
  """Logs a warning if clients have no test examples, as the means over the clients leave them out."""
  for each in data:
    size = np.asarray(each.test.size)
    if count := int((size == 0).sum()):
      logging.warning(
        "%d of %d clients have no test examples: the metrics' means over the clients leave them out.",
        count, len(size),
      )  # fmt: skip


def check_simplex(coefficients: np.ndarray, present: Any = ()) -> None:
  """Raises `SettingError` if coefficients [..., S] are below 0 or do not sum to 1.

  NaN and infinite coefficients pass, as a run that diverges is reported elsewhere, and those of a round in
  which nobody is `present`, bool [..., S], or () if all are.
  """
  total = coefficients.sum(-1)
  wrong = np.isfinite(total) & ((np.abs(total - 1.0) > 1e-3) | (coefficients < -1e-6).any(-1))
  if not isinstance(present, tuple):
    wrong &= present.any(-1)
  if wrong.any():
    own = coefficients[wrong][0]
    problem = f"a round's coefficients sum to {own.sum():.4g}, the least is {own.min():.4g}"
    raise SettingError("mixing", own.tolist()[:5], problem, "Let them be 0 or more, of sum 1: p / p.sum().")
