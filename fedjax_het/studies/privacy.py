"""Study of a run's privacy: ε so far, see `fedjax_het.privacy`."""

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from fedjax_het.privacy.ledger import Ledger, in_words
from fedjax_het.studies.study import Curve, Study, series


class Privacy(Study):
  """Study that adds `privacy`, ε and δ so far, to metrics.jsonl and to the summary of a private run."""

  name = "privacy"

  def __init__(self, run):
    super().__init__(run)
    self._ledger = ledger_of(run)

  @classmethod
  def check_run(cls, given, run):
    """Raises `SettingError` if a private run cannot be counted, see `Ledger.of`."""
    ledger_of(run)

  @classmethod
  def fits(cls, run):
    """Returns whether a part of the run promises privacy."""
    return ledger_of(run) is not None

  def watch(self, infos, now):
    """Returns `privacy` of a line: ε and δ after its round."""
    due = now.evaluations is not None or now.late is not None
    return {"privacy": self._told(now.round, "epsilon", "delta")} if due else {}

  def section(self, now):
    """Returns `privacy` of the summary."""
    return {"privacy": self._told(now.round)}

  def _told(self, rounds: int, *names: str) -> dict[str, Any]:
    assert self._ledger is not None
    told = self._ledger.told(rounds)
    return {name: told[name] for name in names or told}

  @classmethod
  def rows(cls, summary: Mapping[str, Any]):
    """Returns a sentence with ε."""
    found = summary.get("privacy") or {}
    return Text(in_words(found)) if "of" in found else None  # that of records has a line of its own

  def curves(self, lines):
    """Returns ε over the evaluations."""
    return [Curve("epsilon", "privacy", series(lines, "privacy", "epsilon"))]


def ledger_of(run) -> Ledger | None:
  """Returns the ledger of an observed run."""
  return Ledger.of(run.algorithm, run.data, run.config.cohort_size)
