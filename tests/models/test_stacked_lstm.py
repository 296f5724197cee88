"""StackedLSTM: parameter counts, its formula in NumPy, its gradient against automatic differentiation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het.errors import SettingError
from fedjax_het.models.layers.sequences import recur
from fedjax_het.models.zoo.stacked_lstm import stacked_lstm

SMALL = dict(vocabulary=7, embedding=3, hidden=4)


def normal(seed, *shape):
  return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize(
  "shape, classes, options, count",
  [
    ((80,), 80, {}, 819_920),
    ((80,), 100, dict(bias=False), 821_024),
    ((10,), 10_000, dict(embedding=200, positions="every"), 5_565_328),
  ],
)
def test_parameters(shape, classes, options, count):
  model = fh.models.make("stacked_lstm", shape, classes, **options)
  assert fh.models.count_parameters(jax.eval_shape(model.init, jax.random.key(0))) == count


def sigmoid(x):
  return 1.0 / (1.0 + np.exp(-x))


def text(params, ids):
  """Logits after each token of one text, float64."""
  own = jax.tree.map(lambda leaf: np.asarray(leaf, float), params)
  inputs = own["embed"]["embedding"][ids]
  for name in ("lstm1", "lstm2"):
    layer, width = own[name], own[name]["recurrent_kernel"].shape[0]
    h, c, outputs = np.zeros(width), np.zeros(width), []
    for x in inputs:
      z = x @ layer["kernel"] + h @ layer["recurrent_kernel"]
      z = z + layer.get("bias", 0.0) + layer.get("recurrent_bias", 0.0)
      i, f, g, o = z.reshape(4, width)
      c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
      h = sigmoid(o) * np.tanh(c)
      outputs.append(h)
    inputs = np.array(outputs)
  return inputs @ own["head"]["kernel"] + own["head"].get("bias", 0.0)


@pytest.mark.parametrize("bias", [True, False])
def test_the_network_is_its_description(bias):
  last, every = (stacked_lstm((6,), 5, positions=each, bias=bias, **SMALL) for each in ("last", "every"))
  shapes = jax.eval_shape(last.init, jax.random.key(0))
  params = jax.tree.map(lambda leaf: 0.6 * normal(leaf.size, *leaf.shape), shapes)
  x = np.random.default_rng(0).integers(0, 7, (3, 6))
  expected = np.array([text(params, ids) for ids in x])
  np.testing.assert_allclose(jax.jit(every.apply)(params, x), expected, rtol=1e-4, atol=1e-5)
  np.testing.assert_allclose(jax.jit(last.apply)(params, x), expected[:, -1], rtol=1e-4, atol=1e-5)
  x[1, 3], x[2, 4] = 7, -1  # no tokens
  logits = jax.jit(every.apply)(params, x)
  assert np.array_equal(np.isnan(logits).all(-1), [[0] * 6, [0] * 3 + [1] * 3, [0] * 4 + [1] * 2])


def plain(z, kernel):
  """The same recurrence, for automatic differentiation."""
  h = c = jnp.zeros((z.shape[1], kernel.shape[0]))
  outputs = []
  for each in z:
    i, f, g, o = jnp.split(each + h @ kernel, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    outputs.append(h)
  return jnp.stack(outputs)


def test_the_recurrences_gradient_of_stacked_clients():
  z, kernel, weight = normal(0, 3, 5, 2, 16), normal(1, 3, 4, 16), normal(2, 5, 2, 4)

  def pulled(function):
    return jax.jit(jax.vmap(jax.grad(lambda z, kernel: jnp.sum(weight * function(z, kernel)), (0, 1))))

  for ours, automatic in zip(pulled(recur)(z, kernel), pulled(plain)(z, kernel)):
    np.testing.assert_allclose(ours, automatic, rtol=1e-4, atol=1e-5)


def test_first_parameters_are_pytorchs():
  params = jax.jit(stacked_lstm().init)(jax.random.key(0))
  for name in ("kernel", "recurrent_kernel", "bias", "recurrent_bias"):
    values = params["lstm1"][name]
    assert float(jnp.abs(values).max()) <= 1 / 16
    assert float(values.std()) == pytest.approx(1 / 16 / 3**0.5, rel=0.05)
  assert float(params["embed"]["embedding"].std()) == pytest.approx(1.0, rel=0.1)


@pytest.mark.slow
def test_it_learns_what_follows():
  """Every text counts up, modulo 7."""
  rng = np.random.default_rng(0)
  texts = (rng.integers(0, 7, (120, 1)) + np.arange(6)) % 7
  parts, task = np.array_split(np.arange(120), 4), fh.tasks.next_token()
  data = fh.federate(texts[:, :5], texts[:, 1:], parts, jax.random.key(0), num_classes=7, task=task)
  model = fh.models.make("stacked_lstm", (5,), 7, task, hidden=8, layers=1, positions="every")
  algorithm = fh.federated(fh.fedavg(model, lr=2.0, epochs=5), fh.mixing.static(), fh.server.sgd())
  result = fh.run(algorithm, data, rounds=8, cohort_size=4, key=jax.random.key(1))
  assert result.metrics["global"]["top1"]["mean"] > 0.9


def test_weights_by_pytorchs_names():
  state = {
    "features.0.weight": np.ones((7, 3)), "classifier.weight": np.ones((5, 4)), "classifier.bias": np.ones(5),
    "features.1.weight_ih_l1": np.arange(64.0).reshape(16, 4), "features.1.bias_hh_l0": np.arange(16.0),
  }  # fmt: skip
  params, stats = fh.models.reader_of("stacked_lstm")(state)
  assert {*params} == {"embed", "head", "lstm1", "lstm2"} and not stats
  np.testing.assert_array_equal(params["lstm2"]["kernel"], state["features.1.weight_ih_l1"].T)
  np.testing.assert_array_equal(params["lstm1"]["recurrent_bias"], np.arange(16))
  assert params["embed"]["embedding"].shape == (7, 3) and params["head"]["kernel"].shape == (4, 5)


def test_ids_that_were_standardised_are_refused():
  model = fh.models.make("stacked_lstm", (6,), 5, mean=2.0)
  with pytest.raises(SettingError, match=r"float32.*not token ids.*store ids as int8, int16 or int32"):
    jax.eval_shape(model.apply, jax.eval_shape(model.init, jax.random.key(0)), jnp.zeros((2, 6), jnp.int32))


@pytest.mark.parametrize(
  "changes, word",
  [
    (dict(shape=(2, 8)), "shape"),
    (dict(positions="all"), "positions"),
    (dict(hidden=0), "hidden"),
    (dict(vocabulary=0), "vocabulary"),
  ],
)
def test_what_cannot_be_is_named(changes, word):
  with pytest.raises(SettingError, match=word):
    stacked_lstm(**changes)
