r"""Study of the classifier: the global model's last layer, trained again on features of class statistics.

Luo, Chen, Hu, Zhang, Liang, Feng, No Fear of Heterogeneity: Classifier Calibration for Federated Learning
with Non-IID Data, NeurIPS 2021, section 4 (CCVR). After training, client i sends for each class c its number
n_{i,c} of training examples and the mean μ_{i,c} and covariance Σ_{i,c} of their features z. The server has

    μ_c = Σ_i n_{i,c} μ_{i,c} / n_c,    n_c = Σ_i n_{i,c},
    Σ_c = [Σ_i (n_{i,c} - 1) Σ_{i,c} + Σ_i n_{i,c} μ_{i,c} μ_{i,c}ᵀ - n_c μ_c μ_cᵀ] / (n_c - 1),

which are the mean and the covariance of all clients' features of c, draws M features of each class from
N(μ_c, Σ_c), and trains the last layer on them from where it is. The body stays.

M = 100 is the paper's for CIFAR-10. The paper trains by SGD; here each step of Adam is on all drawn features.

Features behind a ReLU are far from normal. The paper's remedy is Tukey's power: with `power` β below 1, the
clients' statistics, the drawn features and the calibrated model's last layer are all of sign(z) |z|^β in the
place of z. The model before calibration is judged as it is.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import traverse_util
from jax import lax
from rich.text import Text

from fedjax_het.clients.calibration import check_classes
from fedjax_het.data.container import FederatedData
from fedjax_het.data.natural import generator
from fedjax_het.data.scale import as_read
from fedjax_het.engine.evaluate import evaluate_model
from fedjax_het.engine.lambda_selection import headline
from fedjax_het.errors import SettingError
from fedjax_het.metrics.fairness import summarize_all
from fedjax_het.models import Model
from fedjax_het.models.features import LinearHead, feature_size, last_layer, linear_head, with_features
from fedjax_het.models.model import within
from fedjax_het.modes import promoting
from fedjax_het.parts import ClientUpdate
from fedjax_het.settings import Count, Decay, Positive, checked
from fedjax_het.studies.features import in_blocks
from fedjax_het.studies.study import Moment, Options, Study, Watched
from fedjax_het.studies.text import named, number

PyTree = Any
DRAWS = 1_000_037  # folded into the run's key


class Moments(NamedTuple):
  """Statistics of features by class, of a client or of all: float64.

  Attributes:
    examples: n, [C].
    mean: μ, [C, d]; 0 for a class without examples.
    covariance: Σ, [C, d, d], with n - 1 in the denominator; 0 for a class of fewer than two examples.
  """

  examples: np.ndarray
  mean: np.ndarray
  covariance: np.ndarray


def moments_of(features: np.ndarray, y: np.ndarray, num_classes: int) -> Moments:
  """Computes the statistics of features [n, d] with labels int [n]."""
  z, size = features.astype(np.float64), features.shape[1]
  found = Moments(*(np.zeros((num_classes, *shape)) for shape in ((), (size,), (size, size))))
  for c in np.unique(y):
    own = z[y == c]
    found.examples[c], found.mean[c] = len(own), own.mean(0)
    away = own - found.mean[c]
    found.covariance[c] = away.T @ away / max(len(own) - 1, 1)
  return found


def pooled(clients: Any) -> Moments:
  """Computes the statistics of all clients' features of those of each client, an iterable of `Moments`."""
  count = mean = scatter = 0.0
  for n, mu, sigma in clients:
    count, mean = count + n, mean + n[:, None] * mu
    scatter = scatter + np.maximum(n - 1, 0)[:, None, None] * sigma
    scatter = scatter + n[:, None, None] * mu[:, :, None] * mu[:, None, :]
  mean = mean / np.maximum(count, 1)[:, None]
  scatter = scatter - np.asarray(count)[:, None, None] * mean[:, :, None] * mean[:, None, :]
  return Moments(np.asarray(count), mean, scatter / np.maximum(count - 1, 1)[:, None, None])


def drawn(key: jax.Array, moments: Moments, per_class: int) -> tuple[np.ndarray, np.ndarray]:
  """Draws (features float32 [N, d], labels int32 [N]), M of each class that has an example."""
  there = np.flatnonzero(moments.examples)
  values, vectors = np.linalg.eigh(moments.covariance[there])
  root = vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]
  normal = generator(key)
  z = normal.normal(size=(len(there), per_class, root.shape[2])) @ root.transpose(0, 2, 1)
  z = z + moments.mean[there][:, None, :]
  return z.reshape(-1, z.shape[2]).astype(np.float32), np.repeat(there, per_class).astype(np.int32)


def raised(z: Any, power: float) -> Any:
  """Returns sign(z) |z|^β of features z, elementwise, with β = `power`; for β = 1 it returns z itself."""
  return z if power == 1.0 else jnp.sign(z) * jnp.abs(z) ** power


@checked
def calibrated(
  head: LinearHead, z: jax.Array, y: jax.Array, *, per_class: Count = 100, steps: Count = 200,
  lr: Positive = 1e-3, power: Decay = 1.0,
) -> LinearHead:  # fmt: skip
  """Returns the last layer after steps of Adam on the mean cross entropy of z W + b.

  Args:
    head: the layer before.
    z: features, float32 [N, d].
    y: labels, int32 [N].
    per_class: M, the features drawn of each class.
    steps: steps of Adam, each on all of them.
    lr: Adam's learning rate.
    power: β, to which features are raised; 1 leaves them as they are.
  """
  del per_class, power  # z has them
  tx = promoting(optax.adam(lr))

  def loss(own: LinearHead) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(own(z), y).mean()

  def step(_: int, carry: tuple[LinearHead, Any]) -> tuple[LinearHead, Any]:
    own, state = carry
    updates, state = tx.update(jax.grad(loss)(own), state)
    return optax.apply_updates(own, updates), state

  return lax.fori_loop(0, steps, step, (head, tx.init(head)))[0]


def with_head(model: Model, params: PyTree, head: LinearHead) -> PyTree:
  """Returns the parameters with another last layer, see `linear_head`; without a bias it keeps none."""
  layer, flat = last_layer(model), traverse_util.flatten_dict(params)
  own = {path: getattr(head, str(path[-1])) for path in flat if within(path, layer)}
  return traverse_util.unflatten_dict(flat | own)


class Calibration(Study):
  """Study that adds `ccvr` to the summary, if configured: the global model before and after calibration."""

  name = "ccvr"
  options = Options("ccvr", calibrated, on_request=True, silent=True)

  @classmethod
  def check(cls, given: Mapping[str, Any], client: ClientUpdate, validates: bool) -> None:
    """Raises `SettingError` without a global model that ends in a layer, or with private records."""
    if given and client.studies.records is not None:
      problem = "sends means and covariances of features, which dp_clip does not bound"
      raise SettingError("ccvr", dict(given), problem, "Leave one of them out.")
    if given and (client.global_model is None or client.studies.model is None):
      problem = f"{client.name} has no global model whose last layer alone could be trained"
      raise SettingError("ccvr", dict(given), problem, "Leave it out.")

  @classmethod
  def check_run(cls, given: Mapping[str, Any], run: Watched) -> None:
    """Raises `SettingError` if the labels are no classes, or the model has no linear head."""
    if given:
      model = run.algorithm.client.studies.model
      check_classes("ccvr", dict(given), model.task, model.num_classes)
      feature_size(model)

  @classmethod
  def fits(cls, run: Watched) -> bool:
    """Returns whether the configuration has a section `ccvr`."""
    return cls.name in run.config.studies

  def section(self, now: Moment) -> dict[str, Any]:
    """Returns {"ccvr": settings, `classes` with an example, and the metrics `before` and `after`}."""
    broadcast = jax.tree.map(np.asarray, now.broadcast())
    if now.diverged:
      return {}
    assert now.evaluations is not None
    liars = now.evaluations.dishonest
    client, data, settings = self.run.algorithm.client, self.run.data, self.settings
    model = client.studies.model
    assert client.global_model is not None
    params, stats = model.split(jax.tree.map(np.asarray, client.global_model(broadcast)))
    power = settings["power"]

    def features(joined: PyTree, x: Any) -> jax.Array:
      return raised(with_features(model).logits(joined, x).features, power)

    seen = jax.jit(lambda x: features(model.joined(params, stats), x))
    found = pooled(self._of_clients(in_blocks(lambda x: seen(as_read(x, data.scale)))))
    z, y = drawn(jax.random.fold_in(self.run.key, DRAWS), found, settings["per_class"])
    head = jax.jit(lambda own, z, y: calibrated(own, z, y, **settings))(linear_head(model)(params), z, y)

    def on_powers(joined: PyTree, x: Any) -> jax.Array:
      return linear_head(model)(model.split(joined).params)(features(joined, x))

    after = client.apply if power == 1.0 else on_powers
    told = {
      name: judged(jax.jit(self._judge(apply))(model.joined(own, stats), data), client.task.headline, liars)
      for name, apply, own in (
        ("before", client.apply, params), ("after", after, with_head(model, params, head)),
      )
    }  # fmt: skip
    return {"ccvr": {**settings, "classes": int((found.examples > 0).sum()), **told}}

  def _of_clients(self, features: Callable[[Any], np.ndarray]) -> Any:
    """Yields each client's `Moments`."""
    data = self.run.data
    for i in range(data.num_clients):
      rows = data.train.rows(np.array([i]))
      if not len(rows):
        continue
      x = jax.tree.map(lambda leaf: np.asarray(leaf)[rows], data.x)  # noqa: B023
      yield moments_of(features(x), np.asarray(data.y)[rows], data.num_classes)

  def _judge(self, apply: Callable[[PyTree, Any], jax.Array]) -> Callable[..., dict[str, jax.Array]]:
    """Returns a function (parameters, data) -> metric -> its value on each client's test part, [K].

    Args:
      apply: (parameters, x) -> the outputs of the model that is judged.
    """

    def judge(params: PyTree, data: FederatedData) -> dict[str, jax.Array]:
      def one(i: jax.Array) -> dict[str, jax.Array]:
        return evaluate_model(self.run.algorithm.client.task, apply, params, data.clients(i, "test"))

      return lax.map(one, jnp.arange(data.num_clients))

    return judge

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> Text | None:
    """Returns a terminal line with the headline metric before and after."""
    found = summary.get("ccvr")
    if not found:
      return None
    metric = headline(found["before"])
    ends = [number(found[name][metric]["mean"], metric) for name in ("before", "after")]
    return Text(f"\nglobal model, its last layer calibrated: {named(metric)} {ends[0]} -> {ends[1]}")


def judged(found: Mapping[str, Any], first: Any, liars: np.ndarray | None = None) -> dict[str, Any]:
  """Returns the figures over the clients of each metric, [K], the headline's first.

  Args:
    found: metric -> values, [K].
    first: names of the metrics that come first.
    liars: which clients are dishonest, bool [K], whom no figure counts; None for none.
  """
  names = sorted(found, key=lambda name: (name not in first, name))
  away = False if liars is None else liars
  return summarize_all({name: np.where(away, np.nan, np.asarray(found[name], np.float64)) for name in names})
