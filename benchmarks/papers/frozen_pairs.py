"""Medical Question Pairs as features of a frozen pretrained encoder, for a linear model in fair_silo.py.

The encoder stays as published (all-MiniLM-L6-v2, see docs/models.md), so each question is read once for all
seeds and methods. A pair becomes [|u - v|, u * v] of the two questions' pooled vectors, 768 numbers, which is
what the last layer of `fh.models.minilm` gets. Logistic regression trains that layer alone.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import fedjax_het as fh

WIDTH = 384
BATCH = 32


def frozen_pairs(weights: Path, folder: Path | None = None) -> fh.data.Source:
  """MQP with examples float32 [3048, 768], which each client standardizes by its own training pairs.

  Args:
    weights: model.safetensors of all-MiniLM-L6-v2.
    folder: the data sets' folder; None: $FEDJAX_HET_DATA, else ./data.
  """
  source = fh.data.load("mqp", folder, tokenizer="wordpiece", apart=True)
  shape = {name: leaf.shape[1:] for name, leaf in source.x.items()}
  model = fh.models.make("minilm", shape, 2 * WIDTH)
  model = fh.models.with_weights(model, weights, fh.models.reader_of("minilm"))
  params = model.init(jax.random.key(0))
  params["classifier"] = {"kernel": jnp.eye(2 * WIDTH), "bias": jnp.zeros(2 * WIDTH)}  # logits: what it gets
  read = jax.jit(lambda x: model.apply(params, x))
  rows = [np.arange(first, min(first + BATCH, len(source.y))) for first in range(0, len(source.y), BATCH)]
  x = np.concatenate([read({name: leaf[own] for name, leaf in source.x.items()}) for own in rows])
  return source._replace(x=x, x_test=x[:0], standardize=tuple(range(2 * WIDTH)))
