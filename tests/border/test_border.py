"""The engine knows no method: parts of every awkward shape run through it as through a plain loop."""

import ast
import re
from itertools import chain
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_parts import (
  ENDPOINTS,
  FEATURES,
  SYNTHETIC_LABELS,
  float64,
  gram,
  linear,
  linear_logits,
  linear_loss_and_gradient,
  round_draws,
  rows_of,
  scaffold,
  sgld,
  simplex,
  synthesis,
  walk,
)

import fedjax_het
from fedjax_het.clients.sgd import fedavg
from fedjax_het.engine.engine import Engine
from fedjax_het.federated import federated
from fedjax_het.methods import METHODS as TABLES
from fedjax_het.parts import Message

LR, EPOCHS, BATCH = 0.1, 2, 4
COHORT, ROUNDS = 5, 3
METHODS = re.findall(
  r"\w+",
  """fedavg fedprox scaffold lg_fedavg fedper fedrep apfl pfedme ditto superfed sosicfl fedevg fedcgan fedcvae
  afl qffl term fedmgda propfair aaggff adam yogi adagrad sgld mu nu energy endpoint endpoints simplex""",
)
draw_alpha = jax.jit(lambda key: jax.random.dirichlet(key, np.ones(ENDPOINTS, np.float32)))


def rounds_of(algorithm, data, rounds=ROUNDS):
  """Runs the engine one round at a time: yields (a copy of the state before, the state after, infos)."""
  engine = Engine(algorithm, data, COHORT, devices=2)
  state = engine.init(jax.random.key(3))
  for _ in range(rounds):
    before = jax.tree.map(jnp.copy, state)
    state, infos = engine.advance(state, 1)
    yield before, state, infos


def close(found, expected, rtol=2e-5, atol=2e-6):
  chex.assert_trees_all_close(found, expected, rtol=rtol, atol=atol)


def weighted(p, trees):
  """Σ_i p_i tree_i."""
  return jax.tree.map(lambda *leaves: sum(q * leaf for q, leaf in zip(p, leaves)), *trees)


def by_size(data, cohort):
  sizes = np.asarray(data.train.size, np.float64)[cohort]
  return sizes / sizes.sum()


def client_of(stacked, i):
  return float64(jax.tree.map(lambda leaf: leaf[i], stacked))


def sgd_walk(params, key, data, i, shift=None):
  """Plain local SGD on softmax regression: (params, mean loss, steps)."""
  losses = []
  for x, y, _ in walk(key, data, i, BATCH, EPOCHS):
    loss, gradient = linear_loss_and_gradient(params, x, y)
    if shift is not None:
      gradient = jax.tree.map(np.add, gradient, shift)
    params = jax.tree.map(lambda p, g: p - LR * g, params, gradient)
    losses.append(loss)
  return params, np.mean(losses), len(losses)


@pytest.mark.slow
def test_control_variates_are_averaged_evenly(ragged):
  fraction = COHORT / ragged.num_clients
  algorithm = federated(scaffold(linear(), LR, EPOCHS, BATCH))
  moved = 0.0
  own = {i: None for i in range(ragged.num_clients)}  # kept here, never read back from the engine
  params = control = None
  for before, after, infos in rounds_of(algorithm, ragged):
    if params is None:
      params, control = (float64(own) for own in (before.broadcast.params, before.broadcast.even))
      own = {i: client_of(before.clients, i) for i in own}
    cohort, keys, _ = round_draws(before, ragged.num_clients, COHORT)
    uploads, evens = [], []
    for slot, i in enumerate(cohort):
      shift = jax.tree.map(np.subtract, control, own[i])
      y, loss, steps = sgd_walk(params, keys[i], ragged, i, shift)
      new = jax.tree.map(lambda o, c, a, b: o - c + (a - b) / (steps * LR), own[i], control, params, y)
      evens.append(jax.tree.map(lambda c, n, o: c + fraction * (n - o), control, new, own[i]))
      uploads.append(y)
      own[i] = new
      np.testing.assert_allclose(infos.clients.loss[0, slot], loss, rtol=1e-5)
      assert infos.clients.steps[0, slot] == steps
    p = by_size(ragged, cohort)
    params, control = weighted(p, uploads), weighted(np.full(COHORT, 1 / COHORT), evens)
    close(float64(after.broadcast), Message(params, even=control))
    for i in own:
      close(client_of(after.clients, i), own[i])
    moved = max(moved, *(np.abs(leaf).max() for leaf in jax.tree.leaves(control)))
  assert moved > 0.01  # or the control variate was never tried


@pytest.mark.slow
def test_mixing_sees_the_gram_matrix_of_the_updates(ragged):
  client = fedavg(linear(), lr=LR, momentum=0.0, weight_decay=0.0, epochs=EPOCHS, batch_size=BATCH)
  params, heard = None, np.zeros(ragged.num_clients)
  for before, after, infos in rounds_of(federated(client, gram()), ragged):
    params = float64(before.broadcast.params) if params is None else params
    cohort, keys, _ = round_draws(before, ragged.num_clients, COHORT)
    uploads = [sgd_walk(params, keys[i], ragged, i)[0] for i in cohort]
    updates = [jax.tree.map(np.subtract, upload, params) for upload in uploads]
    flat = [np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(update)]) for update in updates]
    flat = [d / np.linalg.norm(d) for d in flat]
    p = np.array([1.0 / (1.0 + COHORT + sum(a @ b for b in flat)) for a in flat])
    p /= p.sum()
    assert np.ptp(p) > 0.01
    np.testing.assert_allclose(infos.coefficients[0], p, rtol=2e-5)
    params = weighted(p, uploads)
    close(float64(after.broadcast.params), params)
    heard[cohort] += 1
    np.testing.assert_array_equal(after.mixing, heard)


@pytest.mark.slow
def test_broadcast_may_be_data(ragged):
  algorithm = federated(synthesis(linear(), LR, EPOCHS, BATCH), server=sgld(0.5, 0.01))
  rows = np.arange(len(SYNTHETIC_LABELS))
  x = own = None
  for n, (before, after, _) in enumerate(rounds_of(algorithm, ragged)):
    if x is None:
      x = float64(before.broadcast.params)
      own = {i: client_of(before.clients, i) for i in range(ragged.num_clients)}
    cohort, keys, server_key = round_draws(before, ragged.num_clients, COHORT)
    p = by_size(ragged, cohort)
    top, bottom = np.zeros((len(rows), FEATURES)), np.zeros(len(rows))
    for slot, i in enumerate(cohort):
      own[i], _, _ = sgd_walk(own[i], keys[i], ragged, i)
      logit = linear_logits(own[i], x)[rows, SYNTHETIC_LABELS]
      gradient = -own[i]["fc"]["kernel"].T[SYNTHETIC_LABELS]
      e = np.exp(np.sign(logit))
      top += p[slot] * e[:, None] * gradient
      bottom += p[slot] * e
    epsilon = np.asarray(jax.random.normal(server_key, x.shape), np.float64)
    x = x - 0.5 * top / bottom[:, None] + 0.01 * epsilon
    close(float64(after.broadcast.params), x)
    close(float64(after.broadcast.extra), bottom)
    assert int(after.server) == n + 1
    for i in own:
      close(client_of(after.clients, i), own[i])


@pytest.mark.slow
def test_data_is_evaluated_as_a_classifier(ragged):
  engine = Engine(federated(synthesis(linear()), server=sgld()), ragged, COHORT, devices=1)
  state, _ = engine.advance(engine.init(jax.random.key(4)), 2)
  evaluation = engine.evaluate(state)
  synthetic = float64(state.broadcast.params)
  for i in range(ragged.num_clients):
    x, y = rows_of(ragged, i, "test")
    nearest = SYNTHETIC_LABELS[((x[:, None] - synthetic) ** 2).sum(-1).argmin(1)]
    personal = linear_logits(client_of(state.clients, i), x).argmax(1)
    np.testing.assert_allclose(evaluation.global_["top1"][i], np.mean(nearest == y), rtol=1e-6)
    np.testing.assert_allclose(evaluation.personalized["top1"][i], [np.mean(personal == y)], rtol=1e-6)


@pytest.mark.slow
def test_broadcast_may_be_several_models(ragged):
  algorithm = federated(simplex(linear(), LR, EPOCHS, BATCH))
  ends = None
  for before, after, infos in rounds_of(algorithm, ragged):
    ends = float64(before.broadcast.params) if ends is None else ends
    cohort, keys, _ = round_draws(before, ragged.num_clients, COHORT)
    uploads = []
    for slot, i in enumerate(cohort):
      mine, losses = list(ends), []
      for x, y, key in walk(keys[i], ragged, i, BATCH, EPOCHS):
        alpha = np.asarray(draw_alpha(key), np.float64)
        loss, gradient = linear_loss_and_gradient(weighted(alpha, mine), x, y)
        mine = [jax.tree.map(lambda t, g: t - a * LR * g, end, gradient) for a, end in zip(alpha, mine)]
        losses.append(loss)
      uploads.append(tuple(mine))
      np.testing.assert_allclose(infos.clients.loss[0, slot], np.mean(losses), rtol=1e-5)
    ends = weighted(by_size(ragged, cohort), uploads)
    close(float64(after.broadcast.params), ends)
    chex.assert_trees_all_equal(before.clients, after.clients)
  last = after
  engine = Engine(algorithm, ragged, COHORT, devices=1)
  evaluation = engine.evaluate(jax.device_put(last, engine.shardings(last)))
  for i in range(ragged.num_clients):
    x, y = rows_of(ragged, i, "test")
    for found, alpha in (
      (evaluation.personalized["loss"][i, 0], client_of(last.clients, i)),
      (evaluation.global_["loss"][i], np.full(ENDPOINTS, 1 / ENDPOINTS)),
    ):
      expected, _ = linear_loss_and_gradient(weighted(alpha, ends), x, y)
      np.testing.assert_allclose(found, expected, rtol=2e-5)


# The engine's source.

PART_NAME = re.compile(r"\b(client|mixing|server|part|mix|move)s?\.name$")
ENGINE = sorted((Path(fedjax_het.__file__).parent / "engine").glob("*.py"))


def imported(tree):
  """Every module and name that a source file imports, at its top or inside a function."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, "a relative import"
      yield from (f"{node.module}.{alias.name}" for alias in node.names)


def methods_named(source: str) -> set[str]:
  """The methods that a source file names, in code, docstrings or comments."""
  folder = Path(fedjax_het.__file__).parent
  files = {
    path.stem for part in ("clients", "mixing", "server") for path in (folder / part).glob("[a-z]*.py")
  }
  names = set(METHODS) | files - {"static", "uniform", "objective"}
  words = set(re.findall(r"[a-z]+(?:_[a-z]+)*", source.lower()))
  return {word for word in words for name in names if word == name or word.startswith(name + "_")}


@pytest.mark.parametrize("path", ENGINE, ids=lambda path: path.name)
def test_engine_imports_no_method(path):
  rooms = re.compile(
    r"fedjax_het\.((clients|mixing|server|models|experiment|studies|participation|uploads|attacks|aggregation)\b|tasks\.(?!Task$|task\.))"
  )
  assert not [name for name in imported(ast.parse(path.read_text())) if rooms.match(name)]


@pytest.mark.parametrize("path", ENGINE, ids=lambda path: path.name)
def test_engine_names_no_method(path):
  assert not methods_named(path.read_text())
  asked = [
    n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute) and n.attr == "name"
  ]
  assert not [own for own in map(ast.unparse, asked) if PART_NAME.search(own)], (
    "the engine asks a part's name"
  )


def name_questions(source: str) -> list[str]:
  """Returns the comparisons in a source file that ask a part's name, or compare with a method's name."""
  names = {*chain(*TABLES.values())} - {"local"}  # which a configuration's section is called too

  def asks(node: ast.expr) -> bool:
    constants = {own.value for own in ast.walk(node) if isinstance(own, ast.Constant)}
    return bool(PART_NAME.search(ast.unparse(node)) or constants & names)

  compared = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Compare)]
  return [ast.unparse(node) for node in compared if any(map(asks, (node.left, *node.comparators)))]


def test_nobody_decides_by_a_part_s_name():
  files = [*Path(fedjax_het.__file__).parent.rglob("*.py")]
  assert len(files) > 200
  assert not {str(path): found for path in files if (found := name_questions(path.read_text()))}
  assert name_questions("if mixing.name != kind or name in ('uniform', other):\n  pass") == [
    "mixing.name != kind", "name in ('uniform', other)",
  ]  # fmt: skip


def test_the_source_checks_can_fail():
  assert {"engine.py", "round.py", "placement.py", "evaluate.py"} <= {path.name for path in ENGINE}
  source = "def f():\n  from fedjax_het.clients.sgd import fedavg  # for superfed_mm"
  assert list(imported(ast.parse(source))) == ["fedjax_het.clients.sgd.fedavg"]
  assert methods_named(source) == {"fedavg", "sgd", "superfed_mm"}
