"""Record-level privacy with every method: examples reach uploads by noised gradients alone, or it refuses.

The ledger counts a mini-batch's noised gradients, each of which has to have noise of its own.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import NUM_CLIENTS, client, in_other_tests
from small_parts import SIZES, federation, mlp, one_client

import fedjax_het as fh
from fedjax_het.clients import private
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.clients.recipe import recipe_of
from fedjax_het.errors import SettingError
from fedjax_het.local import Batch
from fedjax_het.methods import CLIENTS
from fedjax_het.models import GENERATORS
from fedjax_het.parts import Context
from fedjax_het.settings import settings_of
from fedjax_het.studies.ccvr import Calibration

DATA, CLIENT = federation(SIZES), 6  # of 9 examples
TRAIN = [
  name for name, own in CLIENTS.items()
  if own.models is not GENERATORS and {*LocalSettings.__annotations__} <= {*settings_of(own.factory)}
]  # fmt: skip
REFUSED = {  # method -> what it reads beside gradients
  "sosicfl": "label counts", "sosicfl_all": "label counts", "sosicfl_plus": "label counts",
  "fedlc": "calibration", "fedrs": "calibration", "fedrod": "calibration", "gpfl": "first states",
  "fedproto": "data", "fedala": "data", "feddbe": "first pass", "per_fedavg": "batch",
  "mime": "first pass", "mimelite": "data", "ifca": "data", "fedem": "batch", "fedfomo": "validation",
  "fedpac": "data", "fedas": "data", "fd": "data", "fedgen": "data",
  "feddf": "range of examples",
}  # fmt: skip
DEFAULT = ("scaffold", "fedala")  # of the tests that are not slow


def marked(names):
  return [pytest.param(name, marks=[] if name in DEFAULT else [pytest.mark.slow]) for name in names]


def part_of(name, **own):
  made = client(name, mlp(), **{"batch_size": 4, "dp_clip": 0.5, "dp_noise_multiplier": 0.0, **own})
  return fh.federated(made).client


def updated(part, change=lambda view: view, round=3):
  context = Context(CLIENT, round, NUM_CLIENTS, NUM_CLIENTS)
  view = change(one_client(DATA, CLIENT))
  broadcast = part.init_broadcast(jax.random.key(0))
  state = part.init(jax.random.key(1), broadcast, None, context)
  return jax.jit(lambda key: part.update(key, broadcast, state, view, context))(jax.random.key(2))


def test_every_method_that_trains_a_model_is_tried():
  assert {*REFUSED} < {*TRAIN} and len(TRAIN) > 40


@pytest.mark.parametrize("name", marked(name for name in TRAIN if name not in REFUSED))
def test_examples_reach_an_upload_by_clipped_gradients_alone(name):
  """With a clip of nothing beside the noise, an upload and a state are those of any other examples."""

  def others(view):
    return dataclasses.replace(view, x=view.x * -3.0 + 1.0, y=(view.y + 1) % 3)

  part = part_of(name, dp_clip=1e-30, dp_noise_multiplier=1e28)
  one, other = updated(part), updated(part, others)
  for a, b in zip(jax.tree.leaves(one[:2]), jax.tree.leaves(other[:2])):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6, atol=1e-20)
  assert one[2].loss != other[2].loss  # which is a report alone


@pytest.mark.parametrize(
  "name", [pytest.param(name, marks=in_other_tests(name)) for name in TRAIN if name not in REFUSED]
)
def test_the_ledger_counts_every_noised_gradient_and_each_has_its_own_noise(name, monkeypatch):
  seen, plain = [], private.noised

  def noised(key, tree, std):
    jax.debug.callback(lambda own: seen.append(own.tobytes()), jax.random.key_data(key))
    return plain(key, tree, std)

  monkeypatch.setattr(private, "noised", noised)
  part = part_of(name, dp_noise_multiplier=1.0)
  jax.block_until_ready(updated(part))
  jax.effects_barrier()
  records = part.studies.records
  assert len(seen) == len({*seen}) == records.releases(SIZES[CLIENT]) * records.gradients
  assert records.batch_size == 4 and records.capacity == private.capacity_of(4)
  assert float(records.noise_multiplier) == 1.0


@pytest.mark.parametrize("name", marked(REFUSED))
def test_what_a_method_reads_beside_gradients_is_refused(name):
  with pytest.raises(SettingError, match=rf"{REFUSED[name]}.*dp_clip|dp_clip.*{REFUSED[name]}"):
    updated(part_of(name))


def test_sharpness_aware_steps_and_shuffled_batches_are_counted():
  sharp = part_of("fedavg", sam_radius=0.1).studies.records
  assert sharp.gradients == 2 and sharp.releases(9) == 2 * 3
  shuffled = part_of("ditto", dp_sampling="shuffle", local_epochs=1).studies.records
  assert shuffled.capacity is None and shuffled.releases(9) == 2 + 1
  assert part_of("fedavg", dp_capacity=7).studies.records.capacity == 7
  assert fh.fedavg(mlp()).studies.records is None


@pytest.mark.parametrize(
  ("settings", "said"),
  [
    ({"mixup": 0.2}, "several records"), ({"decorrelate": 0.1}, "several records"),
    ({"calibration": "fedlc"}, "several records"),
    ({"dp_sampling": "shuffle", "steps": 3}, "^steps = 3: .*whole epochs"),
    ({"dp_sampling": "shuffle", "dp_capacity": 3}, "^dp_capacity = 3: .*whole epochs"),
    ({"dp_clip": 0.0}, "^dp_clip = "), ({"dp_noise_multiplier": -1.0}, "^dp_noise_multiplier = "),
    ({"dp_sampling": "uniform"}, "^dp_sampling = "),
  ],
)  # fmt: skip
def test_settings_that_void_the_guarantee_are_refused(settings, said):
  with pytest.raises(SettingError, match=said):
    fh.fedavg(mlp(), **{"dp_clip": 1.0, **settings})


def test_batch_norm_and_weighted_classes_are_refused():
  model = fh.models.two_nn((4,), 3, hidden=4)
  with pytest.raises(SettingError, match="batch norm"):
    fh.fedavg(model._replace(stats={"mean": jnp.zeros(4)}), dp_clip=1.0)
  with pytest.raises(SettingError, match="own weight"):
    fh.fedavg(model._replace(task=fh.tasks.classification((1.0, 2.0, 3.0))), dp_clip=1.0)


def test_mixings_that_are_told_losses_or_label_counts_are_refused():
  part = part_of("fedavg", dp_noise_multiplier=1.0)
  with pytest.raises(SettingError, match=r"mixing = .*losses F_i.*dp_clip"):
    fh.run(fh.federated(part, fh.mixing.qffl()), DATA, rounds=1, cohort_size=3, key=jax.random.key(0))
  counts = np.ones((len(SIZES), 3), int)
  with pytest.raises(SettingError, match=r"mixing = 'feddisco'.*label counts.*dp_clip"):
    fh.federated(part, fh.mixing.feddisco(counts))


def test_a_study_that_sends_statistics_of_features_is_refused():
  with pytest.raises(SettingError, match=r"ccvr = .*dp_clip does not bound"):
    Calibration.check({"samples": 5}, part_of("fedavg"), False)


def test_two_gradients_of_a_batch_with_one_noise_are_refused():
  recipe = recipe_of(mlp(), {"dp_clip": 1.0})
  params = mlp().init(jax.random.key(0))
  rows = Batch(jnp.ones((2, 4)), jnp.zeros(2, int), jnp.ones(2), jax.random.key(1))
  batch = private.SealedBatch(rows, 2.0, "mine")
  one, other = (recipe.gradient(params, (), batch, release=n)[1] for n in (0, 1))
  assert not np.array_equal(*(own["fc1"]["kernel"] for own in (one, other)))
  with pytest.raises(SettingError, match=r"algorithm = 'mine'.*same noise.*release=2"):
    recipe.gradient(params, (), batch, release=1)


def test_nothing_but_its_key_is_read_of_a_sealed_batch():
  batch = private.SealedBatch(fh.local.Batch(1, 2, 3, "key"), 4.0, "mine")
  assert batch.key == "key" and batch._replace(key="other").key == "other"
  for read in (lambda: batch.x, lambda: batch._replace(weight=1), lambda: batch._replace(key=1, y=2)):
    with pytest.raises(SettingError, match=r"algorithm = 'mine'.*reads a mini-batch"):
      read()
