"""StackedLSTM, LEAF's language model: the next character of Shakespeare, the next words of Reddit.

Sources: Caldas et al., LEAF, 2018; McMahan et al., AISTATS 2017; the authors' Federated-Learning-in-PyTorch,
src/models/{nextcharlstm,stackedlstm}.py.
"""

import re
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from fedjax_het.errors import SettingError
from fedjax_het.models.layers.basic import Dense, network
from fedjax_het.models.layers.sequences import LSTM, Embed
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import model_factory
from fedjax_het.models.weights.torch_names import State, as_weight, named, place
from fedjax_het.settings import Choice, Count

POSITIONS = ("last", "every")


@model_factory
def stacked_lstm(
  shape: tuple[int, ...] = (80,),
  num_classes: int = 80,
  vocabulary: Count | None = None,
  embedding: Count = 8,
  hidden: Count = 256,
  layers: Count = 2,
  positions: Annotated[str, Choice(POSITIONS)] = "last",
  bias: bool = True,
) -> Model:
  """StackedLSTM: embedding e - LSTM h - LSTM h - dense C, at the last of T positions or at every position.

  Shakespeare, one of 80 characters (the default values): 819,920 parameters; as in SuPerFed's published code,
  with 100 characters and without biases: 821,024. Reddit, one of 10,000 words at every position
  (`embedding=200, positions="every"`, and the task `next_token`): 5,565,328.

  Args:
    shape: shape of one example, (T,): token ids, integers in [0, vocabulary). Any other id makes the logits
      from there on NaN.
    num_classes: C, the number of logits per position.
    vocabulary: V, the number of ids; by default C, since the prediction is a token as well.
    embedding: e, width of a token's embedding.
    hidden: h, width of the LSTM layers.
    layers: number of LSTM layers, at least 1.
    positions: "last": logits [B, C] for the token after the text; "every": logits [B, T, C] for the token
      after each position, for the task `next_token`.
    bias: whether layers have biases.

  Raises:
    SettingError: `shape` is not (T,), or a number is below 1.
  """
  if len(shape) != 1:
    raise SettingError("shape", shape, "not (T,), a text of T token ids", "Use a data set of texts.")
  vocabulary = num_classes if vocabulary is None else vocabulary

  def logits(x: jax.Array) -> jax.Array:
    h = Embed(vocabulary, embedding, name="embed")(x)
    for i in range(layers):
      h = LSTM(hidden, bias, name=f"lstm{i + 1}")(h)
    return Dense(num_classes, bias, name="head")(h if positions == "every" else h[:, -1])

  return Model(*network(logits, shape, jnp.int32), "stacked_lstm", tuple(shape), num_classes, head=("head",))


def _read(state: State) -> tuple[dict[str, Any], dict[str, Any]]:
  """Reads the authors' names: features.0 is an `Embedding`, features.1 the `LSTM`, classifier a `Linear`."""
  recurrent = {name for name in state if re.fullmatch(r".*_(ih|hh)_l\d+", name)}
  plain = {name: value for name, value in state.items() if name not in recurrent}
  params, stats = named([(r"features\.0", "embed"), ("classifier", "head")], tables=["embed"])(plain)
  for name in recurrent:
    kind, which, layer = name.rpartition(".")[2].split("_")
    leaf = "recurrent_" * (which == "hh") + ("bias" if kind == "bias" else "kernel")
    place(params, f"lstm{int(layer[1:]) + 1}", leaf, as_weight(name, state[name]).T)
  return params, stats


TORCH = {"stacked_lstm": _read}
