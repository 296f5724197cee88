"""What is damage and what is not: a checkpoint is moved aside only where its files cannot be read."""

import asyncio
import json
import random
import shutil
import sys
from collections import namedtuple
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from launching import records, small, start

from fedjax_het.config.plan import plan
from fedjax_het.engine.state import State
from fedjax_het.errors import SettingError
from fedjax_het.experiment import experiment
from fedjax_het.parts import Message
from fedjax_het.workdir import manifest
from fedjax_het.workdir.checkpoint import Checkpoints
from fedjax_het.workdir.manifest import MANIFEST

BOOKS = {"runs": [{"client_steps": 5}]}


def state(**parts) -> State:
  """A state of a few numbers, empty parts of every kind, and an array in a file of its own."""
  whole = {
    "key": jax.random.key(3), "round": jnp.int32(7), "broadcast": Message({"w": jnp.arange(3.0)}),
    "server": (optax.EmptyState(), {"m": jnp.float32(2)}), "mixing": None,
    "clients": {"w": jax.random.normal(jax.random.key(0), (40, 30))},
  } | parts  # fmt: skip
  return jax.device_put(State(**whole), jax.sharding.SingleDeviceSharding(jax.devices()[0]))


def test_a_field_that_an_earlier_version_lacked_is_empty(tmp_path):
  """A checkpoint of a version whose messages and states had fewer fields continues, bit for bit."""
  earlier = namedtuple("Message", Message._fields[:2])({"w": jnp.arange(3.0)}, {"lr": jnp.float32(2)})
  checkpoints = Checkpoints(tmp_path / "checkpoints")
  saved = state(broadcast=earlier)
  checkpoints.save(3, namedtuple("State", State._fields[:6])(*saved[:6]), BOOKS)
  checkpoints.close()
  like = state(broadcast=Message(*earlier), round=jnp.int32(0))
  (found, books), step = restore(tmp_path, like)
  assert (step, books, type(found), type(found.broadcast)) == (3, BOOKS, State, Message)
  like = like._replace(key=(), round=saved.round)
  jax.tree.map(np.testing.assert_array_equal, found._replace(key=()), like)


def snapshot(folder: Path) -> dict[str, bytes]:
  return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def restore(folder: Path, like: State):
  checkpoints = Checkpoints(folder / "checkpoints")
  try:
    return checkpoints.restore(like), checkpoints.latest()
  finally:
    checkpoints.close()


@pytest.fixture(scope="module")
def two(tmp_path_factory):
  """The checkpoints of rounds 6 and 7."""
  root = tmp_path_factory.mktemp("two")
  checkpoints = Checkpoints(root / "checkpoints")
  for step in (6, 7):
    checkpoints.save(step, state(round=jnp.int32(step)), BOOKS)
  checkpoints.close()
  return root


def test_books_are_those_of_when_it_was_saved(tmp_path, monkeypatch):
  """The run goes on with its own while they are written in the background."""
  checkpoints, seen, books = Checkpoints(tmp_path / "checkpoints"), [], {"course": [1]}
  monkeypatch.setattr(checkpoints._manager, "save", lambda step, args: seen.append(args.books.item))
  checkpoints.save(1, state(), books)
  books["course"].append(2)
  assert seen[0]["books"] == {"course": [1]}
  checkpoints.close()


OTHERS = {
  "shape": (
    dict(broadcast=Message({"w": jnp.zeros(4)})),
    r"what the server sends is broadcast\.params\.w \(float32 \[3\]\) there, .*\[4\]",
  ),
  "dtype": (dict(round=jnp.uint32(7)), r"round \(int32 \[\]\) there, and round \(uint32 \[\]\)"),
  "more": (
    dict(mixing={"lr": jnp.ones(2)}),
    r"what the mixing keeps is nothing there, and mixing\.lr \(float32 \[2\]\) in this run\. ",
  ),
  "less": (dict(clients=()), r"what the clients keep is clients\.w \(.*\) there, and nothing in this run"),
  "a name": (
    dict(broadcast=Message({"v": jnp.arange(3.0)})),
    r"is without broadcast\.params\.v there, and broadcast\.params\.v \(float32 \[3\]\)",
  ),
  "an empty part": (dict(server=({"m": jnp.float32(2)},)), r"without server\.0\.m there"),
  "only an empty part": (
    dict(server=(optax.EmptyState(), {"m": jnp.float32(2)}, ())),
    r"without server\.2 there, and server\.2 \(empty\) in this run",
  ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_structure_is_named_and_touches_nothing(two, name):
  parts, message = OTHERS[name]
  before = snapshot(two)
  with pytest.raises(SettingError, match=rf"round 7 was written by another method.*{message}"):
    restore(two, state(**parts))
  assert snapshot(two) == before


@pytest.mark.parametrize(
  "error", [MemoryError(), OSError(24, "Too many open files"), ValueError("RESOURCE_EXHAUSTED: disk"),
            jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), KeyboardInterrupt()],
  ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_other_errors_pass_and_touch_nothing(two, error, monkeypatch):
  def failing(*args, **kwargs):
    try:
      raise error
    except BaseException as cause:
      raise type(cause)(*cause.args) from cause

  before = snapshot(two)
  monkeypatch.setattr(ocp.Checkpointer, "restore", failing)
  with pytest.raises(type(error)):
    restore(two, state())
  assert snapshot(two) == before


def flip(path: Path, rng: random.Random) -> None:
  """One bit of a file becomes another."""
  whole = bytearray(path.read_bytes() or b"\0")
  whole[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
  path.write_bytes(whole)


def into_folder(path: Path) -> None:
  path.unlink()
  path.mkdir()


def another(path: Path) -> Path:
  """The file of the checkpoint of round 6 that has a file's place, or any of that folder."""
  before = Path(str(path).replace("checkpoints/7", "checkpoints/6"))
  return before if before.exists() else min(before.parent.iterdir())


KINDS = {
  "gone": lambda path, rng: path.unlink(),
  "empty": lambda path, rng: path.write_bytes(b""),
  "cut": lambda path, rng: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
  "cut by a byte": lambda path, rng: path.write_bytes(path.read_bytes()[:-1]),
  "longer": lambda path, rng: path.write_bytes(path.read_bytes() + b"\0"),
  "zeros": lambda path, rng: path.write_bytes(bytes(path.stat().st_size)),
  "other": lambda path, rng: path.write_bytes(rng.randbytes(path.stat().st_size)),
  "another's": lambda path, rng: path.write_bytes(another(path).read_bytes()),
  "a folder": lambda path, rng: into_folder(path),
  **{f"bit {i}": flip for i in range(6)},
}


def check_whole_or_before(root: Path, caplog) -> int:
  """The round that is restored: 7, or with a warning 6; and everything in it is as it was saved."""
  caplog.clear()
  (found, books), latest = restore(root, state())
  assert books == BOOKS and int(found.round) == latest
  saved = state(round=jnp.int32(latest))
  key = jax.random.key_data
  for own, expected in zip(
    jax.tree.leaves(found._replace(key=key(found.key))),
    jax.tree.leaves(saved._replace(key=key(saved.key))),
    strict=True,
  ):
    np.testing.assert_array_equal(own, expected)
  assert (root / "checkpoints" / "damaged_7").exists() == (latest == 6) == ("is damaged" in caplog.text)
  return latest


@pytest.mark.slow
def test_whatever_is_done_to_its_files_a_checkpoint_is_whole_or_damaged(two, tmp_path, caplog):
  """Every file gone, emptied, cut, overwritten, one bit of it flipped: all comes back, or the one before."""
  rng, found = random.Random(0), {}
  for name in sorted(name for name in snapshot(two) if "checkpoints/7/" in name):
    for kind, act in KINDS.items():
      shutil.copytree(two, tmp_path / "run")
      act(tmp_path / "run" / name, rng)
      found[name, kind] = check_whole_or_before(tmp_path / "run", caplog)
      shutil.rmtree(tmp_path / "run")
  unread = {name for (name, kind), latest in found.items() if latest == 7 and kind != "another's"}
  assert {Path(name).name for name in unread} == {"_CHECKPOINT_METADATA", "commit_success.txt", MANIFEST}
  assert all(kind == "gone" for (name, kind), latest in found.items() if latest == 7 and MANIFEST in name)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["", "state", "state/d", "books"])
def test_whatever_is_done_to_its_folders(two, tmp_path, caplog, what):
  for how in ("empty", "a file"):
    root = tmp_path / how
    shutil.copytree(two, root)
    folder = root / "checkpoints" / "7" / what
    shutil.rmtree(folder)
    folder.touch() if how == "a file" else folder.mkdir()
    check_whole_or_before(root, caplog)


def test_a_bit_of_the_books_or_of_how_arrays_lie_falls_back_to_the_checkpoint_before(two, tmp_path, caplog):
  """Each was another figure in the summary, or a traceback at every start."""
  for i, (name, old, new) in enumerate(
    [("books/metadata", '"client_steps": 5', '"client_steps": 7'), ("state/_sharding", "Named", "Nimed")]
  ):
    root = tmp_path / str(i)
    shutil.copytree(two, root)
    path = root / "checkpoints" / "7" / name
    text = path.read_text()
    old = old if old in text else old.replace(": ", ":").replace("Named", "Single")
    path.write_text(text.replace(old, new))
    assert path.read_text() != text
    assert check_whole_or_before(root, caplog) == 6


def test_a_disk_that_may_be_too_small_is_warned_of(tmp_path, monkeypatch, caplog):
  usage = namedtuple("usage", "free")
  checkpoints = Checkpoints(tmp_path / "checkpoints")
  for free, warned in ((10**9, False), (10_000, True)):
    monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage(free))
    checkpoints.check_room(state())
    assert ("has 10 kB to spare" in caplog.text) == warned
  checkpoints.close()


def test_after_a_matching_manifest_no_error_is_damage(two, monkeypatch):
  """Such as that of a library which no longer reads what it wrote."""
  before = snapshot(two)

  def failing(*args, **kwargs):
    raise FileNotFoundError("NOT_FOUND: a file")

  monkeypatch.setattr(ocp.Checkpointer, "restore", failing)
  with pytest.raises(FileNotFoundError):
    restore(two, state())
  assert snapshot(two) == before


def test_a_file_that_may_not_be_read_is_no_damage(two, monkeypatch):
  before = snapshot(two)

  def denied(path):
    raise PermissionError(13, "Permission denied", str(path))

  monkeypatch.setattr(manifest, "checksum", denied)
  with pytest.raises(SettingError, match=r"cannot be read: Permission denied\. No file was changed"):
    restore(two, state())
  assert snapshot(two) == before


def without_manifest(two: Path, root: Path) -> Path:
  """The checkpoints as versions before the manifest wrote them."""
  shutil.copytree(two, root)
  for step in ("6", "7"):
    (root / "checkpoints" / step / MANIFEST).unlink()
    path = root / "checkpoints" / step / "books" / "metadata"
    books = json.loads(path.read_text())
    del books["books_digest"]
    path.write_text(json.dumps(books))
  return root


def test_checkpoints_of_earlier_versions_are_read(two, tmp_path, caplog):
  root = without_manifest(two, tmp_path / "run")
  assert check_whole_or_before(root, caplog) == 7
  (root / "checkpoints" / "7" / "state" / "_sharding").write_text("{")
  assert check_whole_or_before(root, caplog) == 6


def test_reads_that_are_abandoned_at_anothers_error_print_nothing(two, tmp_path, capfd):
  shutil.copytree(two, tmp_path / "run")
  for path in (tmp_path / "run" / "checkpoints" / "7" / "state").rglob("d/*"):
    path.write_bytes(path.read_bytes()[:40])
  assert restore(tmp_path / "run", state())[1] == 6
  loop = asyncio.new_event_loop()
  loop.close()
  with pytest.raises(RuntimeError, match="Event loop is closed") as closed:
    loop.call_soon_threadsafe(print)
  ours = closed.value.__traceback__
  while ours.tb_frame.f_code.co_name != "call_soon_threadsafe":
    ours = ours.tb_next
  sys.excepthook(RuntimeError, closed.value, ours)  # as Python does for one that ends in a thread of its own
  assert "Traceback" not in capfd.readouterr().err
  sys.excepthook(RuntimeError, closed.value, closed.value.__traceback__)
  assert "RuntimeError: Event loop is closed" in capfd.readouterr().err


def test_a_second_damage_of_a_round_has_a_place_too(two, tmp_path):
  shutil.copytree(two, tmp_path / "run")
  folder = tmp_path / "run" / "checkpoints"
  shutil.copytree(folder / "7", folder / "damaged_7")
  (folder / "7" / "state" / "manifest.ocdbt").unlink()
  assert restore(tmp_path / "run", state())[1] == 6
  assert (folder / "damaged_7_2").is_dir()


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """A launched run."""
  workdir = tmp_path_factory.mktemp("launched")
  return workdir, start(tiny(), str(workdir))


def tiny(**changes):
  return small(rounds=4, eval_every=2, algorithm={"name": "fedavg"}, **changes)


@pytest.mark.slow
def test_a_run_of_another_program_is_refused_and_keeps_its_files(run, tmp_path, monkeypatch):
  shutil.copytree(run[0], tmp_path / "run")
  (tmp_path / "run" / "summary.json").unlink()
  before = snapshot(tmp_path / "run")
  built = experiment.build(plan(tiny(model__hidden=9)))
  monkeypatch.setattr(experiment, "build", lambda config: built)
  with pytest.raises(SettingError, match=r"fc1\.bias \(float32 \[8\]\) there.*\(float32 \[9\]\)"):
    start(tiny(), str(tmp_path / "run"))
  assert snapshot(tmp_path / "run") == before


@pytest.mark.slow
def test_without_a_whole_checkpoint_the_metrics_are_kept(run, tmp_path, caplog):
  """The run starts over, says so, and ends as before."""
  workdir = tmp_path / "run"
  shutil.copytree(run[0], workdir)
  (workdir / "summary.json").unlink()
  lines = (workdir / "metrics.jsonl").read_bytes()
  (workdir / "samples").mkdir()
  (workdir / "samples" / "000002.npz").touch()
  for step in (2, 4):
    (workdir / "checkpoints" / str(step) / "state" / "manifest.ocdbt").unlink()
  summary = start(tiny(), str(workdir))
  assert (workdir / "metrics.before_damage.jsonl").read_bytes() == lines
  assert (workdir / "samples.before_damage" / "000002.npz").exists()
  assert "starts at round 0" in caplog.text and str(workdir / "metrics.before_damage.jsonl") in caplog.text
  assert summary["metrics"] == run[1]["metrics"] and records(workdir) == records(run[0])


@pytest.mark.slow
@pytest.mark.parametrize("field", ["losses", "yardsticks", "best"])
def test_books_of_another_version_change_no_figure_silently(run, tmp_path, caplog, field):
  """A field of the run's own that is not there is an error; a study's that is new, a warning."""
  workdir = tmp_path / "run"
  shutil.copytree(run[0], workdir)
  (workdir / "summary.json").unlink()
  (workdir / "checkpoints" / "4" / MANIFEST).unlink()
  path = workdir / "checkpoints" / "4" / "books" / "metadata"
  kept = json.loads(path.read_text())
  del kept["books_digest"]
  books = kept["books"]["runs"][0]
  del (books["yardsticks"] if field == "best" else books)[field]
  path.write_text(json.dumps(kept))
  if field == "best":
    start(tiny(), str(workdir))
    assert "knows nothing of the study best" in caplog.text
  else:
    with pytest.raises(SettingError, match=rf"other fields \(KeyError: '{field}'\)"):
      start(tiny(), str(workdir))
