"""BERT, MiniLM and DistilBERT: text encoders with a head for single texts or for pairs of texts.

Sources: Devlin et al., BERT, NAACL 2019; Sanh et al., DistilBERT, 2019; Wang et al., MiniLM, NeurIPS 2020.
The head for two separately encoded texts: Conneau et al., EMNLP 2017; Reimers, Gurevych, EMNLP 2019.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from fedjax_het.errors import SettingError
from fedjax_het.models.from_flax import of_flax
from fedjax_het.models.layers.basic import Dense
from fedjax_het.models.layers.sequences import Embed
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import model_factory
from fedjax_het.models.weights.starting import Reader
from fedjax_het.models.weights.torch_names import State, named
from fedjax_het.settings import Choice, Count, Fraction

Shapes = Mapping[str, tuple[int, ...]]

TEXT = {"tokens": (128,), "mask": (128,)}
POOLINGS = ("cls", "mean")
TYPES = 2
EPSILON = 1e-12
STD = 0.02  # standard deviation of the encoder's initial weights
DRAW = nn.initializers.normal(STD)


def layer_norm(x: jax.Array, name: str) -> jax.Array:
  """Layer normalisation over the last axis by a layer called `name` of the calling module."""
  return nn.LayerNorm(EPSILON, use_fast_variance=False, name=name)(x)


class Layer(nn.Module):
  """Encoder layer: self-attention, then a perceptron, each with a residual connection and layer norm.

  Attributes:
    heads: number of attention heads, a divisor of the width.
    dropout: dropout rate of the attention weights and of both residual branches.
    distilled: whether the attention branch has no dropout on its output, as in DistilBERT.
  """

  heads: int
  dropout: float
  distilled: bool

  @nn.compact
  def __call__(self, x: jax.Array, real: jax.Array, train: bool) -> jax.Array:
    """Returns float32 [B, L, width]; attention is restricted to the tokens that are `real`, bool [B, L]."""
    width = x.shape[-1]
    drop = nn.Dropout(self.dropout, deterministic=not train)

    def projected(name: str) -> jax.Array:  # [B, L, heads, width / heads]
      projection = Dense(width, kernel_init=DRAW, name=name)(x)
      return projection.reshape(*x.shape[:-1], self.heads, width // self.heads)

    query, key, value = (projected(name) for name in ("query", "key", "value"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (width // self.heads) ** -0.5
    scores = jnp.where(real[:, None, None], scores, jnp.finfo(scores.dtype).min)
    h = jnp.einsum("bhqk,bkhd->bqhd", drop(jax.nn.softmax(scores)), value).reshape(x.shape)
    h = Dense(width, kernel_init=DRAW, name="out")(h)
    x = layer_norm(x + (h if self.distilled else drop(h)), "norm1")
    h = jax.nn.gelu(Dense(4 * width, kernel_init=DRAW, name="fc1")(x), approximate=False)
    return layer_norm(x + drop(Dense(width, kernel_init=DRAW, name="fc2")(h)), "norm2")


class Encoder(nn.Module):
  """Text encoder, tokens [B, L] -> float32 [B, L, width], see `bert`."""

  width: int
  layers: int
  heads: int
  vocabulary: int
  positions: int
  dropout: float
  distilled: bool

  @nn.compact
  def __call__(self, tokens: jax.Array, real: jax.Array, types: jax.Array | None, train: bool) -> jax.Array:
    """Returns the encoded tokens, float32 [B, L, width]; token types default to 0."""
    h = Embed(self.vocabulary, self.width, STD, name="words")(tokens)
    h = h + Embed(self.positions, self.width, STD, name="places")(jnp.arange(tokens.shape[1]))
    if not self.distilled:
      h = h + Embed(TYPES, self.width, STD, name="types")(jnp.zeros_like(tokens) if types is None else types)
    h = nn.Dropout(self.dropout, deterministic=not train)(layer_norm(h, "norm"))
    for i in range(self.layers):
      h = Layer(self.heads, self.dropout, self.distilled, name=f"layer{i}")(h, real, train)
    return h


class Bert(nn.Module):
  """Flax module behind the factory `bert`."""

  num_classes: int
  encoder: Encoder
  pooling: str
  activation: Callable[[jax.Array], jax.Array]

  @nn.compact
  def __call__(self, x: Mapping[str, jax.Array], train: bool) -> jax.Array:
    """Returns the logits, float32 [B, num_classes], of texts [B, L] or of pairs of texts [B, 2, L]."""
    texts = {name: own.reshape(-1, own.shape[-1]) for name, own in x.items()}
    real = texts["mask"] > 0
    h = self.encoder(texts["tokens"], real, texts.get("types"), train)
    if self.pooling == "cls":
      h = self.activation(Dense(h.shape[-1], kernel_init=DRAW, name="pooler")(h[:, 0]))
    else:
      h = jnp.where(real[..., None], h, 0.0).sum(1) / jnp.maximum(real.sum(1), 1)[:, None]
    if x["tokens"].ndim == 3:
      u, v = jnp.moveaxis(h.reshape(-1, 2, h.shape[-1]), 1, 0)
      h = jnp.concatenate([jnp.abs(u - v), u * v], axis=-1)
    h = nn.Dropout(self.encoder.dropout, deterministic=not train)(h)
    return Dense(self.num_classes, name="classifier")(h)


@model_factory
def bert(
  shape: Shapes = TEXT,
  num_classes: int = 2,
  width: Count = 768,
  layers: Count = 12,
  heads: Count = 12,
  vocabulary: Count = 30522,
  positions: Count = 512,
  dropout: Fraction = 0.1,
  pooling: Annotated[str, Choice(POOLINGS)] = "cls",
) -> Model:
  """BERT encoder and classifier, by default `bert-base-uncased`: 109,482,240 parameters and the last layer.

  The sum of word, position and type embeddings, layer-normalised; `layers` encoder layers of attention and a
  perceptron of width 4w with GELU, each with a residual connection and layer norm; pooling; dense C.

  Args:
    shape: shape of one example, {"tokens": (L,), "mask": (L,)}: ids in [0, vocabulary), of which those with
      mask above 0 are read. An optional entry "types" distinguishes a second text (1) from the first (0); all
      are 0 by default. With (2, L) two texts are encoded separately, and the last layer gets |u - v| and u *
      v of the two pooled vectors.
    num_classes: C, the number of logits.
    width: w, a multiple of `heads`; MiniLM has width 384 and 6 layers.
    layers: number of encoder layers.
    heads: number of attention heads.
    vocabulary: V, number of word embeddings. An id outside [0, V) makes the logits NaN.
    positions: number of position embeddings, the maximum length of a text.
    dropout: dropout rate in [0, 1) of embeddings, attention weights, residual branches and the pooled vector.
    pooling: "cls": tanh(W h + b) of the first token, [CLS]; "mean": the mean over the real tokens.

  Raises:
    SettingError: `shape` is not such a tree, its texts are longer than `positions`, or a number is out of
      range.
  """
  encoder = _encoder(shape, width, layers, heads, vocabulary, positions, dropout, distilled=False)
  return _model("bert", Bert(num_classes, encoder, pooling, jnp.tanh), shape, num_classes)


@model_factory
def minilm(
  shape: Shapes = TEXT,
  num_classes: int = 2,
  width: Count = 384,
  layers: Count = 6,
  heads: Count = 12,
  vocabulary: Count = 30522,
  positions: Count = 512,
  dropout: Fraction = 0.1,
  pooling: Annotated[str, Choice(POOLINGS)] = "mean",
) -> Model:
  """MiniLM, `bert` of the size and pooling of `all-MiniLM-L6-v2`: 22,565,376 parameters and the last layer.

  Args:
    shape: shapes of one example's tokens and mask, see `bert`.
    num_classes: C, the number of logits.
    width: width of the encoder, a multiple of `heads`.
    layers: number of encoder layers.
    heads: number of attention heads.
    vocabulary: number of word embeddings.
    positions: maximum length of a text.
    dropout: dropout rate in [0, 1), in training.
    pooling: "mean" or "cls", see `bert`.

  Raises:
    SettingError: see `bert`.
  """
  model = bert(shape, num_classes, width, layers, heads, vocabulary, positions, dropout, pooling)
  return model._replace(name="minilm")


@model_factory
def distilbert(
  shape: Shapes = TEXT,
  num_classes: int = 2,
  width: Count = 768,
  layers: Count = 6,
  heads: Count = 12,
  vocabulary: Count = 30522,
  positions: Count = 512,
  dropout: Fraction = 0.1,
) -> Model:
  """DistilBERT, by default `distilbert-base-uncased`: 66,953,472 parameters and the last layer.

  It is `bert` with half the layers, no type embeddings ("types" of an example are not read), no dropout on
  the attention branch's output, and relu(W h + b) of [CLS] as pooling, the first of
  the head's two layers; thesis, section 3.6.1.

  Args:
    shape: shapes of one example's tokens and mask, see `bert`.
    num_classes: C, the number of logits.
    width: width of the encoder, a multiple of `heads`.
    layers: number of encoder layers.
    heads: number of attention heads.
    vocabulary: number of word embeddings.
    positions: maximum length of a text.
    dropout: dropout rate in [0, 1), in training.

  Raises:
    SettingError: see `bert`.
  """
  encoder = _encoder(shape, width, layers, heads, vocabulary, positions, dropout, distilled=True)
  model = _model("distilbert", Bert(num_classes, encoder, "cls", nn.relu), shape, num_classes)
  return model._replace(head=("pooler", "classifier"))


def _model(name: str, module: Bert, shape: Shapes, num_classes: int) -> Model:
  return of_flax(module, dict(shape), num_classes, dtype=jnp.int32, name=name, head=("classifier",))


def _encoder(
  shape: Shapes, width: int, layers: int, heads: int, vocabulary: int, positions: int, dropout: float,
  distilled: bool,
) -> Encoder:  # fmt: skip
  if width % heads:
    raise SettingError(
      "width",
      width,
      f"not divisible by heads = {heads}",
      f"Use {-(-width // heads) * heads}, or other heads.",
    )
  named = isinstance(shape, Mapping) and {"tokens", "mask"} <= {*shape} <= {"tokens", "mask", "types"}
  texts = {tuple(own) for own in shape.values()} if named else set()
  if len(texts) != 1 or len(text := texts.pop()) not in (1, 2) or text[:-1] not in ((), (2,)):
    raise SettingError(
      "shape", shape, 'not {"tokens": (L,), "mask": (L,)}, or (2, L) for pairs of texts',
      "Use a data set of tokens and their mask.",
    )  # fmt: skip
  if text[-1] > positions:
    raise SettingError(
      "positions", positions, f"texts have {text[-1]} tokens", "Cut them, or have more positions."
    )
  return Encoder(width, layers, heads, vocabulary, positions, dropout, distilled)


def _reader(
  prefix: str, layer: str, parts: Mapping[str, str], more: Mapping[str, str], ignored: str
) -> Reader:
  """Returns the reader of the transformers library's names for an encoder, with or without `prefix`.

  Older files call a layer norm's weight gamma and its bias beta.
  """
  encoder = {
    "embeddings.word_embeddings": "words", "embeddings.position_embeddings": "places",
    "embeddings.token_type_embeddings": "types", "embeddings.LayerNorm": "norm",
    **{f"{layer}.(\\d+).{theirs}": rf"layer\1/{ours}" for theirs, ours in parts.items()},
  }  # fmt: skip
  names = [(rf"(?:{prefix}\.)?{theirs}", ours) for theirs, ours in more.items()]
  names += [(rf"(?:{prefix}\.)?{theirs}", f"encoder/{ours}") for theirs, ours in encoder.items()]
  read = named(
    names, ignored=(ignored,), tables=[f"encoder/{table}" for table in ("words", "places", "types")]
  )

  def modern(state: State) -> tuple[Any, Any]:
    older = {"gamma": "weight", "beta": "bias"}
    parted = {name: name.rpartition(".") for name in state if not name.endswith("position_ids")}
    return read({f"{m}.{older.get(leaf, leaf)}": state[name] for name, (m, _, leaf) in parted.items()})

  return modern


_BERT = _reader(
  "bert", "encoder.layer",
  {
    "attention.self.(query|key|value)": r"\2", "attention.output.dense": "out",
    "attention.output.LayerNorm": "norm1", "intermediate.dense": "fc1", "output.dense": "fc2",
    "output.LayerNorm": "norm2",
  },
  {"pooler.dense": "pooler", "classifier": "classifier"}, r"cls\..*",
)  # fmt: skip
_DISTILBERT = _reader(
  "distilbert", "transformer.layer",
  {
    **{f"attention.{each[0]}_lin": each for each in ("query", "key", "value")}, "attention.out_lin": "out",
    "sa_layer_norm": "norm1", "ffn.lin1": "fc1", "ffn.lin2": "fc2", "output_layer_norm": "norm2",
  },
  {"pre_classifier": "pooler", "classifier": "classifier"}, "vocab_.*",
)  # fmt: skip
TORCH = {"bert": _BERT, "minilm": _BERT, "distilbert": _DISTILBERT}
