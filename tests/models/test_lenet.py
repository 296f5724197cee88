"""LeNet against NumPy: convolutions as sums of shifted products, pooling by hand."""

import jax
import numpy as np
import pytest

from fedjax_het import models
from fedjax_het.errors import SettingError


@pytest.mark.parametrize(
  ("shape", "options", "count"),
  [
    ((28, 28, 1), {}, 44_426),
    ((32, 32, 3), {}, 62_006),
    ((28, 28, 1), {"hidden": 32, "second": 64, "dense": 512, "last": None}, 582_026),
  ],
)
def test_parameters(shape, options, count):
  model = models.make("lenet", shape, 10, **options)
  params = jax.eval_shape(model.init, jax.random.key(0))
  assert models.count_parameters(params) == count and model.head[0] in params


@pytest.mark.parametrize("last", [4, None])
def test_logits(last):
  rng = np.random.default_rng(0)
  model = models.lenet((19, 17, 2), 3, hidden=2, second=3, dense=5, last=last)
  params = jax.tree.map(
    lambda p: np.float32(p + 0.1 * rng.normal(size=p.shape)), model.init(jax.random.key(0))
  )
  h = x = rng.normal(size=(4, 19, 17, 2)).astype(np.float32)
  for name in ("conv1", "conv2"):
    layer, (rows, columns) = params[name], (h.shape[1] - 4, h.shape[2] - 4)
    h = layer["bias"] + sum(
      h[:, i : i + rows, j : j + columns] @ layer["kernel"][i, j] for i in range(5) for j in range(5)
    )
    rows, columns = rows // 2, columns // 2
    h = np.maximum(h, 0.0)[:, : 2 * rows, : 2 * columns].reshape(4, rows, 2, columns, 2, -1).max((2, 4))
  h = h.reshape(4, -1)
  dense = [params[name] for name in sorted(params) if name.startswith("fc")]
  assert len(dense) == (2 if last is None else 3)
  for layer in dense[:-1]:
    h = np.maximum(h @ layer["kernel"] + layer["bias"], 0.0)
  wanted = h @ dense[-1]["kernel"] + dense[-1]["bias"]
  np.testing.assert_allclose(model.apply(params, x), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
  ("call", "word"),
  [
    (lambda: models.lenet((15, 28, 1)), "16 x 16"),
    (lambda: models.lenet((784,)), "two_nn"),
    (lambda: models.lenet(last=0), "last"),
    (lambda: models.lenet(conv="patch"), "patches"),
  ],
)
def test_what_cannot_be(call, word):
  with pytest.raises(SettingError, match=word):
    call()
