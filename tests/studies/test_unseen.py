"""Clients that never train: who they are, that the run does not know them, and what they are told."""

import dataclasses
import json
from pathlib import Path

import jax
import matplotlib.image
import numpy as np
import pytest
from cases import with_every
from launching import records, small, start
from small_parts import (
  SIZES,
  federation,
  float64,
  linear,
  linear_logits,
  linear_loss_and_gradient,
  rows_of,
  walk,
)

import fedjax_het as fh
from fedjax_het.config.algorithm import algorithm_maker
from fedjax_het.config.plan import plan
from fedjax_het.engine.side_by_side import equally_long
from fedjax_het.errors import SettingError
from fedjax_het.experiment.build import build
from fedjax_het.experiment.sweep import run_sweep
from fedjax_het.parts import Message
from fedjax_het.program.where import Where
from fedjax_het.studies import Moment, Watched
from fedjax_het.studies.unseen import Unseen, after_steps

KEY = jax.random.key(4)


def apart(fraction=0.2, steps=(1, 3, 8), **changes):
  """A configuration with clients that never train."""
  plain = {"algorithm": {"name": "fedavg"}, "model": {"name": "logistic_regression"}, "rounds": 2}
  plain |= {"local__momentum": 0.5, "local__weight_decay": 0.01, "local__batch_size": 7}
  return small(**{"unseen": {"fraction": fraction, "steps": list(steps)}} | plain | changes)


@pytest.mark.parametrize(("fraction", "count"), [(0.2, 4), (0.29, 5), (0.95, 19)])
def test_clients_are_dealt_out_by_key(fraction, count):
  seen, unseen = fh.data.split_clients(KEY, 20, fraction)
  assert len(unseen) == count and sorted([*seen, *unseen]) == [*range(20)]
  assert sorted(seen) == [*seen] and sorted(unseen) == [*unseen]
  again = fh.data.split_clients(KEY, 20, fraction)
  np.testing.assert_array_equal(again[1], unseen)
  drawn = [fh.data.split_clients(jax.random.key(i), 20, fraction)[1].tolist() for i in range(20)]
  assert len({*map(tuple, drawn)}) > 5 and {*range(20)} == {i for own in drawn for i in own}


def test_shares_of_clients_that_cannot_be_are_named():
  for fraction in (0.0, 1.0, -0.5):
    with pytest.raises(SettingError, match=f"^fraction = {fraction}: out of range"):
      fh.data.split_clients(KEY, 20, fraction)
  with pytest.raises(SettingError, match=r"fraction = 0.04: of 20 clients that is none\. Use 0\.05 or more"):
    fh.data.split_clients(KEY, 20, 0.04)


def test_the_data_of_some_clients_alone():
  """In the order given, each client's parts as they were, nobody else's rows, and limits of their own."""
  x = {"value": np.arange(60.0)[:, None], "row": np.arange(60)}
  sizes = [12, 5, 20, 5, 18]
  parts = np.split(np.random.default_rng(0).permutation(60), np.cumsum(sizes)[:-1])
  data = fh.federate(x, np.arange(60) % 3, parts, KEY, num_classes=3, valid_fraction=0.25, name="some")
  ids = [3, 1, 0]
  found = fh.data.select(data, ids)
  for part in ("train", "valid", "test"):
    before, after = getattr(data, part), getattr(found, part)
    for new, old in enumerate(ids):
      own, theirs = after.rows(np.array([new])), before.rows(np.array([old]))
      assert len(own) == len(theirs)
      for leaf, other in zip(jax.tree.leaves((found.x, found.y)), jax.tree.leaves((data.x, data.y))):
        np.testing.assert_array_equal(leaf[own], other[theirs])
  assert sorted(found.x["row"]) == sorted(np.concatenate([parts[i] for i in ids]))
  assert (found.num_clients, found.name, found.num_classes) == (3, "some", 3)
  assert found.limits == (8, 2, 2) and found.uniform == (False, False, False)
  alike = fh.data.select(data, [1, 3])
  assert alike.limits == (3, 1, 1) and alike.uniform == (True, True, True)
  order = np.random.default_rng(1).permutation(60)  # the same examples elsewhere, as sweeps share them
  moved = jax.tree.map(lambda leaf: leaf[np.argsort(order)], (data.x, data.y))
  shared = dataclasses.replace(data, x=moved[0], y=moved[1], rows=order.astype(np.int32))
  for leaf, other in zip(jax.tree.leaves(fh.data.select(shared, ids)), jax.tree.leaves(found), strict=True):
    np.testing.assert_array_equal(leaf, other)
  for wrong in ([], [5], [-1], [1, 1]):
    with pytest.raises(SettingError, match=r"^clients = "):
      fh.data.select(data, wrong)


def examples(data) -> set[bytes]:
  return {row.tobytes() for row in data.x}


def test_the_run_has_the_others_alone():
  config = apart()
  built, everybody = build(plan(config)), build(plan(apart(unseen={})))
  assert built.data.num_clients == len(built.parts) == 16 and built.unseen.num_clients == 4
  assert everybody.unseen is None
  assert not examples(built.data) & examples(built.unseen)
  assert len(built.data.y) + len(built.unseen.y) == len(everybody.data.y)
  assert examples(built.data) | examples(built.unseen) == examples(everybody.data)
  for rows, first, size in zip(built.parts, built.data.train.start, built.data.train.size, strict=True):
    own = {row.tobytes() for row in built.source.x[rows]}
    assert {row.tobytes() for row in built.data.x[first : first + size]} <= own


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  workdir = tmp_path_factory.mktemp("unseen")
  return workdir, start(apart(), str(workdir))


@pytest.mark.slow
def test_a_run_is_the_one_on_the_others_bit_for_bit(whole):
  built, everybody = build(plan(apart())), build(plan(apart(unseen={})))
  gone = examples(built.unseen)
  first = [everybody.data.x[row].tobytes() for row in everybody.data.train.start]
  alone = fh.data.select(everybody.data, [i for i, example in enumerate(first) if example not in gone])
  config = apart(unseen={})
  result = fh.run(
    algorithm_maker(plan(config), everybody.model), alone, rounds=2, cohort_size=5, key=everybody.key,
    devices=1, settings=plan(config).numbers,
  )  # fmt: skip
  summary = whole[1]
  assert summary["metrics"] == result.metrics and summary["num_clients"] == 16


@pytest.mark.slow
def test_what_a_run_says_of_them(whole, capsys):
  workdir, summary = whole
  found, line = summary["unseen"], records(workdir)[-1]
  assert found["clients"] == 4 and found["steps"] == [0, 1, 3, 8]
  assert line["unseen"] == json.loads(json.dumps(found["metrics"][0]))
  assert next(iter(found["metrics"][0])) == "top1"
  assert found["metrics"][3]["loss"]["mean"] < found["metrics"][0]["loss"]["mean"]
  assert matplotlib.image.imread(workdir / "figures" / "unseen.png").std() > 0.02
  capsys.readouterr()
  assert start(apart(), str(workdir)) == summary
  shown = [line.split() for line in capsys.readouterr().out.splitlines()]
  top1 = found["metrics"][3]["top1"]
  figures = [f"{100 * top1[name]:.2f}" for name in ("mean", "std", "worst10", "best10")]
  assert ["8", figures[0], "±", *figures[1:]] in shown


@pytest.mark.slow
def test_without_a_step_it_is_the_global_model(whole):
  """Trained to the same end, the global model's metrics on these clients by the engine's own evaluation."""
  built, found = build(plan(apart())), whole[1]["unseen"]["metrics"][0]
  trained = fh.run(built.algorithm, built.data, rounds=2, cohort_size=5, key=built.key, devices=1)
  engine = fh.Engine(built.algorithm, built.unseen, 4, devices=1)
  state = engine.init(built.key)._replace(broadcast=trained.state.broadcast)
  values = engine.evaluate(state).global_
  assert found["top1"]["mean"] == values["top1"].mean() and found["top1"]["worst10"] == values["top1"].min()
  for name in values:
    assert found[name]["mean"] == pytest.approx(values[name].mean(), rel=1e-6)
  local = {"lr": 0.05, "momentum": 0.5, "weight_decay": 0.01, "batch_size": 7}  # the run's own, undecayed
  assert {name: apart().local[name] for name in local} == local and apart().local.lr_decay < 1
  key, given = jax.random.fold_in(built.key, 1_000_004), {"client": built.algorithm.client}
  given |= {"model": built.model, "steps": (1, 3, 8), "local": local}
  tuned = jax.jit(lambda data, broadcast: after_steps(key, data, broadcast, **given))
  later = tuned(built.unseen, jax.tree.map(np.asarray, trained.state.broadcast))[3]
  assert whole[1]["unseen"]["metrics"][3]["loss"]["mean"] == pytest.approx(
    float(later["loss"].mean()), rel=1e-5
  )


@pytest.mark.slow
def test_steps_are_those_of_sgd_by_hand():
  """Momentum and weight decay, passes shuffled anew, partial batches, clients of 1 to 40 examples."""
  data, model, settings = federation(SIZES), linear(), {"lr": 0.2, "momentum": 0.9, "weight_decay": 0.01}
  params, steps = model.init(jax.random.key(1)), (1, 4, 13)
  found = jax.jit(
    lambda data, params: after_steps(
      KEY,
      data,
      Message(params),
      client=fh.fedavg(model),
      model=model,
      steps=steps,
      local={"batch_size": 4, **settings},
    )
  )(data, params)
  assert len(found) == 4
  for i in range(len(SIZES)):
    own, velocity = float64(params), jax.tree.map(np.zeros_like, float64(params))
    x, y = rows_of(data, i, "test")
    taken = 0
    batches = walk(jax.random.fold_in(KEY, i), data, i, 4, steps[-1])
    for count, values in zip((0, *steps), found, strict=True):
      while taken < count:
        batch_x, batch_y, _ = next(batches)
        gradient = linear_loss_and_gradient(own, batch_x, batch_y)[1]
        velocity = jax.tree.map(lambda v, g, p: 0.9 * v + g + 0.01 * p, velocity, gradient, own)
        own = jax.tree.map(lambda p, v: p - 0.2 * v, own, velocity)
        taken += 1
      assert values["loss"][i] == pytest.approx(linear_loss_and_gradient(own, x, y)[0], rel=1e-4, abs=1e-5)
      assert values["top1"][i] == np.mean(linear_logits(own, x).argmax(1) == y)


BAD = {
  "field": (
    dict(unseen={"fracton": 0.2}),
    r"unseen\.fracton = 0\.2: unknown to unseen\. Did you mean 'fraction'",
  ),
  "no fraction": (dict(unseen={"steps": [1]}), r"unseen\.fraction = None: is missing"),
  "fraction": (dict(fraction=1.0), "fraction = 1.0: out of range"),
  "nobody": (dict(fraction=0.01), "of 20 clients that is none"),
  "steps": (dict(steps=[0]), r"unseen\.steps = 0: out of range"),
  "falling": (dict(steps=[3, 1]), r"unseen\.steps = \[3, 1\]: do not rise"),
  "cohort": (dict(fraction=0.8), r"cohort_size = 5: 16 of 20 clients are unseen\. Use at most 4"),
  "no global model": (dict(algorithm={"name": "fedper"}), "fedper has no global model.*such as fedavg"),
  "no model": (
    dict(algorithm={"name": "fedevg"}, server={"name": "sgld"}, model={"name": "two_nn"}, local={}),
    "fedevg shares no model that could be trained on. Set it to",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_sections_that_cannot_be_are_named(name):
  changes, message = BAD[name]
  with pytest.raises(SettingError, match=message):
    build(plan(apart(**changes)))


def test_nobody_is_judged_where_nothing_is_due_or_it_has_diverged():
  config, built = apart(), build(plan(apart()))
  parts = built.algorithm, built.data, built.source, built.parts, built.key, Path()
  run = Watched(plan(config), *parts, model=built.model, unseen=built.unseen)
  own, now = Unseen(run), Moment(2, (), True, None, None, None)
  assert own.watch((), now) == own.section(now) == {}
  assert own.watch((), now._replace(evaluations=None, diverged=False)) == {}
  assert not Unseen.fits(run._replace(unseen=None))


@pytest.mark.slow
@pytest.mark.parametrize("name", with_every(["fedevg", "superfed_mm", "scaffold"], "fedevg", "scaffold"))
def test_methods_of_other_kinds(tmp_path, name):
  """A synthetic set is judged as it is; other methods' global models are trained on like any."""
  own = {"algorithm": {"name": name}, "steps": [2]}
  if name == "fedevg":
    own |= {"server": {"name": "sgld"}, "model": {"name": "two_nn", "hidden": 8}, "local": {}, "steps": []}
    own |= {"downstream": {"steps": 2}}
  found = start(apart(**own), str(tmp_path))["unseen"]
  assert found["steps"] == [0, *own["steps"]] and len(found["metrics"]) == len(found["steps"])
  assert (tmp_path / "figures" / "unseen.png").exists() == bool(own["steps"])


@pytest.mark.slow
@pytest.mark.parametrize("device_rows", with_every([None, 2400], 2400))
def test_members_of_a_sweep_have_their_own(tmp_path, device_rows):
  """Each seed its own clients, and so another number of rows; each member is its own run."""
  config, grid = apart(steps=[2], record_losses=True), {"seed": [0, 5], "local.lr": [0.05, 0.1]}
  where = Where(devices=2, device_rows=device_rows)
  summaries = run_sweep(config, grid, str(tmp_path / "sweep"), where)
  assert len({len(build(plan(apart(seed=seed))).data.y) for seed in (0, 5)}) == 2
  single = start(apart(steps=[2], record_losses=True, seed=5, local__lr=0.1), str(tmp_path / "one"))
  for key in ("num_clients", "client_steps", "bytes"):
    assert summaries[3][key] == single[key]
  for now, then in zip(summaries[3]["unseen"]["metrics"], single["unseen"]["metrics"], strict=True):
    assert now["loss"] == pytest.approx(then["loss"], rel=1e-4)
  losses = [summary["unseen"]["metrics"][1]["loss"]["mean"] for summary in summaries]
  assert len({*losses}) == 4


def test_shorter_data_are_filled_up_with_rows_that_nobody_has():
  short, long = federation(SIZES[:5]), federation([size + 3 for size in SIZES[:5]], seed=1)
  found = equally_long([short, long, short])
  assert found[0] is found[2] and found[1] is long and len(found[0].y) == len(found[0].x) == len(long.y)
  for leaf, other in zip(jax.tree.leaves(found[0]), jax.tree.leaves(short), strict=True):
    np.testing.assert_array_equal(leaf[: len(other)], other)


@pytest.mark.slow
def test_members_may_have_different_numbers_of_rows():
  data = [federation(SIZES[:5]), federation([size + 3 for size in SIZES[:5]], seed=1)]
  keys = jax.random.split(KEY, 2)

  def make():
    return fh.federated(fh.fedavg(linear(), lr=0.1, epochs=1, batch_size=4))

  together = fh.sweep(make, seeds=keys, data=data, rounds=2, cohort_size=3, devices=1)
  for m, own in enumerate(data):
    single = fh.run(make(), own, rounds=2, cohort_size=3, key=keys[m], devices=1)
    kernel = together.state.broadcast.params["fc"]["kernel"][m]
    np.testing.assert_allclose(kernel, single.state.broadcast.params["fc"]["kernel"], rtol=1e-5, atol=1e-6)
    assert together.metrics[m]["global"]["loss"]["mean"] == pytest.approx(
      single.metrics["global"]["loss"]["mean"], rel=1e-5
    )
