"""FedDF by NumPy, and the public examples that it learns on."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from many_rounds import rounds_of, sgd
from one_round import LOCAL
from small_parts import (
  FEATURES,
  SIZES,
  federation,
  float64,
  linear,
  linear_logits,
  round_draws,
  softmax,
)

import fedjax_het as fh
from fedjax_het.clients.feddf import ensemble, feddf
from fedjax_het.config import quickstart
from fedjax_het.config.check import check_fields
from fedjax_het.config.plan import plan
from fedjax_het.config.sections import sections
from fedjax_het.data.public import noise_like, public_examples
from fedjax_het.errors import SettingError
from fedjax_het.experiment.build import build, notes_of

PUBLIC = np.random.default_rng(1).normal(size=(15, FEATURES)).astype(np.float32)
SETTINGS = dict(server_steps=5, server_lr=0.1, server_batch_size=6)


def adam(params, gradients, rate):
  """Adam's steps, float64; `gradients(params, i)`, `rate(i)`."""
  m = v = jax.tree.map(np.zeros_like, params)
  for i in range(SETTINGS["server_steps"]):
    g = gradients(params, i)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g**2, v, g)
    one, two = 1 - 0.9 ** (i + 1), 1 - 0.999 ** (i + 1)
    params = jax.tree.map(
      lambda p, m, v: p - rate(i) * (m / one) / (np.sqrt(v / two) + 1e-8), params, m, v
    )  # fmt: skip
  return params


@pytest.mark.slow
def test_feddf_s_rounds_by_hand(ragged):
  """Two rounds: the average moves towards the mean of all logits on public rows, with a new Adam in each."""
  for before, after, cohort, keys, infos in rounds_of(
    feddf(linear(), PUBLIC, **SETTINGS, **LOCAL), ragged, 4, 2
  ):
    trained = [sgd(float64(before.broadcast.params), keys[i], ragged, i) for i in cohort]
    p = np.array([SIZES[i] for i in cohort]) / sum(SIZES[i] for i in cohort)
    mean = jax.tree.map(lambda *leaves: sum(own * leaf for own, leaf in zip(p, leaves)), *trained)
    x = PUBLIC.astype(float)
    teacher = softmax(np.mean([linear_logits(one, x) for one in trained], axis=0))
    server_key, apart = round_draws(before, ragged.num_clients, 4)[2], []

    def gradients(params, i):
      rows = np.asarray(jax.random.permutation(jax.random.fold_in(server_key, i), 15))[:6]
      own, wanted = softmax(linear_logits(params, x[rows])), teacher[rows]
      apart.append((wanted * np.log(wanted / own)).sum(1).mean())
      return {"fc": {"kernel": x[rows].T @ (own - wanted) / 6, "bias": (own - wanted).mean(0)}}

    wanted = adam(mean, gradients, lambda i: 0.1 * (1 + np.cos(np.pi * i / 5)) / 2)
    chex.assert_trees_all_close(float64(after.broadcast.params), wanted, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(infos.figures["distilled"][0], np.mean(apart), rtol=1e-4)


@pytest.mark.slow
def test_no_step_is_fedavg_bit_for_bit(ragged):
  found, plain = (
    [float64(after.broadcast) for _, after, *_ in rounds_of(part, ragged, 4, 2)]
    for part in (feddf(linear(), PUBLIC, server_steps=0, **LOCAL), fh.fedavg(linear(), **LOCAL))
  )
  chex.assert_trees_all_equal(found, plain)


@pytest.mark.parametrize("batch_size", [1, 4, 15, 40])
def test_the_ensemble_of_all_rows(batch_size):
  models = jax.vmap(linear().init)(jax.random.split(jax.random.key(0), 3))
  found = ensemble(linear(), models, PUBLIC, min(batch_size, 15))
  wanted = np.mean([linear_logits(jax.tree.map(lambda leaf: leaf[i], models), PUBLIC) for i in range(3)], 0)
  np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_running_statistics_are_the_average_s(ragged):
  """Each model reads its own, the server's the average, which no step at the server moves."""

  def apply(params, x, stats):
    return linear_logits(params, x - stats)

  def train(params, stats, x, real, key):
    return apply(params, x, stats), stats + 0.5 * ((x * real[:, None]).sum(0) / real.sum() - stats)

  model = linear()._replace(apply=apply, train=train, stats=jnp.zeros(FEATURES))
  found, plain = (
    next(after.broadcast for _, after, *_ in rounds_of(part, ragged, 4, 1))
    for part in (feddf(model, PUBLIC, **SETTINGS, **LOCAL), fh.fedavg(model, **LOCAL))
  )
  chex.assert_trees_all_equal(found.stats, plain.stats)
  assert np.abs(found.stats).max() > 0.1
  assert np.abs(found.params["fc"]["kernel"] - plain.params["fc"]["kernel"]).max() > 1e-3


def test_noise_has_the_range_and_form_of_what_is_read():
  """Of training rows alone; bytes as floats, ids as ids; the same for the same seed."""
  rng, key = np.random.default_rng(0), jax.random.key(3)
  images, y = rng.integers(20, 200, (40, 2, 3, 1)).astype(np.uint8), rng.integers(0, 3, 40)
  images[-4:] = 255  # of no client
  data = fh.federate(images, y, np.split(np.arange(36), 4), key, num_classes=3, test_fraction=0.0)
  found = noise_like(key, data, 2000)
  assert found.shape == (2000, 2, 3, 1) and found.dtype == np.float32
  least, most = images[:36].min() / 255, images[:36].max() / 255
  np.testing.assert_allclose(
    [found.min(), found.max(), found.mean()], [least, most, (least + most) / 2], atol=5e-3
  )
  np.testing.assert_array_equal(found, noise_like(key, data, 2000))
  assert (found != noise_like(jax.random.key(4), data, 2000)).any()
  x = rng.uniform(-5, -1, size=(36, 3)).astype(np.float32)
  table = fh.federate(x, y[:36], np.split(np.arange(36), 4), key, num_classes=3, test_fraction=0.0)
  own = noise_like(key, table, 500)
  assert np.asarray(table.x).min() <= own.min() and own.max() <= np.asarray(table.x).max() < 0
  tokens = {"ids": rng.integers(0, 9, (36, 5)).astype(np.int32), "mask": np.ones((36, 5), np.int32)}
  sequences = fh.federate(tokens, y[:36], np.split(np.arange(36), 4), key, num_classes=3, test_fraction=0.0)
  own = noise_like(key, sequences, 500)
  assert (own["mask"] == 1).all() and own["ids"].dtype == np.int32
  assert {*own["ids"].ravel().tolist()} == {*range(9)}
  masked = dataclasses.replace(
    sequences, x=sequences.x | {"mask": np.ones((36, 5), bool), "odd": tokens["ids"] > 4}
  )
  own = noise_like(key, masked, 500)
  assert own["mask"].dtype == own["odd"].dtype == bool and own["mask"].all()
  assert 0.4 < own["odd"].mean() < 0.6


def test_rows_of_a_data_set_as_a_model_reads_them():
  digits = fh.data.load("digits")
  parts = np.split(np.arange(1792), 8)
  data = fh.federate(digits.x, digits.y, parts, jax.random.key(0), num_classes=10)
  found = public_examples(jax.random.key(1), data, dataset="digits", examples=300)
  assert found.shape == (300, 8, 8, 1) and found.dtype == np.float32
  rows = {row.tobytes() for row in digits.x}
  assert len({row.tobytes() for row in found}) > 290 and all(row.tobytes() in rows for row in found)
  with pytest.raises(SettingError, match=r"public.examples = 9999: digits has 1797"):
    public_examples(jax.random.key(1), data, dataset="digits", examples=9999)
  with pytest.raises(SettingError, match=r"public.dataset = 'digits': has other examples"):
    public_examples(jax.random.key(1), federation((4, 4)), dataset="digits")


def configured(algorithm="feddf", **public):
  config = quickstart.get_config(f"algorithm={algorithm}")
  config.public = public
  return config


def test_a_configuration_says_what_is_public():
  """By default noise, with a note; what nobody reads is a note; the examples are the program's value."""
  plain = build(plan(configured()))
  assert plain.prepared["public"].shape == (1000, 8, 8, 1)
  assert any("feddf learns on seeded noise" in note for note in notes_of(plain))
  few = build(plan(configured(dataset="digits", examples=50)))
  assert few.prepared["public"].shape == (50, 8, 8, 1) and not any("noise" in note for note in notes_of(few))
  assert few.digests["prepared_digest"] != plain.digests["prepared_digest"]
  idle = build(plan(configured("fedavg", examples=50)))
  assert any("public: no effect" in note for note in notes_of(idle)) and not idle.prepared


@pytest.mark.parametrize(
  "public, words",
  [
    ({"dataset": "digit"}, "dataset = 'digit': unknown"),
    ({"examples": 0}, "examples = 0"),
    ({"rows": 3}, "public.rows = 3: unknown"),
  ],
)
def test_a_section_that_cannot_be_is_refused(public, words):
  with pytest.raises(SettingError, match=words):
    check_fields(configured(**public).to_dict(), sections())


@pytest.mark.parametrize(
  "call, words",
  [
    (lambda: feddf(linear(), np.zeros((0, FEATURES))), r"public = .*: are the first axes"),
    (lambda: feddf(linear(), {"a": np.zeros((3, 2)), "b": np.zeros(4)}), r"public = .*: are the first axes"),
    (lambda: feddf(linear(), ()), r"public = \[\]: are the first axes"),
    (lambda: feddf(linear(), np.float32(3.0)), r"public = \[\(\)\]: are the first axes"),
    (lambda: feddf(fh.models.make("two_nn", (4,), 1, fh.tasks.regression()), PUBLIC), "goes by classes"),
    (lambda: feddf(linear(), PUBLIC, server_steps=-1), "server_steps = -1"),
  ],
)  # fmt: skip
def test_what_cannot_be_is_refused(call, words):
  with pytest.raises(SettingError, match=words):
    call()
