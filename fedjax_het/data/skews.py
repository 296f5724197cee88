"""Partitions by sizes, and by the number of classes that a client holds.

  quantity_skew      sizes drawn from a Dirichlet, all classes everywhere (Li et al. 2022, "Federated learning
                     on non-IID data silos", section IV-D, q ~ Dir(β)).
  power_law          sizes that fall as a power of the client's rank, all classes everywhere.
  label_quantity     k classes a client, each class shared out evenly (Li et al. 2022, section IV-B, #C = k).
  extended_dirichlet k classes a client, each class shared out by a Dirichlet draw (Li and Lyu, "Convergence
                     analysis of sequential federated learning on heterogeneous data", NeurIPS 2023, ExDir).

Both authors' codes were read. They draw everything again until every client has ten rows; here every
client first gets its least number of rows, and the rule divides the others, so that a partition always
succeeds. The code of ExDir also draws the classes again until each has a fifth of the owners that it would
have on average.
"""

from typing import Annotated

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedjax_het.data.dealing import Parts, class_labels, cut, dealt, log_dirichlet
from fedjax_het.data.natural import generator, whole
from fedjax_het.data.rows import as_array
from fedjax_het.errors import SettingError
from fedjax_het.settings import Count, Range, checked

Alpha = Annotated[float, Range(1e-6, 1e6, on_host=True)]


@checked
def quantity_skew(
  key: jax.Array, labels: ArrayLike, num_clients: int, alpha: Alpha, min_size: Count = 10
) -> Parts:
  """Deals the rows out at random to clients whose shares are q ~ Dir(α 1_K).

  Client i has m + q_i (N - K m) rows, rounded, with m = `min_size`.

  Args:
    key: typed key.
    labels: labels, [N, ...], of which only the number N is used.
    num_clients: K >= 1, K m <= N.
    alpha: α in [1e-6, 1e6]; the smaller, the more the sizes differ.
    min_size: m >= 1, rows that every client has.

  Raises:
    SettingError: a setting is out of range, or there are fewer than K m rows.
  """
  rng, count = generator(key), _count(labels, num_clients, min_size)
  return _by_size(rng, count, log_dirichlet(rng, float(alpha), (1, num_clients))[0], min_size)


@checked
def power_law(
  key: jax.Array,
  labels: ArrayLike,
  num_clients: int,
  exponent: Annotated[float, Range(low=0.0, high=100.0, on_host=True)] = 1.0,
  min_size: Count = 10,
) -> Parts:
  """Deals the rows out at random to clients of sizes m + (N - K m) r^-a / Σ_s s^-a, rounded.

  r = 1, ..., K is a client's rank, in random order, a = `exponent` and m = `min_size`.

  Args:
    key: typed key.
    labels: labels, [N, ...], of which only the number N is used.
    num_clients: K >= 1, K m <= N.
    exponent: a in [0, 100]; 0 makes all clients equally large.
    min_size: m >= 1, rows that every client has.

  Raises:
    SettingError: a setting is out of range, or there are fewer than K m rows.
  """
  rng, count = generator(key), _count(labels, num_clients, min_size)
  ranks = rng.permutation(num_clients) + 1.0
  return _by_size(rng, count, -exponent * np.log(ranks), min_size)


@checked
def label_quantity(
  key: jax.Array, labels: ArrayLike, num_clients: int, classes_per_client: Count = 2
) -> Parts:
  """Gives every client k classes; a class is shared out evenly, to one row, among the clients that have it.

  Client i has the class i mod C and k - 1 others at random. With fewer clients than classes, the classes C
  are first dealt in turns, so that every class has an owner.

  Args:
    key: typed key of the classes and of the rows.
    labels: integers, [N].
    num_clients: K, 1 <= K <= N.
    classes_per_client: k, at least C / K and at most C, the number of classes.

  Raises:
    SettingError: a setting is out of range, or a class has fewer rows than owners.
  """
  rng, labels, classes, owners = _owners(key, labels, num_clients, classes_per_client, 1)
  counts = np.zeros(owners.shape, np.int64)
  for c, own in enumerate(owners):
    size = int((labels == classes[c]).sum())
    counts[c, own] = [*map(len, np.array_split(np.arange(size), own.sum()))]
  return dealt(rng, labels, classes, counts)


@checked
def extended_dirichlet(
  key: jax.Array,
  labels: ArrayLike,
  num_clients: int,
  alpha: Alpha,
  classes_per_client: Count = 2,
  min_size: Count = 10,
) -> Parts:
  """Gives every client k classes; a class is shared out among its owners by one draw q ~ Dir(α 1).

  The classes are those of `label_quantity`. An owner has ⌈m / k⌉ rows of each of its classes and its share q
  of the others, so that it holds exactly k classes and at least m = `min_size` rows.

  Args:
    key: typed key of the classes, of the shares and of the rows.
    labels: integers, [N].
    num_clients: K, 1 <= K <= N.
    alpha: α in [1e-6, 1e6]; the smaller, the more the owners' shares of a class differ.
    classes_per_client: k, at least C / K and at most C, the number of classes.
    min_size: m >= 1, rows that every client has at least.

  Raises:
    SettingError: a setting is out of range, or a class has too few rows for its owners.
  """
  least = -(-min_size // max(classes_per_client, 1))
  rng, labels, classes, owners = _owners(key, labels, num_clients, classes_per_client, least)
  counts = np.zeros(owners.shape, np.int64)
  for c, own in enumerate(owners):
    left = int((labels == classes[c]).sum()) - least * int(own.sum())
    logits = log_dirichlet(rng, float(alpha), (1, int(own.sum())))[0]
    counts[c, own] = least + cut(logits, left, rng.random())
  return dealt(rng, labels, classes, counts)


def _count(labels: ArrayLike, num_clients: int, min_size: int) -> int:
  """Returns the number of rows N; raises `SettingError` unless K clients can have `min_size` of them."""
  labels = as_array("labels", labels)
  if not labels.ndim:
    raise SettingError("labels", labels.tolist(), "one value, no row of labels", "Give one label per row.")
  count = len(labels)
  whole("num_clients", num_clients, count, why=f"there are {count} rows")
  if min_size * num_clients > count:
    raise SettingError(
      "min_size", min_size, f"{num_clients} clients of so many rows need more than the {count} there are",
      f"Use at most {count // num_clients}, or at most {max(count // min_size, 1)} clients.",
    )  # fmt: skip
  return count


def _by_size(rng: np.random.Generator, count: int, logits: np.ndarray, min_size: int) -> Parts:
  """Deals out `count` rows: `min_size` to each client, the others in proportion to exp(logits), [K]."""
  sizes = min_size + cut(logits, count - min_size * len(logits), rng.random())
  return np.split(rng.permutation(count), np.cumsum(sizes)[:-1])


def _owners(
  key: jax.Array, labels: ArrayLike, num_clients: int, classes_per_client: int, least: int
) -> tuple[np.random.Generator, np.ndarray, np.ndarray, np.ndarray]:
  """Returns (generator, labels [N], the classes [C], who owns each class, bool [C, K])."""
  labels = class_labels(labels, num_clients)
  classes, sizes = np.unique(labels, return_counts=True)
  fewest = -(-len(classes) // num_clients)
  whole(
    "classes_per_client", classes_per_client, len(classes), fewest, f"the labels have {len(classes)} classes"
  )
  rng = generator(key)
  owns = np.zeros((len(classes), num_clients), bool)
  turns = np.arange(max(len(classes), num_clients))
  owns[turns % len(classes), turns % num_clients] = True
  for i in range(num_clients):
    others = np.flatnonzero(~owns[:, i])
    owns[rng.choice(others, classes_per_client - int(owns[:, i].sum()), replace=False), i] = True
  for c, own in enumerate(owns):
    if sizes[c] < least * own.sum():
      raise SettingError(
        "num_clients", num_clients,
        f"class {classes[c]} has {sizes[c]} rows for {own.sum()} clients that hold at least {least} of them",
        "Use fewer clients, or a smaller classes_per_client or min_size.",
      )  # fmt: skip
  return rng, labels, classes, owns
