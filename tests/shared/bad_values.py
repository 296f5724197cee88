"""Values that parameters of the Python API do not take, by name: each a function that makes one."""

import datetime
import decimal
import fractions
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedjax_het as fh


class Frame:
  """An object that converts itself to an array, as pandas' do, and has neither a dtype nor an order."""

  def __init__(self, values: Any):
    self.values = np.asarray(values)

  def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
    return np.asarray(self.values, dtype)

  def __len__(self) -> int:
    return len(self.values)

  def __getitem__(self, name: Any) -> Any:
    raise KeyError(name)


class Opaque:
  """An object without anything, whose comparison with anything fails."""

  def __eq__(self, other: object) -> bool:
    raise RuntimeError("not to be compared")

  __hash__ = None  # type: ignore[assignment]

  def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
    raise RuntimeError("not to be converted")


STRUCTURED = np.zeros(3, [("a", "i4"), ("b", "f4")])
VALUES: dict[str, Callable[[], Any]] = {
  "None": lambda: None,
  "a word": lambda: "x",
  "no word": lambda: "",
  "a number as a word": lambda: "0.1",
  "bytes": lambda: b"x",
  "True": lambda: True,
  "False": lambda: False,
  "0": lambda: 0,
  "-1": lambda: -1,
  "1": lambda: 1,
  "2**40": lambda: 2**40,
  "2**63": lambda: 2**63,
  "10**20": lambda: 10**20,
  "10**400": lambda: 10**400,
  "-10**400": lambda: -(10**400),
  "0.5": lambda: 0.5,
  "2.0": lambda: 2.0,
  "1e39": lambda: 1e39,
  "1e-60": lambda: 1e-60,
  "NaN": lambda: float("nan"),
  "inf": lambda: float("inf"),
  "-inf": lambda: float("-inf"),
  "1j": lambda: 1j,
  "a fraction": lambda: fractions.Fraction(1, 2),
  "a decimal": lambda: decimal.Decimal("0.5"),
  "a NaN decimal": lambda: decimal.Decimal("sNaN"),
  "a date": lambda: datetime.datetime(2026, 1, 1),
  "NumPy's date": lambda: np.datetime64("2026-01-01"),
  "NumPy's duration": lambda: np.timedelta64(3, "s"),
  "NumPy's NaN": lambda: np.float64("nan"),
  "NumPy's bool": lambda: np.bool_(True),
  "NumPy's word": lambda: np.str_("x"),
  "longdouble": lambda: np.longdouble(0.5),
  "half": lambda: np.float16(0.5),
  "complex scalar": lambda: np.complex64(1j),
  "an empty list": list,
  "a list": lambda: [1],
  "a list of words": lambda: ["a", "b"],
  "a ragged list": lambda: [[1, 2], [3]],
  "a list with None": lambda: [1, None],
  "a list of lists": lambda: [[1, 2], [3, 4]],
  "an empty tuple": tuple,
  "a tuple": lambda: (1, 2),
  "a tuple of floats": lambda: (0.5, float("nan")),
  "a dict": lambda: {"a": 1},
  "an empty dict": dict,
  "a dict of numbers": lambda: {0: 0.5},
  "a set": lambda: {1, 2},
  "a range": lambda: range(3),
  "a generator": lambda: (i for i in (0, 1)),
  "a slice": lambda: slice(2),
  "an ellipsis": lambda: ...,
  "a function": lambda: lambda *args, **settings: 0.1,
  "a function that fails": lambda: lambda: 1 / 0,
  "a schedule": lambda: optax.cosine_decay_schedule(0.1, 10),
  "a class": lambda: int,
  "a module": lambda: np,
  "a path": lambda: pathlib.Path("no/such/file"),
  "a path with a null": lambda: "a\0b",
  "an object": object,
  "an opaque object": Opaque,
  "a frame": lambda: Frame([[1.0, 2.0], [3.0, 4.0]]),
  "a frame of words": lambda: Frame(["a", "b"]),
  "an empty array": lambda: np.zeros(0),
  "an array [0, 4]": lambda: np.zeros((0, 4), np.float32),
  "a scalar array": lambda: np.array(0.5),
  "an array [1]": lambda: np.array([0.5]),
  "an array [3]": lambda: np.arange(3),
  "an array [2, 2]": lambda: np.eye(2),
  "an array [1, 2, 3, 4]": lambda: np.zeros((1, 2, 3, 4)),
  "big-endian": lambda: np.arange(3, dtype=">i4"),
  "big-endian floats": lambda: np.arange(3, dtype=">f8"),
  "unsigned": lambda: np.array([2**64 - 1], np.uint64),
  "bool array": lambda: np.array([True, False]),
  "longdouble array": lambda: np.arange(3, dtype=np.longdouble),
  "complex array": lambda: np.arange(3) * 1j,
  "object array": lambda: np.array([1, "a", None], object),
  "nested objects": lambda: np.array([[1, 2], [3]], object),
  "words": lambda: np.array(["a", "b"]),
  "bytes array": lambda: np.array([b"a"]),
  "structured array": lambda: STRUCTURED,
  "record array": lambda: STRUCTURED.view(np.recarray),
  "dates": lambda: np.array(["2026-01-01", "NaT"], "M8[D]"),
  "durations": lambda: np.array([1, 2], "m8[s]"),
  "NaN array": lambda: np.array([np.nan, 1.0]),
  "masked array": lambda: np.ma.masked_array([1, 2], [True, False]),
  "masked": lambda: np.ma.masked,
  "JAX scalar": lambda: jnp.float32(0.5),
  "JAX whole scalar": lambda: jnp.int32(2),
  "JAX array": lambda: jnp.arange(3),
  "JAX bfloat16": lambda: jnp.ones(2, jnp.bfloat16),
  "a key": lambda: jax.random.key(0),
  "an old key": lambda: jax.random.PRNGKey(0),
  "keys": lambda: jax.random.split(jax.random.key(0), 2),
  "an rbg key": lambda: jax.random.key(0, impl="rbg"),
  "a shape": lambda: jax.ShapeDtypeStruct((2,), np.float32),
  "a model": lambda: fh.models.two_nn((4,), 3, hidden=3),
  "a mixing": fh.mixing.static,
  "a source": lambda: fh.data.load("digits"),
  "NumPy's generator": lambda: np.random.default_rng(0),
}  # fmt: skip
