"""Shapes and dtypes that a user's own part must not return are named, with the function, before a compile."""

import jax
import jax.numpy as jnp
import pytest
from bad_input import no_compile
from small_parts import federation, mlp

import fedjax_het as fh
from fedjax_het.errors import SettingError

DATA = federation((3, 4, 6))
CLIENT = fh.fedavg(mlp(), lr=0.1)
SERVER = fh.server.sgd()


def sending(change):
  """FedAvg, whose result of local training (upload, state, info) is changed."""

  def update(*args):
    return change(*CLIENT.update(*args))

  return CLIENT._replace(update=update)


def refused(words, *parts):
  """Trains a round, which is refused while it is traced, and so before it is compiled."""
  engine = fh.Engine(fh.federated(*parts), DATA, 2, devices=1)
  with pytest.raises(SettingError, match=words):
    engine.advance(engine.init(jax.random.key(0)), 1)
  assert "advance" not in engine._compiled


def bent(upload, state, info):
  return upload._replace(params=jax.tree.map(lambda leaf: leaf[..., None], upload.params)), state, info


def renamed(upload, state, info):
  return upload._replace(params={"other": jnp.zeros(3)}), state, info


@pytest.mark.slow
@pytest.mark.parametrize(
  "change, words",
  [
    (bent, r"client's update = .*form of the upload's params .*'fc1/bias': shapes: \(5, 1\) != \(5,\)"),
    (renamed, r"client's update = .*'other'.*form of the upload's params .* is not that of .*structs"),
    (
      lambda upload, state, info: (upload, jnp.zeros(3), info),
      "client's update = .*the new state",
    ),
    (lambda upload, state, info: (upload, state), "client's update = 'tuple': is what it returns"),
    (lambda upload, state, info: (upload.params, state, info), "client's update = 'dict, tuple, Info'"),
    (
      lambda upload, state, info: (upload, state, info._replace(loss=jnp.zeros(2))),
      r"info\.loss of the client's update = 'float32 \(2,\)': is not a scalar",
    ),
    (
      lambda upload, state, info: (upload, state, info._replace(figures={"mine": jnp.zeros((4, 1))})),
      r"info\.figures of the client's update = {'mine': 'float32 \(4, 1\)'}: is not a scalar",
    ),
  ],
)
def test_what_a_client_returns(change, words):
  refused(words, sending(change))


@pytest.mark.slow
def test_a_signal_may_have_other_shapes_than_the_broadcast():
  """Its server part knows what arrives; but the next broadcast is like the one before."""

  def update(key, state, broadcast, aggregate):
    params = jax.tree.map(lambda leaf: leaf[..., 0], aggregate.params)
    return aggregate._replace(params=params), state

  client = sending(bent)._replace(needs=fh.Needs(uploads_model=False))
  server = fh.ServerUpdate(lambda broadcast: (), update, takes_models=False)
  settings = dict(rounds=1, cohort_size=2, key=jax.random.key(0))
  assert fh.run(fh.federated(client, server=server), DATA, **settings).state.round == 1
  as_sent = server._replace(update=lambda key, state, broadcast, aggregate: (aggregate, state))
  refused(r"server's update = .*the next broadcast \(tree 0\)", client, None, as_sent)


@pytest.mark.parametrize(
  "changes, words",
  [
    (
      dict(update=lambda key, state, broadcast, aggregate: aggregate),
      "server's update = 'Message': .*no pair",
    ),
    (
      dict(
        init=lambda broadcast: 0, update=lambda key, state, broadcast, aggregate: (aggregate, state + 0.5)
      ),
      r"server's update = 'float32 \(\)': .*the next state .*types: float32 != int32",
    ),
  ],
)
def test_what_a_server_returns(changes, words):
  refused(words, CLIENT, None, SERVER._replace(**changes))


def uniform(state, feedback):
  return jnp.full(2, 0.5), state


@pytest.mark.parametrize(
  "changes, words",
  [
    (dict(update=lambda state, f: (jnp.full((2, 1), 0.5), state)), r"mixing = 'float32 \(2, 1\)': its coeff"),
    (
      dict(scale=lambda f: jnp.ones((2, 1))),
      r"mixing's scale = 'float32 \(2, 1\)': is not a float",
    ),
    (dict(figures=lambda f: {"mine": f.sizes}), "mixing's figures = {'mine': .*is not a scalar"),
  ],
)
def test_what_a_mixing_returns(changes, words):
  mixing = fh.Mixing(lambda sizes: (), uniform)._replace(**changes)
  with no_compile(), pytest.raises(SettingError, match=words):
    fh.Engine(fh.federated(CLIENT, mixing), DATA, 2)


def test_a_loss_is_a_scalar_where_a_mixing_asks_for_it():
  client = CLIENT._replace(loss=lambda broadcast, state, data, context: jnp.zeros(1))
  refused(r"client's loss = 'float32 \(1,\)': is not a", client, fh.mixing.afl())


def test_a_task_has_one_loss_per_example():
  """[B, 1] times the weights [B] would be [B, B], without a word."""
  task = mlp().task

  def losses(outputs, y):
    total, weight = task.losses(outputs, y)
    return total[:, None], weight

  model = mlp()._replace(task=task._replace(losses=losses))
  with (
    no_compile(),
    pytest.raises(SettingError, match=r"task's losses = .*float32 \(1, 1\).*not \(total"),
  ):
    fh.Engine(fh.federated(fh.fedavg(model, lr=0.1)), DATA, 2)
