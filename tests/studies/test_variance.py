"""The total variance of a cohort's updates (SosicFL, eq. 10), from the uploads to the line of a run."""

import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_parts import mlp

import fedjax_het as fh
from fedjax_het.clients.heads import layers_of_head
from fedjax_het.engine.round import RoundInfo
from fedjax_het.mixing import static, with_variance
from fedjax_het.studies.reported import RoundFigures
from fedjax_het.studies.study import Moment


def test_eq_10_of_the_last_layer():
  rng, model = np.random.default_rng(0), mlp()
  base = model.init(jax.random.key(0))
  sent = jax.tree.map(lambda leaf: leaf + rng.normal(size=(4, *leaf.shape)), base)
  mixing = with_variance(static(), layers_of_head(model))
  feedback = fh.Feedback(
    jnp.arange(4), jnp.ones(4), jnp.int32(0), lambda: jnp.zeros(4), lambda: fh.Message(sent), fh.Message(base)
  )
  found = mixing.figures(feedback)
  updates = np.concatenate([
    (np.asarray(sent["fc2"][name], np.float64) - np.asarray(base["fc2"][name])).reshape(4, -1)
    for name in ("kernel", "bias")
  ], 1)  # fmt: skip
  wanted = np.square(updates - updates.mean(0)).sum()
  assert float(found["variance"]) == pytest.approx(wanted, rel=1e-5)
  assert float(found["disagreement"]) == pytest.approx(wanted / np.square(updates).sum(), rel=1e-5)
  also = mixing._replace(figures=lambda feedback: {"other": jnp.float32(3.0)})
  assert {*with_variance(also, layers_of_head(model)).figures(feedback)} == {"other", *found}


def test_absent_clients_have_no_update():
  base, updates = {"w": jnp.ones(3)}, np.array([[1.0, 0, 2], [0, 0, 1], [5, 5, 5]])
  sent = 1.0 + updates
  sent[2] = 0.0  # as the engine leaves the row of a client whose upload does not arrive
  mixing = with_variance(static(), lambda params: params)
  heard = lambda rows, present: fh.Feedback(  # noqa: E731
    jnp.arange(rows), jnp.ones(rows), jnp.int32(0), None,
    lambda: fh.Message({"w": jnp.asarray(sent[:rows], jnp.float32)}), fh.Message(base), present,
  )  # fmt: skip
  found, wanted = mixing.figures(heard(3, jnp.array([True, True, False]))), mixing.figures(heard(2, None))
  assert {name: float(own) for name, own in found.items()} == pytest.approx({
    name: float(own) for name, own in wanted.items()
  })  # fmt: skip
  assert {*map(float, mixing.figures(heard(3, jnp.zeros(3, bool))).values())} == {0.0}


@pytest.mark.slow
def test_a_run_reports_it_and_is_the_same(uniform):
  def trained(mixing):
    engine = fh.Engine(fh.federated(fh.fedavg(mlp(), epochs=1), mixing), uniform, 3, devices=2)
    state, infos = engine.advance(engine.init(jax.random.key(1)), 2)
    return jax.tree.map(np.asarray, state.broadcast), infos

  (plain, quiet), (same, infos) = trained(static()), trained(with_variance(static(), layers_of_head(mlp())))
  chex.assert_trees_all_equal(plain, same)
  assert quiet.figures == () and {*infos.figures} == {"variance", "disagreement"}
  assert infos.figures["variance"].shape == (2,) and (infos.figures["variance"] > 0).all()
  assert ((infos.figures["disagreement"] > 0) & (infos.figures["disagreement"] < 1)).all()


def check_variance(given, client, model):
  run = types.SimpleNamespace(algorithm=types.SimpleNamespace(client=client), model=model)
  RoundFigures.check_run(given, run)


def test_what_sends_no_last_layer_is_refused():
  model = fh.models.two_nn((4,), hidden=3)
  check_variance(True, fh.fedavg(model), model)
  check_variance(False, fh.fedper(model), model)
  for client, named in ((fh.fedper(model), "fedper"), (fh.fedevg(model, per_class=1), "fedevg")):
    with pytest.raises(fh.SettingError, match=f"record_variance = True: {named}"):
      check_variance(True, client, model)


def test_the_line_has_the_mean_since_the_line_before_also_after_a_stop():
  def rounds(*values):
    return RoundInfo(None, None, None, None, {"variance": np.float32(values)})

  nothing = lambda *_: None  # noqa: E731
  between = Moment(1, None, False, nothing, nothing, nothing)
  line = between._replace(evaluations=object())
  study = RoundFigures(None)
  study.resume(0, None)
  assert study.watch(rounds(1.0, 2.0), between) == {}
  other = RoundFigures(None)
  other.resume(2, study.checkpoint_state())
  assert other.watch(rounds(6.0), line) == {"cohort": {"variance": 3.0}}
  assert other.watch(rounds(5.0), line) == {"cohort": {"variance": 5.0}}
  assert other.watch(RoundInfo(None, None, None, None), line) == {}
  (curve,) = other.curves([{"cohort": {"variance": 3.0}}, {}])
  np.testing.assert_array_equal(curve.values, [3.0, np.nan])
