r"""Participation by independent draws: client i takes part with the probability π_i, whoever else does.

How many clients take part is drawn too, S on average.

poisson      π_i = q, by default S / K. McMahan, Ramage, Talwar, Zhang, Learning Differentially Private
             Recurrent Language Models, ICLR 2018, algorithm 1.
importance   π_i = min(1, c v_i) with Σ_i π_i = S for weights v_i > 0, and unbiased aggregates: an update
             counts w_i / π_i, w_i its coefficient if all K clients took part. Chen, Horváth, Richtárik,
             Optimal Client Sampling for Federated Learning, TMLR 2022, section 2.

A program has R rows for a cohort, the least number that more clients need with a probability below 1e-9 in a
round. R is that of K equal probabilities: of all independent draws with the mean S, these need many rows most
often (Hoeffding, On the Distribution of the Number of Successes in Independent Trials, 1956). A
smaller `capacity` leaves clients out, drawn uniformly, and `Draw.beyond` counts them; `Draw.probability` is
then π_i E[min(R, A)] / E[A] for A clients that come, exact if all π_i are equal.
"""

from typing import Annotated, Unpack

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.errors import DataError, SettingError
from fedjax_het.participation.among import Arrival, among, share_with_rows
from fedjax_het.parts import Needs, Participation, Sampling
from fedjax_het.settings import Count, Range, checked, with_defaults

TAIL = 1e-9
Probability = Annotated[float, Range(above=0.0, high=1.0)]


def enough_rows(num_clients: int, probability: float) -> int:
  """Returns the least R >= 1 with P(A > R) < 1e-9 for A binomial with K draws of this probability."""
  from scipy.special import bdtrc  # a third of a second to import, which few runs need

  beyond = bdtrc(np.arange(1, num_clients + 1), num_clients, min(probability, 1.0))
  return 1 + int(np.argmax(np.nan_to_num(beyond) < TAIL))


def inclusion(weights: jax.Array, expected: int) -> jax.Array:
  """Computes π_i = min(1, c v_i) with Σ_i π_i = S, float32 [K].

  If the h largest have π = 1, then c = (S - h) / (sum of the others), and h is the least number with which
  every c v_i of the others is at most 1.

  Args:
    weights: v > 0, float32 [K].
    expected: S <= K.
  """
  falling = -jnp.sort(-weights)
  c = (expected - jnp.arange(len(weights))) / jnp.cumsum(falling[::-1])[::-1]
  return jnp.minimum(c[jnp.argmax(c * falling <= 1.0 + 1e-6)] * weights, 1.0)


def read_weights(path: str) -> np.ndarray:
  """Reads one positive number a line, client by client, float32 [K].

  Raises:
    SettingError: the file cannot be read.
    DataError: a line is no number above 0.
  """
  try:
    with open(path, encoding="utf-8") as file:
      lines = file.read().split()
  except (OSError, ValueError) as error:
    raise SettingError("path", path, f"cannot be read ({error})", "Name a file that you may read.") from error
  found = []
  for number, line in enumerate(lines, 1):
    try:
      value = np.float32(line)
    except ValueError:
      value = np.float32("nan")
    if not 0 < value < np.inf:
      raise DataError(f"{path}, line {number}: {line!r} is no number above 0.")
    found.append(value)
  return np.array(found, np.float32)


@checked
def poisson(
  probability: Probability | None = None, capacity: Count | None = None, **arrival: Unpack[Arrival]
) -> Participation:
  """Each client takes part with the same probability, independently of the others.

  Args:
    probability: q in (0, 1]; None for S / K, so that `cohort_size` is the mean size of a cohort.
    capacity: R, the most clients of a round; None for so many that more are drawn with a probability below
      1e-9 in a round.
    **arrival: dropouts and partial work, see `Arrival`.
  """

  def chance(num: int, size: int) -> float:
    return size / num if probability is None else float(probability)

  def rows(num: int, size: int) -> int:
    return min(capacity or enough_rows(num, chance(num, size)), num)

  def init(key, sizes, size):
    return jnp.float32(size / len(sizes) if probability is None else probability)

  def there(key, round, state, num):
    return drawn(key, round, jnp.full(num, state))

  def remarks(data):
    if probability is not None:
      mean = float(probability) * data.num_clients
      yield f"cohort_size: poisson draws how many clients take part, {mean:.4g} on average."

  def sampling(num: int, size: int) -> Sampling:
    q = size / num if probability is None else probability
    # In a program q is not known, for which `Participation.rows` was asked before; no R is read in it.
    traced = capacity is None and isinstance(probability, jax.Array)
    most = 0 if traced else rows(num, size)
    with_rows = 1.0 if capacity is None else share_with_rows(jnp.full(num, q, jnp.float32), most)
    return Sampling("poisson", "poisson", num, size, num * q * with_rows, probability=q, capacity=most)

  needs = Needs(remarks=remarks)
  own = with_defaults(Arrival, arrival)
  return among(there, "poisson", own, needs, init, rows, sampling, few_rows=capacity is not None)


@checked
def importance(path: str = "", capacity: Count | None = None, **arrival: Unpack[Arrival]) -> Participation:
  """Clients take part in proportion to weights, and their updates count so that the aggregate is unbiased.

  The server moves to θ + Σ_i (w_i / π_i) (θ_i - θ) over the clients that arrive, whose expectation over the
  draws is θ + Σ_i w_i (θ_i - θ) over all K, with w_i = n_i / n under static mixing and 1 / K under uniform.
  The mixing coefficients, which sum to 1, are in proportion to w_i / π_i. Running statistics are averaged by
  these, which is not unbiased.

  Args:
    path: a text file with the weights, one number above 0 a line, client by client; by default the clients'
      numbers of training examples.
    capacity: R, the most clients of a round, see `poisson`. A small one makes the aggregate biased, as the
      probabilities are then known only about.
    **arrival: dropouts and partial work, see `Arrival`.

  Raises:
    SettingError: the file cannot be read; from `check_cohort`, it has another number of clients.
    DataError: a line is no number above 0.
  """
  weights = read_weights(path) if path else None

  def rows(num: int, size: int) -> int:
    return min(capacity or enough_rows(num, size / num), num)

  def init(key, sizes, size):
    return inclusion(sizes.astype(jnp.float32) if weights is None else jnp.asarray(weights), size)

  def there(key, round, state, num):
    return drawn(key, round, state)

  def check_cohort(size: int, num: int) -> None:
    if weights is not None and len(weights) != num:
      problem = f"has {len(weights)} weights, and there are {num} clients"
      raise SettingError("path", path, problem, "Write one line for each client.")

  needs = Needs(check_cohort=check_cohort, covers=("params", "stats"))
  own = with_defaults(Arrival, arrival)
  part = among(there, "importance", own, needs, init, rows, few_rows=capacity is not None)
  return part._replace(unbiased=True)


def drawn(key: jax.Array, round: jax.Array, chances: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Draws who is there in a round, bool [K], of independent `chances`, float32 [K]; returns these too."""
  now = jax.random.uniform(jax.random.fold_in(jax.random.fold_in(key, round), 3), chances.shape)
  return now < chances, chances
