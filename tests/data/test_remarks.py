"""Labels counted from 1 are remarked on; weights that the data's task has alone are refused."""

import jax
import numpy as np
import pytest

import fedjax_het as fh

X, PARTS, KEY = np.ones((12, 2), np.float32), np.array_split(np.arange(12), 2), jax.random.key(0)


def test_labels_counted_from_one_are_remarked_on():
  for y, count in ((np.arange(12) % 3 + 1, 1), (np.arange(12) % 3, 0), (np.arange(12) % 2 + 1, 1)):
    said: list[str] = []
    fh.federate(X, y, PARTS, KEY, num_classes=int(y.max()) + 1, tell=said.append)
    assert len(said) == count and all("y - 1" in one for one in said)


def test_weights_of_the_data_alone_are_refused():
  task = fh.tasks.classification((1.0, 2.0, 3.0))
  data = fh.federate(X, np.arange(12) % 3, PARTS, KEY, num_classes=3, task=task)
  model = fh.models.two_nn(shape=(2,), hidden=3, num_classes=3)
  with pytest.raises(fh.SettingError, match=r"task = 'weights \(1\.0, 2\.0, 3\.0\)'.*task=task"):
    fh.Engine(fh.federated(fh.fedavg(model)), data, 2)
