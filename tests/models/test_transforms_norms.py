"""Frozen layers and adapters of models with running statistics, which follow the data and are sent."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import REPRESENTATIVE, client
from flax import linen as nn

import fedjax_het as fh
from fedjax_het.methods import CLIENTS
from fedjax_het.models import GENERATORS, frozen, lora, merged
from fedjax_het.parts import Context

KEY = jax.random.key(3)
RNG = np.random.default_rng(0)
SUPERVISED = [
  name for name, method in CLIENTS.items()
  if method.models is not GENERATORS and name in REPRESENTATIVE
]  # fmt: skip


class Net(nn.Module):
  @nn.compact
  def __call__(self, x, train: bool):
    h = nn.Dense(6, name="fc1")(x.reshape(len(x), -1))
    h = nn.BatchNorm(use_running_average=not train, momentum=0.5, name="norm")(h)
    return nn.Dense(3, name="fc2")(nn.relu(h))


def net():
  return fh.models.from_flax(Net(), (4,), 3, head=("fc2",))


CASES = {
  "layer": lambda model: frozen(model, "fc1"), "norm too": lambda model: frozen(model, "fc1,norm"),
  "adapters": lambda model: lora(model, rank=2),
  "of frozen": lambda model: lora(frozen(model, "norm"), rank=2),
}  # fmt: skip


@pytest.mark.parametrize("make", CASES.values(), ids=[*CASES])
def test_both_modes_are_those_of_the_whole_model_with_the_same_statistics(make):
  model, x = net(), jnp.asarray(RNG.normal(2.0, 3.0, (5, 4)), jnp.float32)
  own, real = make(model), jnp.array([1.0, 1.0, 1.0, 1.0, 0.0])
  params = jax.tree.map(lambda leaf: leaf + 0.1, own.init(KEY))
  whole = merged(own, params)
  assert own.stateful and {*whole} == {"fc1", "norm", "fc2"}
  jax.tree.map(np.testing.assert_array_equal, own.stats, model.stats)
  moved, of_model = (
    m.in_training(p, m.stats, x, real, KEY) for m, p in ((own, params), (model, whole))
  )  # fmt: skip
  jax.tree.map(np.testing.assert_array_equal, moved, of_model)
  assert not np.array_equal(moved[1]["norm"]["mean"], own.stats["norm"]["mean"])  # also of a frozen norm
  np.testing.assert_array_equal(own.apply(params, x, moved[1]), model.apply(whole, x, moved[1]))


def kept_by_optax(model, own):
  """The whole model from the same start, and Optax's optimiser that moves only what `own` trains."""
  trained = jax.eval_shape(own.init, KEY)

  def labels(params):
    return {
      layer: {name: "moved" if name in trained.get(layer, {}) else "kept" for name in weights}
      for layer, weights in params.items()
    }

  started = model._replace(init=lambda key: merged(own, own.init(key)))
  return started, lambda rate: optax.multi_transform(
    {"moved": optax.sgd(rate), "kept": optax.set_to_zero()}, labels
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ("model", "layers"),
  [
    (fh.models.leaf_cnn((16, 16, 1), 3, width=8, norm="batch"), "conv1,norm1,conv2"),
    (fh.models.from_flax(Net(), (16, 16, 1), 3), "fc1,norm"),
  ],
  ids=["leaf_cnn", "flax"],
)
def test_a_run_with_frozen_layers_is_one_whose_optimiser_keeps_them(model, layers):
  x, y = RNG.normal(size=(90, 16, 16, 1)).astype(np.float32), np.arange(90) % 3
  data = fh.data.from_arrays(jax.random.key(0), x, y, num_clients=4)
  own = frozen(model, layers)
  whole, optimizer = kept_by_optax(model, own)
  given = dict(rounds=2, cohort_size=3, key=KEY, devices=1)
  settings = dict(lr=0.05, epochs=1, batch_size=10)
  parts = fh.fedavg(own, **settings, optimizer="optax.sgd"), fh.fedavg(whole, **settings, optimizer=optimizer)
  found, other = (fh.run(fh.federated(part), data, **given) for part in parts)
  sent, of_whole = found.state.broadcast, other.state.broadcast
  chex.assert_trees_all_close(merged(own, sent.params), of_whole.params, rtol=1e-4, atol=1e-5)
  chex.assert_trees_all_close(sent.stats, of_whole.stats, rtol=1e-4, atol=1e-5)
  start = jax.tree.leaves(model.stats)
  assert all((a != b).any() for a, b in zip(jax.tree.leaves(sent.stats), start, strict=True))
  assert found.metrics["global"]["top1"]["mean"] == pytest.approx(other.metrics["global"]["top1"]["mean"])


UNFIT = {
  "fedevg": "trains an energy model",
  "sosicfl_all": "refuses running statistics",
  "fedem": "refuses running statistics",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SUPERVISED)
@pytest.mark.parametrize("make", [CASES["layer"], CASES["adapters"]], ids=["layer", "adapters"])
def test_every_method_trains_such_models(name, make):
  if name in UNFIT:
    pytest.skip(UNFIT[name])
  x, y = RNG.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
  data = fh.data.from_arrays(jax.random.key(0), x, y, num_clients=4).clients(jnp.int32(2))
  part, context, key = client(name, make(net())), Context(2, 1, 3, 4), jax.random.key(0)
  broadcast = jax.eval_shape(part.init_broadcast, key)
  state = jax.eval_shape(lambda b: part.init(key, b, part.shown("init", data), context), broadcast)
  _, after, _ = jax.eval_shape(lambda b, s: part.update(key, b, s, data, context), broadcast, state)
  assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
