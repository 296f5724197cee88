"""The address at which the coordinator of several processes listens: only the one it was given.

JAX's coordination service asks for no password, so whoever can reach its port can join or stop the run.
"""

import ipaddress
import os
import socket
import time

from fedjax_het.errors import SettingError
from fedjax_het.output.terminal import say

PATIENCE = 30  # seconds to wait for a name, because a cluster may register names after its machines start


def parse_coordinator(text: str) -> tuple[str, int]:
  """Splits "HOST:PORT" into host and port, where HOST may be "[IPv6 address]".

  Raises:
    SettingError: the text has another form.
  """
  host, _, port = text.rpartition(":")
  host = host.removeprefix("[").removesuffix("]")
  if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
    raise SettingError("coordinator", text, "is not HOST:PORT", "Write such as --coordinator=10.0.0.1:1234.")
  return host, int(port)


def bind_address(coordinator: str, tells: bool = True) -> str | None:
  """Returns the address at which the first process listens, for `jax.distributed.initialize`.

  A numeric address is used unchanged, and a name is resolved. Other machines cannot reach a name that
  resolves to the loopback address only, as some Linux distributions resolve a machine's own name; "localhost"
  itself is accepted. If no resolved address belongs to this machine, as behind address translation, JAX
  listens at all addresses, and a note on standard error says so.

  Args:
    coordinator: "HOST:PORT".
    tells: whether to print the note, as the first process does.

  Returns:
    "ADDRESS:PORT"; None for all addresses, or where JAX_COORDINATOR_BIND_ADDRESS says which.

  Raises:
    SettingError: the text is not HOST:PORT, or the name cannot be resolved.
  """
  host, port = parse_coordinator(coordinator)
  if "JAX_COORDINATOR_BIND_ADDRESS" in os.environ:
    return None
  found = _addresses(coordinator, host, port)
  meant = host in (*found, "localhost") or host.endswith(".localhost")
  reachable = [own for own in found if meant or not ipaddress.ip_address(own.partition("%")[0]).is_loopback]
  for own in sorted(reachable, key=lambda own: ":" in own):
    if _is_own(own):
      return f"[{own}]:{port}" if ":" in own else f"{own}:{port}"
  if tells:
    say(
      f"coordinator = {coordinator!r}: no address of this machine. The coordinator listens at all addresses; "
      "JAX_COORDINATOR_BIND_ADDRESS=ADDRESS:PORT says at which.",
      error=True,
    )
  return None


def _addresses(coordinator: str, host: str, port: int) -> list[str]:
  """Resolves the addresses of a host, waiting until its name is known."""
  end = time.monotonic() + PATIENCE
  while True:
    try:
      return [str(own[4][0]) for own in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except OSError as error:
      if time.monotonic() < end:
        time.sleep(1.0)
        continue
      problem = f"its host is not known after {PATIENCE} s ({error.strerror or error})"
      remedy = "Name an address of the first process."
      raise SettingError("coordinator", coordinator, problem, remedy) from error


def _is_own(address: str) -> bool:
  """Returns whether an address belongs to this machine, so that a socket can be bound to it."""
  family = socket.AF_INET6 if ":" in address else socket.AF_INET
  try:
    with socket.socket(family, socket.SOCK_STREAM) as own:
      own.bind((address, 0))
  except OSError:
    return False
  return True
