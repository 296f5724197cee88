"""Checkpoints: a run's state and its books, written whole or not at all."""

import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from fedjax_het.federated import State


class Checkpoints:
  """The newest two checkpoints of a run, in DIR/checkpoints.

  Args:
    folder: where they are kept.
  """

  def __init__(self, folder: Path):
    """See the class."""
    self.folder = Path(folder).resolve()
    options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True, enable_async_checkpointing=True)
    self._manager = ocp.CheckpointManager(self.folder, options=options)

  def save(self, state: State, books: dict[str, Any]) -> None:
    """Writes the state after `state.round` rounds, and what the run counts, in the background."""
    raw = state._replace(key=jax.random.key_data(state.key))
    raw = jax.tree.map(np.asarray, raw)  # a copy: the next chunk consumes the state's buffers
    books = {"books": books, "digest": digest(raw)}
    self._manager.save(
      int(raw.round),
      args=ocp.args.Composite(state=ocp.args.StandardSave(raw), books=ocp.args.JsonSave(books)),
    )

  def latest(self) -> int | None:
    """The round of the newest checkpoint, None where there is none."""
    return self._manager.latest_step()

  def path(self) -> str:
    """The newest checkpoint's folder, for messages."""
    latest = self.latest()
    return "none yet" if latest is None else str(self.folder / str(latest))

  def restore(self, like: State) -> tuple[State, dict[str, Any]] | None:
    """The newest checkpoint that is whole, laid out on the devices as `like` is; None without one.

    A damaged one, whose files cannot be read or hold another state than was saved, is moved aside with a
    warning.
    """
    raw = like._replace(key=jax.random.key_data(like.key))
    target = jax.tree.map(
      lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), raw
    )
    while (step := self.latest()) is not None:
      try:
        state, books = self._read(step, target)
      except Exception as error:  # whatever a damaged file makes the readers raise
        aside = self.folder / f"damaged_{step}"
        (self.folder / str(step)).rename(aside)
        self._manager.reload()
        logging.warning(
          "The checkpoint of round %d is damaged (%s) and was moved to %s; an earlier one is used.",
          step, str(error)[:80].splitlines()[0] if str(error) else type(error).__name__, aside,
        )  # fmt: skip
        continue
      logging.info("resumed from %s", self.path())
      return state._replace(key=jax.random.wrap_key_data(state.key)), books
    return None

  def _read(self, step: int, target: State) -> tuple[State, dict[str, Any]]:
    restored = self._manager.restore(
      step, args=ocp.args.Composite(state=ocp.args.StandardRestore(target), books=ocp.args.JsonRestore())
    )
    state, books = restored["state"], restored["books"]
    if digest(state) != books["digest"]:
      raise ValueError("its numbers are not those that were saved")
    return state, books["books"]

  def close(self) -> None:
    """Waits for what is still being written."""
    self._manager.wait_until_finished()
    self._manager.close()


def digest(tree: Any) -> int:
  """CRC-32 of all leaves' bytes."""
  value = 0
  for leaf in jax.tree.leaves(tree):
    value = zlib.crc32(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data, value)
  return value
