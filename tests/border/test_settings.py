"""What each client part of the table promises of its settings and of its local training."""

import inspect

import chex
import jax
import numpy as np
import pytest
from cases import client, client_of, in_other_tests
from small_parts import mlp, one_client

import fedjax_het as fh
from fedjax_het.errors import SettingError
from fedjax_het.methods import CLIENTS
from fedjax_het.models import GENERATORS

BAD = dict(lr=0.0, lr_decay=1.1, momentum=-0.1, weight_decay=-1.0, epochs=0, batch_size=0)
CUT = [name for name, method in CLIENTS.items() if method.models is not GENERATORS and name != "fedevg"]
CLIENT = 6  # of 9 examples


@pytest.mark.parametrize("name", CLIENTS)
def test_local_settings_out_of_range(name):
  has = BAD.keys() & inspect.signature(CLIENTS[name].factory).parameters.keys()
  assert {"lr", "lr_decay", "weight_decay", "epochs", "batch_size"} <= has
  for setting in has:
    with pytest.raises(SettingError, match=f"^{setting} = "):
      client_of(name, mlp(), 4, {setting: BAD[setting]})


@pytest.mark.parametrize("name", [pytest.param(name, marks=in_other_tests(name)) for name in CUT])
def test_local_training_may_be_cut_at_any_step(name, ragged):
  """`walk` up to a step and from there on, with several steps a pass, is `update`."""
  part, data, context = (
    client(name, mlp(), batch_size=4),
    one_client(ragged, CLIENT),
    fh.Context(CLIENT, 3, 3, 12),
  )
  broadcast = part.init_broadcast(jax.random.key(0))
  state = part.init(jax.random.key(1), broadcast, None, context)
  first = jax.random.key(2), broadcast, state, data, context

  @jax.jit
  def cut(at):
    work = part.training.start(broadcast, state, context)
    for start, end in ((0, at), (at, part.training.steps(data))):
      work = part.training.run_steps(*first, work, start, end)
    return part.training.finish(broadcast, state, data, context, work)

  whole = jax.jit(part.update)(*first)
  steps = int(part.training.steps(data))
  assert steps >= 6 and np.isfinite(whole[2].loss)
  for at in range(steps + 1):
    chex.assert_trees_all_close(cut(at), whole, rtol=1e-5, atol=1e-6)
