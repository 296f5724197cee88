"""The encoder turns a user's rows into a model's examples and its numbers into names; arrays store it."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from fedjax_het.data.columns import Column, Columns, as_text, encode
from fedjax_het.data.filled import Scaling
from fedjax_het.errors import DataError, SettingError, check_choice, near

Described = TypeVar("Described")
Name = str | int | float | bool


@dataclasses.dataclass(frozen=True, eq=False)
class Encoder:
  """The names of clients and labels, and how rows become examples.

  All encoders are equal and hash alike, because programs, which are compiled for the static fields of
  `FederatedData`, do not depend on them.

  Attributes:
    clients: the clients' names, K; () where they have none but their numbers.
    labels: the classes' names, C, as they were in the data; () where they are numbers.
    columns: the columns of the table that examples are made of; () where they came as arrays.
    scaling: the constants by which missing values are filled and columns standardised; None for neither.
  """

  clients: tuple[str, ...] = ()
  labels: tuple[Name, ...] = ()
  columns: Columns = ()
  scaling: Scaling | None = None

  def __eq__(self, other: object) -> bool:
    """Returns whether the other is an encoder, see the class."""
    return isinstance(other, Encoder)

  def __hash__(self) -> int:
    """Returns the one hash of all encoders."""
    return 0

  def number_of(self, client: Any, count: int) -> int:
    """Returns the number of a client given by name or number; raises `SettingError` for an unknown one."""
    if self.clients:
      if (name := as_text(client)) in self.clients:
        return self.clients.index(name)
      raise SettingError("client", client, "was not in training", near(name, self.clients))
    if isinstance(client, int | np.integer) and not isinstance(client, bool) and 0 <= client < count:
      return int(client)
    raise SettingError("client", client, "was not in training", f"Clients are numbered 0 to {count - 1}.")

  def encode(self, rows: Any, client: int | None = None, where: object = "rows") -> Any:
    """Turns rows into examples as the model sees them.

    Args:
      rows: a table with the columns of training, or examples [n, ...] as they were before standardisation.
      client: the client's number, by whose constants columns are standardised where each has its own.
      where: the name of the rows in errors.

    Raises:
      DataError: see `columns.encode`; or a number is missing, and no means of training rows were kept.
      SettingError: constants are each client's own, and no client is given.
    """
    x, scaling = self.raw(rows, where), self.scaling_of(client)
    if scaling is None:
      return self._whole(x, where) if self.columns else x
    x = np.asarray(x)
    if x.dtype.kind not in "biuf" or x.shape[1:] != scaling.mean.shape[1:]:
      shape = ", ".join(map(str, scaling.mean.shape[1:]))
      raise SettingError("rows", f"{x.dtype} {[*x.shape]}", "are no examples", f"Give numbers, [n, {shape}].")
    return scaling(x).astype(np.float32)

  def _whole(self, x: np.ndarray, where: object) -> np.ndarray:
    """Returns features as float32; raises `DataError` for the first value that is missing."""
    gone = np.argwhere(np.isnan(x))
    if len(gone):
      row, feature = gone[0]
      name = [one for column in self.columns for one in column.features][feature]
      raise DataError(
        f"{where}, column {name!r}, row {row + 1}: no value, and the model keeps no mean to put there. Give"
        " one."
      )
    return x.astype(np.float32)

  def raw(self, rows: Any, where: object = "rows") -> Any:
    """Returns rows as examples before values are filled and standardised, which exported programs take."""
    return encode(self.columns, as_table(rows), where) if self.columns else rows

  def scaling_of(self, client: int | None) -> Scaling | None:
    """Returns the constants for a client's rows, of one group; raises `SettingError` if one must be named."""
    if self.scaling is None or len(self.scaling.mean) == 1:
      return self.scaling
    if client is None:
      raise SettingError(
        "client", None, "each client's rows were standardised by its own mean and deviation",
        "Name a client, or train with standardize='all'.",
      )  # fmt: skip
    own = slice(client, client + 1)
    return Scaling(self.scaling.mean[own], self.scaling.deviation[own], self.scaling.standardize)

  def names(self, classes: np.ndarray) -> np.ndarray:
    """Returns the names of classes, numbers where they have none."""
    return np.array(self.labels)[classes] if self.labels else classes

  def select(self, clients: np.ndarray) -> "Encoder":
    """Returns the encoder of some of the clients."""
    scaling, ids = self.scaling, clients.astype(int)
    if scaling is not None and len(scaling.mean) > 1:
      scaling = Scaling(scaling.mean[ids], scaling.deviation[ids], scaling.standardize)
    return dataclasses.replace(
      self, clients=tuple(self.clients[i] for i in ids) if self.clients else (), scaling=scaling
    )

  def arrays(self) -> dict[str, np.ndarray]:
    """Returns all that it holds as named arrays, texts as JSON; `of_arrays` reads them."""
    said: dict[str, Any] = {"clients": self.clients, "labels": self.labels, "columns": self.columns}
    found = {}
    if self.scaling is not None:
      said["standardize"] = self.scaling.standardize
      found = {"mean": self.scaling.mean, "deviation": self.scaling.deviation}
    return found | {"encoder": np.array(json.dumps(said))}

  @classmethod
  def of_arrays(cls, found: Mapping[str, Any]) -> "Encoder":
    """Makes the encoder of what `arrays` returned."""
    said = json.loads(str(found["encoder"]))
    columns = tuple(
      Column(name, kind, tuple(values), gaps, *map(tuple, absent))
      for name, kind, values, gaps, *absent in said["columns"]
    )
    scaling = None
    if "standardize" in said:
      scaling = Scaling(found["mean"], found["deviation"], tuple(said["standardize"]))
    return cls(tuple(said["clients"]), tuple(said["labels"]), columns, scaling)


def with_names(data: Described, **fields: Any) -> Described:
  """Returns a `FederatedData` whose encoder has other fields."""
  encoder = dataclasses.replace(data.encoder, **fields)  # type: ignore[attr-defined]
  return dataclasses.replace(data, encoder=encoder)  # type: ignore[type-var]


def as_table(rows: Any) -> Mapping[str, Any]:
  """Returns rows as column -> values.

  Args:
    rows: a pandas frame, a dict of lists, or a list of dicts.

  Raises:
    SettingError: they are something else.
  """
  if hasattr(rows, "keys"):
    return rows
  if isinstance(rows, Sequence) and rows and all(isinstance(row, Mapping) for row in rows):
    for row in rows:
      for name in rows[0]:
        check_choice("rows", name, row)
    return {name: [row[name] for row in rows] for name in rows[0]}
  remedy = "Give a pandas frame, a dict of lists, or a list of dicts."
  if isinstance(rows, str | os.PathLike):
    rows = os.fspath(rows)
    raise SettingError("rows", rows, "is a path, no table", f"Read it: pandas.read_csv({rows!r}).")
  raise SettingError("rows", type(rows).__name__, "no table with named columns", remedy)
