"""Files where torchvision puts them: MNIST/raw, FashionMNIST/raw and the folders of CIFAR's pickles."""

import gzip
import hashlib
import pickle
import shutil

import numpy as np
import pytest
from pictures import write
from test_data_images import python2, tiny_cifar100  # noqa: F401
from test_data_sources import tiny_mnist  # noqa: F401

from fedjax_het.data import cifar, idx, sources
from fedjax_het.errors import DataError


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", ["MNIST/raw", "mnist/MNIST/raw", "mnist/raw"])
def test_mnist_as_torchvision_has_it(tiny_mnist, place, zipped, monkeypatch):  # noqa: F811
  root, arrays = tiny_mnist
  files = {path.name: path.read_bytes() for path in (root / "mnist").iterdir()}
  shutil.rmtree(root / "mnist")
  digests = {}
  for name in arrays:
    content = files.get(name) or gzip.decompress(files[f"{name}.gz"])
    raw = gzip.compress(content, mtime=0)
    digests[name] = hashlib.sha256(raw).hexdigest(), hashlib.sha256(content).hexdigest()
    write(root / place, {f"{name}.gz": raw} if zipped else {name: content})
  monkeypatch.setitem(idx.SHA256, "mnist", digests)
  source = sources.load("mnist", root)
  np.testing.assert_array_equal(source.x[..., 0], arrays["train-images-idx3-ubyte"])
  np.testing.assert_array_equal(source.y_test, arrays["t10k-labels-idx1-ubyte"])
  shutil.move(root / place, root / "moved")
  (root / "FashionMNIST").mkdir()
  shutil.move(root / "moved", root / "FashionMNIST" / "raw")
  monkeypatch.setitem(idx.SHA256, "fashion_mnist", digests)
  assert len(sources.load("fashion_mnist", root).y) == 4
  with pytest.raises(DataError, match="torchvision's folder MNIST/raw"):
    sources.load("mnist", root)


@pytest.fixture
def pickles(monkeypatch):
  rng = np.random.default_rng(0)
  found, md5 = {}, {}
  for name in cifar.PICKLED:
    batch = {b"data": rng.integers(0, 256, (5, 3072), np.uint8), b"labels": rng.integers(0, 10, 5).tolist()}
    found[name] = python2(pickle.dumps(batch, protocol=3)), batch
    md5[name] = hashlib.md5(found[name][0], usedforsecurity=False).hexdigest()
  monkeypatch.setattr(cifar, "PICKLED", md5)
  return found


@pytest.mark.parametrize("place", ["cifar-10-batches-py", "cifar10/cifar-10-batches-py"])
def test_cifar10_of_pickles(tmp_path, pickles, place):
  write(tmp_path / place, {name: content for name, (content, _) in pickles.items()})
  source = sources.load("cifar10", tmp_path)
  batches = [batch for _, batch in pickles.values()]
  pixels = np.concatenate([batch[b"data"] for batch in batches[:5]]).reshape(-1, 3, 32, 32)
  np.testing.assert_array_equal(source.x, pixels.transpose(0, 2, 3, 1))
  assert source.y.tolist() == [label for batch in batches[:5] for label in batch[b"labels"]]
  assert source.y_test.tolist() == batches[5][b"labels"] and source.x_test.shape == (5, 32, 32, 3)
  assert source.files == tuple(pickles)


def test_pickles_run_nothing(tmp_path, pickles, monkeypatch):
  evil = pickle.dumps({"data": shutil.rmtree}, protocol=2)
  write(tmp_path / "cifar10" / "cifar-10-batches-py", {"data_batch_1": evil})
  with pytest.raises(DataError, match="data_batch_1 is not the file its authors ship: md5"):
    sources.load("cifar10", tmp_path)
  monkeypatch.setitem(cifar.PICKLED, "data_batch_1", hashlib.md5(evil, usedforsecurity=False).hexdigest())
  with pytest.raises(DataError, match=r"data_batch_1 is no pickle of arrays.*: shutil\.rmtree is no"):
    sources.load("cifar10", tmp_path)


def test_cifar100_beside_its_folder(tiny_cifar100):  # noqa: F811
  folder, _, _, fine = tiny_cifar100
  shutil.move(folder / "cifar100", folder / "cifar-100-binary")
  np.testing.assert_array_equal(sources.load("cifar100", folder).y, fine)
