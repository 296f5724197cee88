"""The devices and the memory of a run, on which its numbers do not depend."""

from typing import NamedTuple

from fedjax_het.engine.client_store import check_places
from fedjax_het.errors import SettingError, check_whole


class Where(NamedTuple):
  """The devices and the memory of a run, as `Engine` takes them.

  Attributes:
    devices: number of devices over all processes; None takes all.
    client_batch: number of clients that a device trains at once; None decides by the backend. It affects
      rounding.
    device_rows: examples that a device holds at once, the others staying on the host; None holds all.
    device_states: clients' states that the devices hold at once, all staying on the host; None holds all.
    states_folder: a folder on a disk for those that stay on the host; None for memory.
  """

  devices: int | None = None
  client_batch: int | None = None
  device_rows: int | None = None
  device_states: int | None = None
  states_folder: str | None = None

  def check(self) -> None:
    """Raises `SettingError` if a number is below 1, or the folder is invalid or has no states to hold."""
    for name, value in self._replace(states_folder=None)._asdict().items():
      if value is not None:
        check_whole(name, value, 1)
    check_places(self.device_states, self.states_folder)


EVERYWHERE = Where()


def parse_mesh(text: str) -> int | None:
  """Parses the number of devices of "clients:N"; None for an empty text.

  Raises:
    SettingError: the text has another form.
  """
  if not text:
    return None
  name, _, size = text.partition(":")
  if name != "clients" or not size.isdecimal() or int(size) < 1:
    raise SettingError("mesh", text, "is not clients:N", "Write --mesh=clients:4 for four devices.")
  return int(size)
