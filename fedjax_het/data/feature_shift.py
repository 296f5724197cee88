"""Feature shift: clients see the same classes differently, by a transform of each client's examples.

  rotation  images turned by one of M angles; which clients share an angle is known, and hidden from methods
            (Ghosh et al., IFCA, NeurIPS 2020, section 6: MNIST turned by 0, 90, 180 and 270 degrees).
  noise     Gaussian noise that grows from client to client (Li et al. 2022, "Federated learning on
            non-IID data silos", section IV-C). The paper writes Gau(σ i / K); the
            authors' code, which was read, takes σ i / (K - 1), i = 0, ..., K - 1, as the standard deviation,
            as here, and draws the noise anew at every pass, where here it is drawn once.

A transform applies to all parts of a client: it is trained, validated and tested on examples of its own kind.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, NamedTuple

import jax
import numpy as np

from fedjax_het.data.clients import check_data
from fedjax_het.data.container import FederatedData
from fedjax_het.data.natural import generator
from fedjax_het.data.scale import as_read
from fedjax_het.errors import SettingError, check_key
from fedjax_het.settings import Count, Range, checked


class Shift(NamedTuple):
  """A transform of each client's examples; `feature_shift` applies it.

  Attributes:
    name: its name.
    changed: (generator, examples of client i [n, ...], i, K) -> the client's examples, of the same shape.
    check: (examples of all clients [N, ...], their scale, K) -> (a copy as `changed` takes it, its scale),
      see `FederatedData`; raises `SettingError` for examples that cannot be transformed.
    clusters: (K) -> the hidden cluster of each client, int [K]; None where clients are in none.
  """

  name: str
  changed: Callable[[np.random.Generator, np.ndarray, int, int], np.ndarray]
  check: Callable[[np.ndarray, float | None, int], tuple[np.ndarray, float | None]]
  clusters: Callable[[int], np.ndarray] | None = None


@checked
def rotations(
  clusters: Count = 4, degrees: Annotated[float, Range(low=-360.0, high=360.0, on_host=True)] = 360.0
) -> Shift:
  """Turns the images of client i counterclockwise by m/M of `degrees`, m = i mod M.

  Quarter turns move pixels; other angles interpolate between four pixels, and corners become 0.

  Args:
    clusters: M >= 1, the number of angles, and of hidden clusters of clients.
    degrees: the angle of M steps, in [-360, 360].

  Raises:
    SettingError: a setting is out of range.
  """

  def check(x: np.ndarray, scale: float | None, num_clients: int) -> tuple[np.ndarray, float | None]:
    if x.ndim != 4 or x.shape[1] != x.shape[2]:
      raise SettingError(
        "feature_shift", "rotation", f"examples of shape {[*x.shape[1:]]} are no square images",
        "Use a data set of square images, [H, H, C], resize it, or use noise.",
      )  # fmt: skip
    if clusters > num_clients:
      raise SettingError(
        "clusters", clusters, f"there are {num_clients} clients", f"Use at most {num_clients}."
      )
    return x.copy(), scale

  def changed(rng: np.random.Generator, x: np.ndarray, client: int, num_clients: int) -> np.ndarray:
    return turned(x, degrees * (client % clusters) / clusters)

  return Shift("rotation", changed, check, lambda num_clients: np.arange(num_clients) % clusters)


@checked
def growing_noise(std: Annotated[float, Range(above=0.0, below=np.inf, on_host=True)] = 0.1) -> Shift:
  """Adds N(0, (σ i / (K - 1))²) to the examples of client i: none to the first, σ to the last, i = K - 1.

  Images become float32 and are neither clipped nor rounded; σ is in units of what models see, [0, 1] for
  images.

  Args:
    std: σ > 0, standard deviation of the last client's noise.

  Raises:
    SettingError: `std` is out of range.
  """

  def check(x: np.ndarray, scale: float | None, num_clients: int) -> tuple[np.ndarray, float | None]:
    read = as_read(x, scale)
    if np.dtype(read.dtype).kind != "f":
      raise SettingError(
        "feature_shift", "noise", f"examples are whole numbers ({x.dtype}), such as tokens",
        "Use a data set of images or of features, or leave it out.",
      )  # fmt: skip
    return np.array(read, np.float32), None

  def changed(rng: np.random.Generator, x: np.ndarray, client: int, num_clients: int) -> np.ndarray:
    strength = std * client / max(num_clients - 1, 1)
    return x + np.float32(strength) * rng.standard_normal(x.shape, np.float32)

  return Shift("noise", changed, check)


SHIFTS: dict[str, Callable[..., Shift]] = {"rotation": rotations, "noise": growing_noise}


def turned(x: np.ndarray, degrees: float) -> np.ndarray:
  """Returns square images [n, H, H, C] turned counterclockwise, of the same shape and dtype."""
  quarters, rest = divmod(degrees, 90.0)
  if not rest:
    return np.rot90(x, int(quarters), axes=(1, 2))
  from scipy import ndimage  # imported here, as few runs turn images

  found = ndimage.rotate(x.astype(np.float32), degrees, axes=(2, 1), reshape=False, order=1)
  if x.dtype.kind in "iu":
    limits = np.iinfo(x.dtype)
    found = np.clip(np.rint(found), limits.min, limits.max)
  return found.astype(x.dtype)


def feature_shift(key: jax.Array, data: FederatedData, shift: Shift) -> FederatedData:
  """Transforms every client's training, validation and test examples; labels and places stay.

  A client's draws depend on the key and on its number alone.

  Args:
    key: typed key of the draws.
    data: all clients' data, on the host.
    shift: the transform, such as `rotations(clusters=4)`.

  Raises:
    SettingError: `key` is no key, `data` are no such data, or their examples cannot be transformed.
  """
  check_data(data)
  if not isinstance(shift, Shift):
    raise SettingError("shift", shift, "is no Shift", "Call a factory: fh.data.rotations(clusters=4), say.")
  key, count = check_key(key), data.num_clients
  if not isinstance(data.x, np.ndarray):
    problem = f"examples are a {type(data.x).__name__}, not one array"
    raise SettingError("feature_shift", shift.name, problem, "Leave it out.")
  x, scale = shift.check(data.x, data.scale, count)
  for client in range(count):
    rng = generator(jax.random.fold_in(key, client))
    rows = np.concatenate([part.rows(np.array([client])) for part in (data.train, data.valid, data.test)])
    x[rows] = shift.changed(rng, x[rows], client, count)
  return dataclasses.replace(data, x=x, scale=scale)
