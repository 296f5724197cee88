"""Study of record-level privacy: ε of what each client has sent, by the rounds in which it took part."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from fedjax_het.engine.round import RoundInfo
from fedjax_het.errors import SettingError
from fedjax_het.parts import ClientUpdate
from fedjax_het.privacy import records as ledger
from fedjax_het.privacy.ledger import Ledger
from fedjax_het.settings import Range, checked
from fedjax_het.studies.study import Moment, Options, Study, Watched

Delta = Annotated[float, Range(above=0.0, below=1.0)]
FIELD_BESIDE = "privacy_of_records"  # where the aggregate's ledger has the field `privacy`


@checked
def delta_of(sizes: Any, *, record_delta: Delta | None = None) -> float:
  """Returns δ of record-level privacy.

  Args:
    sizes: the clients' numbers of training examples, int [K].
    record_delta: δ at which ε of a record is told, in (0, 1); None for n^-1.1 of the largest client.
  """
  return ledger.default_delta(sizes) if record_delta is None else record_delta


class RecordPrivacy(Study):
  """Study that adds `privacy` to metrics.jsonl and to the summary, for clients with record-level privacy.

  The rounds in which a client took part are counted on the host, and kept in the checkpoint. A client whose
  upload is lost has sent nothing, and its state is what it was, so that such a round does not count.
  """

  name = "record_privacy"
  options: ClassVar[Options | None] = Options("record_delta", delta_of, single=True, silent=True)

  def __init__(self, run: Watched):
    super().__init__(run)
    self._sizes = np.asarray(run.data.train.size)
    self._rounds = np.zeros(len(self._sizes), np.int64)
    self._delta = delta_of(self._sizes, record_delta=self.settings)

  @classmethod
  def check(cls, given: Any, client: ClientUpdate, validates: bool) -> None:
    """Raises `SettingError` for a δ out of range, or if the ledger's package is missing."""
    delta_of([2], record_delta=given)
    if given is not None and client.studies.records is None:
      problem = "no effect without record-level privacy"
      raise SettingError("record_delta", given, problem, "Set local.dp_clip, or leave it out.")
    if client.studies.records is not None:
      ledger.package()

  @classmethod
  def fits(cls, run: Watched) -> bool:
    """Returns whether the client part has `Studies.records`."""
    return run.algorithm.client.studies.records is not None

  def checkpoint_state(self) -> list[int]:
    """Returns in how many rounds each client took part, for the checkpoint."""
    return self._rounds.tolist()

  def resume(self, rounds_done: int, checkpoint_state: Any) -> None:
    """Restores the clients' numbers of rounds."""
    self._rounds = np.array(checkpoint_state or [0] * len(self._sizes), np.int64)

  def watch(self, infos: RoundInfo, now: Moment) -> dict[str, Any]:
    """Counts a chunk's rounds; at an evaluation returns {"privacy": {"epsilon": the largest so far}}."""
    came = np.asarray(infos.cohort)
    there = np.ones(came.shape, bool) if isinstance(infos.present, tuple) else np.asarray(infos.present)
    np.add.at(self._rounds, came[there], 1)
    return {} if now.evaluations is None else {self.field: {"epsilon": self._spread().largest}}

  def section(self, now: Moment) -> dict[str, Any]:
    """Returns {"privacy": ε of the clients, and what it is}."""
    found, records = self._spread(), self.run.algorithm.client.studies.records
    assert records is not None
    return {
      self.field: {
        "of": "records", "epsilon": found.largest, "epsilon_median": found.median, "delta": self._delta,
        "accountant": ledger.accountant(records), "neighbours": ledger.neighbours(records),
        "noise_multiplier": float(records.noise_multiplier),
      }
    }  # fmt: skip

  @property
  def field(self) -> str:
    """The field's name, which says so where the run has a ledger of clients, too."""
    of_clients = Ledger.of(self.run.algorithm, self.run.data, self.run.config.cohort_size)
    return "privacy" if of_clients is None else FIELD_BESIDE

  def _spread(self) -> ledger.Spread:
    records = self.run.algorithm.client.studies.records
    assert records is not None
    return ledger.spread(records, self._sizes, self._rounds, self._delta)

  @classmethod
  def rows(cls, summary: Mapping[str, Any]) -> RenderableType | None:
    """Returns a terminal line with ε."""
    found = summary.get(FIELD_BESIDE) or summary.get("privacy") or {}
    if found.get("of") != "records":
      return None
    return Text(
      f"privacy of a record: {ledger.in_words(found['epsilon'])} at δ = {found['delta']:.2g} "
      f"(median client {ledger.in_words(found['epsilon_median'])}; {found['accountant']}, "
      f"{found['neighbours']})"
    )
