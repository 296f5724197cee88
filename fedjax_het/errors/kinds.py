"""The types of errors that users see; each message names the problem and its remedy."""


class SettingError(ValueError):
  """A setting or argument that cannot work; raised before anything is compiled.

  Attributes:
    setting: name of the setting, as the user writes it.
  """

  def __init__(self, setting: str, value: object = None, problem: str = "", remedy: str = ""):
    super().__init__(f"{setting} = {shown(value)}: {problem}. {remedy}" if problem else setting)
    self.setting = setting


LONGEST = 400  # most characters of a value in an error


def shown(value: object) -> str:
  """Returns a value's `repr`, shortened to `LONGEST` characters; its type's name if `repr` fails."""
  try:
    text = repr(value)
  except Exception:  # an integer of more than 4,300 digits, for example
    text = f"<{type(value).__name__}>"
  return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


class NoStates(SettingError):
  """A storage for clients' states was set, and clients of the method have no state."""


class DataError(RuntimeError):
  """A data file is missing, truncated or not what its authors published.

  Characters that cannot be printed, such as a terminal's escape sequences in names from the file, are escaped
  in the message as in a Python string.
  """

  def __init__(self, message: str):
    plain = (one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in message)
    super().__init__("".join(plain))


class NoRoom(RuntimeError):
  """A disk or memory does not suffice; the message says what was needed, what is there and what helps."""


class NonFiniteLoss(FloatingPointError):
  """A training loss became NaN or infinite; the message names round, client and last good checkpoint."""
