"""Free Spoken Digit Dataset: clips of the authors' names and format, written here, and the real ones."""

import io
import tarfile
import wave

import numpy as np
import pytest
from realdata import real_data

from fedjax_het import data
from fedjax_het.errors import DataError, SettingError

RNG = np.random.default_rng(3)


def clip(samples, rate=8_000):
  content = io.BytesIO()
  with wave.open(content, "wb") as file:
    file.setparams((1, 2, rate, 0, "NONE", ""))
    file.writeframes(np.asarray(samples, "<i2").tobytes())
  return content.getvalue()


SOUNDS = {
  "7_theo_4.wav": RNG.integers(-32768, 32768, 9_000),
  "7_theo_5.wav": RNG.integers(-9000, 9000, 2_000),
  "0_george_0.wav": [32767, -32768],
  "0_george_49.wav": np.zeros(1_148),
}


@pytest.fixture
def tiny(tmp_path):
  folder = tmp_path / "fsdd" / "recordings"
  folder.mkdir(parents=True)
  for name, samples in SOUNDS.items():
    (folder / name).write_bytes(clip(samples))
  (folder / "README.wav").write_bytes(b"no clip by its name")
  return tmp_path


def test_clips_by_speaker_with_the_authors_test_takes(tiny):
  source = data.load("fsdd", tiny, form="samples")
  assert (source.x.shape, source.x.dtype, source.num_classes) == ((4, 8_192, 1), np.int16, 10)
  assert source.y.tolist() == [0, 0, 7, 7] and source.y.dtype == np.int32
  assert source.groups.tolist() == ["george", "george", "theo", "theo"]
  assert source.split.tolist() == [1, 0, 1, 0]
  assert source.scale == 1 / 32768
  np.testing.assert_array_equal(source.x[2, :, 0], SOUNDS["7_theo_4.wav"][:8_192])
  np.testing.assert_array_equal(source.x[3, :2_000, 0], SOUNDS["7_theo_5.wav"])
  assert not source.x[3, 2_000:].any()
  assert source.notes == ("4 of 3,000 clips", "1 clips are longer than 1.024 s and lose their end")


def test_spectrograms_are_those_of_plain_arithmetic(tiny):
  source = data.load("fsdd", tiny)
  assert (source.x.shape, source.x.dtype, source.scale) == ((4, 32, 32, 1), np.float32, None)
  assert not source.x[1].any()  # silence
  samples = np.zeros(128 + 8_192 + 128)
  samples[128 : 128 + 2_000] = SOUNDS["7_theo_5.wav"] / 32768.0
  found = np.zeros((32, 32))
  mel = [700 * (10 ** (b / 33 * np.log10(1 + 4000 / 700)) - 1) for b in range(34)]
  for t in range(32):
    frame = [samples[256 * t + n] * (0.5 - 0.5 * np.cos(2 * np.pi * n / 512)) for n in range(512)]
    for k in range(257):
      angles = 2 * np.pi * k * np.arange(512) / 512
      power = np.dot(frame, np.cos(angles)) ** 2 + np.dot(frame, np.sin(angles)) ** 2
      for b in range(32):
        low, middle, high, f = mel[b], mel[b + 1], mel[b + 2], 15.625 * k
        if low < f < high:
          found[t, b] += power * ((f - low) / (middle - low) if f < middle else (high - f) / (high - middle))
  found = np.log10(found + 1e-6)
  np.testing.assert_allclose(source.x[3, ..., 0], (found - found.mean()) / found.std(), atol=1e-4)


def test_an_archive_is_read_as_it_is(tiny):
  plain = data.load("fsdd", tiny)
  packed = tiny / "packed" / "fsdd"
  packed.mkdir(parents=True)
  with tarfile.open(packed / "fsdd-recordings.tar.gz", "w:gz") as archive:
    for path in sorted((tiny / "fsdd").rglob("*.wav"), reverse=True):
      archive.add(path, path.relative_to(tiny / "fsdd"))
  source = data.load("fsdd", tiny / "packed")
  for own, other in zip(source[:2], plain[:2]):
    np.testing.assert_array_equal(own, other)
  assert source.files == ("fsdd-recordings.tar.gz",)


@pytest.mark.parametrize(
  ("name", "content", "says"),
  [
    ("1_theo_1.wav", clip([1], rate=16_000), "16000 Hz, 1 channels and 16 bits, not 8000"),
    ("1_theo_1.wav", clip([0] * 32_769), "longer than 4.096 s: 32769 of 32769"),
    ("1_theo_1.wav", clip([0] * 90)[:-20], "80 of 90 samples"),
    ("7_theo_05.wav", clip([1]), "holds the clip 7_theo_5 twice"),
  ],
)
def test_a_clip_of_something_else(tiny, name, content, says):
  (tiny / "fsdd" / "recordings" / name).write_bytes(content)
  with pytest.raises(DataError, match=says):
    data.load("fsdd", tiny)


def test_what_is_refused(tiny, tmp_path):
  with pytest.raises(SettingError, match="Did you mean 'samples'"):
    data.load("fsdd", tiny, form="sample")
  (tmp_path / "other" / "fsdd").mkdir(parents=True)
  with pytest.raises(DataError, match=r"fsdd was not found.*free-spoken-digit-dataset"):
    data.load("fsdd", tmp_path / "other")
  (tmp_path / "other" / "fsdd" / "noise.wav").write_bytes(clip([1]))
  with pytest.raises(DataError, match="fsdd was not found"):
    data.load("fsdd", tmp_path / "other")


@pytest.mark.slow
def test_the_real_clips():
  source = data.load("fsdd", real_data("fsdd"))
  assert source.x.shape == (3_000, 32, 32, 1) and np.isfinite(source.x).all()
  speakers, counts = np.unique(source.groups, return_counts=True)
  assert speakers.tolist() == ["george", "jackson", "lucas", "nicolas", "theo", "yweweler"]
  assert counts.tolist() == [500] * 6 and np.bincount(source.y).tolist() == [300] * 10
  assert source.split.sum() == 300
  assert source.notes == ("17 clips are longer than 1.024 s and lose their end",)
