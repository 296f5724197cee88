"""A federated algorithm, composed of three parts."""

from fedjax_het import mixing as mixings
from fedjax_het import server as servers
from fedjax_het.errors import SettingError
from fedjax_het.parts import Algorithm, ClientUpdate, Mixing, ServerUpdate


def federated(
  client: ClientUpdate, mixing: Mixing | None = None, server: ServerUpdate | None = None
) -> Algorithm:
  """Composes an algorithm; by default clients count by n_i and the server moves to the average.

  Raises:
    SettingError: something that is not such a part, as a factory is that was not called; a mixing part
      that scales updates around a client part that sends none; a server part that takes models around a
      client part that uploads signals, or the other way about; or one that does not go `beside` the others.
  """
  mixing = mixings.static() if mixing is None else mixing
  parts = Algorithm(client, mixing, servers.sgd() if server is None else server)
  kinds: tuple[type, ...] = (ClientUpdate, Mixing, ServerUpdate)
  for role, part, kind in zip(Algorithm._fields, parts, kinds):
    if not isinstance(part, kind):
      what = getattr(part, "__name__", type(part).__name__)
      raise SettingError(
        role, what, f"is not a {kind.__name__}",
        f"Call the factory: {what}(...)." if callable(part) else "Give client, mixing, server in this order.",
      )  # fmt: skip
  if parts.mixing.scale is not None and not parts.client.uploads_model:
    raise SettingError(
      "mixing", parts.mixing.name, f"scales the clients' updates, and {parts.client.name} uploads no model",
      "Use a mixing that only weighs what is uploaded, such as static.",
    )  # fmt: skip
  if parts.server.takes_models != parts.client.uploads_model:
    given, fitting = ("models", "sgd") if parts.client.uploads_model else ("signals", "sgld")
    raise SettingError(
      "server", parts.server.name, f"does not take the {given} that {parts.client.name} uploads",
      f"Use a server part that does, such as {fitting}.",
    )  # fmt: skip
  if parts.server.beside is None:
    return parts
  return parts._replace(server=parts.server.beside(parts.client, parts.mixing))
