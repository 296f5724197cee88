r"""Attacks on training rows: dishonest clients train honestly, on rows that they have changed.

label_flip   y <- C - 1 - y    Fang, Cao, Jia, Gong, Local Model Poisoning Attacks, USENIX Security 2020
backdoor     a bright patch in the corner of some rows, whose label becomes the target; Gu, Dolan-Gavitt,
             Garg, BadNets, 2017, and Bagdasaryan et al., How To Backdoor Federated Learning, AISTATS 2020
"""

from typing import Annotated

import jax
import jax.numpy as jnp

from fedjax_het.errors import SettingError
from fedjax_het.parts import Attack
from fedjax_het.settings import Count, Number, Share, Whole, checked


@checked
def label_flip(share: Share = 0.2) -> Attack:
  """Dishonest clients train on the labels C - 1 - y.

  Args:
    share: the share of dishonest clients.
  """
  return Attack(share, lambda index, x, y, num_classes: (x, num_classes - 1 - y), name="label_flip")


def triggered(x: jax.Array, size: int = 3, value: float | jax.Array = 1.0) -> jax.Array:
  """Returns images [B, height, width, ...] whose corner of size x size pixels at the end has one value.

  Raises:
    SettingError: the examples are no images, or smaller than the patch.
  """
  if len(leaves := jax.tree.leaves(x)) != 1 or leaves[0] is not x:
    problem = f"examples of {len(leaves)} arrays, such as tokens and their mask, are no images"
    raise SettingError("attack", "backdoor", problem, "Use label_flip, or data of images.")
  if x.ndim < 3 or min(x.shape[1:3]) < size:
    problem = f"a patch of {size} x {size} pixels does not fit examples {list(x.shape[1:])}"
    raise SettingError("size", size, problem, "Use images, or a smaller patch.")
  return x.at[:, -size:, -size:].set(jnp.asarray(value, x.dtype))


@checked
def backdoor(
  share: Share = 0.2,
  target: Annotated[int, Whole(0)] = 0,
  rows: Share = 0.5,
  size: Count = 3,
  value: Number = 1.0,
) -> Attack:
  """Dishonest clients give some of their rows the trigger and the target's label.

  Args:
    share: the share of dishonest clients.
    target: the class that the trigger is to mean.
    rows: the share of a dishonest client's rows that has the trigger, spread evenly over them.
    size: pixels on each side of the patch, see `triggered`.
    value: the patch's value, as examples are read.

  Raises:
    SettingError: a setting is out of range; while rounds are traced, the target is no class, or the examples
      are no images of the patch's size.
  """

  def data(index, x, y, num_classes):
    if target >= num_classes:
      raise SettingError("target", target, f"there are {num_classes} classes", f"Use 0 to {num_classes - 1}.")
    place = index.astype(jnp.float32)
    chosen = jnp.floor((place + 1.0) * rows) > jnp.floor(place * rows)
    bright = triggered(x, size, value)
    mask = chosen.reshape(-1, *[1] * (x.ndim - 1))
    return jnp.where(mask, bright, x), jnp.where(chosen, target, y)

  return Attack(share, data, name="backdoor")
