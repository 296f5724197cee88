"""BERT, DistilBERT, MiniLM: parameter counts, their formula in NumPy, masks, dropout, what cannot be."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

import fedjax_het as fh
from fedjax_het.errors import DataError, SettingError
from fedjax_het.models import MODELS, bert

TINY = dict(width=6, layers=2, heads=2, vocabulary=11, positions=9, dropout=0.0)
erf = np.vectorize(math.erf)


@pytest.mark.parametrize(
  "name, body, last",
  [
    pytest.param("bert", 109_482_240, 768, marks=pytest.mark.slow),
    pytest.param("distilbert", 66_953_472, 768, marks=pytest.mark.slow),
    pytest.param("minilm", 22_565_376, 384, marks=pytest.mark.slow),
  ],
)
def test_parameters(name, body, last):
  model = fh.models.make(name, {"tokens": (8,), "mask": (8,)}, 2)
  count = fh.models.count_parameters(jax.eval_shape(model.init, jax.random.key(0)))
  assert (model.name, count) == (name, body + last + 1)


def examples(seed, *shape):
  """Texts of 2 tokens and more, and what is beyond them."""
  rng = np.random.default_rng(seed)
  tokens = rng.integers(0, TINY["vocabulary"], shape)
  mask = (np.arange(shape[-1]) < rng.integers(2, shape[-1] + 1, shape[:-1])[..., None]).astype(np.int32)
  types = (np.arange(shape[-1]) > 2).astype(np.int32) * np.ones(shape, np.int32)
  return {"tokens": tokens, "mask": mask, "types": types}


def moved(model, seed=0):
  """Parameters of which none is 0 or 1."""
  rng, shapes = np.random.default_rng(seed), jax.eval_shape(model.init, jax.random.key(0))
  return jax.tree_util.tree_map_with_path(
    lambda path, leaf: (0.3 * rng.normal(size=leaf.shape) + (path[-1].key == "scale")).astype(np.float32),
    shapes,
  )


def dense(layer, x):
  return x @ layer["kernel"] + layer["bias"]


def norm(layer, x):
  centred = x - x.mean(-1, keepdims=True)
  return centred / np.sqrt(x.var(-1, keepdims=True) + 1e-12) * layer["scale"] + layer["bias"]


def encode(own, tokens, types):
  """The last states of one text without padding, float64 [L, width]."""
  h = own["words"]["embedding"][tokens] + own["places"]["embedding"][: len(tokens)]
  if "types" in own:
    h = h + own["types"]["embedding"][types]
  h = norm(own["norm"], h)
  for name in ("layer0", "layer1"):
    layer, heads = own[name], []
    for head in (slice(0, 3), slice(3, 6)):
      query, key, value = (dense(layer[part], h)[:, head] for part in ("query", "key", "value"))
      shares = np.exp(query @ key.T / np.sqrt(3))
      heads.append(shares / shares.sum(1, keepdims=True) @ value)
    h = norm(layer["norm1"], h + dense(layer["out"], np.concatenate(heads, 1)))
    inner = dense(layer["fc1"], h)
    h = norm(layer["norm2"], h + dense(layer["fc2"], inner * (1 + erf(inner / np.sqrt(2))) / 2))
  return h


def pooled(own, x, at, pooling, activation=np.tanh):
  length = x["mask"][at].sum()
  h = encode(own["encoder"], x["tokens"][at][:length], x["types"][at][:length])
  return activation(dense(own["pooler"], h[0])) if pooling == "cls" else h.mean(0)


@pytest.mark.parametrize("name", ["bert", pytest.param("distilbert", marks=pytest.mark.slow)])
def test_the_network_is_its_description(name):
  x = examples(0, 3, 7)
  model = MODELS[name]({part: (7,) for part in x}, 4, **TINY)
  params = moved(model)
  own = jax.tree.map(lambda leaf: np.asarray(leaf, float), params)
  activation = np.tanh if name == "bert" else lambda h: np.maximum(h, 0)
  wanted = [dense(own["classifier"], pooled(own, x, i, "cls", activation)) for i in range(3)]
  found = jax.jit(model.apply)(params, x)
  np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
  x["tokens"][0, 1] = 11  # no token: NaN, and only there
  assert np.array_equal(np.isnan(jax.jit(model.apply)(params, x)).all(1), [True, False, False])
  assert model.head == (("classifier",) if name == "bert" else ("pooler", "classifier"))


@pytest.mark.slow
def test_two_texts_are_read_apart_and_pooled_by_their_means():
  x = examples(1, 3, 2, 5)
  del x["types"]
  model = fh.models.minilm({part: (2, 5) for part in x}, 1, **TINY)
  params = moved(model)
  own = jax.tree.map(lambda leaf: np.asarray(leaf, float), params)
  x["types"] = np.zeros_like(x["tokens"])
  wanted = []
  for i in range(3):
    u, v = (pooled(own, x, (i, side), "mean") for side in (0, 1))
    wanted.append(dense(own["classifier"], np.concatenate([np.abs(u - v), u * v])))
  del x["types"]
  np.testing.assert_allclose(jax.jit(model.apply)(params, x), wanted, rtol=1e-4, atol=1e-5)


def test_dropout_in_training_and_its_places():
  x = examples(2, 4, 5)
  counts = {}
  for name in ("bert", "distilbert"):
    model = MODELS[name]({part: (5,) for part in x}, 2, **TINY | {"dropout": 0.5})
    params, calls = moved(model), []

    def count(call, args, kwargs, context, calls=calls):
      if isinstance(context.module, nn.Dropout):
        calls.append(context.module.rate)
      return call(*args, **kwargs)

    with nn.intercept_methods(count):
      jax.eval_shape(model.train, params, (), x, jnp.ones(4), jax.random.key(0))
    counts[name] = calls
  assert counts == {"bert": [0.5] * (1 + 2 * 3 + 1), "distilbert": [0.5] * (1 + 2 * 2 + 1)}


@pytest.mark.slow
def test_dropout_is_the_keys_and_not_of_use():
  x, real = examples(2, 4, 5), jnp.ones(4)
  dropping, plain = (
    fh.models.distilbert({part: (5,) for part in x}, 2, **TINY | {"dropout": rate}) for rate in (0.5, 0.0)
  )
  params = moved(plain)
  one, same, other = (
    jax.jit(dropping.train)(params, (), x, real, jax.random.key(seed))[0] for seed in (0, 0, 1)
  )
  assert np.array_equal(one, same)
  assert not np.allclose(one, other)
  used = jax.jit(plain.apply)(params, x)
  np.testing.assert_allclose(jax.jit(dropping.apply)(params, x), used, rtol=1e-5)
  trained, _ = jax.jit(plain.train)(params, (), x, real, jax.random.key(0))
  np.testing.assert_allclose(trained, used, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_clients_that_are_stacked_train_as_alone():
  x = examples(3, 2, 4, 5)
  model = fh.models.bert({part: (5,) for part in x}, 2, **TINY | {"layers": 1})
  params = jax.tree.map(lambda *leaves: jnp.stack(leaves), moved(model, 0), moved(model, 1))

  def gradient(params, x):
    return jax.grad(lambda params: jnp.square(model.apply(params, x)).sum())(params)

  stacked = jax.jit(jax.vmap(gradient))(params, x)
  alone = [jax.jit(gradient)(*jax.tree.map(lambda leaf: leaf[i], (params, x))) for i in range(2)]
  alone = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)
  largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(alone))
  chex.assert_trees_all_close(stacked, alone, rtol=1e-4, atol=1e-6 * largest)
  del alone["encoder"]["layer0"]["key"]["bias"]  # which moves all of a query's scores alike
  assert all(jnp.any(jnp.abs(leaf) > 1e-5 * largest) for leaf in jax.tree.leaves(alone))


@pytest.mark.slow
def test_it_learns_which_texts_are_alike():
  """By FedAvg and a binary task: two texts are the same, or they are not."""
  rng = np.random.default_rng(0)
  tokens = rng.integers(0, 11, (160, 2, 3))
  y = np.arange(160) % 2
  tokens[y == 1, 1] = tokens[y == 1, 0]
  x = {"tokens": tokens.astype(np.int32), "mask": np.ones(tokens.shape, np.int32)}
  data = fh.federate(
    x, y, np.array_split(np.arange(160), 4), jax.random.key(0), num_classes=2, task=fh.tasks.binary()
  )
  options = dict(TINY, width=8, layers=1, dropout=0.1)
  model = fh.models.make("minilm", {"tokens": (2, 3), "mask": (2, 3)}, 2, **options)
  algorithm = fh.federated(fh.fedavg(model, lr=0.3, epochs=3), fh.mixing.static(), fh.server.sgd())
  result = fh.run(algorithm, data, rounds=10, cohort_size=4, key=jax.random.key(1))
  assert result.metrics["global"]["auroc"]["mean"] > 0.8


def published(width):
  """Names and shapes of a layer of `bert-base-uncased` as it was published, gamma and beta and all."""
  square, row, inner = (width, width), (width,), 4 * width
  layer = "bert.encoder.layer.0"
  dense = {
    **{f"{layer}.attention.self.{part}": square for part in ("query", "key", "value")},
    f"{layer}.attention.output.dense": square, f"{layer}.intermediate.dense": (inner, width),
    f"{layer}.output.dense": (width, inner), "bert.pooler.dense": square,
    "cls.predictions.transform.dense": square, "cls.seq_relationship": (2, width),
  }  # fmt: skip
  norms = "bert.embeddings", f"{layer}.attention.output", f"{layer}.output", "cls.predictions.transform"
  tables = {"word": TINY["vocabulary"], "position": TINY["positions"], "token_type": 2}
  return {
    **{f"bert.embeddings.{name}_embeddings.weight": (rows, width) for name, rows in tables.items()},
    **{f"{name}.weight": shape for name, shape in dense.items()},
    **{f"{name}.bias": shape[:1] for name, shape in dense.items()},
    **{f"{name}.LayerNorm.{leaf}": row for name in norms for leaf in ("gamma", "beta")},
    "bert.embeddings.position_ids": (1, TINY["positions"]),
  }  # fmt: skip


def test_weights_by_the_names_they_were_published_with(tmp_path, caplog):
  rng = np.random.default_rng(0)
  state = {name: rng.normal(size=shape).astype(np.float32) for name, shape in published(6).items()}
  np.savez(tmp_path / "bert.npz", **state)
  x, options = {"tokens": (5,), "mask": (5,)}, TINY | {"layers": 1}
  fh.models.make("bert", x, 1, weights=str(tmp_path / "bert.npz"), **options)
  assert "no classifier for this model" in caplog.text and "no place" not in caplog.text
  params, _ = fh.models.reader_of("bert")(state)
  own, theirs = params["encoder"]["layer0"], "bert.encoder.layer.0."
  np.testing.assert_array_equal(own["value"]["kernel"], state[f"{theirs}attention.self.value.weight"].T)
  np.testing.assert_array_equal(own["fc2"]["bias"], state[f"{theirs}output.dense.bias"])
  np.testing.assert_array_equal(own["norm2"]["scale"], state[f"{theirs}output.LayerNorm.gamma"])
  places = params["encoder"]["places"]["embedding"]
  np.testing.assert_array_equal(places, state["bert.embeddings.position_embeddings.weight"])
  np.savez(tmp_path / "other.npz", **state, **{"bert.decoder.weight": np.zeros((2, 2))})
  with pytest.raises(DataError, match=r"bert\.decoder\.weight is no array of this model"):
    fh.models.make("bert", x, 1, weights=str(tmp_path / "other.npz"), **options)


@pytest.mark.parametrize(
  "changes, word",
  [
    (dict(shape=(2, 64)), "shape"),
    (dict(shape={"tokens": (8,)}), "mask"),
    (dict(shape={"tokens": (8,), "mask": (9,)}), "shape"),
    (dict(shape={"tokens": (3, 8), "mask": (3, 8)}), "pairs"),
    (dict(shape={"tokens": (600,), "mask": (600,)}), "positions = 512: .*600"),
    (dict(width=100), "108"),
    (dict(pooling="max"), "pooling"),
    (dict(layers=0), "layers"),
    (dict(dropout=1.0), "dropout"),
  ],
)
def test_what_cannot_be_is_named(changes, word):
  with pytest.raises(SettingError, match=word):
    bert(**{"shape": {"tokens": (8,), "mask": (8,)}} | changes)
