"""GPT, a decoder-only language model: the next token, at every position of a text or after it.

Sources: Radford et al., GPT-2, 2019 (norms before each branch); Su et al., RoFormer, 2021 (rotary positions);
Press and Wolf, EACL 2017 (tied embeddings).
"""

from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fedjax_het.errors import SettingError
from fedjax_het.models.from_flax import of_flax
from fedjax_het.models.layers.basic import Dense
from fedjax_het.models.layers.sequences import Embed
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import model_factory
from fedjax_het.models.weights.torch_names import State, named
from fedjax_het.settings import Choice, Count, Fraction
from fedjax_het.tasks import classification, next_token

PLACES = ("learned", "rotary")
POSITIONS = ("every", "last")
EPSILON = 1e-5
STD = 0.02  # standard deviation of the initial weights
BASE = 10_000.0  # of the wavelengths of rotary positions


def rotated(x: jax.Array) -> jax.Array:
  """Rotates queries or keys by their positions, [B, T, heads, d] -> [B, T, heads, d], d even.

  At position t the pair (x_i, x_{i + d/2}) turns by the angle t · 10000^(-2i/d), so that the product of a
  query and a key depends on the difference of their positions alone (RoFormer, equation 34, with the pairs of
  GPT-NeoX).
  """
  half = x.shape[-1] // 2
  rates = BASE ** (-jnp.arange(half, dtype=x.dtype) / half)
  angles = jnp.arange(x.shape[1], dtype=x.dtype)[:, None, None] * rates
  cos, sin = jnp.cos(angles), jnp.sin(angles)
  first, second = x[..., :half], x[..., half:]
  return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class Layer(nn.Module):
  """Decoder layer: h + attention(norm(h)), then h + perceptron(norm(h)).

  Attributes:
    heads: number of attention heads, a divisor of the width.
    dropout: dropout rate of the attention weights and of both residual branches.
    rotary: whether queries and keys are rotated by their positions, see `rotated`.
    std: standard deviation of the initial weights of the last layer of each branch.
  """

  heads: int
  dropout: float
  rotary: bool
  std: float

  @nn.compact
  def __call__(self, h: jax.Array, train: bool) -> jax.Array:
    """Returns float32 [B, T, width]; position t sees the positions up to t."""
    batch, length, width = h.shape
    drop = nn.Dropout(self.dropout, deterministic=not train)
    draw, last = nn.initializers.normal(STD), nn.initializers.normal(self.std)
    x = nn.LayerNorm(EPSILON, use_fast_variance=False, name="norm1")(h)
    x = Dense(3 * width, kernel_init=draw, name="qkv")(x).reshape(batch, length, 3, self.heads, -1)
    query, key, value = x[:, :, 0], x[:, :, 1], x[:, :, 2]
    if self.rotary:
      query, key = rotated(query), rotated(key)
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (width // self.heads) ** -0.5
    seen = jnp.tril(jnp.ones((length, length), bool))
    scores = jnp.where(seen, scores, jnp.finfo(scores.dtype).min)
    x = jnp.einsum("bhqk,bkhd->bqhd", drop(jax.nn.softmax(scores)), value).reshape(h.shape)
    h = h + drop(Dense(width, kernel_init=last, name="out")(x))
    x = nn.LayerNorm(EPSILON, use_fast_variance=False, name="norm2")(h)
    x = jax.nn.gelu(Dense(4 * width, kernel_init=draw, name="fc1")(x), approximate=True)
    return h + drop(Dense(width, kernel_init=last, name="fc2")(x))


class Gpt(nn.Module):
  """Flax module behind the factory `gpt`."""

  num_classes: int
  width: int
  layers: int
  heads: int
  vocabulary: int
  longest: int
  places: str
  positions: str
  tied: bool
  dropout: float

  @nn.compact
  def __call__(self, x: jax.Array, train: bool) -> jax.Array:
    """Returns the logits of texts [B, T], float32 [B, T, C], or [B, C] of the token after them."""
    words = Embed(self.vocabulary, self.width, STD, name="words")
    h = words(x)
    if self.places == "learned":
      h = h + Embed(self.longest, self.width, STD, name="places")(jnp.arange(x.shape[1]))
    h = nn.Dropout(self.dropout, deterministic=not train)(h)
    for i in range(self.layers):
      std = STD * (2 * self.layers) ** -0.5
      h = Layer(self.heads, self.dropout, self.places == "rotary", std, name=f"layer{i}")(h, train)
    h = nn.LayerNorm(EPSILON, use_fast_variance=False, name="norm")(
      h if self.positions == "every" else h[:, -1]
    )
    if self.tied:
      return words.attend(h)
    return Dense(self.num_classes, use_bias=False, kernel_init=nn.initializers.normal(STD), name="head")(h)


@model_factory
def gpt(
  shape: tuple[int, ...] = (128,),
  num_classes: int = 1000,
  width: Count = 128,
  layers: Count = 4,
  heads: Count = 4,
  vocabulary: Count | None = None,
  longest: Count | None = None,
  places: Annotated[str, Choice(PLACES)] = "learned",
  positions: Annotated[str, Choice(POSITIONS)] = "every",
  tied: bool = True,
  dropout: Fraction = 0.0,
) -> Model:
  """GPT, a causal transformer: embedding w - layers of attention and perceptron 4w - norm - dense C.

  With `width=768, layers=12, heads=12, longest=1024` and 50,257 tokens it is GPT-2 (124,439,808 parameters),
  whose weights it takes. A token at the right of another has no influence on it, so texts that are padded at
  their end need no mask; the task `next_token` ignores padding in losses and metrics.

  Args:
    shape: shape of one example, (T,): token ids, integers in [0, vocabulary). Any other id makes its
      text's logits NaN.
    num_classes: C, the number of logits per position.
    width: w, a multiple of `heads`, for rotary positions of 2 · heads.
    layers: number of decoder layers.
    heads: number of attention heads.
    vocabulary: V, the number of ids; by default C, since the prediction is a token as well.
    longest: number of learned positions, at least T, which it is by default; not used by rotary ones.
    places: "learned", an embedding of each position is added, or "rotary", queries and keys are rotated.
    positions: "every": logits [B, T, C] for the token after each position, for the task `next_token`; "last":
      logits [B, C] for the token after the text.
    tied: whether logits are products with the embeddings, which requires C = V; otherwise a layer `head`
      without bias makes them, which methods that split a model take as its head.
    dropout: dropout rate in [0, 1), in training, of embeddings, attention weights and residual branches.

  Raises:
    SettingError: `shape` is not (T,), or settings do not go together.
  """
  if len(shape) != 1:
    raise SettingError("shape", shape, "not (T,), a text of T token ids", "Use a data set of texts.")
  unit = heads * (2 if places == "rotary" else 1)
  if width % unit:
    what = f"heads = {heads}" if unit == heads else f"2 · heads = {unit}, for pairs that are rotated"
    raise SettingError("width", width, f"not divisible by {what}", f"Use {-(-width // unit) * unit}.")
  if longest is not None and places == "rotary":
    raise SettingError("longest", longest, "rotary positions have no table", "Leave it out.")
  longest = shape[0] if longest is None else longest
  if longest < shape[0]:
    raise SettingError("longest", longest, f"texts have {shape[0]} tokens", f"Use at least {shape[0]}.")
  vocabulary = num_classes if vocabulary is None else vocabulary
  if tied and vocabulary != num_classes:
    problem = f"tied embeddings make {vocabulary} logits, and there are {num_classes} classes"
    raise SettingError("tied", tied, problem, "Set tied=False, or leave vocabulary out.")
  module = Gpt(num_classes, width, layers, heads, vocabulary, longest, places, positions, tied, dropout)
  task = next_token() if positions == "every" else classification()
  head = () if tied else ("head",)
  return of_flax(module, shape, num_classes, dtype=jnp.int32, name="gpt", head=head, task=task)


def _read(state: State) -> tuple[dict[str, Any], dict[str, Any]]:
  """Reads GPT-2's names, of the transformers library, whose dense weights are [inputs, outputs]."""
  parts = {"ln_1": "norm1", "attn.c_attn": "qkv", "attn.c_proj": "out", "ln_2": "norm2", "mlp.c_fc": "fc1"}
  names = [(rf"h\.(\d+)\.{theirs}", rf"layer\1/{ours}") for theirs, ours in parts.items()]
  names += [(r"h\.(\d+)\.mlp\.c_proj", r"layer\1/fc2"), ("wte", "words"), ("wpe", "places"), ("ln_f", "norm")]
  found = {name.removeprefix("transformer."): value for name, value in state.items()}
  head, words = "lm_head.weight", "wte.weight"
  if {head, words} <= found.keys() and np.array_equal(found[head], found[words]):
    del found[head]  # tied
  turned = {
    name: value.T if value.ndim == 2 and name.startswith("h.") else value
    for name, value in found.items()
    if not name.endswith((".attn.bias", ".attn.masked_bias"))  # masks of older files
  }
  return named([*names, ("lm_head", "head")], tables=["words", "places"])(turned)


TORCH = {"gpt": _read}
