"""The asynchronous part of an algorithm: how many clients train at once, and how late uploads count."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedjax_het.parts.needs import Needs


def constant(staleness: jax.Array) -> jax.Array:
  """Computes s(τ) = 1, float32, for τ of any shape."""
  return jnp.ones(jnp.shape(staleness), jnp.float32)


class Asynchronous(NamedTuple):
  """Whether the server waits for a whole cohort; by default it does.

  With a part of this kind M clients train at any time. A step of the server takes the B uploads that arrive
  first, moves, and starts B further clients, drawn uniformly among those that do not train, from its next
  broadcast. A round is a step of the server, and a client's staleness τ is the number of steps between the
  broadcast that it trained on and the one that its upload meets. For the broadcast θ of now and θ' of then,
  the upload u becomes θ + s(τ) (u - θ'), or with `of_models`, and in fields of `Needs.replaces`, θ + s(τ)
  (u - θ). Weights of a client's own, as of `Message.pooled`, are multiplied by s(τ).

  Attributes:
    buffer_size: B, the number of uploads that the server waits for; 0 for rounds of whole cohorts.
    concurrency: M >= B, the number of clients that train at any time.
    weight: (staleness τ, int32 [B]) -> s, float32 [B].
    of_models: whether the server moves towards the uploaded models, rather than by the clients' updates.
    name: the method's name, for reports.
    needs: what the part requires of the run, see `Needs`.
  """

  buffer_size: int = 0
  concurrency: int = 0
  weight: Callable[[jax.Array], jax.Array] = constant
  of_models: bool = False
  name: str = "synchronous"
  needs: Needs = Needs()

  @property
  def there(self) -> bool:
    """Whether the server waits for B uploads instead of a cohort's."""
    return self.buffer_size > 0

  @property
  def overlaps(self) -> bool:
    """Whether the rounds differ from those of cohorts of B clients: uploads may be stale, or are models."""
    return self.concurrency > self.buffer_size or self.of_models
