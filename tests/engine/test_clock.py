"""How long clients work: against plain Python over ragged clients, in sweeps and with transforms."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_parts import SIZES, federation, linear, mlp

import fedjax_het as fh
from fedjax_het.engine.clock import work_seconds
from fedjax_het.engine.cohort import participation_key, system_key
from fedjax_het.engine.elapsed import Clock
from fedjax_het.errors import SettingError

KEY = jax.random.key(5)


def parameters(model) -> int:
  return sum(leaf.size for leaf in jax.tree.leaves(model.init(jax.random.key(0))))


def expected(ragged, system, batch, epochs, down, up, gradients=1):
  """Seconds of each client in float64, from the part's speeds."""
  sizes = np.asarray(ragged.train.size)
  step, link = (
    np.asarray(own, np.float64)
    for own in system.speeds(system_key(participation_key(KEY)), jnp.asarray(sizes))
  )
  steps = [epochs * math.ceil(size / batch) for size in sizes]
  return (down + up) / link + np.array(steps) * gradients * step


SYSTEM = fh.system.lognormal(sigma=1.5, step_seconds=0.3, bytes_per_second=2e3)


@pytest.mark.parametrize("rho", [0.0, 0.05], ids=["plain", "sharpness"])
def test_a_client_s_part_is_its_messages_and_its_steps(ragged, rho):
  model = mlp()
  client = fh.fedavg(model, epochs=2, batch_size=3, sam_radius=rho)
  bytes_ = 4 * parameters(model)
  found = work_seconds(fh.federated(client, system=SYSTEM), KEY, ragged, 2)
  assert found.dtype == jnp.float32 and found.shape == (ragged.num_clients,)
  wanted = expected(ragged, SYSTEM, 3, 2, bytes_, bytes_, gradients=2 if rho else 1)
  np.testing.assert_allclose(found, wanted, rtol=1e-6)
  assert len({*wanted.round(6)}) == len(wanted)


def test_bytes_are_those_that_are_sent(ragged):
  """SCAFFOLD sends two models, and eight bits a number take a quarter."""
  model = mlp()
  slow_link = fh.system.constant(step_seconds=1e-6, bytes_per_second=1.0)
  each = 4 * parameters(model)
  tensors = len(jax.tree.leaves(model.init(jax.random.key(0))))
  plain = work_seconds(fh.federated(fh.scaffold(model), system=slow_link), KEY, ragged, 2)
  np.testing.assert_allclose(plain, 4 * each, rtol=1e-4)
  eight = fh.federated(fh.fedavg(model), uploads=[fh.uploads.quantize(bits=8)], system=slow_link)
  np.testing.assert_allclose(work_seconds(eight, KEY, ragged, 2), each + each / 4 + 4 * tensors, rtol=1e-4)


@pytest.mark.parametrize("transform", [fh.uploads.top_k, fh.uploads.random_k])
def test_a_transform_s_share_may_be_a_value_of_the_program(ragged, transform):
  """The seconds under vmap over shares, speeds and keys are those of each run alone, bit for bit."""
  client = fh.fedavg(mlp(), batch_size=3)
  shares, sigmas = jnp.array([0.2, 0.5, 0.8]), jnp.array([0.5, 1.0, 2.0])
  keys = jax.random.split(KEY, 3)

  def seconds(share, sigma, key):
    system = fh.system.lognormal(sigma=sigma, bytes_per_second=1e3)
    algorithm = fh.federated(client, uploads=[transform(share=share)], system=system)
    return work_seconds(algorithm, key, ragged, 2)

  together = jax.jit(jax.vmap(seconds))(shares, sigmas, keys)
  for found, share, sigma, key in zip(together, shares.tolist(), sigmas.tolist(), keys):
    alone = seconds(share, sigma, key)
    np.testing.assert_array_equal(found, alone)
    assert len({*alone.tolist()}) == ragged.num_clients


def test_steps_that_are_known_only_later_are_refused(ragged):
  client = fh.fedavg(mlp())
  plain = client._replace(update=lambda *args: client.update(*args), name="mine")
  algorithm = fh.federated(plain, system=fh.system.constant())
  with pytest.raises(SettingError, match="system = 'constant': mine does not say before it has trained"):
    work_seconds(algorithm, KEY, ragged, 2)


@pytest.mark.parametrize(
  "speeds, words",
  [
    (lambda key, sizes: (jnp.ones(len(sizes)), jnp.ones(len(sizes))), "system's speeds = 'tuple'"),
    (lambda key, sizes: fh.Speeds(jnp.ones(2), jnp.ones(len(sizes))), "float32 \\[K\\]"),
    (None, "system = 'none': has no speeds"),
    (lambda key, sizes: fh.Speeds(sizes, jnp.ones(len(sizes))), "int32"),
  ],
)
def test_speeds_of_another_form_are_refused(ragged, speeds, words):
  with pytest.raises(SettingError, match=words):
    work_seconds(fh.federated(fh.fedavg(mlp()), system=fh.System(speeds)), KEY, ragged, 2)


def test_a_system_that_is_none_is_refused():
  with pytest.raises(SettingError, match="system = 'constant': is not a System"):
    fh.federated(fh.fedavg(mlp()), system=fh.system.constant)


@pytest.mark.slow
def test_over_selection_is_of_the_uploads_that_the_server_waits_for():
  """Whatever the cohort size: ⌈1.5 · 4⌉ are asked, the first 4 arrive, and the clock stops with the last."""
  system = fh.system.lognormal(sigma=1.0, over_selection=1.5)
  client, data = fh.fedavg(linear(), epochs=1, batch_size=4), federation(SIZES)
  algorithm = fh.federated(client, asynchronous=fh.asynchronous.fedbuff(4, 4), system=system)
  found = []
  for size in (2, 9):
    engine, clock = fh.Engine(algorithm, data, size), Clock(algorithm, data, size, KEY)
    infos = engine.advance(engine.init(KEY), 2)[1]
    assert infos.contacted.sum(1).tolist() == [6, 6] and infos.present.sum(1).tolist() == [4, 4]
    found.append([*clock.rounds(infos), clock.expected()])
  assert found[0] == found[1]
