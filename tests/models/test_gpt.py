"""GPT: its formula and its perplexity in NumPy, what a position sees, GPT-2's names, refused settings."""

import jax
import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het.errors import SettingError
from fedjax_het.models.zoo.gpt import gpt

SMALL = dict(width=8, layers=2, heads=2)
KEY = jax.random.key(0)
SHAPES = {"learned": {}, "rotary": {"places": "rotary", "tied": False}}


def moved(model, seed=0):
  """Parameters of which none is 0 or 1."""
  rng = np.random.default_rng(seed)
  draw = lambda leaf: (0.5 * rng.normal(size=leaf.shape)).astype(np.float32)  # noqa: E731
  return jax.tree.map(draw, jax.eval_shape(model.init, KEY))


def dense(layer, x):
  return x @ layer["kernel"] + layer["bias"]


def norm(layer, x):
  centred = x - x.mean(-1, keepdims=True)
  return centred / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * layer["scale"] + layer["bias"]


def gelu(x):
  return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def turned(x):
  """Pairs (i, i + d/2) as complex numbers, turned by position times 10000^(-2i/d)."""
  half = x.shape[1] // 2
  pairs = x[:, :half] + 1j * x[:, half:]
  angles = np.arange(len(x))[:, None] * 10_000.0 ** (-2 * np.arange(half) / x.shape[1])
  pairs = pairs * np.exp(1j * angles)
  return np.concatenate([pairs.real, pairs.imag], 1)


def by_hand(params, ids):
  """The logits after each token of one text, float64 [T, C], token by token."""
  own = jax.tree.map(lambda leaf: np.asarray(leaf, float), params)
  h = own["words"]["embedding"][ids]
  if "places" in own:
    h = h + own["places"]["embedding"][: len(ids)]
  for name in ("layer0", "layer1"):
    layer = own[name]
    query, key, value = np.split(dense(layer["qkv"], norm(layer["norm1"], h)), 3, 1)
    heads = []
    for head in (slice(0, 4), slice(4, 8)):
      q, k = (
        (query[:, head], key[:, head]) if "places" in own else (turned(query[:, head]), turned(key[:, head]))
      )
      rows = []
      for t in range(len(ids)):
        shares = np.exp(k[: t + 1] @ q[t] / 2.0)
        rows.append(shares @ value[: t + 1, head] / shares.sum())
      heads.append(np.array(rows))
    h = h + dense(layer["out"], np.concatenate(heads, 1))
    h = h + dense(layer["fc2"], gelu(dense(layer["fc1"], norm(layer["norm2"], h))))
  h = norm(own["norm"], h)
  return h @ own["head"]["kernel"] if "head" in own else h @ own["words"]["embedding"].T


@pytest.mark.parametrize("which", ["learned", pytest.param("rotary", marks=pytest.mark.slow)])
def test_the_network_is_its_description(which):
  every, last = (gpt((6,), 11, positions=each, **SMALL, **SHAPES[which]) for each in ("every", "last"))
  params, x = moved(every), np.random.default_rng(0).integers(0, 11, (3, 6))
  wanted = [by_hand(params, row) for row in x]
  found = np.asarray(jax.jit(every.apply)(params, x))
  np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
  np.testing.assert_allclose(jax.jit(last.apply)(params, x), found[:, -1], rtol=1e-5, atol=1e-5)
  assert every.head == last.head == (("head",) if which == "rotary" else ())
  x[0, 4] = 11  # no token: NaN, and only in this text
  assert np.isnan(jax.jit(every.apply)(params, x)).all((1, 2)).tolist() == [True, False, False]


@pytest.mark.slow
def test_a_client_s_perplexity_is_that_by_hand():
  """Through the engine, over the tokens of all its texts that are not padding."""
  rng = np.random.default_rng(1)
  x = rng.integers(0, 11, (8, 6))
  y = np.where(np.arange(6) < rng.integers(1, 7, 8)[:, None], rng.integers(0, 11, (8, 6)), -1)
  task, owners, split = fh.tasks.next_token(), np.arange(8) % 2, np.arange(8) // 4
  data = fh.data.from_groups(KEY, x, y, owners, num_classes=11, task=task, split=split)
  model = gpt((6,), 11, **SMALL)
  params = moved(model)
  model = model._replace(init=lambda key: params)
  found = fh.run(fh.federated(fh.fedavg(model, lr=1e-30)), data, rounds=1, cohort_size=2, key=KEY, devices=1)
  wanted = []
  for client in range(2):
    losses = []
    for row in np.flatnonzero((owners == client) & (split == 1)):
      logits = by_hand(params, x[row])
      for t in np.flatnonzero(y[row] >= 0):
        losses.append(np.log(np.exp(logits[t]).sum()) - logits[t, y[row, t]])
    wanted.append(np.exp(np.mean(losses)))
  np.testing.assert_allclose(found.clients["personalized"]["perplexity"], wanted, rtol=1e-4)


@pytest.mark.slow
def test_padding_at_the_end_and_later_tokens_change_nothing_before():
  model = gpt((6,), 11, **SMALL)
  params, x = moved(model), np.random.default_rng(2).integers(0, 11, (2, 6))
  other = x.copy()
  other[:, 4:] = (x[:, 4:] + 1) % 11
  first, second = (np.asarray(jax.jit(model.apply)(params, own)) for own in (x, other))
  assert np.array_equal(first[:, :4], second[:, :4]) and not np.array_equal(first[:, 4:], second[:, 4:])


@pytest.mark.slow
def test_dropout_is_in_training_alone():
  model = gpt((6,), 11, dropout=0.5, **SMALL)
  params, x = moved(model), np.random.default_rng(2).integers(0, 11, (2, 6))
  draw = lambda key: np.asarray(model.train(params, (), x, np.ones(2), key)[0])  # noqa: E731
  assert not np.array_equal(draw(KEY), draw(jax.random.key(1)))
  still = gpt((6,), 11, **SMALL)
  assert np.array_equal(model.apply(params, x), still.train(params, (), x, np.ones(2), KEY)[0])


@pytest.mark.slow
def test_parameters_of_gpt_2():
  model = gpt((1024,), 50_257, width=768, layers=12, heads=12)
  assert fh.models.count_parameters(jax.eval_shape(model.init, KEY)) == 124_439_808


def gpt_2(params):
  """A model's parameters by the transformers library's names."""
  parts = {"norm1": "ln_1", "qkv": "attn.c_attn", "out": "attn.c_proj", "norm2": "ln_2", "fc1": "mlp.c_fc"}
  state = {"wte.weight": params["words"]["embedding"], "wpe.weight": params["places"]["embedding"]}
  leaf = {"kernel": "weight", "scale": "weight", "bias": "bias"}
  for i in range(2):
    for ours, theirs in {**parts, "fc2": "mlp.c_proj"}.items():
      layer = params[f"layer{i}"][ours]
      state |= {f"h.{i}.{theirs}.{leaf[name]}": own for name, own in layer.items()}
    state[f"h.{i}.attn.bias"] = np.ones((1, 1, 6, 6), bool)
  return state | {f"ln_f.{leaf[name]}": own for name, own in params["norm"].items()}


def test_gpt_2_s_names_are_read():
  model, read = gpt((6,), 11, **SMALL), fh.models.reader_of("gpt")
  params = moved(model)
  state = gpt_2(params)
  with_head = {f"transformer.{name}": own for name, own in state.items()} | {
    "lm_head.weight": state["wte.weight"]
  }
  for own in (state, with_head):
    found, stats = read(own)
    assert stats == {} and jax.tree.structure(found) == jax.tree.structure(params)
    assert all(map(np.array_equal, jax.tree.leaves(found), jax.tree.leaves(params)))
  assert read(state | {"lm_head.weight": np.ones((11, 8), np.float32)})[0]["head"]["kernel"].shape == (8, 11)


@pytest.mark.parametrize(
  "options, says",
  [
    ({"shape": (6, 2)}, r"shape = \(6, 2\): not \(T,\)"),
    ({"heads": 3}, "width = 8: not divisible by heads = 3. Use 9"),
    ({"heads": 8, "places": "rotary"}, "width = 8: not divisible by 2 · heads = 16"),
    ({"longest": 5}, "longest = 5: texts have 6 tokens"),
    ({"longest": 9, "places": "rotary"}, "longest = 9: rotary positions have no table"),
    ({"vocabulary": 12}, "tied = True: tied embeddings make 12 logits, and there are 11 classes"),
    ({"places": "sine"}, "places = 'sine'"),
  ],
)
def test_settings_that_do_not_go_together(options, says):
  with pytest.raises(SettingError, match=says):
    gpt(**{"shape": (6,), "num_classes": 11, **SMALL, **options})
