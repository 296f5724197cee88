"""Speech Commands: clips of the official layout that are written here, and the real ones."""

import io
import tarfile
import wave

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from realdata import real_data

from fedjax_het import data
from fedjax_het.data import speech_commands as sc
from fedjax_het.errors import DataError, SettingError

RNG = np.random.default_rng(7)


def clip(samples, rate=16_000, width=2, channels=1):
  content = io.BytesIO()
  with wave.open(content, "wb") as file:
    file.setparams((channels, width, rate, 0, "NONE", ""))
    file.writeframes(np.asarray(samples, f"<i{width}").tobytes())
  return content.getvalue()


SOUNDS = {
  "zero/0a7c2a8d_nohash_0.wav": RNG.integers(-32768, 32768, 16_000),
  "bed/0a7c2a8d_nohash_1.wav": RNG.integers(-32768, 32768, 9_000),
  "bed/ffffffff_nohash_0.wav": [32767, -32768],
  "yes/00000001_nohash_0.wav": [1],
}


def write(folder, files):
  for name, content in files.items():
    path = folder / "speech_commands" / "v0.02" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@pytest.fixture
def tiny(tmp_path):
  write(tmp_path, {name: clip(samples) for name, samples in SOUNDS.items()})
  write(tmp_path, {
    "_background_noise_/pink_noise.wav": clip([0] * 20_000),
    "validation_list.txt": b"yes/00000001_nohash_0.wav\n",
    "testing_list.txt": b"bed/ffffffff_nohash_0.wav\n",
  })  # fmt: skip
  return tmp_path


def test_clips_by_speaker(tiny):
  source = data.load("speech_commands", tiny)
  assert (source.x.shape, source.x.dtype, source.num_classes) == ((4, 16_000, 1), np.int16, 35)
  assert [sc.WORDS[c] for c in source.y] == ["bed", "bed", "yes", "zero"]
  assert source.groups.tolist() == ["0a7c2a8d", "ffffffff", "00000001", "0a7c2a8d"]
  np.testing.assert_array_equal(source.x[0, :9_000, 0], SOUNDS["bed/0a7c2a8d_nohash_1.wav"])
  assert not source.x[0, 9_000:].any() and source.x[3, -1, 0] == SOUNDS["zero/0a7c2a8d_nohash_0.wav"][-1]
  made = data.from_groups(
    jax.random.key(0),
    source.x,
    source.y,
    source.groups,
    scale=source.scale,
    num_classes=35,
    test_fraction=0.0,
  )
  x, _ = made.clients(jnp.array(2)).take(jnp.arange(1))
  assert x.dtype == jnp.float32 and x[0, :3, 0].tolist() == [32767 / 32768, -1.0, 0.0]


def test_the_training_set_alone(tiny):
  source = data.load("speech_commands", tiny, subset="training")
  assert source.groups.tolist() == ["0a7c2a8d", "0a7c2a8d"]
  with pytest.raises(SettingError, match="Did you mean 'training'"):
    data.load("speech_commands", tiny, subset="train")
  (tiny / "speech_commands/v0.02/testing_list.txt").unlink()
  with pytest.raises(DataError, match=r"wants testing_list\.txt for subset='training'"):
    data.load("speech_commands", tiny, subset="training")


def test_an_archive_is_read_as_it_is(tiny):
  plain = data.load("speech_commands", tiny)
  packed = tiny / "packed" / "speech_commands"
  packed.mkdir(parents=True)
  with tarfile.open(packed / "some.tar.xz", "w:xz") as archive:
    for path in sorted((tiny / "speech_commands" / "v0.02").rglob("*.*"), reverse=True):
      archive.add(path, path.relative_to(tiny))
  source = data.load("speech_commands", tiny / "packed")
  for mine, other in zip(source[:2], plain[:2]):
    np.testing.assert_array_equal(mine, other)
  assert source.files == ("some.tar.xz",)


@pytest.mark.parametrize(
  ("content", "says"),
  [
    (clip([1], rate=8_000), "8000 Hz, 1 channels and 16 bits"),
    (clip([1, 2], channels=2), "2 channels"),
    (clip([1], width=1), "8 bits"),
    (clip([0] * 16_001), "16001 of 16001 samples"),
    (clip([]), "0 of 0 samples"),
    (clip([0] * 90)[:-20], "80 of 90 samples"),
    (b"RIFF no sound", "is no wav file"),
  ],
)
def test_a_clip_of_something_else(tiny, content, says):
  write(tiny, {"up/00000002_nohash_0.wav": content})
  with pytest.raises(DataError, match=f"up/00000002_nohash_0.wav.*{says}"):
    data.load("speech_commands", tiny)


def test_nothing_there(tmp_path):
  write(tmp_path, {"_background_noise_/pink_noise.wav": clip([0] * 9)})
  with pytest.raises(DataError, match=r"speech_commands was not found.*speech_commands_v0.02.tar.gz"):
    data.load("speech_commands", tmp_path)


@pytest.mark.slow
def test_the_real_clips():
  source = data.load("speech_commands", real_data("speech_commands"))
  assert source.x.shape == (1_508, 16_000, 1) and len(set(source.groups.tolist())) == 198
  assert set(source.y.tolist()) == set(range(35))
  assert (np.unique(source.groups, return_counts=True)[1] >= 10).sum() == 28
  assert np.abs(source.x.astype(float)).max(axis=(1, 2)).min() > 30
