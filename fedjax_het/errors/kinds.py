"""The errors that a user meets; each names what is wrong, and its remedy."""


class SettingError(ValueError):
  """A setting that cannot work, found before anything is compiled.

  Attributes:
    setting: the name of the setting, as the user writes it.
  """

  def __init__(self, setting: str, value: object = None, problem: str = "", remedy: str = ""):
    super().__init__(f"{setting} = {shown(value)}: {problem}. {remedy}" if problem else setting)
    self.setting = setting


LONGEST = 400  # characters of a value in an error


def shown(value: object) -> str:
  """A value's `repr` for an error, cut where it is long; its type's name where it has none."""
  try:
    text = repr(value)
  except Exception:  # such as that of a whole number of more than 4,300 digits
    text = f"<{type(value).__name__}>"
  return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


class NoStates(SettingError):
  """Clients' states were to lie somewhere, and clients of this method keep none."""


class DataError(RuntimeError):
  """A data file that is missing, truncated or not what its authors shipped.

  What cannot be printed in the message, such as a terminal's escape sequences in names that come from the
  file, stands there as Python writes it in a string.
  """

  def __init__(self, message: str):
    plain = (one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in message)
    super().__init__("".join(plain))


class NoRoom(RuntimeError):
  """A disk, or memory, that does not suffice: says what was needed, what there is and what helps."""


class NonFiniteLoss(FloatingPointError):
  """A training loss that became NaN or infinite: names round, client and last good checkpoint."""
