"""The server part of an algorithm, and the algorithm that three parts make."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from fedjax_het.errors import renamed
from fedjax_het.parts.client import ClientUpdate
from fedjax_het.parts.message import Message, PyTree
from fedjax_het.parts.mixing import Mixing
from fedjax_het.parts.needs import Needs


@renamed(beside="adapt_to", **{name: f"needs.{name}" for name in Needs._fields})
class ServerUpdate(NamedTuple):
  """A server part: computes how the server moves.

  Attributes:
    init: (first broadcast) -> state.
    update: (key, state, broadcast, aggregate) -> (next broadcast, state). The aggregate is Σ_i p_i upload_i
      leaf by leaf, of uploads that the mixing part may have scaled, see `Mixing.scale`; `Message` says how
      the field `even` is averaged.
    name: the method's name, for reports.
    needs: what the part requires of the run, see `Needs`.
    takes_models: whether the aggregate's params must be an average of models; False if they must be an
      average of signals, see `Needs.uploads_model`.
    adapt_to: (client part, mixing part) -> the server part for them, if it depends on them, for example on
      the labels of synthetic examples; `federated` calls it. None for most methods.
  """

  init: Callable[[Message], PyTree]
  update: Callable[[jax.Array, PyTree, Message, Message], tuple[Message, PyTree]]
  name: str = "custom"
  needs: Needs = Needs()
  takes_models: bool = True
  adapt_to: "Callable[[ClientUpdate, Mixing], ServerUpdate] | None" = None


class Algorithm(NamedTuple):
  """A federated algorithm: client part, mixing part and server part; see `fedjax_het.federated`."""

  client: ClientUpdate
  mixing: Mixing
  server: ServerUpdate
