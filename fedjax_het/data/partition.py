"""Partitions: which rows of a data set belong to which client.

Every partitioner is host-side NumPy, depends on nothing but its arguments (the typed key comes first), and
returns one int64 array of row numbers for each client. Every row belongs to exactly one client, except that
natural may leave groups out.

  iid            equal random shares.
  pathological   label-sorted shards (McMahan et al. 2017, "Communication-efficient learning of deep
                 networks from decentralized data", section 3).
  dirichlet      each class shared out by a Dirichlet draw (Li et al. 2022, "Federated learning on non-IID
                 data silos", section IV).
  client_dirichlet  each client's own label distribution drawn from a Dirichlet (Hsu et al. 2019).
  primary_class  groups of clients with primary classes: the 2-Fold and 5-Fold of SosicFL (Huang et al. 2021).
  quantity_skew, power_law, label_quantity, extended_dirichlet: see `skews`.
  natural        the groups the data came with, all or those that are large enough, or some of them.
"""

from collections.abc import Callable
from typing import Annotated

import jax
import numpy as np
from numpy.typing import ArrayLike

from fedjax_het.data.dealing import Parts, class_labels, cut, dealt, log_dirichlet
from fedjax_het.data.natural import generator, natural, whole, wrong_count
from fedjax_het.data.rows import as_array
from fedjax_het.data.skews import extended_dirichlet, label_quantity, power_law, quantity_skew
from fedjax_het.errors import SettingError, check_choice
from fedjax_het.settings import Choice, Count, HostShare, Range, Whole, check_settings, checked, settings_of


@checked
def iid(key: jax.Array, labels: ArrayLike, num_clients: int) -> Parts:
  """Deals the rows out at random; client sizes differ by at most one row.

  Args:
    key: typed key of the shuffle.
    labels: labels, [N, ...], of which only the number N is used.
    num_clients: K, 1 <= K <= N.

  Raises:
    SettingError: `num_clients` is out of range.
  """
  labels = as_array("labels", labels)
  if not labels.ndim:
    raise SettingError("labels", labels.tolist(), "one value, no row of labels", "Give one label per row.")
  count = len(labels)
  whole("num_clients", num_clients, count, why=f"there are {count} rows")
  return np.array_split(generator(key).permutation(count), num_clients)


@checked
def pathological(
  key: jax.Array,
  labels: ArrayLike,
  num_clients: int,
  shards_per_client: Count = 2,
  deal: Annotated[str, Choice(("random", "round_robin"))] = "random",
) -> Parts:
  """Sorts the rows by label, cuts them into K·S shards and deals every client S of them.

  Shards differ by at most one row, so a shard that lies across the border of two classes holds both: a
  client sees at most S classes where the class sizes are multiples of the shard's, at most 2S in general
  (as long as every class fills a shard).

  Args:
    key: typed key of the row order within a label and of the deal.
    labels: integers, [N].
    num_clients: K, 1 <= K <= N.
    shards_per_client: S, 1 <= S and K·S <= N.
    deal: "random": shards at random (McMahan et al.). "round_robin": client i gets shards i, i + K, ... in
      file order and the key is not used, as SuPerFed's authors do: the classes (c, c + 5) where ten classes
      are of equal size, and for nearly all clients where they are not.

  Raises:
    SettingError: `num_clients`, `shards_per_client` or `deal` is not one of these.
  """
  labels = class_labels(labels, num_clients)
  most = len(labels) // num_clients
  why = f"each of {num_clients} clients has about {most} of the {len(labels)} rows"
  whole("shards_per_client", shards_per_client, most, why=why)
  count = num_clients * shards_per_client
  if deal == "random":
    rng = generator(key)
    order, owners = rng.permutation(len(labels)), rng.permutation(count)
  else:
    order, owners = np.arange(len(labels)), np.arange(count)
  shards = np.array_split(order[np.argsort(labels[order], kind="stable")], count)
  return [np.concatenate([shards[j] for j in owners[i::num_clients]]) for i in range(num_clients)]


@checked
def dirichlet(
  key: jax.Array,
  labels: ArrayLike,
  num_clients: int,
  alpha: Annotated[float, Range(1e-6, 1e6, on_host=True)],
  min_size: Count = 10,
  max_tries: Count | None = None,
  balance: bool = False,
) -> Parts:
  """Divides each class c among the clients by shares q_c ~ Dir(α 1_K), cut at their cumulative sums.

  The n rows of a class are cut at ⌊n·Σ q + u⌋, u ~ U[0, 1) drawn once for each class, so that each client's
  expected rows are n times its share. The authors' code has u = 0: there the first client loses up to half a
  row a class and the last gains as many.

  `balance=False` draws all of q again until every client holds `min_size` rows: exactly the Dirichlet
  conditioned on that. The smaller α and the larger K, the rarer such a draw (MNIST, α = 0.01: one in ten
  for K = 10, none in 100,000 for K = 100).

  `balance=True` fills up instead, and always succeeds: classes come in random order, no client holds more
  than N/K rows (rounded), and what it leaves of a class goes to the clients with room, in proportion to
  their own shares. A sub-vector of a Dirichlet, renormalised, is Dirichlet again, so what the clients with
  room receive is still a Dir(α) draw. Li et al. 2022 close a client at N/K rows too, but only between
  classes, which does not keep a client from staying empty. The price: all clients are equally large, and
  the last classes go where there is room.

  Args:
    key: typed key.
    labels: integers, [N].
    num_clients: K, 1 <= K <= N.
    alpha: concentration α in [1e-6, 1e6]; small is heterogeneous.
    min_size: the fewest rows a client may hold, 1 <= min_size <= N/K.
    max_tries: how many draws to make before giving up, 1000 by default; refused together with `balance`,
      which needs one draw only.
    balance: whether clients are filled up to equal sizes, see above, in place of drawing all shares again.

  Raises:
    SettingError: a setting is out of range, or none of `max_tries` draws gave every client `min_size` rows.
  """
  labels = class_labels(labels, num_clients)
  check_tries(balance, max_tries)
  tries = 1000 if max_tries is None else max_tries
  if min_size * num_clients > len(labels):
    raise SettingError(
      "num_clients", num_clients,
      f"{len(labels)} rows are too few for clients of at least partition.min_size = {min_size} rows",
      f"Use at most {max(len(labels) // min_size, 1)} clients, or partition.min_size ="
      f" {len(labels) // num_clients} with partition.balance = True.",
    )  # fmt: skip
  rng = generator(key)
  classes, class_sizes = np.unique(labels, return_counts=True)
  for _ in range(tries):
    logits = log_dirichlet(rng, alpha, (len(classes), num_clients))
    if balance:
      counts = _fill_up(rng, logits, class_sizes)
    else:
      offsets = rng.random(len(classes))
      counts = np.stack([cut(q, n, u) for q, n, u in zip(logits, class_sizes, offsets)])
    if counts.sum(0).min() >= min_size:
      break
  else:
    raise SettingError(
      "alpha", alpha,
      f"none of {tries} Dirichlet draws gave each of num_clients = {num_clients} clients"
      f" min_size = {min_size} of the {len(labels)} rows",
      "Set balance=True without max_tries (equally large clients, always possible), raise alpha or max_tries,"
      " or lower num_clients or min_size.",
    )  # fmt: skip
  return dealt(rng, labels, classes, counts)


@checked
def client_dirichlet(
  key: jax.Array,
  labels: ArrayLike,
  num_clients: int,
  alpha: Annotated[float, Range(1e-6, 1e6, on_host=True)],
) -> Parts:
  """Draws each client's label distribution q_k ~ Dir(α 1_C); all clients are equally large, to one row.

  The clients, in random order, draw the classes of their N/K rows from q_k without replacement. A class whose
  rows are all dealt is left out of q_k, and the rest is renormalised, so that the clients late in the order
  take what is left. Every row is dealt once.

  Args:
    key: typed key.
    labels: integers, [N].
    num_clients: K, 1 <= K <= N.
    alpha: α in [1e-6, 1e6], the Dirichlet's parameter of each class; small is heterogeneous.

  Raises:
    SettingError: `num_clients` or `alpha` is out of range.

  Source: Hsu et al. 2019, "Measuring the effects of non-identical data distribution for federated visual
  classification", arXiv:1909.06335, section 3, whose concentration is C·α with a uniform prior; SosicFL,
  section 4.1, Dir_L(β) with β = α; Hahn's thesis, II-6 and IV-4, in words.
  """
  labels = class_labels(labels, num_clients)
  rng = generator(key)
  classes, left = np.unique(labels, return_counts=True)
  logits = log_dirichlet(rng, float(alpha), (num_clients, len(classes)))
  counts = np.zeros(logits.shape, np.int64)
  order = rng.permutation(num_clients)
  for client, size in zip(order, map(len, np.array_split(np.arange(len(labels)), num_clients))):
    while lacking := size - int(counts[client].sum()):  # each pass fills the client or exhausts a class
      own = np.where(left > 0, logits[client], -np.inf)
      weights = np.exp(own - own.max())
      taken = np.minimum(rng.multinomial(lacking, weights / weights.sum()), left)
      counts[client] += taken
      left -= taken
  return dealt(rng, labels, classes, counts.T)


def check_tries(balance: bool, max_tries: int | None) -> None:
  """Raises `SettingError` where `max_tries` is set together with `balance`, which makes one draw only."""
  if balance and max_tries is not None:
    problem = "with balance=True there is one draw"
    raise SettingError("max_tries", max_tries, problem, "Set it to None.")


@checked
def primary_class(
  key: jax.Array,
  labels: ArrayLike,
  num_clients: int,
  num_folds: Annotated[int, Whole(2)],
  fraction: HostShare = 0.8,
) -> Parts:
  """Makes F groups of clients (F-Fold); each client has `fraction` of its data from its group's classes.

  Clients and classes are divided, in order, into F groups. Of every class, `fraction` goes to the group it is
  primary for and the rest equally to the other groups; within a group all clients get the same label counts
  (to one row). Every row is dealt once. Where the F groups of classes are equally large (CIFAR-10,
  Fashion-MNIST with F = 2, 5) clients are equally large and `fraction` is exact to rounding; where they are
  not (MNIST), both vary between groups as the class sizes do (2-Fold: 607 and 593 rows, 80.6 and 79.3 %).

  Args:
    key: typed key of the row order within a class.
    labels: integers, [N].
    num_clients: K, a multiple of F, 1 <= K <= N.
    num_folds: F, from 2 to the number of classes.
    fraction: share of a client's rows from its primary classes, in [0, 1].

  Raises:
    SettingError: a setting is out of range.

  Source: SosicFL, section 4.1: 80 %, two and five groups, K = 100.
  """
  labels = class_labels(labels, num_clients)
  classes = np.unique(labels)
  if len(classes) < 2:
    raise SettingError("labels", classes.tolist(), "hold a single class", "Folds need at least two.")
  whole("num_folds", num_folds, len(classes), low=2, why=f"the labels have {len(classes)} classes")
  if num_clients % num_folds:
    raise SettingError(
      "num_clients", num_clients, f"cannot be cut into num_folds = {num_folds} equal groups",
      f"Choose a multiple of {num_folds}.",
    )  # fmt: skip
  rng = generator(key)
  pools: list[list[np.ndarray]] = [[] for _ in range(num_folds)]
  for home, primary in enumerate(np.array_split(classes, num_folds)):
    for c in primary:
      rows = rng.permutation(np.flatnonzero(labels == c))
      own, rest = np.split(rows, [round(fraction * len(rows))])
      pools[home].append(own)
      for j, share in enumerate(np.array_split(rest, num_folds - 1)):
        pools[(home + 1 + j) % num_folds].append(share)
  per_group = num_clients // num_folds
  return [rows[i::per_group] for rows in map(np.concatenate, pools) for i in range(per_group)]


PARTITIONERS: dict[str, Callable[..., Parts]] = {
  f.__name__: f
  for f in (
    iid,
    pathological,
    dirichlet,
    client_dirichlet,
    primary_class,
    quantity_skew,
    power_law,
    label_quantity,
    extended_dirichlet,
    natural,
  )
}


def partition(
  key: jax.Array, name: str, labels: ArrayLike, num_clients: int | None = None, **options: object
) -> Parts:
  """Calls the partitioner `name` with the given options.

  Args:
    key: typed key.
    name: one of `PARTITIONERS`.
    labels: integers, [N].
    num_clients: K; for "natural" None or the number of groups that become clients.
    **options: options of the partitioner.

  Raises:
    SettingError: a name or option is unknown (the error names the nearest one), an option is missing,
      `num_clients` differs from the number of groups, or the partitioner refuses an option.
  """
  check_choice("partition", name, PARTITIONERS)
  signature = settings_of(PARTITIONERS[name])
  common = {"key": key, "labels": labels, "num_clients": num_clients}
  own = [option for option in signature if option not in common]
  check_settings(f"option of partition {name!r}", PARTITIONERS[name], options, common)
  for option in own:
    if signature[option].required and options.get(option) is None:
      raise SettingError(option, None, f"partition {name!r} needs it", f"Set {option}.")
  given = {argument: value for argument, value in common.items() if argument in signature}
  parts = PARTITIONERS[name](**given, **options)
  if num_clients is not None and num_clients != len(parts):
    raise wrong_count(num_clients, len(parts), options.get("min_size", 1), options.get("sample"))  # type: ignore[arg-type]
  return parts


def _fill_up(rng: np.random.Generator, logits: np.ndarray, class_sizes: np.ndarray) -> np.ndarray:
  """Counts [C, K] in proportion to exp(logits), where no client gets more than its N/K rows."""
  counts = np.zeros(logits.shape, np.int64)
  num_clients, total = logits.shape[1], int(class_sizes.sum())
  room = total // num_clients + (rng.permutation(num_clients) < total % num_clients)
  for c in rng.permutation(len(class_sizes)):
    left = int(class_sizes[c])
    while left:  # each pass fills a client or ends the class, so there are at most K + C passes
      taken = np.minimum(cut(np.where(room > 0, logits[c], -np.inf), left, rng.random()), room)
      counts[c] += taken
      room -= taken
      left -= int(taken.sum())
  return counts
