"""Checks names against what there is, and finds the one that was meant."""

import difflib
import unicodedata
from collections.abc import Iterable

from fedjax_het.errors.kinds import SettingError

PAPERS = {
  "fedsgd": ("fedavg",), "localsgd": ("fedavg",), "federatedaveraging": ("fedavg",),
  "superfed": ("superfedmm",), "sosic": ("sosicfl",), "fedmgdaplus": ("fedmgda",),
  "qfedavg": ("qffl",), "qfairfl": ("qffl",), "agnosticfl": ("afl",), "tilted": ("term",),
  "aaggff": ("aaggffd", "aaggffs"), "fedadam": ("adam",), "fedyogi": ("yogi",), "fedadagrad": ("adagrad",),
  "fedopt": ("adam",), "svgd": ("particles",), "langevin": ("sgld",), "dir": ("dirichlet",),
  "lda": ("dirichlet",), "noniid": ("dirichlet",), "shards": ("pathological",), "homogeneous": ("iid",),
  "uniform": ("iid",), "mlp": ("twonn",), "2nn": ("twonn",), "cnn": ("twocnn", "simplecnn"),
  "2cnn": ("twocnn",),
  "logreg": ("logisticregression",), "lr": ("logisticregression",), "lstm": ("stackedlstm",),
  "ham": ("ham10000",), "isic": ("isic2019",), "isic19": ("isic2019",),
  "speech": ("speechcommands",), "gsc": ("speechcommands",),
}  # fmt: skip
"""Names of papers -> what they may be called here, both as `_spelled` has them."""


def check_choice(setting: str, value: str, choices: Iterable[str]) -> None:
  """Raises `SettingError` naming the nearest choice unless `value` is one of `choices`."""
  choices = sorted(choices)
  if not isinstance(value, str):
    raise SettingError(setting, value, "not a name", f"Known: {', '.join(choices)}.")
  if value not in choices:
    raise SettingError(setting, value, "unknown", near(value, choices))


def near(value: object, choices: Iterable[str]) -> str:
  """What an unknown value may have been meant to be, and what is known, for an error.

  Capitals, hyphens, spaces and accents are of no account, so "LG-FedAvg" is lg_fedavg; and a few names are
  known by which papers call what has another name here, see `PAPERS`.
  """
  choices = sorted(choices)
  spelled: dict[str, list[str]] = {}
  for choice in choices:
    spelled.setdefault(_spelled(choice), []).append(choice)
  own = _spelled(str(value))
  found = [own] if own in spelled else [name for name in PAPERS.get(own, ()) if name in spelled]
  found = found or difflib.get_close_matches(own, spelled, n=1, cutoff=0.5)
  alike = difflib.get_close_matches(str(value), spelled[found[0]], n=1, cutoff=0.0) if found else []
  hint = f"Did you mean {alike[0]!r}? " if alike else ""
  return f"{hint}Known: {', '.join(choices)}."


def _spelled(name: str) -> str:
  """A name in the small letters and digits that all ways to write it have in common."""
  plain = unicodedata.normalize("NFKD", name).casefold().replace("+", "plus")
  return "".join(sign for sign in plain if sign.isalnum())
