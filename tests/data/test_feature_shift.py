"""Feature shift: a client's examples are turned or made noisy, in all parts, and the hidden truth is kept."""

import json

import jax
import numpy as np
import pytest
from launching import small
from scipy import stats

import fedjax_het as fh
from fedjax_het.config.plan import plan
from fedjax_het.data.feature_shift import turned
from fedjax_het.errors import SettingError
from fedjax_het.experiment.build import build, watched
from fedjax_het.experiment.experiment import run_experiment
from fedjax_het.program.where import Where
from fedjax_het.studies.feature_shift import FeatureShift, plot_shift

KEY = jax.random.key(2)
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (60, 6, 6, 1)).astype(np.uint8)
Y = RNG.integers(0, 3, 60)


def clients(x=IMAGES, count=5, **settings):
  return fh.data.from_arrays(jax.random.key(1), x, Y, count, valid_fraction=0.2, **settings)


def of_client(data, i):
  return np.concatenate([part.rows(np.array([i])) for part in (data.train, data.valid, data.test)])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_every_part_of_a_client_is_turned_by_its_clusters_quarter_turns(dtype):
  """A quarter turn counterclockwise by the transpose and a flip, written out."""
  data = clients(IMAGES.astype(dtype))
  shifted = fh.data.feature_shift(KEY, data, fh.data.rotations())
  assert shifted.x.dtype == dtype and shifted.scale == data.scale
  for i in range(5):
    rows = of_client(data, i)
    wanted = data.x[rows]
    for _ in range(i % 4):
      wanted = wanted.swapaxes(1, 2)[:, ::-1]
    np.testing.assert_array_equal(shifted.x[rows], wanted)
  np.testing.assert_array_equal(shifted.y, data.y)
  assert fh.data.rotations().clusters(6).tolist() == [0, 1, 2, 3, 0, 1]


def test_other_angles_interpolate_between_four_pixels():
  """Against an interpolation written out; a quarter turn in both ways is the same."""
  angle, side = np.deg2rad(30.0), 6
  middle, found = (side - 1) / 2, turned(IMAGES[:2].astype(np.float32), 30.0)
  wanted = np.zeros_like(found)
  for i in range(side):
    for j in range(side):
      up, right = middle - i, j - middle  # the pixel that is turned to here lies 30 degrees clockwise of it
      u, r = np.cos(angle) * up - np.sin(angle) * right, np.sin(angle) * up + np.cos(angle) * right
      row, column = middle - u, middle + r
      top, left = int(np.floor(row)), int(np.floor(column))
      if 0 <= row <= side - 1 and 0 <= column <= side - 1:
        for a, wa in ((top, 1 - row + top), (top + 1, row - top)):
          for b, wb in ((left, 1 - column + left), (left + 1, column - left)):
            if wa * wb > 0:
              wanted[:, i, j] += wa * wb * IMAGES[:2, a, b]
  np.testing.assert_allclose(found, wanted, atol=1e-3)
  as_bytes = turned(IMAGES[:2], 30.0)
  assert as_bytes.dtype == np.uint8 and abs(as_bytes - found).max() <= 0.51
  np.testing.assert_array_equal(turned(IMAGES, -90.0), turned(IMAGES, 270.0))
  shifted = fh.data.feature_shift(KEY, clients(), fh.data.rotations(clusters=3, degrees=90))
  own = of_client(shifted, 4)
  np.testing.assert_array_equal(shifted.x[own], turned(clients().x[own], 30.0))


def test_noise_grows_from_none_to_its_strength_and_is_of_each_client_alone():
  rng = np.random.default_rng(5)
  x = rng.integers(0, 256, (3000, 8, 8, 1)).astype(np.uint8)
  data = fh.data.from_arrays(jax.random.key(1), x, np.zeros(3000, int), 4, num_classes=2)
  shifted = fh.data.feature_shift(KEY, data, fh.data.growing_noise(std=0.6))
  assert shifted.x.dtype == np.float32 and shifted.scale is None
  draws = shifted.x - data.x / np.float32(255)
  for i, std in enumerate((0.0, 0.2, 0.4, 0.6)):
    own = draws[of_client(data, i)].ravel()
    assert own.std() == pytest.approx(std, rel=0.02, abs=1e-6)
    assert not i or stats.kstest(own[:5000] / std, "norm").pvalue > 1e-3
  assert abs(np.corrcoef(draws[of_client(data, 1)].ravel(), draws[of_client(data, 2)].ravel())[0, 1]) < 0.02
  again = fh.data.feature_shift(KEY, data, fh.data.growing_noise(std=0.6))
  np.testing.assert_array_equal(again.x, shifted.x)
  other = fh.data.feature_shift(jax.random.key(7), data, fh.data.growing_noise(std=0.6))
  assert (other.x != shifted.x).any()


def test_noise_of_a_scaled_table_is_in_units_of_what_models_see():
  table = RNG.normal(size=(60, 3)).astype(np.float32)
  data = clients(table, scale=0.5)
  shifted = fh.data.feature_shift(KEY, data, fh.data.growing_noise(std=1e-6))
  np.testing.assert_allclose(shifted.x, 0.5 * data.x, atol=1e-5)
  assert shifted.scale is None


def test_a_run_shifts_seen_and_unseen_clients_and_keeps_the_truth(tmp_path):
  shift = {"name": "rotation", "clusters": 4}
  plain, moved = (build(plan(small(algorithm={"name": "fedavg"}, unseen={"fraction": 0.2}, **own)))
                  for own in ({}, {"feature_shift": shift}))  # fmt: skip
  assert plain.hidden is None and moved.digests["data_digest"] == plain.digests["data_digest"]
  names = {x.tobytes(): i for i, x in enumerate(plain.source.x.astype(np.float32))}
  for i in range(moved.data.num_clients):
    own, m = of_client(moved.data, i), int(moved.hidden[i])
    back = np.rot90(moved.data.x[own], -m, axes=(1, 2)).astype(np.float32)
    found = [names[np.ascontiguousarray(x).tobytes()] for x in back]
    assert {*found} == {*moved.parts[i].tolist()}
  assert moved.unseen is not None and (moved.unseen.x != plain.unseen.x).any()
  run = watched(moved, tmp_path)
  assert FeatureShift.fits(run) and not FeatureShift.fits(watched(plain))
  FeatureShift(run).draw_first()
  path = run.figures / "feature_shift.png"
  first = path.read_bytes()
  assert first[:8] == b"\x89PNG\r\n\x1a\n" and len(first) > 5000
  path.unlink()
  FeatureShift(run).draw([], {})
  assert path.read_bytes() == first
  assert plot_shift(moved.data, tmp_path / "all.png").stat().st_size > 5000


BAD = {
  "name": (dict(name="rotatoin"), r"feature_shift\.name = 'rotatoin': unknown\. Did you mean 'rotation'"),
  "no name": (dict(std=0.1), "feature_shift = .*has no name, and so no effect"),
  "std": (dict(name="noise", std=0.0), r"feature_shift\.std = 0\.0"),
  "setting": (dict(name="noise", clusters=2), r"feature_shift\.clusters = 2: unknown to noise"),
  "clusters": (dict(name="rotation", clusters=0), r"feature_shift\.clusters = 0"),
  "degrees": (dict(name="rotation", degrees=720), r"feature_shift\.degrees = 720"),
  "clients": (dict(name="rotation", clusters=21), r"clusters = 21: there are 20 clients\. Use at most 20"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_sections_are_named(name):
  given, message = BAD[name]
  with pytest.raises(SettingError, match=message):
    build(plan(small(feature_shift=given)))


def test_examples_that_cannot_be_shifted_are_refused():
  tokens = np.ones((60, 4), np.int32)
  for x, shift, told in (
    (tokens, fh.data.growing_noise(), "feature_shift = 'noise': examples are whole numbers"),
    (tokens, fh.data.rotations(), r"feature_shift = 'rotation': examples of shape \[4\]"),
    (IMAGES[:, :5], fh.data.rotations(), r"examples of shape \[5, 6, 1\] are no square images"),
    ({"a": tokens}, fh.data.rotations(), "feature_shift = 'rotation': examples are a dict"),
  ):
    with pytest.raises(SettingError, match=told):
      fh.data.feature_shift(KEY, clients(x), shift)
  with pytest.raises(SettingError, match=r"^key = 3"):
    fh.data.feature_shift(3, clients(), fh.data.rotations())


@pytest.mark.slow
def test_a_run_and_its_repetition_on_other_devices_are_one(tmp_path):
  config = small(algorithm={"name": "fedavg"}, feature_shift={"name": "noise", "std": 0.5}, rounds=2)
  one, two = (
    run_experiment(config, str(tmp_path / str(devices)), Where(devices=devices)) for devices in (1, 2)
  )
  assert one["metrics"] == two["metrics"]
  assert (tmp_path / "1" / "figures" / "feature_shift.png").exists()
  assert json.loads((tmp_path / "1" / "config.json").read_text())["feature_shift"]["std"] == 0.5
