"""Upload transforms beside NumPy in float64: each alone, chained, around client parts, and what they cost."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_parts import SIZES, federation, linear, mlp, scaffold
from wide_parts import prototypes

import fedjax_het as fh
from fedjax_het import uploads
from fedjax_het.engine.engine import Engine
from fedjax_het.experiment.traffic import traffic
from fedjax_het.parts import Way, Wire
from fedjax_het.uploads.chain import Kept, grouped

LOCAL = dict(lr=0.1, epochs=1, batch_size=4)
KEY, DRAWS = jax.random.key(3), 4000


def tensors(seed=0):
  """A difference of three tensors; some numbers are 0."""
  rng = np.random.default_rng(seed)
  return [jnp.asarray(rng.normal(size=shape) * (rng.random(shape) < 0.9), jnp.float32)
          for shape in ((7, 5), (11,), ())]  # fmt: skip


def encoded(transform, difference, key=KEY, state=(), shared=(), sent=None):
  return transform.encode(key, difference, state, Way(shared, sent))


def flat(difference):
  return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in difference])


# Each alone.


@pytest.mark.parametrize("norm", [0.5, 2.0, 100.0])
def test_clipped_to_a_length(norm):
  found, _ = encoded(uploads.clip(norm), tensors())
  x = flat(tensors())
  np.testing.assert_allclose(flat(found), x * min(1, norm / np.linalg.norm(x)), rtol=1e-6)


def test_a_bound_follows_its_quantile():
  """The mean of what clients report is Andrew et al.'s step, and the bound comes to the quantile."""
  lengths, bound = np.random.default_rng(0).gamma(4.0, size=101), 1.0
  part = uploads.clip(bound, quantile=0.3, rate=0.2)
  shared = part.shared
  report = jax.jit(jax.vmap(lambda length, shared: part.report([length[None]], shared), (0, None)))
  for _ in range(200):
    bound *= np.exp(-0.2 * ((lengths <= bound).mean() - 0.3))
    shared = report(jnp.asarray(lengths, jnp.float32), shared).mean()
    np.testing.assert_allclose(jnp.exp(shared), bound, rtol=1e-4)
  assert abs((lengths <= bound).mean() - 0.3) < 0.03


def test_noise_is_gaussian():
  x = [jnp.full((300, 300), 2.0)]
  noise = flat(encoded(uploads.gaussian(0.5), x)[0]) - 2.0
  assert abs(noise.mean()) < 5 * 0.5 / 300 and noise.std() == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 1.0])
def test_the_largest_are_sent(share):
  found, _ = encoded(uploads.top_k(share), tensors())
  for leaf, own in zip(found, tensors()):
    x = np.asarray(own, np.float64).ravel()
    expected, k = np.zeros_like(x), min(max(round(share * x.size), 1), x.size)
    best = np.argsort(-np.abs(x), kind="stable")[:k]
    expected[best] = x[best]
    np.testing.assert_array_equal(np.ravel(leaf), expected)


@pytest.mark.parametrize("error_feedback", [False, True])
def test_random_ones_are_sent(error_feedback):
  x, share = [jnp.arange(1.0, 11.0)], 0.3
  part = uploads.random_k(share, error_feedback)
  found = np.stack(jax.vmap(lambda key: part.encode(key, x, (), Way())[0][0])(jax.random.split(KEY, DRAWS)))
  assert ((found != 0).sum(1) == 3).all()
  mean, scale = found.mean(0), 1.0 if error_feedback else 1 / share
  np.testing.assert_allclose(mean, scale * share * np.arange(1, 11), rtol=0.12)
  if not error_feedback:  # unbiased, with the variance (n/k - 1) ‖x‖²
    variance = ((found - x[0]) ** 2).sum(1).mean()
    assert variance == pytest.approx((10 / 3 - 1) * (np.arange(1, 11) ** 2).sum(), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
  "bits, block, norm", [(2, None, "max"), (4, 8, "l2"), (8, None, "l2"), (3, 5, "max")]
)
def test_quantisation_is_unbiased_and_within_its_published_variance(bits, block, norm):
  """QSGD, lemma 3.1: E Q(x) = x, and the variance of a block is at most min(n/s², √n/s) ‖x‖²."""
  x, part = tensors(), uploads.quantize(bits, block, norm)
  found = jax.vmap(lambda key: part.encode(key, x, (), Way())[0])(jax.random.split(KEY, DRAWS))
  s = 2 ** (bits - 1) - 1
  for leaf, own in zip(found, x):
    own = np.asarray(own, np.float64).ravel()
    leaf, n = np.asarray(leaf, np.float64).reshape(DRAWS, -1), min(block or own.size, own.size)
    for first in range(0, own.size, n):
      part_of, drawn = own[first : first + n], leaf[:, first : first + n]
      scale = np.linalg.norm(part_of) if norm == "l2" else np.abs(part_of).max()
      levels = drawn / (scale or 1.0) * s
      np.testing.assert_allclose(levels, np.round(levels), atol=1e-4)
      assert np.abs(levels - s * part_of / (scale or 1.0)).max() <= 1 + 1e-4
      deviation = scale / s / np.sqrt(DRAWS)
      assert np.abs(drawn.mean(0) - part_of).max() < 4 * deviation + 1e-6
      variance = ((drawn - part_of) ** 2).sum(1).mean()
      assert variance <= 1.02 * min(n / s**2, np.sqrt(n) / s) * (part_of**2).sum() + 1e-12


def test_signs_and_the_mean_magnitude():
  found, _ = encoded(uploads.sign(), tensors())
  for leaf, own in zip(found, tensors()):
    x = np.asarray(own, np.float64)
    np.testing.assert_allclose(leaf, np.abs(x).mean() * np.where(x < 0, -1, 1), rtol=1e-6)


@pytest.mark.parametrize("name", ["quantize", "sign", "top_k", "random_k"])
def test_nothing_stays_nothing_and_nan_is_seen(name):
  part = getattr(uploads, name)()
  assert not flat(encoded(part, [jnp.zeros(5)])[0]).any()
  assert np.isnan(flat(encoded(part._replace(), [jnp.full(5, jnp.nan)])[0])).any()


# Chains and error feedback.

CHAINS = {
  "top_k": lambda: [uploads.top_k(0.2)],
  "random_k": lambda: [uploads.random_k(0.2)],
  "sign": lambda: [uploads.sign()],
  "top_k, quantize": lambda: [uploads.top_k(0.2), uploads.quantize(4)],
  "top_k, sign": lambda: [uploads.top_k(0.2), uploads.sign(error_feedback=False)],
  "clip, top_k": lambda: [uploads.clip(1e6), uploads.top_k(0.2)],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CHAINS)
def test_error_feedback_sums_to_the_updates(name):
  """Σ C(x_t) + e_T = Σ Δ_t: all that is not lost in the last round arrives."""
  chain = uploads.chained(grouped(CHAINS[name]()))
  state, sent, wanted = chain.init([jnp.zeros_like(leaf) for leaf in tensors()]), 0.0, 0.0
  for t in range(12):
    difference = tensors(t)
    decoded, state = encoded(chain, difference, jax.random.fold_in(KEY, t), state, chain.shared)
    sent, wanted = sent + flat(decoded), wanted + flat(difference)
  error = flat(jax.tree.leaves(state))
  np.testing.assert_allclose(sent + error, wanted, atol=1e-5)
  assert np.abs(error).max() > 0.01


def test_one_error_for_a_run_of_compressors_and_none_for_noise():
  groups = grouped([uploads.clip(), uploads.top_k(), uploads.quantize(), uploads.gaussian(), uploads.sign()])
  assert [one.name for one in groups] == ["clip", "top_k > quantize", "gaussian", "sign"]
  assert [one.init is not None for one in groups] == [False, True, False, True]


def test_errors_of_numbers_that_are_left_out_wait():
  """Signs with an error behind random numbers, beside NumPy: errors of the others are kept."""
  chain = uploads.chained(grouped([uploads.random_k(0.2, False), uploads.sign()]))
  state, error = chain.init([jnp.zeros(35)]), np.zeros(35)
  for t in range(20):
    difference, key = np.float32(np.random.default_rng(t).normal(size=35)), jax.random.fold_in(KEY, t)
    (found,), state = encoded(chain, [jnp.asarray(difference)], key, state, chain.shared)
    found = np.asarray(found, np.float64)
    sent = found != 0
    x = np.where(sent, 5.0 * difference + error, 0.0)
    signs = np.abs(x).sum() / sent.sum() * np.where(x < 0, -1, 1)
    np.testing.assert_allclose(found, np.where(sent, signs, 0.0), rtol=1e-4, err_msg=str(t))
    error = np.where(sent, x - found, error)
    np.testing.assert_allclose(jax.tree.leaves(state)[0], error, rtol=1e-4, atol=1e-4)
    assert sent.sum() == 7


def test_what_a_sparse_transform_leaves_out_stays_out():
  chain = uploads.chained([uploads.top_k(0.2, False), uploads.sign(False), uploads.gaussian(0.1)])
  (found, *_), _ = encoded(chain, tensors(), state=((),) * 3, shared=chain.shared)
  assert (np.asarray(found) != 0).sum() == 7
  signs = uploads.chained([uploads.top_k(0.2, False), uploads.sign(False)])
  (found, *_), _ = encoded(signs, tensors(), state=((),) * 2, shared=signs.shared)
  x = np.asarray(tensors()[0], np.float64).ravel()
  largest = np.sort(np.abs(x))[-7:].mean()
  np.testing.assert_allclose(np.unique(np.abs(found)), [0, largest], rtol=1e-6)


# What is sent.

WIRES = {  # chain -> bits of a tensor of 1000 numbers
  "clip": (lambda: [uploads.clip()], 32_000),
  "gaussian": (lambda: [uploads.gaussian()], 32_000),
  "top_k": (lambda: [uploads.top_k(0.01)], 10 * 32 + 10 * 10),
  "top_k, half": (lambda: [uploads.top_k(0.5)], 500 * 32 + 1000),
  "random_k": (lambda: [uploads.random_k(0.1)], 100 * 32 + 32),
  "quantize": (lambda: [uploads.quantize(4)], 4000 + 32),
  "quantize, blocks": (lambda: [uploads.quantize(8, 300)], 8000 + 4 * 32),
  "quantize, more bits": (lambda: [uploads.quantize(4), uploads.quantize(8)], 8000 + 64),
  "sign": (lambda: [uploads.sign()], 1000 + 32),
  "top_k, quantize": (lambda: [uploads.top_k(0.01), uploads.quantize()], 10 * (10 + 8) + 32),
  "top_k, sign": (lambda: [uploads.top_k(0.01), uploads.sign()], 10 * (10 + 1) + 32),
  "quantize, clip": (lambda: [uploads.quantize(), uploads.clip()], 8000 + 64),
  "quantize, gaussian": (lambda: [uploads.quantize(), uploads.gaussian()], 32_000 + 32),
}


@pytest.mark.parametrize("name", WIRES)
def test_bits_of_a_tensor(name):
  make, bits = WIRES[name]
  assert uploads.chained(make()).cost(Wire(1000, 1000)).total == bits


def test_k_is_the_same_on_the_host_as_in_a_program():
  kept = jax.jit(uploads.sparse.kept, static_argnums=1)
  for share in (1e-6, 0.01, 0.05, 0.1, 0.3, 0.7, 0.999, 1.0):
    for size in (1, 3, 10, 101, 4096, 199_210):
      k = int(uploads.sparse.kept(share, size))
      assert k == kept(jnp.float32(share), size) and abs(k - max(share * size, 1)) <= 0.51


def test_bytes_of_a_round():
  """SCAFFOLD's two fields and a method with sums of its own, through 8 bits: 15 numbers in 2 tensors each."""
  data = federation([8] * 6)
  eight = [uploads.quantize()]
  whole = traffic(fh.federated(scaffold(linear())), data, 4)
  assert whole == {"up": 4 * 2 * 15 * 4, "down": 4 * 2 * 15 * 4}
  found = traffic(fh.federated(scaffold(linear()), uploads=eight), data, 4)
  assert found == {"up": 4 * 2 * (15 + 2 * 4), "down": whole["down"]}
  plain = traffic(fh.federated(prototypes(linear())), data, 4)
  found = traffic(fh.federated(prototypes(linear()), uploads=eight), data, 4)
  assert plain["up"] - found["up"] == 4 * (3 * 15 - 2 * 4)  # own sums are sent as they are
  adaptive = traffic(fh.federated(scaffold(linear()), uploads=[uploads.clip(quantile=0.5)]), data, 4)
  assert adaptive == {"up": whole["up"] + 16, "down": whole["down"] + 16}


# Composition.


def test_what_does_nothing_is_left_out():
  client = fh.fedavg(linear(), **LOCAL)
  nothing = [uploads.clip(math.inf), uploads.gaussian(0.0), uploads.top_k(1.0), uploads.random_k(1.0)]
  assert fh.federated(client, uploads=nothing).client == client
  assert fh.federated(client, uploads=[*nothing, uploads.sign()]).client != client


def test_studies_see_the_methods_own_state():
  """Not the errors beside it: those of one client, or those of all."""
  own = lambda place: lambda *args: args[place]  # noqa: E731
  places = {"line": 1, "membership": 1, "groups": 2, "graph": 2}
  client = fh.fedavg(linear(), **LOCAL)
  client = client._replace(
    studies=client.studies._replace(**{name: own(place) for name, place in places.items()})
  )
  studies = fh.federated(client, uploads=[uploads.top_k(0.5)]).client.studies
  for name, place in places.items():
    args = [None] * 5
    args[place] = Kept("own", "errors")
    assert getattr(studies, name)(*args) == "own", name


REFUSED = {
  "one": (lambda: uploads.sign(), r"uploads = 'sign': is one, and not a sequence"),
  "not called": (lambda: [uploads.sign], r"uploads.0 = 'sign': is not an Upload.*Call the factory"),
  "no part": (lambda: [uploads.sign(), fh.mixing.static()], r"uploads.1 = 'Mixing': is not an Upload"),
  "rate": (lambda: [uploads.clip(rate=0.3)], r"rate = 0.3: has no effect without a quantile"),
  "infinite": (lambda: [uploads.clip(math.inf, quantile=0.5)], r"norm = inf: never comes down"),
  "share": (lambda: [uploads.top_k(0.0)], r"share = 0.0: out of range"),
  "bits": (lambda: [uploads.quantize(1)], r"bits = 1: out of range"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused(name):
  make, problem = REFUSED[name]
  with pytest.raises(fh.SettingError, match=problem):
    fh.federated(fh.fedavg(linear()), uploads=make())


def test_errors_of_signals_in_another_form_are_refused_before_anything_is_compiled():
  """FedEvg sends weights beside the signal, and receives none."""
  client = fh.fedevg(mlp(), per_class=1, lam=0.0, bounded=False)
  algorithm = fh.federated(client, server=fh.server.sgld(3, bounded=False), uploads=[uploads.top_k(0.5)])
  with pytest.raises(fh.SettingError, match=r"uploads = 'error_feedback': fedevg does not send extra in the"):
    Engine(algorithm, federation(SIZES), 5)


def test_a_shared_bound_is_not_protected_by_a_median():
  with pytest.raises(fh.SettingError, match="also sends wire, which would be averaged as it comes"):
    fh.federated(
      fh.fedavg(linear()), uploads=[uploads.clip(quantile=0.5)], aggregation=fh.aggregation.median()
    )
