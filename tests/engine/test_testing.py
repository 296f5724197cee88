"""The promises of fedjax_het.testing: kept by parts that are right, broken by those that are not."""

import unittest

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import with_every
from flax import linen as nn

import fedjax_het as fh
from fedjax_het import testing
from fedjax_het.parts import Info, Message
from fedjax_het.testing import PROMISES, Trial, federation

CLASSES, SHAPE = 3, (4,)
LOCAL = dict(lr=0.1, epochs=1, batch_size=5)


class Normed(nn.Module):
  @nn.compact
  def __call__(self, x, train: bool = False):
    x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(nn.Dense(4)(x))
    return nn.Dense(CLASSES)(nn.relu(x))


def model():
  return fh.models.make("logistic_regression", SHAPE, CLASSES)


def local_only(own: fh.Model) -> fh.ClientUpdate:
  """Every client trains a model of its own and sends nothing."""
  part = fh.fedavg(own, **LOCAL)

  def update(key, broadcast, state, data, context):
    sent, _, info = part.update(key, Message(state), (), data, context)
    return Message(()), sent.params, info

  return part._replace(
    init_broadcast=lambda key: Message(()), init=lambda key, *_: own.init(key),
    update=update, loss=lambda broadcast, state, data, context: part.loss(Message(state), (), data, context),
    personalize=lambda broadcast, state, *_: state, global_model=None, name="local_only",
  )  # fmt: skip


@pytest.fixture(scope="module")
def data():
  return federation(SHAPE, num_classes=CLASSES)


@pytest.fixture(scope="module")
def trial(data):
  return Trial(fh.federated(fh.fedavg(model(), **LOCAL)), data)


def test_a_federation_is_the_same_in_each_call_and_in_any_order_of_its_rows(data):
  again, other = (
    federation(SHAPE, num_classes=CLASSES),
    federation(SHAPE, num_classes=CLASSES, order=range(8, -1, -1)),
  )
  assert np.asarray(data.train.size).tolist() == [*testing.SIZES] and 1 in testing.SIZES
  np.testing.assert_array_equal(again.x, data.x)
  assert other.train.start[0] > 0
  for own in (data, other):
    rows = slice(int(own.train.start[2]), int(own.train.start[2]) + 7)
    np.testing.assert_array_equal(own.x[rows], data.x[21 + 2 * 4 : 21 + 2 * 4 + 7])


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_fedavg_keeps_every_promise(promise, trial):
  promise(trial)


def reading_validation_rows():
  """FedAvg, whose upload is moved by the mean of the client's validation rows."""
  part = fh.fedavg(model(), **LOCAL)

  def update(key, broadcast, state, data, context):
    message, state, info = part.update(key, broadcast, state, data, context)
    return message._replace(params=shifted(message.params, 1e-3 * data.validation.x.mean())), state, info

  return fh.federated(part._replace(update=update, needs=part.needs._replace(sees_data=("update",))))


OTHERS = {
  "local only": lambda: fh.federated(local_only(model())),
  "a model with norms": lambda: fh.federated(
    fh.ditto(fh.models.from_flax(Normed(), SHAPE, CLASSES, head=("Dense_1",)), **LOCAL)
  ),
  "a control variate": lambda: fh.federated(fh.scaffold(model(), **LOCAL), server=fh.server.adam()),
  "all clients in each round": lambda: fh.federated(fh.fedavg(model(), **LOCAL), fh.mixing.aaggff_s()),
  "lost uploads": lambda: fh.federated(
    fh.fedavg(model(), **LOCAL), participation=fh.participation.uniform(dropout=0.5)
  ),
  "validation rows": reading_validation_rows,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", with_every(OTHERS, "a model with norms", "validation rows"))
def test_others_keep_them_too(name, data):
  testing.check(Trial(OTHERS[name](), data, fewest=2))


def changed(change):
  """FedAvg, whose upload and loss are changed by `change(params, loss, data, context)`."""
  part = fh.fedavg(model(), **LOCAL)

  def update(key, broadcast, state, data, context):
    message, state, info = part.update(key, broadcast, state, data, context)
    params, loss = change(message.params, info.loss, data, context)
    return message._replace(params=params), state, Info(loss, info.steps)

  return fh.federated(part._replace(update=update))


def shifted(params, by):
  return jax.tree.map(lambda leaf: leaf + by, params)


BROKEN = {
  "trains": lambda params, loss, data, context: (params, loss / 0.0),
  "is_the_same_compiled_or_not": lambda params, loss, data, context: (
    shifted(params, 0.0 if isinstance(jnp.float32(0) + loss, jax.core.Tracer) else 1.0), loss,
  ),
  "stands_constant_examples": lambda params, loss, data, context: (
    shifted(params, 1e-9 / jnp.square(data.x).sum()), loss,
  ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_told(name, data):
  broken = next(promise for promise in PROMISES if promise.__name__ == name)
  with pytest.raises(AssertionError):
    broken(Trial(changed(BROKEN[name]), data))
  with pytest.raises(AssertionError) as error:
    testing.check(Trial(changed(BROKEN[name]), data))
  assert name in error.value.__notes__[0]


@pytest.mark.slow
def test_numbers_of_python_s_own_break_the_devices_promise(data):
  draws = iter(range(1000))
  part = changed(lambda params, loss, *_: (shifted(params, 0.1 * next(draws)), loss))
  with pytest.raises(AssertionError):
    testing.is_the_same_on_any_number_of_devices(Trial(part, data))


def test_nothing_changes_is_no_training(data, trial, monkeypatch):
  same = Trial(trial.algorithm, data)
  same.first = same.last = None
  vars(same).update(first=trial.first, last=(trial.first, trial.last[1]))
  with pytest.raises(AssertionError, match="no round changes"):
    testing.trains(same)


def test_one_device_is_skipped(data, trial):
  class One:
    fewest = 1

    class engine:
      class mesh:
        size = 1

  with pytest.raises(unittest.SkipTest, match="prepare_cpu"):
    testing.is_the_same_on_any_number_of_devices(One)
