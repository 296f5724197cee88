"""The errors a user meets: each names the setting, its value and the remedy."""

import difflib
from collections.abc import Iterable


class SettingError(ValueError):
  """A setting that cannot work, found before anything is compiled.

  Attributes:
    setting: the name of the setting, as the user writes it.
  """

  def __init__(self, setting: str, value: object = None, problem: str = "", remedy: str = ""):
    super().__init__(f"{setting} = {value!r}: {problem}. {remedy}" if problem else setting)
    self.setting = setting


class DataError(RuntimeError):
  """A data file that is missing, truncated or not what its authors shipped."""


class NonFiniteLoss(FloatingPointError):
  """A training loss that became NaN or infinite: names round, client and last good checkpoint."""


def check_range(
  setting: str,
  value: float,
  low: float | None = None,
  high: float | None = None,
  *,
  above: float | None = None,
  below: float | None = None,
) -> None:
  """Raises `SettingError` unless low <= value <= high and above < value < below (each bound optional)."""
  bounds = []
  if above is not None:
    bounds.append((value > above, f"above {above}"))
  if below is not None:
    bounds.append((value < below, f"below {below}"))
  if low is not None:
    bounds.append((value >= low, f"at least {low}"))
  if high is not None:
    bounds.append((value <= high, f"at most {high}"))
  if not all(ok for ok, _ in bounds):
    wanted = " and ".join(text for _, text in bounds)
    raise SettingError(setting, value, "out of range", f"It must be {wanted}.")


def check_choice(setting: str, value: str, choices: Iterable[str]) -> None:
  """Raises `SettingError` naming the nearest choice unless `value` is one of `choices`."""
  choices = sorted(choices)
  if value in choices:
    return
  near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
  hint = f"Did you mean {near[0]!r}? " if near else ""
  raise SettingError(setting, value, "unknown", f"{hint}Known: {', '.join(choices)}.")
