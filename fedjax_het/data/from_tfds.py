"""Image data sets through TensorFlow Datasets (TFDS); TensorFlow is imported only here and when needed."""

import os
import socket

import numpy as np
from absl import logging

from fedjax_het.data.files import Source
from fedjax_het.errors import DataError

# The hosts that TFDS downloads from: a missing network is noticed at once, where TFDS retries for minutes.
HOSTS = {
  "mnist": "storage.googleapis.com",
  "fashion_mnist": "fashion-mnist.s3-website.eu-central-1.amazonaws.com",
  "cifar10": "www.cs.toronto.edu",
  "cifar100": "www.cs.toronto.edu",
}


def load_tfds(name: str, labels: str = "fine") -> Source:
  """Loads the data set `name` from a copy that TFDS has prepared, else lets TFDS download it.

  Rows are in TFDS's shuffled order.

  TFDS keeps its copies in TFDS_DATA_DIR, else ~/tensorflow_datasets. `labels`, "fine" or "coarse", is an
  option of cifar100.

  Raises:
    DataError: TensorFlow is not installed, or there is no prepared copy and the download fails.
  """
  try:
    import tensorflow  # noqa: F401
    import tensorflow_datasets as tfds
  except ImportError as error:
    raise DataError(
      f"TFDS was not asked, because TensorFlow is not installed ({error}): pip install 'fedjax_het[tfds]'."
    ) from error
  label = "coarse_label" if labels == "coarse" else "label"
  try:
    builder = tfds.builder(name)
    if not builder.is_prepared():
      _check_network(HOSTS[name])
      logging.info("%s: TFDS downloads it to %s", name, builder.data_path)
      builder.download_and_prepare()
    sets = tfds.as_numpy(builder.as_dataset(split=["train", "test"], batch_size=-1))
  except Exception as error:  # whatever goes wrong in there: no network, no space, a changed checksum
    reason = next(iter(str(error).splitlines()), "")[:300]
    raise DataError(
      "TFDS has no prepared copy (it looks in TFDS_DATA_DIR, else ~/tensorflow_datasets) and could not make"
      f" one: {type(error).__name__}: {reason}"
    ) from error
  (x, y), (x_test, y_test) = ((split["image"], split[label].astype(np.int32)) for split in sets)
  classes = builder.info.features[label].num_classes
  return Source(x, y, x_test, y_test, classes, name, None, (f"tfds:{builder.info.full_name}",))


def _check_network(host: str) -> None:
  """Raises `OSError` where the name `host` has no address; a proxy, where one is set, may resolve it."""
  if any(os.environ.get(name) for name in ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY")):
    return
  try:
    socket.getaddrinfo(host, 443)
  except OSError as error:
    raise OSError(f"no network, {host} has no address here ({error})") from error
