"""All clients' metrics on their own local data, with their personalised models and the global one."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from fedjax_het.data.container import ClientData, FederatedData
from fedjax_het.engine.placement import constrain, map_clients
from fedjax_het.federated import Algorithm, State
from fedjax_het.metrics.classification import evaluate

PyTree = Any
ROWS_AT_ONCE = 512


class Evaluation(NamedTuple):
  """Metrics of every client: each dict maps a metric's name to float32 values.

  Attributes:
    personalized: values [K, M], a column for each of the client part's `lambdas`.
    global_: values [K], of the server's own model.
  """

  personalized: dict[str, Any]
  global_: dict[str, Any]


def evaluate_model(apply, params: PyTree, data: ClientData) -> dict[str, jax.Array]:
  """Metrics of one model on one client's rows, over the whole set at once."""
  rows = jnp.arange(max(data.limit, 1))
  x, y = data.take(rows)
  if data.limit <= ROWS_AT_ONCE:
    logits = apply(params, x)
  else:
    batches = -(-data.limit // ROWS_AT_ONCE)
    padded = jnp.arange(batches * ROWS_AT_ONCE).reshape(batches, ROWS_AT_ONCE)
    logits = lax.map(lambda index: apply(params, data.take(index)[0]), padded)
    logits = logits.reshape(-1, logits.shape[-1])[: data.limit]
  return evaluate(logits, y, rows < data.size)


def evaluate_clients(
  algorithm: Algorithm,
  mesh: Mesh | None,
  client_batch: int | None,
  part: str,
  data: FederatedData,
  state: State,
  ids: jax.Array | None = None,
) -> Evaluation:
  """Evaluates clients `ids` (None: all) on their `part` of the data ("train", "valid" or "test")."""
  client = algorithm.client
  lambdas = jnp.asarray(client.lambdas, jnp.float32)

  def one(broadcast, own: ClientData, own_state: PyTree):
    personal = lax.map(
      lambda lam: evaluate_model(client.apply, client.personalize(broadcast, own_state, lam), own), lambdas
    )
    return personal, evaluate_model(client.apply, client.globalize(broadcast), own)

  view = data.clients(jnp.arange(data.num_clients) if ids is None else ids, part)
  states = state.clients if ids is None else jax.tree.map(lambda leaf: leaf[ids], state.clients)
  values = map_clients(one, mesh, client_batch, state.broadcast, view, states)
  return Evaluation(*constrain(values, mesh))
