"""The README's Python is run as it stands."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


def test_pure_function_example():
  code = BLOCKS[0]
  assert len([line for line in code.splitlines() if line.strip()]) < 15
  names: dict = {}
  exec(code, names)
  top1 = names["result"].metrics["personalized"]["top1"]
  assert set(top1) == {"mean", "std", "worst10", "best10", "gini", "gap"}
  assert top1["mean"] > 0.9


def test_added_method_runs():
  names: dict = {}
  exec(BLOCKS[1], names)
  fh = names["fh"]
  x = np.random.default_rng(0).normal(size=(60, 4, 1, 1)).astype(np.float32)
  y = (x[:, 0, 0, 0] > 0).astype(np.int32)
  data = fh.federate(x, y, np.split(np.arange(60), 3), jax.random.key(0), num_classes=2)
  client = names["fedsgd"](fh.models.two_nn(shape=(4, 1, 1), num_classes=2, hidden=8), lr=0.5)
  result = fh.run(fh.federated(client), data, rounds=30, cohort_size=3, key=jax.random.key(1))
  assert result.metrics["global"]["top1"]["mean"] > 0.8
  assert jnp.all(result.state.round == 30)
