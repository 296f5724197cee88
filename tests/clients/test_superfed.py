"""SuPerFed: its identities with FedAvg and FedProx, and equation 2.3 against automatic differentiation."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_parts import federation, float64, linear, mlp, one_client, round_draws, walk

import fedjax_het as fh
from fedjax_het.clients import superfed as module
from fedjax_het.clients.objective import momentum_sgd
from fedjax_het.clients.sgd import fedavg, fedprox
from fedjax_het.clients.superfed import cosine, cosine_squared_factors, draw_lambda, superfed
from fedjax_het.engine.engine import Engine
from fedjax_het.errors import SettingError
from fedjax_het.federated import federated
from fedjax_het.parts import Context, Message

COHORT, ROUNDS = 5, 3
LOCAL = dict(lr=0.1, lr_decay=0.9, epochs=2, batch_size=4)
GRANULARITIES = pytest.mark.parametrize(
  "granularity", ["model", pytest.param("layer", marks=pytest.mark.slow)]
)


def engine_of(client, data, devices=1):
  return Engine(federated(client), data, COHORT, devices=devices)


def run(client, data, rounds=ROUNDS):
  engine = engine_of(client, data)
  state, infos = engine.advance(engine.init(jax.random.key(2)), rounds)
  return state, infos


def close(a, b, rtol, atol):
  chex.assert_trees_all_close(a, b, rtol=rtol, atol=atol)


# Identities.


@pytest.mark.slow
@GRANULARITIES
@pytest.mark.parametrize("mu, other", [(0.0, fedavg), (0.7, lambda m, **kw: fedprox(m, mu=0.7, **kw))])
def test_before_the_start_it_is_fedavg_or_fedprox_bit_for_bit(ragged, granularity, mu, other):
  late = superfed(mlp(), granularity=granularity, mu=mu, nu=2.0, start_round=ROUNDS, **LOCAL)
  state, infos = run(late, ragged)
  expected, expected_infos = run(other(mlp(), **LOCAL), ragged)
  chex.assert_trees_all_equal(state.broadcast, expected.broadcast)
  assert np.abs(infos.clients.figures["cosine"]).max() > 1e-3
  plain = infos.clients._replace(figures=())
  chex.assert_trees_all_equal(infos._replace(clients=plain), expected_infos)


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_without_lambda_and_nu_it_is_fedavg_or_fedprox(ragged, monkeypatch, mu):
  zeros = lambda key, params, granularity: jax.tree.map(lambda _: jnp.float32(0.0), params)  # noqa: E731
  monkeypatch.setattr(module, "draw_lambda", zeros)
  state, infos = run(superfed(mlp(), mu=mu, nu=0.0, start_round=0, **LOCAL), ragged)
  expected, expected_infos = run(fedprox(mlp(), mu=mu, **LOCAL), ragged)
  close(state.broadcast, expected.broadcast, 1e-6, 1e-6)
  close(infos.clients.loss, expected_infos.clients.loss, 1e-6, 1e-6)


@pytest.mark.slow
def test_with_lambda_it_is_not(ragged):
  """Or the identities above would hold of anything."""
  state, _ = run(superfed(mlp(), mu=0.0, nu=0.0, start_round=ROUNDS - 1, **LOCAL), ragged)
  other, _ = run(fedavg(mlp(), **LOCAL), ragged)
  apart = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), state.broadcast, other.broadcast)
  assert min(jax.tree.leaves(apart)) > 1e-3


# Equation 2.3.


def objective(model, ends, center, lam, x, y, mu, nu):
  """F(θ(λ)) + μ/2 ||θ^f - θ^g||² + ν cos²(θ^f, θ^l), written out from the paper."""
  federated, local = ends
  mixed = jax.tree.map(lambda f, l, t: (1 - t) * f + t * l, federated, local, lam)
  data = optax.softmax_cross_entropy_with_integer_labels(model.apply(mixed, x), y).mean()
  f, l, g = (jax.flatten_util.ravel_pytree(tree)[0] for tree in (federated, local, center))
  cosine = f @ l / (jnp.linalg.norm(f) * jnp.linalg.norm(l))
  return data + mu / 2 * jnp.sum((f - g) ** 2) + nu * cosine**2, data


@pytest.mark.slow
@pytest.mark.parametrize("momentum", [0.0, pytest.param(0.9, marks=pytest.mark.slow)])
def test_with_nu_from_the_first_round_both_ends_descend_at_lambda_0_before_the_start(ragged, momentum):
  """Algorithm 2.4 as printed: before L only λ is 0; by automatic differentiation of the objective."""
  model, mu, nu, i = mlp(), 0.3, 1.7, 2
  settings = dict(mu=mu, nu=nu, lr=0.5, lr_decay=1.0, epochs=1, batch_size=4, momentum=momentum)
  client = superfed(model, start_round=3, nu_from="first", weight_decay=0.05, **settings)
  broadcast = client.init_broadcast(jax.random.key(0))
  local = client.init(jax.random.key(1), broadcast, None, Context())
  given = jax.random.key(2), broadcast, local, one_client(ragged, i)
  upload, after, _ = jax.jit(client.update)(*given, Context(round=2))
  center = ends = broadcast.params, local
  zeros = jax.tree.map(lambda _: 0.0, local)
  velocity = jax.tree.map(jnp.zeros_like, ends)
  for x, y, _ in walk(given[0], ragged, i, 4, 1):
    gradient, _ = jax.grad(objective, argnums=1, has_aux=True)(model, ends, center[0], zeros, x, y, mu, nu)
    gradient = jax.tree.map(lambda g, own: g + 0.05 * own, gradient, ends)
    velocity = jax.tree.map(lambda m, g: momentum * m + g, velocity, gradient)
    ends = jax.tree.map(lambda own, m: own - 0.5 * m, ends, velocity)
  close(upload.params, ends[0], 2e-4, 2e-5)
  close(after, ends[1], 2e-4, 2e-5)
  assert not np.allclose(after["fc1"]["kernel"], local["fc1"]["kernel"], atol=1e-3)


@pytest.mark.slow
def test_statistics_are_fedavg_s_before_the_start_since_whenever_nu_acts(ragged):
  base = mlp()

  def train(params, stats, x, real, key):
    return base.apply(params, x), {"m": 0.9 * stats["m"] + 0.1 * x.mean(0)}

  model = base._replace(
    apply=lambda params, x, stats: base.apply(params, x), train=train, stats={"m": jnp.zeros(4)}
  )
  key, own, sent = jax.random.key(0), one_client(ragged, 2), []
  for since in ("start", "first"):
    client = superfed(model, start_round=5, nu=0.0, nu_from=since, **LOCAL)
    broadcast = client.init_broadcast(key)
    state = client.init(key, broadcast, None, Context())
    sent.append(jax.jit(client.update)(key, broadcast, state, own, Context(round=2))[0].stats)
  close(*sent, 1e-5, 1e-6)
  assert np.abs(sent[0]["m"]).max() > 1e-3


@pytest.mark.slow
def test_from_the_start_on_it_does_not_matter_since_when_nu_acts(ragged):
  first, start = (run(superfed(mlp(), nu_from=own, **LOCAL), ragged) for own in ("first", "start"))
  close(first[0].broadcast, start[0].broadcast, 1e-5, 1e-6)
  close(first[0].clients, start[0].clients, 1e-5, 1e-6)
  said = superfed(mlp(), nu_from="first", **LOCAL).needs.remarks(ragged)
  assert [*said] == ['nu_from = "first": no effect, as L = 0 is the first round.']
  assert not [*superfed(mlp(), nu_from="first", start_round=2, **LOCAL).needs.remarks(ragged)]
  with pytest.raises(SettingError, match="nu_from"):
    superfed(mlp(), nu_from="last")


@GRANULARITIES
def test_both_ends_descend_the_objective_with_momentum_decay_and_weight_decay(ragged, granularity):
  """Round 2 step by step: m <- ρ m + ∇ + w θ, θ <- θ - γ d² m, by automatic differentiation of the objective.

  From the second step on θ^f has left θ^g.
  """
  model, mu, nu, i = mlp(), 0.3, 1.7, 2
  momentum, weight_decay, lr, lr_decay = 0.8, 0.05, 1.0, 0.7
  client = superfed(
    model, granularity=granularity, mu=mu, nu=nu, lr=lr, lr_decay=lr_decay, epochs=2, batch_size=4,
    **(
      {"momentum": momentum, "weight_decay": weight_decay} if granularity == "model"
      else {"optimizer": momentum_sgd(momentum, weight_decay)}
    ),
  )  # fmt: skip
  broadcast = client.init_broadcast(jax.random.key(0))
  local = client.init(jax.random.key(1), broadcast, None, Context())
  key = jax.random.key(2)
  upload, new_local, info = jax.jit(client.update)(
    key, broadcast, local, one_client(ragged, i), Context(round=2)
  )

  gradient_of = jax.jit(jax.grad(lambda ends, *args: objective(model, ends, *args, mu, nu), has_aux=True))
  ends, losses = float64((broadcast.params, local)), []
  buffer = jax.tree.map(np.zeros_like, ends)
  for x, y, step_key in walk(key, ragged, i, 4, 2):
    lam = draw_lambda(step_key, local, granularity)
    single = jax.tree.map(np.float32, ends)
    gradient, loss = gradient_of(single, broadcast.params, lam, jnp.asarray(x, jnp.float32), y)
    assert all(np.abs(leaf).max() > 1e-3 for leaf in jax.tree.leaves(gradient))
    buffer = jax.tree.map(
      lambda m, g, e: momentum * m + g + weight_decay * e, buffer, float64(gradient), ends
    )
    ends = jax.tree.map(lambda e, m: e - lr * lr_decay**2 * m, ends, buffer)
    losses.append(loss)
  assert len(losses) == 4 == info.steps
  close((upload.params, new_local), ends, 1e-5, 1e-5)
  np.testing.assert_allclose(info.loss, np.mean(losses), rtol=1e-5)
  f, l = (np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(end)]) for end in ends)
  np.testing.assert_allclose(info.figures["cosine"], f @ l / np.sqrt(f @ f * (l @ l)), rtol=1e-4)


@pytest.mark.slow
def test_proximity_pulls_in_the_second_step(ragged):
  """A large μ is felt: what the previous test would miss if θ^f never left θ^g."""
  results = [
    run(
      superfed(mlp(), mu=mu, nu=0.0, lr=0.1, momentum=0.0, weight_decay=0.0, epochs=2, batch_size=4),
      ragged,
      1,
    )
    for mu in (0.0, 3.0)
  ]
  first = engine_of(superfed(mlp()), ragged).init(jax.random.key(2)).broadcast
  free, held = (optax.tree.norm(jax.tree.map(jnp.subtract, s.broadcast, first)) for s, _ in results)
  assert held < 0.9 * free


@pytest.mark.parametrize("seed", range(3))
def test_cosine_factors_are_its_gradient(seed):
  federated, local = (mlp().init(jax.random.key(2 * seed + j)) for j in (0, 1))
  a, b, c = cosine_squared_factors(federated, local)
  square = lambda *ends: cosine(*ends) ** 2  # noqa: E731
  by_f, by_l = jax.grad(square, (0, 1))(federated, local)
  close(jax.tree.map(lambda f, l: a * l - b * f, federated, local), by_f, 1e-5, 1e-6)
  close(jax.tree.map(lambda f, l: a * f - c * l, federated, local), by_l, 1e-5, 1e-6)
  f, l = (np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(float64(t))]) for t in (federated, local))
  np.testing.assert_allclose(square(federated, local), (f @ l) ** 2 / (f @ f * (l @ l)), rtol=1e-5, atol=1e-8)


def test_cosine_of_a_zero_vector_pulls_nowhere():
  params = mlp().init(jax.random.key(0))
  zero = jax.tree.map(jnp.zeros_like, params)
  for ends in ((zero, params), (params, zero), (zero, zero)):
    assert cosine(*ends) == 0.0
    np.testing.assert_array_equal(cosine_squared_factors(*ends), 0.0)


# λ.


def test_lambda_of_a_model_is_one_number():
  lam = draw_lambda(jax.random.key(0), mlp().init(jax.random.key(1)), "model")
  assert len({float(leaf) for leaf in jax.tree.leaves(lam)}) == 1


def test_lambda_of_a_layer_is_shared_by_kernel_and_bias():
  lam = draw_lambda(jax.random.key(0), mlp().init(jax.random.key(1)), "layer")
  assert lam["fc1"]["kernel"] == lam["fc1"]["bias"]
  assert lam["fc2"]["kernel"] == lam["fc2"]["bias"]
  assert lam["fc1"]["kernel"] != lam["fc2"]["kernel"]


def test_lambda_is_uniform():
  params = mlp().init(jax.random.key(1))
  draws = jax.vmap(lambda key: draw_lambda(key, params, "layer"))(jax.random.split(jax.random.key(0), 2000))
  a, b = np.asarray(draws["fc1"]["bias"]), np.asarray(draws["fc2"]["bias"])
  for values in (a, b):
    assert values.min() >= 0 and values.max() < 1
    counts = np.histogram(values, 10, (0, 1))[0]
    assert ((counts - 200) ** 2 / 200).sum() < 27.9  # χ² of 9 degrees of freedom, p = 0.001
  assert abs(np.corrcoef(a, b)[0, 1]) < 0.07  # 3 σ


@pytest.mark.slow
def test_lambda_is_drawn_anew_in_each_step_round_and_client(ragged, monkeypatch):
  """By recording the keys that an eager run hands over."""
  keys = []

  def record(key, params, granularity):
    keys.append(tuple(np.asarray(jax.random.key_data(key))))
    return draw_lambda(key, params, granularity)

  monkeypatch.setattr(module, "draw_lambda", record)
  client = superfed(linear(), lr=0.1, epochs=2, batch_size=4)
  broadcast = client.init_broadcast(jax.random.key(0))
  with jax.disable_jit():
    for key in (3, 4):
      client.update(jax.random.key(key), broadcast, broadcast.params, one_client(ragged, 10), Context())
  assert len(keys) == len(set(keys)) == 4


# What stays at home.


@pytest.mark.slow
def test_local_models_move_from_the_start_round_on_only(ragged):
  engine = engine_of(superfed(mlp(), start_round=1, **LOCAL), ragged)
  state = engine.init(jax.random.key(2))
  for t in range(3):
    before = jax.tree.map(np.array, state.clients)
    cohort, _, _ = round_draws(state, ragged.num_clients, COHORT)
    state, _ = engine.advance(state, 1)
    for i in range(ragged.num_clients):
      mine = jax.tree.map(lambda a, b: bool((np.asarray(a)[i] == b[i]).all()), state.clients, before)
      moved = t >= 1 and i in cohort
      assert all(not same if moved else same for same in jax.tree.leaves(mine)), (t, i)


@pytest.mark.slow
def test_local_models_start_apart(ragged):
  state = engine_of(superfed(mlp()), ragged).init(jax.random.key(2))
  flat = lambda tree: np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])  # noqa: E731
  models = [flat(jax.tree.map(lambda leaf: leaf[i], state.clients)) for i in range(ragged.num_clients)]
  models.append(flat(state.broadcast.params))
  correlations = np.corrcoef(models)[np.triu_indices(len(models), 1)]
  assert np.abs(correlations).max() < 0.7  # 43 independent normal numbers: 5 σ
  engine = engine_of(fedavg(mlp()), ragged)
  chex.assert_trees_all_equal(state.broadcast, engine.init(jax.random.key(2)).broadcast)


@GRANULARITIES
def test_only_the_federated_end_is_uploaded(ragged, granularity):
  model = mlp()
  client = superfed(model, granularity=granularity, **LOCAL)
  broadcast = client.init_broadcast(jax.random.key(0))
  local = client.init(jax.random.key(1), broadcast, None, Context())
  args = (broadcast, local, one_client(ragged, 2), Context())
  upload, new_local, _ = jax.eval_shape(client.update, jax.random.key(2), *args)
  expected = jax.eval_shape(lambda key: Message(model.init(key)), jax.random.key(0))
  for found in (upload, Message(new_local)):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, expected)


def test_ends_of_the_line(ragged):
  client = superfed(mlp())
  broadcast = client.init_broadcast(jax.random.key(0))
  local = client.init(jax.random.key(1), broadcast, None, Context())
  chex.assert_trees_all_equal(
    client.personalize(broadcast, local, None, Context(), jnp.float32(0.0)), broadcast.params
  )
  chex.assert_trees_all_equal(client.personalize(broadcast, local, None, Context(), jnp.float32(1.0)), local)
  chex.assert_trees_all_equal(client.global_model(broadcast), broadcast.params)
  half = jax.tree.map(lambda f, l: (f + l) / 2, broadcast.params, local)
  close(client.personalize(broadcast, local, None, Context(), jnp.float32(0.5)), half, 1e-6, 1e-7)
  np.testing.assert_allclose(client.studies.lambdas, np.arange(11) / 10)


@pytest.mark.parametrize(
  "setting, value",
  [
    ("granularity", "layers"), ("mu", -1.0), ("nu", -1.0), ("start_round", -1), ("lr", 0.0),
    ("lr_decay", 1.5), ("momentum", -0.1), ("weight_decay", -0.1), ("epochs", 0), ("batch_size", 0),
  ],
)  # fmt: skip
def test_impossible_settings_are_named(setting, value):
  with pytest.raises(SettingError, match=f"^{setting} = ") as error:
    superfed(mlp(), **{setting: value})
  assert error.value.setting == setting


@pytest.mark.slow
def test_a_run_that_takes_its_numbers_as_values_has_a_members_bits():
  """Also with a strength of 1, which a program that has it as a constant leaves out, and rounds otherwise."""
  data, given = federation((9, 1, 7, 3, 12)), dict(rounds=4, cohort_size=3, devices=1)

  def make(mu, nu):
    return federated(superfed(mlp(), mu=mu, nu=nu, start_round=1, lr=0.1, epochs=1, batch_size=4))

  grid = {"mu": [1.0, 0.01], "nu": [1.0]}
  result = fh.sweep(make, grid, data=data, **given)
  for m, member in enumerate(result.members):
    single = fh.run(make, data, key=jax.random.key(member.pop("seed")), settings=member, **given)
    own = jax.tree.map(lambda leaf: leaf[m], (result.state, result.history[4], result.infos))
    chex.assert_trees_all_equal(own, (single.state, single.evaluation, single.infos))
