"""What a privacy ledger reads of the parts: who takes part, how an aggregate is noised, what else is told."""

from typing import Any, NamedTuple


class Release(NamedTuple):
  """What of the clients' data the server learns once, beside uploads, because a part was made of it.

  Attributes:
    what: in words, such as "label counts".
    epsilon: ε of the noise that it has; None if it has none.
    neighbours: between which data sets ε holds, in words.
  """

  what: str
  epsilon: Any = None
  neighbours: str = ""
