"""What a run goes by, typed: `Plan`, which `fedjax_het.config.plan.plan` makes of a configuration."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedjax_het.config.sections import Section, sections
from fedjax_het.config.shares import in_rounds
from fedjax_het.config.values import numbers, with_values
from fedjax_het.studies import Study


@dataclasses.dataclass(frozen=True)
class Choice:
  """What a section chooses by its `name`, with all its settings, those at their defaults too."""

  name: str
  settings: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Plan:
  """Everything that a run goes by; made by `plan`.

  Attributes:
    dataset: the data set's name.
    data_dir: the folder of the data sets' folders.
    dataset_options: settings of the data set's loader, as they were given.
    num_clients: K; None where the data say how many clients there are.
    partition: how rows are dealt to clients.
    partition_seed: what the partition and the splits follow from in place of `seed`; None for `seed`.
    test_fraction: share of a client's examples that it is tested on; None for the data set's own division.
    valid_fraction: share of the others that it validates on.
    stratify: whether each client's split keeps the shares of the classes.
    task: the section `task`; {} for the data set's own task.
    label_noise: the section `label_noise`, its name included; {} for none.
    unseen_fraction: share of the clients that never train; None for none.
    unseen_steps: after how many local steps these are judged.
    model: the model, with its options as they were given.
    parts: the sections of the three parts as they were given: `algorithm`, `local`, `mixing` and `server`.
    rounds: T.
    cohort_size: S.
    seed: what all draws follow from.
    eval_every: rounds between two evaluations; None for one after the last round.
    studies: sections and fields of studies that were given -> settings, or value.
    watching: the studies that the plan was made for.
    as_epochs: settings of the method's own passes that were not given, and are as many as `epochs`.
    written: what config.json holds.
  """

  dataset: str
  data_dir: str
  dataset_options: Mapping[str, Any]
  num_clients: int | None
  partition: Choice
  partition_seed: int | None
  test_fraction: float | None
  valid_fraction: float
  stratify: bool
  task: Mapping[str, Any]
  label_noise: Mapping[str, Any]
  unseen_fraction: float | None
  unseen_steps: tuple[int, ...]
  model: Choice
  parts: Mapping[str, Mapping[str, Any]]
  rounds: int
  cohort_size: int
  seed: int
  eval_every: int | None
  studies: Mapping[str, Any]
  watching: tuple[type[Study], ...]
  as_epochs: tuple[str, ...]
  written: Mapping[str, Any] = dataclasses.field(repr=False)

  @property
  def client(self) -> Choice:
    """The client part, with the settings of both of its sections, shares of T in rounds."""
    return self._chosen(
      "algorithm", {**self.parts["local"], **self.with_shares_in_rounds().parts["algorithm"]}
    )

  @property
  def mixing(self) -> Choice:
    """The mixing part."""
    return self._chosen("mixing", self.parts["mixing"])

  @property
  def server(self) -> Choice:
    """The server part."""
    return self._chosen("server", self.parts["server"])

  @property
  def numbers(self) -> dict[str, Any]:
    """The numbers that the run's program takes as values, by dotted field; see `values.numbers`."""
    return numbers(self.parts)

  def given(self, study: type[Study]) -> Any:
    """What the configuration gives a study: its section, {} for none, or the value of its field."""
    if study.options is None:
      return {}
    default = study.options.defaults[study.options.name] if study.options.single else {}
    return self.written.get(study.options.name, default)

  def with_numbers(self, values: Mapping[str, Any]) -> "Plan":
    """The plan with other numbers of its parts, which may be traced; `written` stays as it is."""
    return dataclasses.replace(self, parts=with_values(self.parts, values))

  def with_shares_in_rounds(self) -> "Plan":
    """The plan whose `algorithm` has numbers of rounds in place of shares of T."""
    algorithm = in_rounds(self.parts["algorithm"], self.rounds)
    return dataclasses.replace(self, parts={**self.parts, "algorithm": algorithm})

  def _chosen(self, section: str, given: Mapping[str, Any]) -> Choice:
    return Choice(given["name"], filled(sections()[section], given, given["name"]))


def filled(section: Section, given: Mapping[str, Any], chosen: Any = None) -> dict[str, Any]:
  """The fields of a section but for its name, defaults included."""
  return {**section.defaults(chosen), **{name: value for name, value in given.items() if name != "name"}}
