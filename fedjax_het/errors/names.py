"""Checks names against the known ones, and suggests the nearest."""

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
  "learningrate": ("lr",), "locallr": ("lr",), "localepochs": ("epochs",), "numepochs": ("epochs",),
  "numrounds": ("rounds",), "clientsperround": ("cohortsize",), "numclientsperround": ("cohortsize",),
}  # fmt: skip
"""Names in papers -> names in this library, both as normalised by `_spelled`."""


def check_choice(setting: str, value: str, choices: Iterable[str]) -> None:
  """Raises `SettingError` naming the nearest choice unless `value` is one of `choices`."""
  choices = sorted(choices)
  if not isinstance(value, str):
    raise SettingError(setting, value, "not a name", f"Known: {', '.join(choices)}.")
  if value not in choices:
    raise SettingError(setting, value, "unknown", near(value, choices))


def near(value: object, choices: Iterable[str]) -> str:
  """Returns the remedy for an unknown name: the nearest known one, and all known ones.

  Capitals, hyphens, spaces and accents are ignored, so "LG-FedAvg" is lg_fedavg. Some names that papers use
  for other names here are known too, see `PAPERS`.
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
  """Returns a name in lower case without accents, hyphens, spaces and other signs."""
  plain = unicodedata.normalize("NFKD", name).casefold().replace("+", "plus")
  return "".join(sign for sign in plain if sign.isalnum())
