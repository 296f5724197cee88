"""The typed plan of a run, which `fedjax_het.config.plan.plan` makes from a configuration."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fedjax_het.config.sections import sections
from fedjax_het.config.shares import in_rounds
from fedjax_het.config.values import numbers, with_values
from fedjax_het.studies import Study


@dataclasses.dataclass(frozen=True)
class Choice:
  """The choice of a section by its `name`, with all its settings, including defaults."""

  name: str
  settings: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Plan:
  """All typed settings of a run; made by `plan`.

  Attributes:
    dataset: the data set's name.
    data_dir: the folder of the data sets' folders.
    dataset_options: the given settings of the data set's loader.
    num_clients: K; None if the data determine the number of clients.
    partition: the partition of the rows among clients.
    partition_seed: the seed of the partition and the splits; None is `seed`.
    test_fraction: fraction of a client's examples for testing; None keeps the data set's split.
    valid_fraction: fraction of the remaining examples for validation.
    stratify: whether each client's split keeps the class frequencies.
    task: the section `task`; {} is the data set's task.
    label_noise: the section `label_noise`, its name included; {} for none.
    feature_shift: the section `feature_shift`, its name included; {} for none.
    public: the section `public`: what the public examples of a server are; {} for its defaults.
    unseen_fraction: fraction of clients that never train; None for none.
    unseen_steps: numbers of local steps after which unseen clients are evaluated.
    model: the model, with its given options.
    lora: the section `lora`; {} for a model that is trained in full.
    finetune: the section `finetune`; {} for personalised models that are evaluated as they are.
    parts: the given sections of the parts: `algorithm`, `local`, `mixing`, `server`, and those of
      `conditions.CONDITIONS`, which are {} or () if nothing is chosen.
    rounds: T, the number of rounds.
    cohort_size: S, the number of clients in each round.
    seed: the seed of all random draws.
    eval_every: rounds between two evaluations; None for one after the last round.
    eval_clients: whom evaluations before the end are of; None for all clients.
    late_evaluations: judged rounds that the last fifth has at least.
    stopping: the section `stopping`; {} for a run of T rounds.
    tracking: the section `tracking`; {} for none.
    studies: given sections and fields of studies -> settings or value.
    watching: the studies that the plan was made for.
    as_epochs: settings of the method's additional passes that were not given, and equal `epochs`.
    written: the content of config.json.
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
  feature_shift: Mapping[str, Any]
  public: Mapping[str, Any]
  lora: Mapping[str, Any]
  finetune: Mapping[str, Any]
  unseen_fraction: float | None
  unseen_steps: tuple[int, ...]
  model: Choice
  parts: Mapping[str, Any]
  rounds: int
  cohort_size: int
  seed: int
  eval_every: int | None
  eval_clients: int | str | None
  late_evaluations: int
  stopping: Mapping[str, Any]
  tracking: Mapping[str, Any]
  studies: Mapping[str, Any]
  watching: tuple[type[Study], ...]
  as_epochs: tuple[str, ...]
  written: Mapping[str, Any] = dataclasses.field(repr=False)

  @property
  def client(self) -> Choice:
    """The choice of the client part, with the settings of both of its sections and shares of T in rounds."""
    given = {**self.parts["local"], **self.with_shares_in_rounds().parts["algorithm"]}
    return Choice(name := given.pop("name"), sections()["algorithm"].filled(given, name))

  @property
  def numbers(self) -> dict[str, Any]:
    """The numbers that the run's program takes as values, by dotted field; see `values.numbers`."""
    return numbers(self.parts)

  def given(self, study: type[Study]) -> Any:
    """Returns what the configuration sets for a study: its section, {} for none, or the field's value."""
    if study.options is None:
      return {}
    default = study.options.defaults[study.options.name] if study.options.single else {}
    return self.written.get(study.options.name, default)

  def with_numbers(self, values: Mapping[str, Any]) -> "Plan":
    """Returns the plan with other numbers of its parts, which may be traced; `written` does not change."""
    return dataclasses.replace(self, parts=with_values(self.parts, values))

  def with_shares_in_rounds(self) -> "Plan":
    """Returns the plan with shares of T in `algorithm` converted to numbers of rounds."""
    algorithm = in_rounds(self.parts["algorithm"], self.rounds)
    return dataclasses.replace(self, parts={**self.parts, "algorithm": algorithm})
