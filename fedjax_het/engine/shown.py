"""What a client part is shown of a client's rows in a round, where this is more or other than they are."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fedjax_het.data.container import ClientData, FederatedData
from fedjax_het.parts import ClientUpdate, LocalTraining, in_one_go


def with_rows(client: ClientUpdate, seen: Callable[[ClientData, Any], ClientData]) -> ClientUpdate:
  """Returns the client part whose functions of a round receive other rows.

  Args:
    client: the client part.
    seen: (the client's training rows, context) -> what is shown in their place.
  """

  def shown(function: Any, place: int) -> Any:
    """Returns the function whose arguments at `place` and behind it are a client's data and context."""
    if function is None:
      return None

    def call(*args):
      return function(*args[:place], seen(args[place], args[place + 1]), *args[place + 1 :])

    return call

  def in_pieces(training: LocalTraining) -> LocalTraining:
    return training._replace(run_steps=shown(training.run_steps, 3), finish=shown(training.finish, 2))

  whole, training = shown(client.update, 3), client.training
  return client._replace(
    update=whole if training is None else in_one_go(in_pieces(training)),
    loss=shown(client.loss, 2), first_pass=shown(client.first_pass, 3),
  )  # fmt: skip


def shown_validation(client: ClientUpdate, data: FederatedData) -> ClientUpdate:
  """Returns the client part, which sees validation rows in a round if its `Needs.sees_data` has "update"."""
  if "update" not in client.needs.sees_data:
    return client
  held = data.valid

  def seen(own: ClientData, context: Any) -> ClientData:
    start, size = (jnp.asarray(leaf)[context.client] for leaf in held)
    rows = dataclasses.replace(
      own, start=start, size=size, limit=data.limits[1], uniform=data.uniform[1], change=None
    )
    return dataclasses.replace(own, validation=rows)

  return with_rows(client, seen)
