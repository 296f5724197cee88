"""Data sets by name: the digits, tiny files made here, damaged files, and the real ones where they are."""

import gzip
import hashlib
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from realdata import real_data
from sklearn import datasets

from fedjax_het.data import cifar, files, idx, leaf, packed, sources
from fedjax_het.errors import DataError, SettingError


def idx_bytes(array):
  """`array` as an idx file, written by the format's description."""
  return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def no_tfds(name):
  raise DataError("TFDS was not asked.")


@pytest.fixture
def tiny_mnist(tmp_path, monkeypatch):
  """data_dir with a four-image "MNIST" and published checksums to match."""
  rng = np.random.default_rng(0)
  (tmp_path / "mnist").mkdir()
  shapes, digests, arrays = {}, {}, {}
  for i, file in enumerate(idx.SHAPES):
    arrays[file] = rng.integers(0, 10, (4, 28, 28) if "images" in file else (4,), np.uint8)
    content = idx_bytes(arrays[file])
    raw = gzip.compress(content, mtime=0)
    plain = i == 1  # one of the four is not compressed
    (tmp_path / "mnist" / (file if plain else f"{file}.gz")).write_bytes(content if plain else raw)
    shapes[file] = arrays[file].shape
    digests[file] = hashlib.sha256(raw).hexdigest(), hashlib.sha256(content).hexdigest()
  monkeypatch.setattr(idx, "SHAPES", shapes)
  monkeypatch.setitem(idx.SHA256, "mnist", digests)
  monkeypatch.setattr(sources, "load_tfds", no_tfds)
  return tmp_path, arrays


@pytest.mark.parametrize("found", [True, False])
def test_digits_need_no_file(monkeypatch, found):
  if not found:  # as with another version of scikit-learn
    monkeypatch.setattr(sources, "find_digits", lambda: None)
  source = sources.load("digits", "/nowhere")
  theirs = datasets.load_digits()
  np.testing.assert_array_equal(source.x[..., 0], np.float32(theirs.images / 16.0))
  np.testing.assert_array_equal(source.y, theirs.target)
  assert source.x.shape == (1797, 8, 8, 1)
  assert source.x.dtype == np.float32
  assert (source.x.min(), source.x.max()) == (0.0, 1.0)
  assert source.y.dtype == np.int32
  assert set(source.y.tolist()) == set(range(10))
  assert source.x_test.shape == (0, 8, 8, 1)
  assert source.num_classes == 10


def test_some_of_the_examples_are_the_same_ones_in_every_run():
  whole, part, again = (
    sources.load("digits"),
    sources.load("digits", examples=100),
    sources.load("digits", examples=100),
  )
  place = {x.tobytes(): i for i, x in enumerate(whole.x)}
  rows = [place[x.tobytes()] for x in part.x]
  assert rows == sorted(rows) and len(set(rows)) == 100 and rows[-1] > 1000
  np.testing.assert_array_equal(part.y, whole.y[rows])
  np.testing.assert_array_equal(part.x, again.x)
  assert "100 of 1,797 examples, drawn at random, the same in every run" in part.notes
  assert sources.load("digits", resize=4, examples=50).x.shape == (50, 4, 4, 1)
  grouped = sources.fewer(whole._replace(groups=np.arange(1797), split=np.arange(1797) % 3), 5)
  np.testing.assert_array_equal(grouped.split, grouped.groups % 3)
  with pytest.raises(SettingError, match=r"examples = 1798: digits has 1797\. Use at most 1797"):
    sources.load("digits", examples=1798)
  with pytest.raises(SettingError, match="examples = 0"):
    sources.load("digits", examples=0)


def test_images_are_resized_as_pillow_does():
  source = sources.load("digits")
  bytes_of = source._replace(x=(255 * source.x[:5]).astype(np.uint8))
  larger = sources.resized(bytes_of, 13)
  assert larger.x.dtype == np.uint8 and larger.x_test.shape == (0, 13, 13, 1)
  for mine, image in zip(larger.x, bytes_of.x):
    theirs = Image.fromarray(image[..., 0]).resize((13, 13), Image.Resampling.BILINEAR)
    assert np.abs(mine[..., 0].astype(int) - np.asarray(theirs, int)).max() <= 1
  smaller = sources.load("digits", resize=4)
  assert smaller.x.shape == (1797, 4, 4, 1) and smaller.x.dtype == np.float32
  np.testing.assert_allclose(smaller.x.mean(), source.x.mean(), rtol=0.05)
  with pytest.raises(SettingError, match="resize = 32: heart has no images"):
    sources.resized(source._replace(x=source.x[:, 0, 0], name="heart"), 32)
  with pytest.raises(SettingError, match="resize = 32: mqp has no images"):
    sources.resized(source._replace(x={"tokens": source.x}, name="mqp"), 32)
  with pytest.raises(SettingError, match="resize = 0: out of range"):
    sources.load("digits", resize=0)
  with pytest.raises(SettingError, match=r"resize = 28.0: must be a whole number. Write 28"):
    sources.load("digits", resize=28.0)


def test_an_unknown_name_hears_the_nearest():
  with pytest.raises(SettingError, match="Did you mean 'fashion_mnist'"):
    sources.load("fashion-mnist")


@pytest.mark.parametrize("shape", [(3,), (2, 5), (2, 3, 4)])
def test_idx_round_trip(tmp_path, shape):
  array = np.random.default_rng(1).integers(0, 256, shape, np.uint8)
  np.testing.assert_array_equal(idx.parse_idx(tmp_path / "a", idx_bytes(array)), array)


@pytest.mark.parametrize(
  ("content", "problem"),
  [
    (b"", "not an idx file"),
    (b"\0\0\x08", "not an idx file"),
    (b"\0\0\x0d\1\0\0\0\1abcd", "not an idx file"),  # float32
    (b"\1\0\x08\1\0\0\0\1a", "not an idx file"),
    (b"\0\0\x08\0", "not an idx file"),
    (b"\0\0\x08\2\0\0\0\1", "truncated"),  # half a header
    (b"\0\0\x08\1\0\0\0\3ab", "truncated"),
    (b"\0\0\x08\1\0\0\0\3abcd", "truncated or damaged"),
    (b"\0\0\x08\2" + b"\xff" * 8, "truncated"),  # 2^64 values
  ],
)
def test_idx_that_is_not_one(tmp_path, content, problem):
  with pytest.raises(DataError, match=problem):
    idx.parse_idx(tmp_path / "a", content)


def test_idx_files_compressed_or_not(tiny_mnist, monkeypatch):
  folder, arrays = tiny_mnist
  source = sources.load("mnist", folder)
  x, y, x_test, y_test = arrays.values()
  np.testing.assert_array_equal(source.x, x[..., None])
  np.testing.assert_array_equal(source.y, y)
  np.testing.assert_array_equal(source.x_test, x_test[..., None])
  np.testing.assert_array_equal(source.y_test, y_test)
  assert source.x.dtype == np.uint8
  assert source.y.dtype == np.int32
  assert source.files[:2] == ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte")
  monkeypatch.setenv("FEDJAX_HET_DATA", str(folder))  # the default folder
  np.testing.assert_array_equal(sources.load("mnist").y, y)


def test_a_truncated_file_is_named(tiny_mnist):
  path = tiny_mnist[0] / "mnist" / "t10k-images-idx3-ubyte.gz"
  path.write_bytes(path.read_bytes()[:-20])
  with pytest.raises(DataError, match=rf"{path}.*truncated"):
    sources.load("mnist", tiny_mnist[0])


def test_a_file_that_is_no_gzip_is_named(tiny_mnist):
  path = tiny_mnist[0] / "mnist" / "t10k-images-idx3-ubyte.gz"
  path.write_bytes(b"<html>404</html>")
  with pytest.raises(DataError, match=rf"{path}.*damaged"):
    sources.load("mnist", tiny_mnist[0])


@pytest.mark.parametrize("file", ["train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte.gz"])
def test_a_wrong_checksum_is_named(tiny_mnist, file):
  path = tiny_mnist[0] / "mnist" / file
  content = idx_bytes(np.zeros(4, np.uint8))
  path.write_bytes(gzip.compress(content) if file.endswith(".gz") else content)
  with pytest.raises(DataError, match=rf"{path} is not the file its authors ship: sha256"):
    sources.load("mnist", tiny_mnist[0])


def test_a_wrong_shape_is_named(tiny_mnist):
  path = tiny_mnist[0] / "mnist" / "train-labels-idx1-ubyte"
  path.write_bytes(idx_bytes(np.zeros(5, np.uint8)))
  with pytest.raises(DataError, match=rf"{path} holds an array of shape \(5,\)"):
    sources.load("mnist", tiny_mnist[0])


def test_one_missing_among_four_is_named(tiny_mnist):
  (tiny_mnist[0] / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
  with pytest.raises(DataError, match=rf"t10k-labels-idx1-ubyte.gz.*looked in {tiny_mnist[0] / 'mnist'}"):
    sources.load("mnist", tiny_mnist[0])


@pytest.mark.parametrize(
  ("name", "folder", "file"),
  [
    ("mnist", "mnist", "train-images-idx3-ubyte"),
    ("fashion_mnist", "fashion-mnist", "train-images-idx3-ubyte"),
    ("cifar10", "cifar10", "data_batch_1.bin"),
  ],
)
def test_nothing_found_says_what_where_and_how(tmp_path, monkeypatch, name, folder, file):
  monkeypatch.setitem(sys.modules, "tensorflow", None)  # import raises ImportError
  monkeypatch.chdir(tmp_path)
  monkeypatch.delenv("FEDJAX_HET_DATA", raising=False)
  with pytest.raises(DataError) as error:
    sources.load(name)
  for part in (file, str(tmp_path / "data" / folder), "https://", "pip install 'fedjax_het[tfds]'"):
    assert part in str(error.value)


@pytest.mark.slow
def test_nothing_else_imports_tensorflow():
  code = (
    "import sys; from fedjax_het.data import container, partition, sources; sources.load('digits');"
    "assert not [m for m in sys.modules if m.startswith('tensorflow')]"
  )
  subprocess.run([sys.executable, "-c", code], check=True)


def cifar_batch(labels, seed=0):
  """Images [n, 32, 32, 3] and their batch file: a label, then the planes R, G, B."""
  images = np.random.default_rng(seed).integers(0, 256, (len(labels), 32, 32, 3), np.uint8)
  records = [bytes([y]) + b"".join(im[..., c].tobytes() for c in range(3)) for y, im in zip(labels, images)]
  return images, b"".join(records)


def test_cifar_batches_in_order_with_the_longest_partial_test(tmp_path, monkeypatch):
  folder = tmp_path / "cifar10" / "cifar-10-batches-bin"  # as the authors' archive unpacks
  folder.mkdir(parents=True)
  one, one_bytes = cifar_batch([3, 9], 1)
  four, four_bytes = cifar_batch([0], 4)
  test, test_bytes = cifar_batch([5, 6, 7], 5)
  (folder / "data_batch_4.bin").write_bytes(four_bytes)
  (folder / "data_batch_1.bin.gz").write_bytes(gzip.compress(one_bytes))
  (folder / "test_batch_first3.bin.gz").write_bytes(gzip.compress(test_bytes))
  (folder / "test_batch_first1.bin").write_bytes(test_bytes[: cifar.RECORD])
  for file, content in (("data_batch_1.bin", one_bytes), ("data_batch_4.bin", four_bytes)):
    monkeypatch.setitem(cifar.MD5, file, hashlib.md5(content).hexdigest())
  source = sources.load("cifar10", tmp_path)
  np.testing.assert_array_equal(source.x, np.concatenate([one, four]))
  assert source.y.tolist() == [3, 9, 0]
  np.testing.assert_array_equal(source.x_test, test)
  assert source.y_test.tolist() == [5, 6, 7]
  assert source.files == ("data_batch_1.bin.gz", "data_batch_4.bin", "test_batch_first3.bin.gz")
  assert source.notes == ("3 of 50,000 training images (2 of five batches)", "3 of 10,000 test images")
  for path in folder.glob("test_*"):
    path.unlink()
  none = sources.load("cifar10", tmp_path)
  assert none.x_test.shape == (0, 32, 32, 3) and none.notes[1] == "0 of 10,000 test images"
  monkeypatch.setattr(cifar, "SHIPPED", (3, 0))
  assert not sources.load("cifar10", tmp_path).notes


@pytest.mark.parametrize(
  ("file", "content", "problem"),
  [
    ("data_batch_2.bin", cifar_batch([1, 2])[1][:-1], "truncated"),
    ("data_batch_2.bin", b"", "truncated"),
    ("data_batch_2.bin", cifar_batch([10])[1], "label 10"),
    ("data_batch_2.bin", cifar_batch([1])[1], "not the file its authors ship: md5"),
    ("test_batch.bin", cifar_batch([1])[1], "not the file its authors ship: md5"),
    ("test_batch_first2.bin", cifar_batch([1])[1], "1 records, not 2"),
  ],
)
def test_a_cifar_batch_that_is_damaged_is_named(tmp_path, monkeypatch, file, content, problem):
  good = cifar_batch([4])[1]
  monkeypatch.setitem(cifar.MD5, "data_batch_1.bin", hashlib.md5(good).hexdigest())
  (tmp_path / "cifar10").mkdir()
  (tmp_path / "cifar10" / "data_batch_1.bin").write_bytes(good)
  (tmp_path / "cifar10" / file).write_bytes(content)
  with pytest.raises(DataError, match=rf"{tmp_path / 'cifar10' / file}.*{problem}"):
    sources.load("cifar10", tmp_path)


@pytest.mark.slow
def test_the_real_mnist_files(tmp_path):
  data = real_data("mnist")
  source = sources.load("mnist", data)
  assert source.x.shape == (60000, 28, 28, 1)
  assert source.x_test.shape == (10000, 28, 28, 1)
  assert source.y[:5].tolist() == [5, 0, 4, 1, 9]
  assert np.bincount(source.y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
  np.testing.assert_allclose(source.x.mean() / 255, 0.1307, atol=1e-4)
  (tmp_path / "mnist").mkdir()  # the same files uncompressed
  for path in (data / "mnist").glob("*.gz"):
    (tmp_path / "mnist" / path.stem).write_bytes(files.read(path)[1])
  np.testing.assert_array_equal(sources.load("mnist", tmp_path).x_test, source.x_test)


@pytest.mark.slow
def test_the_real_fashion_mnist_files(tmp_path):
  data = real_data("fashion-mnist")
  source = sources.load("fashion_mnist", data)
  assert np.bincount(source.y).tolist() == [6000] * 10
  assert np.bincount(source.y_test).tolist() == [1000] * 10
  np.testing.assert_allclose(source.x.mean() / 255, 0.2860, atol=1e-4)
  shutil.copytree(data / "fashion-mnist", tmp_path / "mnist")  # in the other's folder
  with pytest.raises(DataError, match="not the file its authors ship"):
    sources.load("mnist", tmp_path)


@pytest.mark.slow
def test_the_real_cifar10_batches():
  source = sources.load("cifar10", real_data("cifar10"))
  assert source.files[0].removesuffix(".gz") == "data_batch_1.bin"
  assert source.x.shape[1:] == source.x_test.shape[1:] == (32, 32, 3)
  assert source.y[:5].tolist() == [6, 9, 9, 4, 1]
  assert source.x[0, 0, 0].tolist() == [59, 62, 63]
  assert source.y_test[:4].tolist() == [3, 8, 8, 0]


def test_files_below_linked_folders_are_found_once(tmp_path):
  (tmp_path / "there" / "train").mkdir(parents=True)
  (tmp_path / "there" / "train" / "a.json").write_text("{}")
  (tmp_path / "here").mkdir()
  (tmp_path / "here" / "leaf").symlink_to(tmp_path / "there")
  (tmp_path / "there" / "round").symlink_to(tmp_path / "here")  # and round
  assert [path.name for path, _ in leaf.leaf_files(tmp_path / "here")] == ["a.json"]
  assert packed.names(tmp_path / "here") == ["leaf/train/a.json"]


def test_a_source_prints_itself_in_a_line():
  said = "Source(digits: 1,797 rows, examples float32 [8, 8, 1], 10 classes)"
  assert repr(sources.load("digits")) == said
