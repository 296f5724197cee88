"""Cutting clients where the devices do not divide the cohort."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import with_every
from small_parts import federation, mlp

from fedjax_het.clients.sgd import fedavg
from fedjax_het.clients.superfed import superfed
from fedjax_het.engine import balance
from fedjax_het.engine.engine import Engine
from fedjax_het.federated import federated


@pytest.mark.parametrize(
  "seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 30))]
)
def test_windows_hold_every_step_once_and_are_short(seed):
  rng = np.random.default_rng(seed)
  clients, devices = rng.integers(1, 12), int(rng.integers(1, 9))
  steps = rng.integers(1, rng.integers(2, 60), clients)
  steps = np.full(clients, steps[0]) if seed % 3 == 0 else steps
  plan = jax.tree.map(np.asarray, balance.windows(jnp.asarray(steps), devices))
  taken, load = [[] for _ in steps], np.zeros(devices, int)
  for d in range(devices):
    for i in range(plan.first[d], plan.last[d]):
      from_ = plan.tail[d] if i == plan.last[d] - 1 else 0
      is_head = i == plan.first[d] and plan.head[d] > 0
      to = plan.head[d] if is_head else steps[i]
      taken[i].extend(range(from_, to))
      load[d] += to - from_
      assert is_head or plan.finisher[i] == d
      assert not is_head or (plan.head[d] <= plan.handover and plan.finisher[i] == d - 1)
  assert [sorted(own) for own in taken] == [list(range(n)) for n in steps]
  assert load.max() <= max(-(-steps.sum() // devices), steps.max())


def test_five_equal_clients_on_two_devices_take_the_time_of_two_and_a_half():
  plan = balance.windows(jnp.full(5, 48), 2)
  assert plan.head.tolist() == [0, 24] and plan.tail.tolist() == [24, 0]
  assert plan.first.tolist() == [0, 2] and plan.last.tolist() == [3, 5]


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[13] * 9, [40, 1, 7, 3, 12, 2, 9, 1, 25]], ids=["equal", "ragged"])
@pytest.mark.parametrize("method", with_every(["fedavg", "superfed"], "superfed"))
def test_cut_clients_learn_the_same(method, sizes):
  settings = dict(lr=0.1, epochs=2, batch_size=4)
  client = fedavg(mlp(), **settings) if method == "fedavg" else superfed(mlp(), start_round=1, **settings)
  runs = []
  for devices in (1, 2, 3):
    engine = Engine(federated(client), federation(sizes), 5, devices=devices, client_batch=1)
    view = engine.data.clients(jnp.arange(5))
    assert balance.pays(engine.mesh, view, 1) == (devices > 1)
    state, infos = engine.advance(engine.init(jax.random.key(3)), 3)
    runs.append(jax.tree.map(np.asarray, (state.broadcast, state.clients, infos)))
  for other in runs[1:]:
    chex.assert_trees_all_close(runs[0], other, rtol=1e-5, atol=2e-6)
