"""Draws a cohort among those clients that are there, then who drops out and how much of the work is done."""

from collections.abc import Callable
from typing import Annotated, TypedDict

import jax
import jax.numpy as jnp

from fedjax_het.errors import is_one, is_zero
from fedjax_het.parts import Draw, Participation, PyTree, Sampling
from fedjax_het.parts.needs import Needs
from fedjax_het.settings import Default, Fraction, Neutral, Range

UpToOne = Annotated[float, Range(above=0.0, high=1.0), Neutral(1.0)]

NO_NEEDS = Needs()
InitFn = Callable[[jax.Array, jax.Array, int], PyTree]


class Arrival(TypedDict, total=False):
  """Settings of what happens to a client after it was drawn.

  With neither, `uniform` is left out and the engine draws the cohorts. As one value of a sweep over others
  the part stays, and draws other cohorts, of the same distribution.

  Attributes:
    dropout: probability that the upload of a client that has trained is lost.
    least_work: a client takes a share of its local steps that is uniform on [least_work, 1].
  """

  dropout: Annotated[Fraction, Default(0.0)]
  least_work: Annotated[UpToOne, Default(1.0)]


def everybody_arrives(arrival: Arrival) -> bool:
  """Returns whether these settings lose no upload and cut no work."""
  return is_zero(arrival["dropout"]) and is_one(arrival["least_work"])


def chosen(key: jax.Array, there: jax.Array, count: int) -> jax.Array:
  """Draws `count` of K clients uniformly without replacement, those that are there first; int32 [count].

  Args:
    key: typed key.
    there: whether each client is there, bool [K].
    count: S.
  """
  scores = jnp.where(there, jax.random.uniform(key, there.shape), 2.0)
  return jnp.argsort(scores)[:count].astype(jnp.int32)


def expected(there: jax.Array, count: int) -> jax.Array:
  """Computes E[min(S, A)] for A the number of clients there, independent with probabilities `there` [K].

  Of A, those with the probability 1 are certain, say c. The n others whose probability is not 0 are taken as
  binomial with their mean probability q, which is exact if these are equal: E[min(S, A)] is
  Σ_{j=1..S} P(A >= j), P(A >= j) = 1 for j <= c, then with i = j - c the regularised incomplete beta function
  I_q(i, n - i + 1), and 0 for i > n.
  """
  num, perhaps = there.shape[0], jnp.where(there < 1.0, there, 0.0)
  n = (perhaps > 0).sum(dtype=jnp.int32)
  mean = jnp.where(n == num, there.mean(), perhaps.sum() / jnp.maximum(n, 1))
  i = jnp.arange(1, count + 1, dtype=jnp.int32) - (there >= 1.0).sum(dtype=jnp.int32)
  a, b = (jnp.float32(jnp.maximum(own, 1)) for own in (i, n - i + 1))
  return jnp.where(i <= 0, 1.0, jnp.where(i > n, 0.0, jax.scipy.special.betainc(a, b, mean))).sum()


def share_with_rows(probability: jax.Array, rows: int) -> jax.Array | float:
  """Computes E[min(R, A)] / E[A], see `expected`; 1 where it is nearer to 1 than float32 can tell.

  This is the share of those who come that R rows have room for, if it is drawn uniformly who is left out.

  Args:
    probability: with which each of K clients comes, float32 [K].
    rows: R.
  """
  if rows >= len(probability):
    return 1.0
  share = expected(probability, rows) / jnp.maximum(probability.sum(), 1e-30)
  return jnp.where(share > 1.0 - 1e-5, 1.0, share)


def among(
  there: Callable[[jax.Array, jax.Array, PyTree, int], tuple[jax.Array, jax.Array]],
  name: str,
  arrival: Arrival,
  needs: Needs = NO_NEEDS,
  init: InitFn = lambda key, sizes, cohort_size: (),
  rows: Callable[[int, int], int] | None = None,
  sampling: Callable[[int, int], Sampling] | None = None,
  few_rows: bool = False,
) -> Participation:
  """Returns the part that draws S of the clients that are there; all of them if they are fewer.

  With `rows` all that are there are drawn, as far as these rows go; of more, uniformly so many.

  Args:
    there: (key of all rounds, round, state, K) -> (who is there, bool [K]; with which probability each is,
      float32 [K]: 0 or 1 for those that a plan decides). Who is there depends on comparisons alone, not on
      arithmetic that two programs may round differently.
    name: the method's name.
    arrival: see `Arrival`.
    needs: see `Participation`.
    init: see `Participation`; the state stays as it is.
    rows: see `Participation`; None for S.
    sampling: see `Participation`, before clients drop out; None where nothing is guaranteed.
    few_rows: whether `rows` may leave clients out more often than next to never.
  """
  dropout, least_work = arrival["dropout"], arrival["least_work"]

  def draw(key, round, state, num_clients, cohort_size):
    order, lost, cut = jax.random.split(jax.random.fold_in(key, round), 3)
    present, probability = there(key, round, state, num_clients)
    ids = chosen(order, present, cohort_size)
    kept = jax.random.uniform(lost, (cohort_size,)) >= dropout
    work = least_work + (1.0 - least_work) * jax.random.uniform(cut, (cohort_size,))
    beyond = None
    if rows is None:
      mean = jnp.maximum(probability.mean(), 1e-30)
      taken = expected(probability, cohort_size) / (num_clients * mean)
      probability = jnp.minimum(probability * taken, 1.0)
    else:
      beyond = jnp.maximum(present.sum(dtype=jnp.int32) - cohort_size, 0)
      if few_rows:
        probability = probability * share_with_rows(probability, cohort_size)
    inclusion, contacted = probability[ids] * (1.0 - dropout), present[ids]
    return Draw(ids, contacted & kept, jnp.float32(work), jnp.float32(inclusion), state, contacted, beyond)

  def sampled(num_clients: int, cohort_size: int) -> Sampling:
    of = sampling or (lambda num, size: Sampling(name, "any", num, size, float(size)))
    drawn = of(num_clients, cohort_size)
    # Who drops out is drawn apart from all data. Given that, the others are drawn as before, and those that
    # drop out send nothing: the guarantee stays what it is.
    return drawn._replace(expected=drawn.expected * (1.0 - dropout), all_arrive=False)

  part = Participation(
    draw, init, name, needs, cuts_work=not is_one(least_work), ahead=True, sampling=sampled
  )
  return part if rows is None else part._replace(rows=rows)
