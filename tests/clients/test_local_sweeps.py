"""Numbers of local training as values of a sweep: each member is the run with its value alone."""

import chex
import jax
import numpy as np
import pytest
from cases import with_every
from small_parts import SIZES, federation, linear

import fedjax_het as fh
from fedjax_het.clients.local_settings import LocalSettings
from fedjax_het.settings import settings_of

DATA, KEY = federation(SIZES), jax.random.key(3)
LOCAL = {"lr": 0.2, "lr_decay": 0.9, "batch_size": 4, "epochs": 2}
VALUES = {
  "lr": [0.05, 0.2], "lr_decay": [1.0, 0.5], "momentum": [0.0, 0.9], "weight_decay": [0.0, 0.2],
  "b2": [0.999, 0.5], "mixup": [0.0, 0.5], "calibration_strength": [0.5, 2.0], "decorrelate": [0.0, 0.5],
  "warmup": [0.0, 5.0], "clip_norm": [1e9, 0.05], "label_smoothing": [0.0, 0.2], "sam_radius": [0.0, 0.3],
  "b1": [0.9, 0.5], "eps": [1e-8, 1e-3], "dp_clip": [1e9, 0.05], "dp_noise_multiplier": [0.0, 0.5],
}  # fmt: skip


def test_every_number_is_tried_as_a_value_of_a_sweep():
  assert {name for name, own in settings_of(LocalSettings).items() if own.is_value} == {*VALUES}


@pytest.mark.slow
@pytest.mark.parametrize(
  "name",
  with_every(VALUES, "lr", "momentum", "calibration_strength", "warmup", "sam_radius", "dp_noise_multiplier"),
)
def test_numbers_vary_within_one_program(name):
  """Each member is the run with its value alone; with the value that is off, the plain run, to rounding."""
  more = {"optimizer": "adam"} if name in ("b1", "b2", "eps") else {}
  more |= {"calibration": "logit_adjustment"} if name == "calibration_strength" else {}
  more |= {"dp_clip": 0.3} if name == "dp_noise_multiplier" else {}
  more |= {"dp_noise_multiplier": 0.0} if name == "dp_clip" else {}
  model = fh.models.two_nn((4,), 3, hidden=4) if name == "decorrelate" else linear()  # needs features
  given = dict(rounds=3, cohort_size=3, devices=1)

  def make(**own):
    return fh.federated(fh.fedavg(model, **{**LOCAL, **more, **own}))

  found = fh.sweep(make, {name: VALUES[name]}, data=DATA, seeds=[3], **given)
  for m, value in enumerate(VALUES[name]):
    alone = fh.run(make(**{name: value}), DATA, key=KEY, **given)
    own = jax.tree.map(lambda leaf: leaf[m], found.state.broadcast.params)
    chex.assert_trees_all_close(own, alone.state.broadcast.params, rtol=1e-4, atol=1e-5)
  assert not np.array_equal(found.infos.clients.loss[-1][0], found.infos.clients.loss[-1][1])
