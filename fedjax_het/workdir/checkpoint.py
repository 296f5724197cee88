"""Checkpoints: a run's state and its record, written completely or not at all."""

import contextlib
import copy
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from absl import logging

from fedjax_het.engine.capacity import in_words, size
from fedjax_het.engine.processes import agreed, of_the_first, writes
from fedjax_het.engine.state import State
from fedjax_het.errors import NoRoom, SettingError, in_bytes, memory_there
from fedjax_het.parts import Message
from fedjax_het.workdir.claim import check_claim
from fedjax_het.workdir.digest import digest
from fedjax_het.workdir.folder import free_name
from fedjax_het.workdir.manifest import checksum_of_books, damage, has_manifest, write_manifest
from fedjax_het.workdir.quiet import quiet_background

# Statuses of tensorstore for a file that is gone or changed, and for a machine that fails.
DAMAGE = ("NOT_FOUND", "DATA_LOSS", "OUT_OF_RANGE", "FAILED_PRECONDITION", "Error")
MACHINE = ("RESOURCE_EXHAUSTED", "PERMISSION_DENIED", "UNAVAILABLE", "CANCELLED")
PARTS = {  # a state's parts
  "key": "the key of the draws",
  "round": "the round's number",
  "broadcast": "what the server sends",
  "server": "what the server keeps",
  "mixing": "what the mixing keeps",
  "clients": "what the clients keep",
  "aggregation": "what the aggregation keeps",
  "participation": "who takes part",
  "pool": "uploads on their way",
}
LARGE, LARGE_SECONDS = 2**28, 60.0  # a state of so many bytes is written at evaluations so long apart
FIELDS = (*State._fields, *(f"broadcast.{name}" for name in Message._fields))  # later versions have more


class Checkpoints:
  """Keeps the two newest checkpoints of a run, in DIR/checkpoints.

  Args:
    folder: the folder DIR/checkpoints.
  """

  def __init__(self, folder: Path):
    """See the class."""
    self.folder = Path(folder).resolve()
    quiet_background()
    self._size, self._saving = 0, -1  # bytes and round of the checkpoint that is being written
    self._large = False
    options = ocp.CheckpointManagerOptions(
      max_to_keep=2, create=True, enable_async_checkpointing=True, cleanup_tmp_directories=True,
      lightweight_initialize=True,  # reads no files besides the manifest's
      async_options=ocp.AsyncOptions(post_finalization_callback=self._seal),
    )  # fmt: skip
    self._manager = ocp.CheckpointManager(self.folder, options=options)

  def check_room(self, state: State) -> None:
    """Warns if the disk may be too small for three checkpoints: two are kept while a third is written.

    It only warns, because the compressed size of a state is not known beforehand.

    Raises:
      SettingError: clients' states are on a disk and too large to be copied through memory.
    """
    needed, free = size(raw_keys(state)), shutil.disk_usage(self.folder).free
    self._large = needed > LARGE
    if writes() and free < 3 * needed:
      logging.warning(
        "Three checkpoints of this run take up to %s (two are kept while the next is written), and the disk "
        "of %s has %s to spare.", in_bytes(3 * needed), self.folder, in_bytes(free),
      )  # fmt: skip
    away = size([leaf for leaf in jax.tree.leaves(state.clients) if isinstance(leaf, np.ndarray)])
    if away and away > (memory := memory_there()):
      raise SettingError(
        "states_folder", f"{away / 1e9:.1f} GB of states",
        f"a checkpoint copies them through memory, of which this machine has {memory / 1e9:.1f} GB",
        "Use a machine with more, or fh.run(..., states_folder=...), which writes no checkpoints.",
      )  # fmt: skip

  def save(self, round: int, state: State, books: dict[str, Any]) -> None:
    """Writes the state and the record after a round, in the background; every process must call it."""
    check_claim(self.folder)
    raw = on_host(raw_keys(state))
    sums = {"digest": digest(raw), "books_digest": checksum_of_books(books)}
    books = copy.deepcopy({"books": books, **sums})  # the run continues while they are written
    self.wait()
    self._saving, self._size = round, size(raw)
    with self._written():
      self._manager.save(
        round, args=ocp.args.Composite(state=ocp.args.StandardSave(raw), books=ocp.args.JsonSave(books))
      )

  def writes_after(self, seconds: float) -> bool:
    """Returns whether an evaluation, so many seconds after the last checkpoint, writes another.

    Of a state above `LARGE` bytes it does after `LARGE_SECONDS` at the earliest: writing all clients' models
    takes as long as many rounds, and evaluations may be every few rounds.
    """
    return not self._large or seconds > LARGE_SECONDS

  @property
  def _partial(self) -> Path:
    """The folder of the checkpoint that is being written."""
    return self.folder / f"{self._saving}.orbax-checkpoint-tmp"

  @contextlib.contextmanager
  def _written(self) -> Iterator[None]:
    """Reports a full disk, and then removes the checkpoint's partial files."""
    try:
      with in_words(self.folder, f"a checkpoint of up to {self._size:,} bytes"):
        yield
    except NoRoom:
      if writes():
        shutil.rmtree(self._partial, ignore_errors=True)
      raise

  def _seal(self) -> None:
    """Writes the manifest, after all other files and while the folder still has its partial name."""
    write_manifest(self._partial if self._partial.exists() else self.folder / str(self._saving), self._saving)

  def latest(self) -> int | None:
    """Returns the round of the newest checkpoint, or None."""
    return self._manager.latest_step()

  def path(self) -> str:
    """The newest checkpoint's folder, for messages."""
    latest = self.latest()
    return "none yet" if latest is None else str(self.folder / str(latest))

  def damaged(self) -> bool:
    """Returns whether any checkpoint of this run was moved aside as damaged."""
    return any(self.folder.glob("damaged_*"))

  def restore(self, like: State) -> tuple[State, dict[str, Any]] | None:
    """Restores the newest undamaged checkpoint, laid out on devices as `like` is; None if there is none.

    A checkpoint whose files differ from its manifest is damaged and is moved aside with a warning. Any other
    error changes no file. A checkpoint without a manifest, which earlier versions wrote, is damaged if its
    files cannot be read or its checksums differ.

    Raises:
      SettingError: the checkpoint's state has another structure, shape or dtype (the error names the first
        part that differs), or a file may not be read.
    """
    target = jax.tree.map(
      lambda leaf: (
        leaf if isinstance(leaf, np.ndarray)
        else jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
      ), raw_keys(like),
    )  # fmt: skip
    for path in sorted(self.folder.iterdir()) if writes() else ():
      if path.name.isdecimal() and not path.is_dir():
        self._move_aside(int(path.name), "a file is in its place")
    while (step := self.latest()) is not None:
      found, problem = self._read(step, target)
      if found is not None:
        logging.info("resumed from %s", self.path())
        state, books = found
        return state._replace(key=jax.random.wrap_key_data(state.key)), books
      self._move_aside(step, problem or "in another process")
      agreed(0.0)  # all processes wait until it is moved
      self._manager.reload()
    return None

  def _move_aside(self, step: int, problem: str) -> None:
    aside = free_name(self.folder / f"damaged_{step}")
    if writes():
      (self.folder / str(step)).rename(aside)
    logging.warning(
      "The checkpoint of round %d is damaged (%s) and was moved to %s; an earlier one is used.",
      step, problem, aside,
    )  # fmt: skip

  def _read(self, step: int, target: State) -> tuple[tuple[State, dict[str, Any]] | None, str]:
    """Returns ((state, record) of a checkpoint, ""), or (None, the damage); the same in every process."""
    folder, problem = self.folder / str(step), ""
    sealed, damaged, denied = self._verified(step)
    if denied:
      remedy = "No file was changed: mend that and start again, or use another workdir."
      raise SettingError("workdir", str(self.folder.parent), denied, remedy)
    if damaged:
      return None, damaged
    try:
      self._check_structure(step, target)
      state = restored(folder / "state", target)
      kept = json.loads((folder / "books" / "metadata").read_text(encoding="utf-8"))
      if not isinstance(kept, dict):
        raise KeyError("books")
    except Exception as error:
      earlier = len(self._manager.all_steps()) > 1
      if sealed or not (is_damage(error) or (earlier and not of_machine(error))):
        raise
      problem = str(error)[:80].splitlines()[0] if str(error) else type(error).__name__
    if agreed(problem != "")[0]:
      return None, problem
    known = {"digest": digest(on_host(state)), "books_digest": checksum_of_books(kept.get("books"))}
    if any(kept.get(name) != own for name, own in known.items() if sealed or name in kept):
      return None, "its numbers are not those that were saved"
    return (state, kept["books"]), ""

  def _verified(self, step: int) -> tuple[bool, str, str]:
    """Checks a checkpoint's manifest: (whether it has one, what differs, why a file may not be read).

    One process checks, and all receive its result.
    """
    folder, answer = self.folder / str(step), (False, "", "")
    if writes():
      try:
        answer = (True, damage(folder, step), "") if has_manifest(folder) else answer
      except OSError as error:
        answer = True, "", f"{error.filename or folder} cannot be read: {error.strerror}"
    sealed, damaged, denied = json.loads(of_the_first(json.dumps(answer)))
    return sealed, damaged, denied

  def _check_structure(self, step: int, target: State) -> None:
    """Raises `SettingError` if the stored state differs in structure from `target`; see `difference`."""
    folder = self.folder / str(step)
    stored = leaves_of(ocp.StandardCheckpointHandler().metadata(folder / "state").tree)
    expected = leaves_of(target)
    new = {name for name in FIELDS if name not in stored and expected.get(name) == "empty"}
    expected = {name: own for name, own in expected.items() if name not in new}
    if found := difference(stored, expected):
      part, there, here = found
      raise SettingError(
        "workdir", str(self.folder.parent),
        f"its checkpoint of round {step} was written by another method, configuration or version: "
        f"{PARTS[part]} is {there} there, and {here} in this run",
        "Continue with what wrote it, or use another workdir.",
      )  # fmt: skip

  def holds(self, round: int) -> bool:
    """Returns whether the checkpoint of a round is on the disk, after waiting for pending writes."""
    self.wait()
    gone = agreed(writes() and not (self.folder / str(round)).is_dir())[0]
    if gone:
      self._manager.reload()
    return not gone

  def wait(self) -> None:
    """Waits until the checkpoint that is being written is on the disk, or was removed again.

    Raises:
      Lost, Claimed: the run's folder is gone, see `check_claim`.
      NoRoom: the disk is full.
    """
    try:
      with self._written():
        self._manager.wait_until_finished()
    except NoRoom:
      raise
    except Exception as error:
      check_claim(self.folder)
      if not is_damage(error):
        raise
      logging.warning("A checkpoint was removed from %s while it was being written.", self.folder)

  def close(self) -> None:
    """Waits for pending writes and closes the checkpoint manager."""
    self.wait()
    self._manager.close()


def is_damage(error: BaseException) -> bool:
  """Returns whether an error of a checkpoint's readers, or its cause, says that a file is damaged."""
  if isinstance(error, FileNotFoundError | UnicodeDecodeError | json.JSONDecodeError | KeyError):
    return True
  return (isinstance(error, ValueError) and status_of(error) in DAMAGE) or (
    error.__cause__ is not None and is_damage(error.__cause__)
  )


def status_of(error: BaseException) -> str:
  """Returns the status that a message of tensorstore begins with, such as "NOT_FOUND"; "" for other errors.

  "Error" stands for a message such as "Error opening ...". tensorstore has no public types for its errors.
  """
  found = re.match("([A-Z_]{5,})(?=: )|(Error)(?= (open|read|decod)ing )", str(error))
  return found[0] if found else ""


def of_machine(error: BaseException) -> bool:
  """Returns whether an error may come from this machine or program instead of a checkpoint's files."""
  if isinstance(error, SettingError | MemoryError | OSError | jax.errors.JaxRuntimeError):
    return True
  return status_of(error) in MACHINE


def restored(folder: Path, target: State) -> State:
  """Reads a stored state as `target`; an earlier version's may lack `FIELDS` that are empty there."""
  reader = ocp.Checkpointer(ocp.StandardCheckpointHandler())
  stored = ocp.StandardCheckpointHandler().metadata(folder).tree
  wanted = ocp.tree.to_flat_dict(target)
  own = ocp.tree.to_flat_dict(stored, keep_empty_nodes=True)
  item = ocp.tree.from_flat_dict({name: wanted.get(name, leaf) for name, leaf in own.items()}, target=stored)
  found = ocp.tree.to_flat_dict(reader.restore(folder, args=ocp.args.StandardRestore(item)))
  return ocp.tree.from_flat_dict({**wanted, **found}, target=target)


def leaves_of(tree: Any) -> dict[str, str]:
  """Lists a state's arrays, or those stored of it: dotted name -> dtype and shape, or "empty"."""
  leaves = ocp.tree.to_flat_dict(tree, sep=".", keep_empty_nodes=True)
  return {
    name: f"{jnp.dtype(leaf.dtype)} {list(leaf.shape)}" if hasattr(leaf, "shape") else "empty"
    for name, leaf in leaves.items()
  }


def difference(stored: dict[str, str], expected: dict[str, str]) -> tuple[str, str, str] | None:
  """Returns the first difference of two `leaves_of`: (part of the state, stored, expected); None if equal.

  Differing arrays are reported before empty parts.
  """
  differ = sorted(
    (name for name in {*stored, *expected} if stored.get(name) != expected.get(name)),
    key=lambda name: ({stored.get(name), expected.get(name)} <= {"empty", None}, name),
  )
  if not differ:
    return None
  part = differ[0].partition(".")[0]

  def said(leaves: dict[str, str]) -> str:
    if differ[0] in leaves:
      return f"{differ[0]} ({leaves[differ[0]]})"
    own = (kind for name, kind in leaves.items() if name.partition(".")[0] == part)
    return f"without {differ[0]}" if {*own} - {"empty"} else "nothing"

  return part, said(stored), said(expected)


def raw_keys(state: State) -> State:
  """Returns the state with its typed key as raw numbers."""
  return state._replace(key=jax.random.key_data(state.key))


def on_host(state: State) -> State:
  """Copies to the host what all devices hold of a state, except the clients' states.

  Otherwise Orbax would slice these arrays, and compile a small program for each shape and device.
  """

  def own(leaf: Any) -> Any:
    return np.array(leaf) if isinstance(leaf, jax.Array) and leaf.is_fully_replicated else leaf

  return jax.tree.map(own, state._replace(clients=()))._replace(clients=state.clients)
