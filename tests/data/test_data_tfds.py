"""The TFDS way: MNIST prepared offline from its raw files is the MNIST our own loader reads.

TFDS runs in a process of its own, so that TensorFlow stays out of the other tests.
"""

import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
from realdata import real_data

from fedjax_het.data import sources

pytestmark = pytest.mark.slow

SCRIPT = """
import socket, sys
import numpy as np
import tensorflow_datasets as tfds
from fedjax_het.data import sources
from fedjax_het.errors import DataError

raw, empty, out = sys.argv[1:]

def no_network(*args, **kwargs):
  raise OSError("no network in this test")

socket.getaddrinfo = no_network
try:
  sources.load("mnist", empty)
except DataError as error:
  message = str(error)
config = tfds.download.DownloadConfig(manual_dir=raw)
tfds.builder("mnist").download_and_prepare(download_config=config)
source = sources.load("mnist", empty)
np.savez(out, message=message, files=source.files, classes=source.num_classes,
         x=source.x, y=source.y, x_test=source.x_test, y_test=source.y_test)
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  for module in ("tensorflow", "tensorflow_datasets", "importlib_resources"):
    if importlib.util.find_spec(module) is None:
      pytest.skip(f"{module} is not installed")
  raw = real_data("mnist") / "mnist"
  folder = tmp_path_factory.mktemp("tfds")
  (folder / "empty").mkdir()
  env = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
  env |= {"TFDS_DATA_DIR": str(folder / "tfds"), "TF_CPP_MIN_LOG_LEVEL": "3"}
  args = [sys.executable, "-c", SCRIPT, str(raw), str(folder / "empty"), str(folder / "out.npz")]
  done = subprocess.run(args, env=env, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr[-3000:]
  return np.load(folder / "out.npz")


def test_without_copy_and_network_the_error_says_both_ways(prepared):
  message = str(prepared["message"])
  for part in ("train-images-idx3-ubyte", "empty/mnist", "https://", "TFDS_DATA_DIR", "no network"):
    assert part in message


@pytest.mark.parametrize("suffix", ["", "_test"])
def test_tfds_gives_the_same_images_and_labels(prepared, suffix):
  """TFDS shuffles when it prepares: equal as multisets of (image, label)."""
  ours = sources.load("mnist", real_data("mnist"))._asdict()

  def rows(images, labels):
    return sorted(image.tobytes() + bytes([label]) for image, label in zip(images, labels, strict=True))

  x, y = prepared[f"x{suffix}"], prepared[f"y{suffix}"]
  assert x.dtype == np.uint8
  assert y.dtype == np.int32
  assert x.shape == ours[f"x{suffix}"].shape
  assert rows(x, y) == rows(ours[f"x{suffix}"], ours[f"y{suffix}"])
  assert prepared["classes"] == 10
  assert prepared["files"][0].startswith("tfds:mnist/")


OF_RECORDS = """
import sys
import numpy as np
import tensorflow_datasets as tfds
from fedjax_het.data import from_tfds, sources

from_tfds._check_network = lambda host: None
tfds.download.DownloadManager.download_and_extract = lambda manager, url: tfds.core.Path(sys.argv[1])
place = sys.argv[1].rpartition("/")[0]
fine, coarse = (sources.load("cifar100", place, labels=labels) for labels in ("fine", "coarse"))
np.savez(sys.argv[2], x=fine.x, y=fine.y, x_test=fine.x_test, coarse=coarse.y,
         classes=(fine.num_classes, coarse.num_classes), files=fine.files)
"""


def test_cifar100_has_both_kinds_of_labels(tmp_path):
  """TFDS prepares a few records of the authors' format."""
  for module in ("tensorflow", "tensorflow_datasets", "importlib_resources"):
    if importlib.util.find_spec(module) is None:
      pytest.skip(f"{module} is not installed")
  records = np.random.default_rng(0).integers(0, 256, (5, 3074), np.uint8)
  records[:, 0], records[:, 1] = (0, 19, 3, 4, 5), (99, 98, 20, 21, 22)
  folder = tmp_path / "records" / "cifar-100-binary"  # where TFDS alone looks
  folder.mkdir(parents=True)
  for part, own in (("train", records), ("test", records[:2])):
    (folder / f"{part}.bin").write_bytes(own.tobytes())
  for labels, count in (("fine", 100), ("coarse", 20)):
    names = "".join(f"{i}\n" for i in range(count))
    (folder / f"{labels}_label_names.txt").write_text(names)
  env = {**os.environ, "TFDS_DATA_DIR": str(tmp_path / "tfds"), "TF_CPP_MIN_LOG_LEVEL": "3"}
  args = [sys.executable, "-c", OF_RECORDS, str(tmp_path / "records"), str(tmp_path / "out.npz")]
  done = subprocess.run(args, env=env, capture_output=True, text=True, timeout=300)
  assert done.returncode == 0, done.stderr[-3000:]
  found = np.load(tmp_path / "out.npz")
  assert found["classes"].tolist() == [100, 20] and found["files"][0].startswith("tfds:cifar100/")
  assert found["x_test"].shape == (2, 32, 32, 3) and found["x"].dtype == np.uint8
  images = records[:, 2:].reshape(5, 3, 32, 32).transpose(0, 2, 3, 1)
  order = np.argsort(found["y"])
  np.testing.assert_array_equal(found["y"][order], np.sort(records[:, 1]))
  np.testing.assert_array_equal(found["coarse"][order], records[np.argsort(records[:, 1]), 0])
  np.testing.assert_array_equal(found["x"][order], images[np.argsort(records[:, 1])])
