"""Deadlines, over-selection and the clock: who arrives and how long rounds take, against plain Python."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_parts import SIZES, federation, linear

import fedjax_het as fh
from fedjax_het.engine.cohort import participation_key, system_key
from fedjax_het.engine.elapsed import Clock
from fedjax_het.engine.engine import Engine
from fedjax_het.engine.timed import timed
from fedjax_het.errors import SettingError
from fedjax_het.participation.available import drawn_uniformly
from fedjax_het.parts import Draw, Participation

KEY, COHORT, BATCH, EPOCHS, ROUNDS = jax.random.key(7), 4, 4, 2, 12
SGD = dict(lr=0.1, epochs=EPOCHS, batch_size=BATCH, momentum=0.0, weight_decay=0.0)
FAST = dict(sigma=1.0, step_seconds=0.5, bytes_per_second=500.0, server_seconds=0.25)
NONE = dict(dropout=0.0, least_work=1.0)


def parts(client=None, **federated):
  return fh.federated(client or fh.scaffold(linear(), **SGD), **federated)


def trained(algorithm, data, rounds=ROUNDS, cohort=COHORT, **engine):
  engine = Engine(algorithm, data, cohort, **engine)
  state, infos = engine.advance(engine.init(KEY), rounds)
  return jax.tree.map(np.asarray, state._replace(key=())), infos


def seconds_of_clients(system, messages: int):
  """(seconds of a client's messages, of one step, number of its steps), float64 and whole numbers [K]."""
  key = system_key(participation_key(jax.random.split(KEY, 3)[2]))
  step, link = (np.asarray(own, np.float64) for own in system.speeds(key, jnp.array(SIZES)))
  return messages / link, step, [EPOCHS * math.ceil(size / BATCH) for size in SIZES]


def played(system, inner, messages, rounds=ROUNDS, cohort=COHORT):
  """Yields (ids, contacted, arrived, steps, seconds) of each round, one client after another."""
  transfer, step, whole = seconds_of_clients(system, messages)
  asked = min(math.ceil(round(system.over_selection * 1000) * cohort / 1000), len(SIZES))
  key = participation_key(jax.random.split(KEY, 3)[2])
  for t in range(rounds):
    drawn = inner.draw(key, jnp.int32(t), (), len(SIZES), asked)
    there = drawn.present if drawn.contacted is None else drawn.contacted
    steps, finished = {}, {}
    for row, i in enumerate(drawn.ids.tolist()):
      if not drawn.present[row]:
        continue
      wanted = max(1, math.ceil(float(drawn.work[row]) * whole[i] - 1e-4))
      fits = math.inf if system.deadline == math.inf else (system.deadline - transfer[i]) // step[i]
      if fits >= 1:
        steps[row] = int(min(wanted, fits))
        finished[row] = transfer[i] + steps[row] * step[i]
    here = sorted(finished, key=finished.get)
    if system.over_selection > 1:
      here = here[:cohort]
    lost = [row for row in range(asked) if there[row] and row not in here]
    took = max((finished[row] for row in here), default=0.0)
    if lost and system.deadline < math.inf and not (system.over_selection > 1 and len(here) == cohort):
      took = system.deadline
    arrived = [row in here for row in range(asked)]
    yield drawn.ids, there, arrived, [steps[row] if row in here else 0 for row in range(asked)], took + 0.25


TIMES = {
  "no deadline": (dict(), NONE),
  "deadline": (dict(deadline=1.5), NONE),
  "over-selection": (dict(over_selection=1.3), NONE),
  "both": (dict(deadline=1.5, over_selection=1.6), NONE),
  "dropouts": (dict(deadline=6.0, over_selection=1.5), dict(dropout=0.3, least_work=0.5)),
  "lost without a deadline": (dict(), dict(dropout=0.4, least_work=0.3)),
}


@pytest.mark.slow
@pytest.mark.parametrize(
  "name", [name if name == "both" else pytest.param(name, marks=pytest.mark.slow) for name in TIMES]
)
def test_who_arrives_and_how_long_it_takes_against_plain_python(name):
  timing, arrival = TIMES[name]
  system = fh.system.lognormal(**FAST, **timing)
  algorithm = parts(
    fh.fedavg(linear(), **SGD), system=system, participation=fh.participation.uniform(**arrival)
  )
  data = federation(SIZES)
  state, infos = trained(algorithm, data)
  messages = 2 * 4 * sum(leaf.size for leaf in jax.tree.leaves(state.broadcast.params))
  took = Clock(algorithm, data, COHORT, KEY).rounds(infos)
  inner, kinds = drawn_uniformly(arrival), set()
  if name == "no deadline":
    assert infos.present == () and infos.gradients.shape == (ROUNDS, COHORT)
    infos = infos._replace(present=np.ones((ROUNDS, COHORT), bool), contacted=np.ones((ROUNDS, COHORT), bool))
    transfer, step, whole = seconds_of_clients(system, messages)
    rounds = [
      (ids, [True] * COHORT, [True] * COHORT, [whole[i] for i in ids],
       max(transfer[i] + whole[i] * step[i] for i in ids) + 0.25)
      for ids in infos.cohort.tolist()
    ]  # fmt: skip
  else:
    rounds = [*played(system, inner, messages)]
  assert len(rounds) == len(took) == ROUNDS
  for t, (ids, contacted, arrived, steps, seconds) in enumerate(rounds):
    np.testing.assert_array_equal(infos.cohort[t], ids)
    np.testing.assert_array_equal(infos.contacted[t], contacted)
    np.testing.assert_array_equal(infos.present[t], arrived)
    np.testing.assert_array_equal(infos.clients.steps[t], steps)
    np.testing.assert_array_equal(infos.gradients[t], steps)
    np.testing.assert_allclose(took[t], seconds, rtol=1e-6)
    whole = [EPOCHS * math.ceil(SIZES[i] / BATCH) for i in np.asarray(ids)]
    kinds |= {"lost"} if sum(contacted) > sum(arrived) else set()
    kinds |= {"cut"} if any(0 < n < all_ for n, all_ in zip(steps, whole)) else set()
  wanted = {"deadline": {"lost", "cut"}, "over-selection": {"lost"}, "both": {"lost", "cut"}}
  assert kinds == wanted.get(name, kinds)
  assert len({*np.round(took, 4)}) > 1


@pytest.mark.slow
def test_partial_work_is_that_of_a_participation_that_cuts_it():
  """SCAFFOLD under a deadline is SCAFFOLD under the same absences and numbers of steps, given by hand."""
  data, system = federation(SIZES), fh.system.lognormal(**FAST, deadline=1.5)
  timed, infos = trained(parts(system=system), data)
  whole = np.array([EPOCHS * -(-size // BATCH) for size in SIZES])
  ids, work = jnp.asarray(infos.cohort), (infos.gradients / whole[infos.cohort]).astype(np.float32)

  def draw(key, round, state, num_clients, rows):
    there = jnp.asarray(infos.present)[round]
    return Draw(ids[round], there, jnp.where(there, jnp.asarray(work)[round], 1.0), jnp.ones(rows), state)

  byhand, again = trained(parts(participation=Participation(draw, name="by hand", cuts_work=True)), data)
  np.testing.assert_array_equal(again.clients.steps, infos.clients.steps)
  assert (infos.present.sum(1) < COHORT).any() and (work[infos.present] < 1).any()
  for found, expected in zip((timed.broadcast, timed.clients), (byhand.broadcast, byhand.clients)):
    chex.assert_trees_all_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.slow
def test_defaults_leave_the_program_as_it_is():
  data = federation(SIZES)
  plain, _ = trained(parts(), data, rounds=3)
  for system in (
    fh.system.lognormal(**FAST), fh.system.constant(deadline=math.inf, over_selection=1),
  ):  # fmt: skip
    algorithm = parts(system=system)
    assert algorithm.participation == Participation()
    chex.assert_trees_all_equal(trained(algorithm, data, rounds=3)[0], plain)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 3])
def test_bits_do_not_depend_on_devices(devices):
  system = fh.system.lognormal(**FAST, deadline=5.0, over_selection=1.5)
  data = federation(SIZES)
  one, many = (trained(parts(system=system), data, rounds=4, devices=n, client_batch=1) for n in (1, devices))
  chex.assert_trees_all_equal(one, many)


@pytest.mark.slow
@pytest.mark.parametrize("where", [dict(device_rows=120), dict(device_states=8)])
def test_rows_and_states_may_stay_on_the_host(where):
  system, data = fh.system.lognormal(**FAST, deadline=5.0, over_selection=1.5), federation([10] * 40)
  here, there = (trained(parts(system=system), data, rounds=4, **own) for own in ({}, where))
  chex.assert_trees_all_equal(here, there)


@pytest.mark.slow
def test_members_of_a_sweep_are_runs_of_their_own():
  """Deadlines and over-selections of several runs in one program; a run alone has fewer rows."""
  data, grid = federation(SIZES), {"deadline": [3.0, 5.0, 1e4], "over_selection": [1.0, 1.3, 2.0]}

  def make(deadline, over_selection):
    system = fh.system.lognormal(**FAST, deadline=deadline, over_selection=over_selection)
    return parts(fh.fedavg(linear(), **SGD), system=system)

  from fedjax_het.engine.batched_runs import Members

  settings = {name: np.array(own, np.float32) for name, own in grid.items()}
  members = Members(make, data, settings, 3, COHORT)
  keys = jax.random.wrap_key_data(jnp.stack([jax.random.key_data(KEY)] * 3))
  _, infos = members.advance(members.init(keys), ROUNDS)
  for own, deadline, over in zip(members.split(infos), *grid.values()):
    alone = Engine(make, data, COHORT, settings=dict(deadline=deadline, over_selection=over))
    _, found = alone.advance(alone.init(KEY), ROUNDS)
    rows = found.cohort.shape[1]
    assert rows == math.ceil(over * COHORT) and not own.contacted[:, rows:].any()
    for name in ("cohort", "present", "contacted", "gradients"):
      np.testing.assert_array_equal(getattr(own, name)[:, :rows], getattr(found, name))
    clocks = [Clock(make(deadline, over), data, COHORT, KEY).rounds(one) for one in (own, found)]
    np.testing.assert_array_equal(*clocks)


@pytest.mark.slow
@pytest.mark.parametrize(
  "cohort, over, rows", [(1, 1.0, 1), (1, 1.3, 2), (10, 1.1, 11), (8, 1.3, 11), (12, 1.3, 12), (4, 1.001, 5)]
)
def test_how_many_are_asked(cohort, over, rows):
  """⌈o S⌉, at most K: 1.1 · 10 is 11, whatever floats say."""
  system = fh.system.lognormal(**FAST, deadline=1e6, over_selection=over)
  _, infos = trained(parts(fh.fedavg(linear(), **SGD), system=system), federation(SIZES), 2, cohort)
  assert infos.cohort.shape == (2, rows) and (infos.present.sum(1) == cohort).all()
  assert infos.contacted.all()


@pytest.mark.slow
def test_a_single_client():
  system = fh.system.constant(step_seconds=1.0, bytes_per_second=1e9, deadline=2.5, over_selection=2.0)
  data = federation([40])
  algorithm = parts(fh.fedavg(linear(), **SGD), system=system)
  _, infos = trained(algorithm, data, rounds=2, cohort=1)
  assert infos.gradients.tolist() == [[2], [2]]
  assert Clock(algorithm, data, 1, KEY).rounds(infos).round(5).tolist() == [2.0, 2.0]


@pytest.mark.slow
def test_nobody_is_in_time():
  """The server waits until the deadline, and nothing else changes."""
  system = fh.system.constant(step_seconds=9.0, deadline=3.0, server_seconds=1.0)
  data, algorithm = federation(SIZES), parts(system=system)
  state, infos = trained(algorithm, data, rounds=2)
  first = Engine(algorithm, data, COHORT).init(KEY)
  chex.assert_trees_all_equal(state.broadcast, jax.tree.map(np.asarray, first.broadcast))
  assert infos.contacted.all() and not infos.present.any()
  assert Clock(algorithm, data, COHORT, KEY).rounds(infos).tolist() == [4.0, 4.0]


@pytest.mark.slow
def test_independent_cohorts_may_be_selected_by_speed():
  """Under independent draws o S clients are asked on average, and at most S arrive."""
  system = fh.system.lognormal(**FAST, over_selection=2.0)
  chance = fh.participation.poisson()
  _, infos = trained(
    parts(fh.fedavg(linear(), **SGD), system=system, participation=chance), federation(SIZES), 60
  )
  asked, arrived = infos.contacted.sum(1), infos.present.sum(1)
  assert abs(asked.mean() - 2 * COHORT) < 0.8 and arrived.tolist() == np.minimum(asked, COHORT).tolist()


@pytest.mark.parametrize(
  "federated, words",
  [
    (dict(participation=fh.participation.importance()), "participation importance corrects by the probab"),
    (dict(mixing=fh.mixing.aaggff_d(scale="one")), "mixing aaggff_d reads the probabilities"),
    (dict(mixing=fh.mixing.afl()), "mixing afl counts on a whole cohort"),
  ],
)
def test_parts_that_cannot_do_with_the_fastest_are_refused(federated, words):
  with pytest.raises(SettingError, match=f"system = 'constant': .*{words}"):
    parts(fh.fedavg(linear()), system=fh.system.constant(over_selection=1.3), **federated)


def test_a_draw_says_what_is_known_of_its_clients():
  """Under a deadline alone too slow ones have the probability 0; who is fastest is not known before."""
  data = federation(SIZES)
  for timing in (dict(deadline=0.6), dict(deadline=0.6, over_selection=1.5)):
    system = fh.system.lognormal(**FAST, **timing)
    part = timed(parts(fh.fedavg(linear(), **SGD), system=system), data, COHORT).participation
    key, rows = participation_key(jax.random.split(KEY, 3)[2]), part.rows(len(SIZES), COHORT)
    state = jax.jit(part.init, static_argnums=2)(key, jnp.array(SIZES), COHORT)
    drawn = jax.jit(part.draw, static_argnums=(3, 4))(key, jnp.int32(3), state, len(SIZES), rows)
    transfer, step, _ = seconds_of_clients(system, 2 * 4 * 15)
    fits = (transfer + step)[drawn.ids] <= 0.6
    assert fits.any() and not fits.all() and ((drawn.work > 0) & (drawn.work <= 1)).all()
    expected = np.nan if "over_selection" in timing else np.where(fits, COHORT / len(SIZES), 0.0)
    np.testing.assert_allclose(drawn.probability, np.broadcast_to(expected, rows), rtol=1e-5)
    chex.assert_trees_all_equal(drawn.state, state)
    assert part.cuts_work and part.ahead


@pytest.mark.slow
def test_probabilities_are_known_under_a_deadline_alone():
  mixing = fh.mixing.aaggff_d(scale="one")
  algorithm = fh.federated(
    fh.fedavg(linear(), **SGD), mixing, system=fh.system.lognormal(**FAST, deadline=0.6)
  )
  _, infos = trained(algorithm, federation(SIZES), rounds=3)
  assert np.isfinite(infos.coefficients).all() and not infos.present.all()


def test_a_method_without_steps_is_refused():
  client = fh.fedavg(linear())
  plain = client._replace(update=lambda *args: client.update(*args), name="mine")
  for timing in (dict(deadline=2.0), dict(over_selection=1.3)):
    with pytest.raises(SettingError, match="mine does not say before it has trained"):
      parts(plain, system=fh.system.constant(**timing))
  with pytest.raises(
    SettingError, match="has a deadline, an over-selection or server seconds, and no speeds"
  ):
    parts(system=fh.System(deadline=3.0))


@pytest.mark.slow
def test_a_method_without_steps_has_a_clock():
  client = fh.fedavg(linear(), **SGD)
  plain = client._replace(update=lambda *args: client.update(*args), name="mine")
  system, data = fh.system.lognormal(**FAST), federation(SIZES)
  clocks = []
  for own in (client, plain):
    algorithm = parts(own, system=system)
    clock = Clock(algorithm, data, COHORT, KEY)
    clocks.append(clock.rounds(trained(algorithm, data, rounds=3)[1]))
  np.testing.assert_array_equal(*clocks)
  assert clock.expected() is None


@pytest.mark.parametrize(
  "own, says",
  [
    ({"algorithm": parts()}, "system = 'none': has no speeds"),
    ({"cohort_size": 0}, "cohort_size = 0"),
    ({"key": 3}, "key = 3"),
  ],
)
def test_a_clock_refuses_what_no_run_can_have(own, says):
  given = dict(algorithm=parts(system=fh.system.constant()), data=federation(SIZES), cohort_size=2, key=KEY)
  with pytest.raises(SettingError, match=says):
    Clock(**given | own)


def test_speeds_that_are_no_numbers_above_0_are_refused():
  system = fh.System(lambda key, sizes: fh.Speeds(jnp.zeros(len(sizes)).at[0].set(1.0), jnp.ones(len(sizes))))
  clock = Clock(parts(system=system), federation(SIZES), COHORT, KEY)
  with pytest.raises(SettingError, match=r"client 1 has step_seconds = 0\.0"):
    clock.expected()


@pytest.mark.slow
@pytest.mark.parametrize(
  "timing", [{}, dict(deadline=4.0), dict(over_selection=1.5), dict(deadline=4.0, over_selection=2.0)]
)
def test_expected_seconds_are_the_mean_of_many_rounds(timing):
  system, data = fh.system.lognormal(**FAST, **timing), federation(SIZES)
  algorithm = parts(fh.fedavg(linear(), **SGD), system=system)
  clock = Clock(algorithm, data, COHORT, KEY)
  took = clock.rounds(trained(algorithm, data, rounds=120)[1])
  assert abs(clock.expected() - took.mean()) < 4 * took.std() / math.sqrt(len(took)) + 1e-9
