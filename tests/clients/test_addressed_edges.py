"""Edges of methods with a server of their own: few clients, limits, rates, and running statistics."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from cases import with_every
from flax import linen as nn
from many_rounds import row
from one_round import CLIENT, LOCAL, like
from small_parts import SIZES, linear, mlp, one_client

import fedjax_het as fh
from fedjax_het.clients.addressed import Mixed, combined
from fedjax_het.clients.apple import apple
from fedjax_het.clients.cfl import cfl
from fedjax_het.clients.fedamp import fedamp, heurfedamp, with_rest
from fedjax_het.clients.fedas import fedas
from fedjax_het.clients.fedcac import critical, fedcac
from fedjax_het.clients.fedfomo import fedfomo
from fedjax_het.clients.fedpac import fedpac
from fedjax_het.clients.fml import fml
from fedjax_het.clients.objective import training_loss
from fedjax_het.clients.pfedhn import pfedhn
from fedjax_het.errors import SettingError

K = len(SIZES)


def test_what_others_count_is_scaled_down_to_one_at_most():
  share = jnp.array([[0.0, 0.2, 0.3], [1.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
  np.testing.assert_allclose(with_rest(share), [[0.5, 0.2, 0.3], [0.5, 0.0, 0.5], [0.0, 0.0, 1.0]], atol=1e-7)


def served(part, uploads, cohort, state=None, sizes=None):
  """The server's state after uploads, each leaf [S, ...], of a cohort in round 30."""
  server, first = part.needs.brings["server"], part.init_broadcast(jax.random.key(0))
  sizes = jnp.ones(len(cohort), jnp.int32) if sizes is None else sizes
  feedback = fh.Feedback(jnp.array(cohort), sizes, jnp.int32(30), None, lambda: uploads, first)
  before = server.init(first) if state is None else state
  return server.update(jax.random.key(0), before, first, first, feedback)[1]


@pytest.mark.parametrize("make", [fedamp, heurfedamp])
def test_a_cohort_of_one_client_has_its_own_model(make):
  sent = like(jax.tree.map(lambda leaf: leaf[None], linear().init(jax.random.key(0))))
  state = served(make(linear(), SIZES), fh.Message(sent), [3])
  np.testing.assert_array_equal(state.weights, np.eye(K))
  np.testing.assert_array_equal(state.sent[0]["fc"]["kernel"][3], sent["fc"]["kernel"][0])


def test_heurfedamp_counts_a_client_as_much_as_the_mean_by_default():
  sent = like(jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), linear().init(jax.random.key(0))))
  state = served(heurfedamp(linear(), SIZES), fh.Message(sent), [0, 3, 5, 7])
  np.testing.assert_allclose(np.diag(state.weights)[[0, 3, 5, 7]], 0.25, rtol=1e-6)
  alike = served(heurfedamp(linear(), SIZES, sigma=0.0), fh.Message(sent), [0, 3, 5, 7])
  np.testing.assert_allclose(alike.weights[3, jnp.array([0, 3, 5, 7])], 0.25, rtol=1e-6)


def test_weights_of_a_round_replace_those_before():
  state = Mixed.first({"w": jnp.zeros(2)}, 4)
  half = jnp.full((2, 2), 0.5)
  state = state.after(jnp.array([0, 2]), half, {"w": jnp.ones((2, 2))})
  state = state.after(jnp.array([0, 1]), half, {"w": jnp.full((2, 2), 2.0)})
  wanted = [[0.5, 0.5, 0, 0], [0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [0, 0, 0, 1]]
  np.testing.assert_array_equal(state.weights, wanted)
  np.testing.assert_array_equal(state.sent["w"][:, 0], [2, 2, 1, 0])
  whole = combined(jnp.array([[0.5, 0.5]]), {"n": jnp.array([3, 5])})
  assert whole["n"].dtype == jnp.int32 and whole["n"].tolist() == [4]


def test_a_mixture_rounds_whole_numbers_and_does_not_read_rows_that_do_not_count():
  weights = jnp.array([[0.75, 0.25, 0.0], [0.0, 0.5, 0.5]])
  found = combined(
    weights, {"n": jnp.array([3, 4, 9]), "w": jnp.array([[1.0, 2.0], [3.0, 4.0], [jnp.nan, 0.0]])}
  )
  assert found["n"].tolist() == [3, 6]  # 3.25 and 6.5, to the even one
  np.testing.assert_array_equal(found["w"][0], [1.5, 2.5])
  assert np.isnan(found["w"][1]).all()
  shares = np.random.default_rng(0).dirichlet(np.ones(5), 200).astype(np.float32)
  assert (combined(jnp.asarray(shares), jnp.full(5, 7)) == 7).all()


def split_of(number, **settings):
  """How many clusters CFL makes of clients whose updates are unit vectors along an axis, up and down."""
  part = cfl(linear(), np.ones(number), **{**dict(eps1=0.5, eps2=0.9, warmup_rounds=30), **settings})
  first = part.init_broadcast(jax.random.key(0)).params["fc"]
  signs = jnp.where(jnp.arange(number) % 2 == 0, 1.0, -1.0)
  kernel = first["kernel"] + jnp.zeros((number, *first["kernel"].shape)).at[:, 0, 0].set(signs)
  sent = fh.Message({"fc": {"kernel": kernel, "bias": jnp.stack([first["bias"]] * number)}})
  return served(part, sent, range(number))


@pytest.mark.slow
@pytest.mark.parametrize(
  "number, settings, wanted",
  [
    (4, {}, 2), (2, {}, 1), (4, dict(eps2=1.1), 1), (4, dict(eps1=0.0), 1), (4, dict(warmup_rounds=31), 1),
    (4, dict(clusters=1), 1),
  ],
)  # fmt: skip
def test_a_cluster_is_split_where_updates_cancel_and_are_long(number, settings, wanted):
  state = split_of(number, **settings)
  assert int(state.number) == wanted
  assert state.clusters.tolist() == ([0, 1] * 2 if wanted == 2 else [0] * number)
  np.testing.assert_allclose([state.mean, state.largest], [0.0, 1.0], atol=1e-6)


@pytest.mark.slow
def test_apple_s_weights_are_held_in_all_rounds_of_an_unknown_number_and_their_rate_falls(ragged):
  """Far from n_j / n the hold alone moves them, at η_p and the decay of η."""
  cores = jnp.zeros((K, 4, 3)), jnp.zeros((K, 3))
  start = jnp.full(K, 5.0)
  share = np.array(SIZES) / sum(SIZES)
  for round, decay in ((0, 1.0), (3, 0.5**3)):
    part = apple(linear(), SIZES, weights_lr=0.01, mu=0.2, **LOCAL | dict(lr_decay=0.5, steps=1))
    first = part.init_broadcast(jax.random.key(0))
    sent = first._replace(extra={"fc": {"kernel": cores[0], "bias": cores[1]}})
    context = fh.Context(CLIENT, round, K, K)
    after = jax.jit(part.update)(jax.random.key(0), sent, start, one_client(ragged, CLIENT), context)[1]
    np.testing.assert_allclose(after, 5.0 - 0.01 * decay * 0.2 * (5.0 - share), rtol=1e-6)


@pytest.mark.slow
def test_pfedhn_s_gradient_has_a_bound_and_momentum():
  sent = fh.Message(like(jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), linear().init(jax.random.key(0)))))

  def moved(**settings):
    part = pfedhn(linear(), SIZES, hidden=5, server_weight_decay=0.0, server_lr=0.1, **settings)
    first = part.needs.brings["server"].init(part.init_broadcast(jax.random.key(0)))[0]
    after = served(part, sent, [0, 1, 2])
    again = served(part, sent, [0, 1, 2], after)
    steps = [jax.tree.map(jnp.subtract, b, a) for a, b in ((first, after[0]), (after[0], again[0]))]
    return [float(optax.tree.norm(own)) for own in steps]

  assert moved(server_clip=0.01)[0] == pytest.approx(0.001, rel=1e-4)
  assert moved(server_clip=None)[0] > 0.01
  assert moved(server_clip=0.01, server_momentum=0.9)[1] > 1.5 * moved(server_clip=0.01)[1]
  assert moved(server_clip=0.01, embedding=2)[0] == pytest.approx(0.001, rel=1e-4)


class Net(nn.Module):
  @nn.compact
  def __call__(self, x, train):
    h = nn.BatchNorm(use_running_average=not train, name="norm")(nn.Dense(5, name="body")(x))
    return nn.Dense(3, name="head")(nn.relu(h))


MAKES = {
  **{own.__name__: own for own in (fedamp, fedfomo, cfl, fedcac, fedpac, pfedhn)},
  "fedas": lambda model, sizes, **local: fedas(model, **local),
  "fml": lambda model, sizes, **local: fml(model, **local),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:fedfomo compares")
@pytest.mark.parametrize("name", with_every(MAKES, "fedamp", "fedfomo", "fedpac"))
def test_running_statistics_travel_with_the_models(name, ragged):
  model = fh.models.from_flax(Net(), (4,), 3, head=("head",))
  part = MAKES[name](model, SIZES, **LOCAL)
  run = fh.run(fh.federated(part), ragged, rounds=2, cohort_size=K, key=jax.random.key(0))
  state, server = run.state, part.needs.brings.get("server", fh.server.sgd())
  sent = server.received(server.sent(state.broadcast, state.server), 2)
  context = fh.Context(2, 2, K, K)
  judged = part.personalize(sent, row(state.clients, 2), one_client(ragged, 2), context, 0.0)
  mean = np.asarray(judged.stats["norm"]["mean"])
  assert np.isfinite(mean).all() and (np.abs(mean - model.stats["norm"]["mean"]) > 1e-4).all()
  received = sent.stats if name != "fedfomo" else sent.extra.stats
  assert np.abs(np.asarray(received["norm"]["mean"])).max() > 1e-4


@pytest.mark.parametrize("make", [fedamp, heurfedamp, fedfomo, cfl, apple, fedcac, fedpac, pfedhn])
def test_a_part_is_for_so_many_clients(make, ragged):
  with pytest.raises(SettingError, match="the client part was made for 3 clients"):
    fh.Engine(fh.federated(make(mlp(), (1, 2, 3))), ragged, K)


@pytest.mark.parametrize("make", [fedfomo, apple])
def test_transforms_that_would_change_nothing_are_refused(make):
  with pytest.raises(
    SettingError, match=f"uploads = 'quantize': changes nothing, as {make.__name__} says itself"
  ):
    fh.federated(make(mlp(), SIZES), uploads=[fh.uploads.quantize()])


@pytest.mark.parametrize("make", [fedfomo, cfl])
def test_remarks_on_local_training_stay(make, ragged):
  told = [*make(mlp(), SIZES, steps=3, epochs=7).needs.remarks(ragged)]
  assert "epochs = 7: no effect beside steps = 3." in told


@pytest.mark.slow
def test_a_batch_may_be_larger_than_all_clients_for_fedas(ragged):
  """The trace is then that of the whole client's gradient."""
  part = fedas(mlp(), align_lr=0.0, **LOCAL | dict(batch_size=999))
  first = part.init_broadcast(jax.random.key(0))
  state, data = part.init(jax.random.key(1), first, None, None), one_client(ragged, CLIENT)
  upload, after, _ = jax.jit(part.update)(jax.random.key(0), first, state, data, fh.Context(CLIENT))
  gradient = jax.grad(lambda own: training_loss(mlp(), own, data))(after)
  np.testing.assert_allclose(upload.extra, optax.tree.norm(gradient) ** 2, rtol=1e-4)


@pytest.mark.slow
def test_who_is_in_which_cluster_does_not_depend_on_the_order_of_the_cohort():
  part = cfl(linear(), np.ones(4), eps1=9.0, eps2=0.1, warmup_rounds=0)
  sent = like(jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), linear().init(jax.random.key(0))))
  sizes = jnp.array([1, 5, 2, 7])
  order = jnp.array([2, 0, 3, 1])
  found = served(part, fh.Message(sent), range(4), sizes=sizes)
  moved = jax.tree.map(lambda leaf: leaf[order], sent)
  other = served(part, fh.Message(moved), [2, 0, 3, 1], sizes=sizes[order])
  assert int(found.number) == 2 and found.clusters.tolist() == other.clusters.tolist()
  chex.assert_trees_all_close(found.models, other.models, rtol=1e-5, atol=1e-6)


def test_the_critical_share_is_a_whole_number_of_numbers():
  new, old = np.random.default_rng(0).normal(size=(2, 100)).astype(np.float32)
  found = jax.jit(jax.vmap(lambda tau: critical(jnp.asarray(new), jnp.asarray(old), tau).sum()))
  np.testing.assert_array_equal(found(jnp.arange(101) / 100), np.arange(101))
