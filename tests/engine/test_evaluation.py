"""Evaluation against a loop over clients and models."""

import chex
import jax
import numpy as np
import pytest
from small_parts import CLASSES, SIZES, federation, mlp, rows_of

from fedjax_het.clients.sgd import fedavg
from fedjax_het.clients.superfed import superfed
from fedjax_het.engine import evaluate as evaluation_module
from fedjax_het.engine.engine import Engine
from fedjax_het.federated import federated

LOCAL = dict(lr=0.1, epochs=1, batch_size=4)


def plain_metrics(logits, y):
  """Top-1 accuracy and mean cross-entropy in float64."""
  shifted = logits - logits.max(1, keepdims=True)
  log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
  return {"top1": np.mean(logits.argmax(1) == y), "loss": -log_p[np.arange(len(y)), y].mean()}


def mlp_logits(params, x):
  params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
  h = np.tanh(x @ params["fc1"]["kernel"] + params["fc1"]["bias"])
  return h @ params["fc2"]["kernel"] + params["fc2"]["bias"]


@pytest.mark.slow
@pytest.mark.parametrize("part, devices", [("test", 1), ("train", 8)])
def test_evaluation_is_a_loop_over_clients_and_lambdas(part, devices):
  data = federation(SIZES, tests=[0 if i == 4 else 2 + 3 * i for i in range(len(SIZES))])
  client = superfed(mlp(), **LOCAL)
  engine = Engine(federated(client), data, 5, devices=devices)
  state, _ = engine.advance(engine.init(jax.random.key(0)), 2)
  evaluation = engine.evaluate(state, part)
  assert set(evaluation.global_) == {"top1", "top5", "loss", "ece", "mce"}
  for i in range(len(SIZES)):
    x, y = rows_of(data, i, part)
    own = jax.tree.map(lambda leaf: np.asarray(leaf[i], np.float64), state.clients)
    models = [
      jax.tree.map(lambda g, l: (1 - lam) * np.asarray(g, np.float64) + lam * l, state.broadcast.params, own)
      for lam in client.studies.lambdas
    ]
    for name in ("top1", "loss"):
      personal, global_ = evaluation.personalized[name][i], evaluation.global_[name][i]
      if not len(y):
        assert np.isnan(personal).all() and np.isnan(global_)
        continue
      expected = [plain_metrics(mlp_logits(params, x), y)[name] for params in models]
      np.testing.assert_allclose(personal, expected, rtol=1e-5, atol=1e-7)
      np.testing.assert_allclose(global_, expected[0], rtol=1e-5, atol=1e-7)
  assert np.ptp(evaluation.personalized["loss"][0]) > 0.01


@pytest.mark.parametrize("tests", [lambda i: 35, lambda i: (7 * i) % 36], ids=["equal", "unequal"])
def test_evaluation_in_pieces_is_evaluation_at_once(monkeypatch, tests):
  data, values = federation(SIZES, tests=[tests(i) for i in range(len(SIZES))]), []
  assert data.limits[2] == 35 and data.num_classes == CLASSES
  for rows, batch in ((512, 1), (10, 1), (10, None)):  # 35 rows: three pieces and a part of one
    monkeypatch.setattr(evaluation_module, "ROWS_AT_ONCE", rows)
    engine = Engine(federated(fedavg(mlp(), **LOCAL)), data, 5, devices=1, client_batch=batch)
    values.append(engine.evaluate(engine.init(jax.random.key(0))))
  for other in values[1:]:
    chex.assert_trees_all_close(values[0], other, rtol=1e-6, atol=1e-7)


def test_a_client_is_judged_on_no_more_blocks_than_its_rows_fill():
  """Each block is noted as it is put through the model."""
  model, blocks = mlp(), []

  def noted(params, x):
    jax.debug.callback(lambda: blocks.append(len(x)))
    return model.apply(params, x)

  tests = [(11 * i) % 40 for i in range(len(SIZES))]
  client = fedavg(model, **LOCAL)._replace(apply=noted)
  engine = Engine(federated(client), federation(SIZES, tests=tests), 5, devices=1)
  state = engine.init(jax.random.key(0))
  blocks.clear()
  engine.evaluate(state)
  jax.effects_barrier()
  assert max(tests) > 32
  once = sum(-(-count // 16) for count in tests)  # not twice: everyone's model is the global one
  assert blocks == [16] * once
