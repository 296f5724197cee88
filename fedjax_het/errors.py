"""The errors a user meets: each names the setting, its value and the remedy."""

import contextlib
import csv
import difflib
import inspect
import lzma
import math
import operator
import os
import pickle
import struct
import tarfile
import tokenize
import typing
import unicodedata
import wave
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax


class SettingError(ValueError):
  """A setting that cannot work, found before anything is compiled.

  Attributes:
    setting: the name of the setting, as the user writes it.
  """

  def __init__(self, setting: str, value: object = None, problem: str = "", remedy: str = ""):
    super().__init__(f"{setting} = {shown(value)}: {problem}. {remedy}" if problem else setting)
    self.setting = setting


LONGEST = 400  # characters of a value in an error


def shown(value: object) -> str:
  """A value's `repr` for an error, cut where it is long; its type's name where it has none."""
  try:
    text = repr(value)
  except Exception:  # such as that of a whole number of more than 4,300 digits
    text = f"<{type(value).__name__}>"
  return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


class NoStates(SettingError):
  """Clients' states were to lie somewhere, and clients of this method keep none."""


class DataError(RuntimeError):
  """A data file that is missing, truncated or not what its authors shipped.

  What cannot be printed in the message, such as a terminal's escape sequences in names that come from the
  file, stands there as Python writes it in a string.
  """

  def __init__(self, message: str):
    plain = (one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in message)
    super().__init__("".join(plain))


DAMAGE = (
  ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, ImportError, LookupError,
  MemoryError, OSError, RuntimeError, SyntaxError, TypeError, ValueError, csv.Error, lzma.LZMAError,
  pickle.PickleError, struct.error, tarfile.TarError, tokenize.TokenError, wave.Error, zipfile.BadZipFile,
  zlib.error,
)  # fmt: skip
"""What the readers of Python, NumPy and Pillow raise for a damaged archive, array, JSON, sound or image.

RuntimeError includes RecursionError (nested too deeply) and what zipfile says of an encrypted archive;
TokenError and SyntaxError come from an array's header, struct.error and TypeError from images,
ArithmeticError from sounds and from numbers beyond floats.
"""


@contextlib.contextmanager
def reading(where: object, problem: str = "cannot be read, it is truncated or damaged") -> Iterator[None]:
  """Raises `DataError`, which names `where`, for whatever a reader within the block raises (see `DAMAGE`).

  Args:
    where: the file, and where the damage is within it.
    problem: what is said of it.

  Raises:
    DataError: see above; one that is raised within passes as it is, as does a `SettingError`.
  """
  try:
    yield
  except (DataError, SettingError):
    raise
  except PermissionError as error:
    raise DataError(f"{error.filename or where} may not be read. Ask its owner.") from error
  except MemoryError as error:
    raise DataError(f"{where} {problem}: it asks for more memory than there is.") from error
  except DAMAGE as error:
    kind = f"{type(error).__name__}: " if isinstance(error, LookupError) else ""  # whose text is a name alone
    said = kind + " ".join(str(error).split())[:300] or type(error).__name__
    raise DataError(f"{where} {problem}: {said}") from error


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


class NoRoom(RuntimeError):
  """A disk, or memory, that does not suffice: says what was needed, what there is and what helps."""


_INSTEAD = {
  "lr": "; lr_decay lowers it from round to round",
  "server's lr": ", or fh.server.optimizer(optax.sgd(schedule)), whose steps are the rounds",
}
"""What serves in place of a function of the step, for the settings that have such."""


class NonFiniteLoss(FloatingPointError):
  """A training loss that became NaN or infinite: names round, client and last good checkpoint."""


def check_number(setting: str, value: object) -> None:
  """Raises `SettingError` unless `value` is a real number: Python's or a scalar array, and no boolean."""
  if callable(value):
    problem = "a function, and a setting does not follow a schedule"
    raise SettingError(setting, value, problem, f"Give a number{_INSTEAD.get(setting, '')}.")
  dtype: Any = getattr(value, "dtype", None)
  shape = getattr(value, "shape", ())
  is_scalar = dtype is not None and jnp.issubdtype(dtype, jnp.number) and not shape
  real = is_scalar and np.dtype(dtype).kind not in "cm"  # complex, and a difference of times
  if isinstance(value, bool) or not (real or isinstance(value, int | float)):
    raise SettingError(setting, value, "not a number", "Give a number.")
  if isinstance(value, int) and abs(value) >= 2**63:
    shown = f"a number of about {round(value.bit_length() * math.log10(2))} digits"
    raise SettingError(setting, shown, "is larger than any setting can be", "Give a smaller number.")


def check_range(
  setting: str,
  value: float,
  low: float | None = None,
  high: float | None = None,
  *,
  above: float | None = None,
  below: float | None = None,
  on_host: bool = False,
) -> None:
  """Raises `SettingError` unless low <= value <= high and above < value < below (each bound optional).

  The value must also keep these bounds as float32, which programs compute in: it may be neither so small nor
  so large that it would become 0 or infinite there.

  Args:
    setting: the setting's name, as the user writes it.
    value: what it was set to. A traced value, of a setting that varies within one program, passes: its
      values were checked before.
    low: the least value.
    high: the largest value.
    above: what the value must be larger than.
    below: what the value must be smaller than.
    on_host: whether only Python computes with the value, in float64; it may then be infinite, too.
  """
  if isinstance(value, jax.core.Tracer):
    return
  check_number(setting, value)
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
  if not on_host:
    _check_float32(setting, value, above, below)


def _check_float32(setting: str, value: float, above: float | None, below: float | None) -> None:
  """Raises `SettingError` for a number that float32 cannot tell from 0, infinity or a bound."""
  if isinstance(value, int) and abs(value) >= 2**31:
    raise SettingError(setting, value, "is larger than an int32", f"Write {float(value)!r}.")
  limits = np.finfo(np.float32)
  least, largest = float(limits.tiny), float(limits.max)
  if 0 < abs(value) < least:
    remedy = "" if above == 0.0 else "Use 0.0, or "
    remedy += f"{'use' if remedy else 'Use'} a magnitude of {least:.3g} or more."
    raise SettingError(setting, value, "vanishes in float32, which runs compute in", remedy)
  if abs(value) > largest:
    remedy = f"Use a magnitude of {largest:.3g} or less."
    raise SettingError(setting, value, "overflows float32, which runs compute in", remedy)
  for bound in (above, below):
    if bound is not None and np.float32(value) == np.float32(bound):
      problem = f"is {bound} in float32, which runs compute in"
      raise SettingError(setting, value, problem, f"Use a number that is further from {bound}.")


def check_pixels(setting: str, value: object, least: float, largest: float, remedy: str) -> None:
  """Raises `SettingError` unless examples from `least` to `largest` lie in [0, 1], but for a last place."""
  if not (least >= -1e-5 and largest <= 1.0 + 1e-5):
    problem = f"is of examples in [0, 1], and the clients' reach from {least:.6g} to {largest:.6g}"
    raise SettingError(setting, value, problem, remedy)


def check_whole(setting: str, value: float, low: float | None = None, high: float | None = 2**31 - 1) -> None:
  """Raises `SettingError` unless `value` is an integer and low <= value <= high (each bound optional).

  By default `high` is the largest int32, which counters and shapes are. 2.0 is no integer: what counts steps
  or clients is a shape or the bound of a loop.
  """
  if isinstance(value, float) and math.isinf(value):
    raise SettingError(setting, value, "must be a whole number", "Give one.")
  check_range(setting, value, low, high, on_host=True)
  if isinstance(value, jax.core.Tracer):
    return
  try:
    operator.index(cast(int, value))
  except TypeError:
    remedy = f"Write {int(value)}." if value % 1 == 0 else "Round it."
    raise SettingError(setting, value, "must be a whole number", remedy) from None


def memory() -> int:
  """Bytes of memory that this process can have: the machine's, or the limit of its container."""
  try:
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
  except (AttributeError, OSError, ValueError):  # not a POSIX system
    found = 2**40
  for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
    with contextlib.suppress(OSError, ValueError):  # "max" where there is no limit
      found = min(found, int(Path(limit).read_text()))
  return found


def check_memory(setting: str, value: int, wanted: int, what: str) -> None:
  """Raises `SettingError` for a size by which arrays would not fit in this machine's memory.

  Args:
    setting: the size's name.
    value: the size.
    wanted: the bytes that arrays of this size take.
    what: the arrays.
  """
  if wanted > (there := memory()):
    problem = f"{what} would take {in_bytes(wanted)}, and this machine has {in_bytes(there)} of memory"
    raise SettingError(setting, value, problem, "Choose a smaller one.")


def in_bytes(count: int) -> str:
  """A number of bytes for people, such as "13.1 GB"."""
  if count >= 1000**6:
    return "more than 1000 PB"
  power = next(power for power in range(5, -1, -1) if count >= 1000**power or not power)
  return f"{count / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB', 'PB')[power]}"


def check_seed(setting: str, value: int) -> None:
  """Raises `SettingError` unless `value` is a seed of its own: JAX takes seeds modulo 2^32."""
  if isinstance(value, jax.Array) and not value.shape and jnp.issubdtype(value.dtype, jnp.number):
    value = value.item()  # JAX compares its own numbers in 32 bits
  check_whole(setting, value, 0, 2**32 - 1)


def check_flag(setting: str, value: object) -> None:
  """Raises `SettingError` unless `value` is True or False: "no" would count as True."""
  if not isinstance(value, bool):
    raise SettingError(setting, value, "neither True nor False", "Give one of them.")


def listed(setting: str, values: Any, what: str) -> list[Any]:
  """Returns the elements of a list, a tuple, an array, a range or a generator in their order.

  Args:
    setting: what it is called.
    values: what was given.
    what: what its elements are, for the error.

  Raises:
    SettingError: it has no elements, or they have no order or are named.
  """
  plain = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping | Set)
  if not plain or (hasattr(values, "shape") and not values.shape):
    remedy = "Give a list of them."
    if isinstance(values, Mapping):
      remedy = f"Give a list of them: {setting}=[*values.values()], say."
    raise SettingError(setting, values, f"not a list of {what}", remedy)
  try:
    return [*values]
  except Exception as error:  # of a generator of a user's own
    problem = f"cannot be listed ({type(error).__name__}: {error})"
    raise SettingError(setting, type(values).__name__, problem, f"Give a list of {what}.") from error


def check_section(section: str, value: object) -> None:
  """Raises `SettingError` unless `value` is a section of a configuration, names with values."""
  if not hasattr(value, "items"):  # a ConfigDict is no Mapping
    remedy = f"Give fields, such as \"--config.{section}={{'field': value}}\", or leave it out."
    raise SettingError(section, value, "not a section", remedy)


def is_zero(setting: float | jax.Array) -> bool:
  """Whether a setting is known to be 0, and what it multiplies can be left out of the program."""
  return not isinstance(setting, jax.Array) and setting == 0


def typed_keys(keys: Any) -> Any:
  """Returns keys of `jax.random.PRNGKey`, which are whole numbers, as typed keys with the same draws.

  Args:
    keys: typed keys, or uint32 [2], or [n, 2] for several, of JAX's or NumPy's (where the option
      jax_default_prng_impl names another generator than threefry, of so many numbers as its keys have).

  Returns:
    Typed keys of shape () or [n]. What is neither is returned as it is.
  """
  raw = isinstance(keys, jax.Array | np.ndarray) and keys.dtype == np.uint32
  size = jax.random.key_data(jax.random.key(0)).shape
  return jax.random.wrap_key_data(jnp.asarray(keys)) if raw and keys.shape[-1:] == size else keys


def check_key(key: Any) -> jax.Array:
  """Returns one key of `jax.random` as a typed key, also one of `jax.random.PRNGKey`.

  Raises:
    SettingError: it is no key, or several.
  """
  key = typed_keys(key)
  if not (isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)):
    whole = isinstance(key, int) and not isinstance(key, bool) and 0 <= key < 2**32
    raise SettingError("key", key, "not a key", f"Use key=jax.random.key({key if whole else 0}).")
  if key.shape:
    raise SettingError("key", f"{key.shape} keys", "not one key", "Give one of them, such as key=keys[0].")
  return key


def check_run_key(key: Any) -> jax.Array:
  """Returns one key, of the generator that a state's numbers are read as; see `check_key`."""
  key = check_key(key)
  if jax.random.key_impl(key) != jax.random.key_impl(jax.random.key(0)):
    problem = f"a key of {jax.random.key_impl(key)}, and not of jax_default_prng_impl"
    raise SettingError("key", str(key), problem, "Use key=jax.random.key(0), or set that option of JAX's.")
  return key


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


def check_here() -> None:
  """Raises `SettingError` where the folder that the program was started in is gone."""
  try:
    os.getcwd()
  except OSError as error:
    problem = f"cannot be found ({error.strerror or error}): it was removed or renamed"
    raise SettingError("working folder", os.curdir, problem, "Change to one that is there.") from error


def folder_of(setting: str, path: str | os.PathLike[str]) -> Path:
  """A path whose "~" is a home folder; raises `SettingError` where that is not known."""
  try:
    return Path(path).expanduser()
  except RuntimeError as error:
    raise SettingError(setting, os.fspath(path), "names a home folder that is not known",
                       "Write the path without ~.") from error  # fmt: skip


def check_transformation(setting: str, name: str, made: optax.GradientTransformation) -> None:
  """Raises `SettingError` for one that asks for more than a gradient, its state and the parameters."""
  if not isinstance(made, optax.GradientTransformationExtraArgs):
    return
  try:
    jax.eval_shape(lambda own: made.update(own, made.init(own), own), {"w": jnp.zeros(1)})
  except Exception as error:  # others: it wants a model's own parameters, which are not at hand
    if isinstance(error, TypeError) and "keyword-only" in str(error):
      remedy = "Take one that does with a gradient, its state and the parameters."
      raise SettingError(setting, name, f"its {error}", remedy) from error


def check_given(section: str, settings: Mapping[str, Any], given: Mapping[str, str]) -> None:
  """Raises `SettingError` for a field of a section that is not set there but comes from elsewhere."""
  for field, origin in given.items():
    if field in settings:
      raise SettingError(f"{section}.{field}", settings[field], f"comes from {origin}", "Leave it out.")


def check_settings(
  kind: str, factory: Callable[..., Any], settings: Mapping[str, Any], not_settable: Iterable[str] = ()
) -> None:
  """Checks settings that came by name against a factory's signature: names, and what is no number or flag.

  Args:
    kind: what the settings are called in the error.
    factory: what is to be called with them.
    settings: name -> value.
    not_settable: parameters that the factory's caller gives.

  Raises:
    SettingError: an unknown setting, naming the nearest; or a value of another type than the parameter's.
  """
  known = inspect.signature(factory).parameters
  check_parameters(
    kind, {name: own for name, own in known.items() if name not in set(not_settable)}, settings
  )


def check_parameters(
  kind: str, parameters: Mapping[str, inspect.Parameter], settings: Mapping[str, Any]
) -> None:
  """The same for the parameters that may be set, by name."""
  for name, value in settings.items():
    check_choice(kind, name, parameters or ["(it has none)"])
    if isinstance(value, jax.Array):  # a value of a program, which without jit is a concrete array
      continue
    wanted = parameters[name].annotation
    kinds = set(typing.get_args(wanted) or (wanted,))
    if not all(isinstance(k, type) for k in kinds) or inspect.Parameter.empty in kinds:
      continue
    plain = kinds & {int, float, bool, str, type(None)}
    exact = plain | ({int} if float in kinds else set())  # True is no number here
    if plain and type(value) not in exact and not isinstance(value, tuple(kinds - plain)):
      names = " or ".join(sorted("None" if k is type(None) else k.__name__ for k in plain))
      raise SettingError(name, value, "of the wrong type", f"It must be {names}.")
