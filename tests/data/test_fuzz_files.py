"""Damaged files of every reader: what is read is an error that names the file, or data that can be.

FEDJAX_HET_FUZZ=300 FEDJAX_HET_FUZZ_SEED=1 pytest --all tests/data/test_fuzz_files.py
tries 300 others a reader.
"""

import gzip
import json
import os
import struct
import tarfile
import zipfile
import zlib

import jax
import numpy as np
import pytest
import small_files
import test_data_berka
from pictures import packed, write
from test_data_skin import ham

from fedjax_het.data import berka, ham10000, heart, idx, sources
from fedjax_het.data.untrusted import read_arrays as read_npz
from fedjax_het.errors import DataError, SettingError
from fedjax_het.models.weights.files import read_arrays

TRIALS = int(os.environ.get("FEDJAX_HET_FUZZ", "24"))
SEED = int(os.environ.get("FEDJAX_HET_FUZZ_SEED", "0"))


def _npz(path, patch, compressed):
  path.parent.mkdir()
  rng = np.random.default_rng(0)
  arrays = {"users": np.array(["u", "v"])}
  for part, count in (("train", 30), ("test", 12)):
    arrays[f"{part}_images"] = rng.integers(0, 256, (count, 28, 28), np.uint8)
    arrays[f"{part}_labels"], arrays[f"{part}_user"] = rng.integers(0, 7, count), np.arange(count) % 2
  (np.savez_compressed if compressed else np.savez)(path, **arrays)


def _mnist(folder, patch):
  rng = np.random.default_rng(0)
  shapes = {name: (20, 28, 28) if "images" in name else (20,) for name in idx.SHAPES}
  patch.setattr(idx, "SHAPES", shapes)
  patch.setattr(idx, "check_digest", lambda *_: None)
  for name, shape in shapes.items():
    values = rng.integers(0, 10, shape, np.uint8)
    content = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + values.tobytes()
    write(folder / "mnist", {f"{name}.gz": gzip.compress(content)})


def _heart(folder, patch):
  patch.setattr(heart, "ROWS", dict.fromkeys(heart.ROWS, 3))
  rows = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n40,0,4,?,0,?,?,?,?,?,?,?,?,3\n" * 2
  files = {f"processed.{name}.data": rows.rsplit("\n", 2)[0] + "\n" for name in heart.ROWS}
  write(folder / "uci-heart-disease", files)


def _berka(folder, patch):
  tables = {name: "\r\n".join(rows) + "\r\n" for name, rows in test_data_berka.TABLES.items()}
  patch.setattr(berka, "ROWS", {name: len(rows) - 1 for name, rows in test_data_berka.TABLES.items()})
  write(folder / "berka-pkdd99", {f"{name}.asc": text for name, text in tables.items()})


def _ham10000(folder, patch):
  patch.setattr(ham10000, "ROWS", 4)
  packed(folder / "ham10000", "all.tar.gz", ham())


def _medmnist(folder, patch):
  rng = np.random.default_rng(0)
  (folder / "medmnist").mkdir()
  arrays = {}
  for part in ("train", "val", "test"):
    arrays[f"{part}_images"] = rng.integers(0, 256, (9, 64, 64, 3), np.uint8)
    arrays[f"{part}_labels"] = rng.integers(0, 8, (9, 1), np.uint8)
  np.savez_compressed(folder / "medmnist" / "bloodmnist_64.npz", **arrays)


def _archived(name, kind):
  """The small files of a data set with its pictures or sounds in an archive."""

  def make(folder, patch):
    small_files.write_small(name, folder, patch)
    place = folder / name
    files = [path for path in place.rglob("*") if path.is_file() and path.suffix in (".jpg", ".wav", ".txt")]
    loose = ("identity_CelebA.txt", "list_attr_celeba.txt")
    content = {
      path.relative_to(place).as_posix(): path.read_bytes() for path in files if path.name not in loose
    }
    for path in files:
      if path.name not in loose:
        path.unlink()
    if kind == "zip":
      with zipfile.ZipFile(place / "all.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in content.items():
          archive.writestr(path, data)
    elif kind == "tar":
      packed(place, "all.tar.gz", content)
      with gzip.open(place / "all.tar.gz") as file:
        (place / "all.tar").write_bytes(file.read())
      (place / "all.tar.gz").unlink()
    else:
      packed(place, "all.tar.gz", content)

  return name, make


def _json_gz(folder, patch):
  small_files.write_small("femnist", folder, patch)
  for path in (folder / "femnist").rglob("*.json"):
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()


def _small(name):
  return name, lambda folder, patch: small_files.write_small(name, folder, patch)


READERS = {
  **{name: _small(name) for name in (
    "cifar100", "tiny_imagenet", "femnist", "shakespeare", "reddit", "celeba", "speech_commands", "isic2019",
    "mqp", "fsdd",
  )},
  "femnist.npz": ("femnist", lambda f, p: _npz(f / "femnist" / "femnist_by_writer.npz", p, False)),
  "femnist.npz, compressed": ("femnist", lambda f, p: _npz(f / "femnist" / "femnist_by_writer.npz", p, True)),
  "femnist.json.gz": ("femnist", _json_gz),
  "mnist.gz": ("mnist", _mnist),
  "heart": ("heart", _heart),
  "berka": ("berka", _berka),
  "ham10000.tar.gz": ("ham10000", _ham10000),
  "medmnist": ("bloodmnist", _medmnist),
  "celeba.zip": _archived("celeba", "zip"),
  "celeba.tar": _archived("celeba", "tar"),
  "speech_commands.tar.gz": _archived("speech_commands", "tar.gz"),
}  # fmt: skip


def damaged(rng, content):
  """A file's bytes with some bits flipped, a piece cut, doubled, exchanged, zeroed, or something put in."""
  own = bytearray(content)
  size = max(len(own), 1)
  at, other = sorted(rng.integers(0, size, 2).tolist())
  kind = rng.integers(0, 8)
  if rng.random() < 0.4:  # near the beginning or the end, where headers are
    at = int(rng.integers(0, min(200, size)))
    at = at if rng.random() < 0.6 else size - 1 - at
    other = min(size, at + int(rng.integers(1, 40)))
  if kind <= 2:
    for _ in range(int(rng.integers(1, 4))):
      if own:
        own[min(at, len(own) - 1)] ^= 1 << int(rng.integers(0, 8))
      at = int(rng.integers(0, size))
  elif kind == 3:
    del own[at:]
  elif kind == 4:
    del own[at:other]
  elif kind == 5:
    own[at:at] = own[at:other]
  elif kind == 6:
    own[at:other] = bytes(other - at)
  else:
    own[at:at] = rng.choice([b"\xff" * 9, b"-1", b"1e999", b"NaN", b'"', b"[" * 99, b"9" * 400, b"\x00" * 8])
  return bytes(own)


def possible(source, whole):
  """Whether a data set that was read can be one: as the whole one, but for values and rows."""
  if len(source.y) and not (source.y.min() >= 0 and source.y.max() < max(source.num_classes, 1)):
    return False
  for own, other in zip(jax.tree.leaves(source.x), jax.tree.leaves(whole.x)):
    if own.dtype != other.dtype or own.shape[1:] != other.shape[1:] or len(own) != len(source.y):
      return False
    if own.dtype.kind == "f" and np.isinf(own).any():
      return False
  return source.groups is None or len(source.groups) == len(source.y)


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_damaged_files_are_errors_or_data(reader, tmp_path, monkeypatch):
  name, make = READERS[reader]
  make(tmp_path, monkeypatch)
  whole = sources.load(name, tmp_path)
  files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
  rng = np.random.default_rng([SEED, zlib.crc32(reader.encode())])
  wrong = []
  for trial in range(TRIALS):
    path = files[int(rng.integers(0, len(files)))]
    content = path.read_bytes()
    path.write_bytes(damaged(rng, content))
    try:
      if not possible(sources.load(name, tmp_path), whole):
        wrong.append((trial, path.name, "read as what cannot be"))
    except DataError as error:
      if str(tmp_path) not in str(error) and name not in str(error):
        wrong.append((trial, path.name, str(error)))
    except Exception as error:  # whatever is no error of ours
      wrong.append((trial, path.name, repr(error)[:300]))
    path.write_bytes(content)
  assert not wrong
  again = sources.load(name, tmp_path)
  jax.tree.map(np.testing.assert_array_equal, (again.x, again.y), (whole.x, whole.y))


def _safetensors(path, arrays):
  header, offset = {}, 0
  for name, own in arrays.items():
    header[name] = {"dtype": "F32", "shape": own.shape, "data_offsets": [offset, offset + own.nbytes]}
    offset += own.nbytes
  text = json.dumps(header).encode()
  path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(own.tobytes() for own in arrays.values()))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["safetensors", "npz", "compressed npz"])
def test_damaged_weights_are_errors_or_arrays(kind, tmp_path):
  rng = np.random.default_rng([SEED, zlib.crc32(kind.encode())])
  arrays = {f"params/fc{i}/kernel": rng.random((7, i + 1)).astype(np.float32) for i in range(4)}
  path = tmp_path / f"a.{kind.split()[-1]}"
  if kind == "safetensors":
    _safetensors(path, arrays)
  else:
    (np.savez if kind == "npz" else np.savez_compressed)(path, **arrays)
  content = path.read_bytes()
  for _ in range(10 * TRIALS):
    path.write_bytes(damaged(rng, content))
    try:
      found = read_arrays(path)
    except DataError as error:
      assert str(path) in str(error)
      continue
    assert all(own.dtype.kind in "biufV" for own in found.values())
    if kind != "safetensors":  # which have a sum of what they hold
      for name in {*found} & {*arrays}:
        np.testing.assert_array_equal(found[name], arrays[name])


BOMB = 2**28 + 2**27  # bytes
ZEROS = bytes(1 << 24)
TABLES = {"mnist": [*idx.SHAPES], "heart": [heart.file_name(hospital) for hospital in heart.ROWS]}


def bomb(path, head=b""):
  """A small file that unpacks to zeros: a .gz, or an .npz."""
  path.parent.mkdir(parents=True)
  if path.suffix == ".npz":
    opened = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
  else:
    opened = gzip.open(path, "wb", compresslevel=1)  # noqa: SIM115
  with opened as file, file.open("train_images.npy", "w") if path.suffix == ".npz" else file as inside:
    inside.write(head)
    for _ in range(BOMB // len(ZEROS)):
      inside.write(ZEROS)
  assert path.stat().st_size < 4_000_000


@pytest.mark.parametrize(
  ("name", "file"),
  [
    ("mnist", "train-images-idx3-ubyte.gz"),
    *(pytest.param(*own, marks=pytest.mark.slow) for own in (
      ("cifar10", "data_batch_1.bin.gz"), ("heart", "processed.va.data.gz"), ("mqp", "mqp.csv.gz"),
      ("femnist", "train/a_train_9.json.gz"), ("celeba", "identity_CelebA.txt.gz"),
      ("speech_commands", "all.tar.gz"), ("bloodmnist", "bloodmnist_64.npz"),
    )),
  ],
)  # fmt: skip
def test_a_small_file_of_zeros_is_not_unpacked(name, file, tmp_path, monkeypatch):
  folder = tmp_path / sources.FOLDERS[name][0]
  header = tarfile.TarInfo("yes/00000000_nohash_0.wav")
  header.size = BOMB
  bomb(folder / file, header.tobuf() if file.endswith(".tar.gz") else b"")
  for other in TABLES.get(name, []):
    if not (folder / f"{other}.gz").exists():
      (folder / other).write_bytes(b"")
  if name == "heart":
    monkeypatch.setattr(heart, "ROWS", {"va": 200})
  if name == "celeba":
    write(folder, {"list_attr_celeba.txt": "1\nSmiling\n000001.jpg 1\n"})
  with pytest.raises(DataError, match="holds or unpacks to more than"):
    sources.load(name, tmp_path)


def test_one_that_is_read_whole_is_read_as_it_was_packed(tmp_path):
  np.savez_compressed(
    tmp_path / "a.npz", zeros=np.zeros((2000, 2000), np.float32), f=np.asfortranarray(np.eye(3))
  )
  found = read_npz(tmp_path / "a.npz")
  assert found["zeros"].shape == (2000, 2000) and not found["zeros"].any()
  np.testing.assert_array_equal(found["f"], np.eye(3))
  with pytest.raises(DataError, match="holds or unpacks to more than 1 MB"):
    read_npz(tmp_path / "a.npz", 1_000_000)


@pytest.mark.parametrize("size", [10**6, 10**9])
@pytest.mark.parametrize("name", ["digits", "celeba", "isic2019", "mqp"])
def test_sizes_that_no_memory_holds(name, size, tmp_path, monkeypatch):
  if name != "digits":
    small_files.write_small(name, tmp_path, monkeypatch)
  setting = {"digits": "resize", "mqp": "length"}.get(name, "size")
  if name == "mqp":
    size = min(size, 10**6) * 2000
  with pytest.raises(SettingError, match=rf"{setting} = {size}: .*would take .*B, and this machine has"):
    sources.load(name, tmp_path, **{setting: size})
