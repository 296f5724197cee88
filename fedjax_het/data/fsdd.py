"""Free Spoken Digit Dataset: 3,000 clips of the digits 0 to 9 by six speakers, each of whom is a client.

Clips are files DIGIT_SPEAKER_TAKE.wav, 8 kHz, mono, 16 bit. A speaker said each digit fifty times; its takes
0 to 4 are the authors' test set, the takes 5 to 49 their training set. Source: Jackson and contributors,
https://github.com/Jakobovski/free-spoken-digit-dataset, which names this split in its README.
"""

import re
from pathlib import Path

import numpy as np

from fedjax_het.data.files import Source, short
from fedjax_het.data.packed import contents, locate
from fedjax_het.data.wav import samples_of
from fedjax_het.errors import DataError, check_choice

RATE, LENGTH = 8_000, 8_192  # samples a second, and of an example
LONGEST = 32_768  # samples of a clip; the longest that the authors ship has 18,262
CLIPS = 3_000
TEST_TAKES = 5
WINDOW, BANDS = 512, 32  # samples of a frame of the spectrogram, and its mel bands
HOP = LENGTH // BANDS  # so that there are as many frames as bands
FORMS = ("spectrogram", "samples")
_NAME = re.compile(r"(?:.*/)?([0-9])_([a-z]+)_(\d{1,6})\.wav")


def load_fsdd(folder: Path, form: str = "spectrogram") -> Source | None:
  """Loads clips and their digits, int32 [N]; `groups` are the speakers, and `split` is the authors'.

  Clips shorter than 8,192 samples (1.024 s) are followed by silence, and longer ones lose their end.

  Args:
    folder: the folder with the clips, at any depth, or with an archive of them.
    form: "spectrogram", see `spectrograms`, float32 [N, 32, 32, 1], which image models read; or "samples",
      int16 [N, 8192, 1], read as floats in [-1, 1).

  Returns:
    The data set, or None where there is no clip.

  Raises:
    SettingError: `form` has another value.
    DataError: a clip is damaged, is there twice, has another format or is longer than 4.1 s.
  """
  check_choice("form", form, FORMS)
  found = locate(folder, ".wav")
  if found is None:
    return None
  place, files = found
  named = {name: match for name in files if (match := _NAME.fullmatch(name))}
  if not named:
    return None
  clips = [(match[1], match[2], int(match[3])) for match in named.values()]
  if len({*clips}) < len(clips):
    twice = next("_".join(map(str, clip)) for clip in clips if clips.count(clip) > 1)
    raise DataError(f"{place.resolve()} holds the clip {twice} twice.")
  row, cut = {name: i for i, name in enumerate(named)}, 0
  x = np.zeros((len(row), LENGTH, 1), np.int16)
  for name, content in contents(place, row):
    clip = samples_of(f"{place.resolve()}: {name}", content, RATE, LONGEST)
    cut += len(clip) > LENGTH
    x[row[name], : len(clip), 0] = clip[:LENGTH]
  y = np.array([digit for digit, _, _ in clips], np.int32)
  groups = np.array([speaker for _, speaker, _ in clips])
  split = np.array([take < TEST_TAKES for _, _, take in clips], np.int8)
  notes = short("clips", len(y), CLIPS)
  notes += (f"{cut} clips are longer than {LENGTH / RATE:g} s and lose their end",) if cut else ()
  examples, scale = (x, 1 / 32768) if form == "samples" else (spectrograms(x[..., 0]), None)
  return Source(
    examples, y, examples[:0], y[:0], 10, "fsdd", groups, (place.name,), notes, scale=scale, split=split
  )


def spectrograms(clips: np.ndarray) -> np.ndarray:
  """Returns the log-mel spectrogram of each clip, float32 [N, 32, 32, 1], of mean 0 and deviation 1.

  Frame t has 512 samples around sample 256 t + 128, under a Hann window; in band b it is log10(p + 1e-6), p
  its power in a triangle of the mel scale m(f) = 2595 log10(1 + f / 700). The triangles share [0, 4] kHz. A
  spectrogram is standardised by its own mean and deviation, so that loudness and microphone's gain do not
  count, and no clip's numbers depend on another's; one of silence is 0.

  Args:
    clips: int16 [N, 8192].

  Source: Davis and Mermelstein, IEEE TASSP 1980, of the triangles; O'Shaughnessy 1987 of the scale.
  """
  edge = (WINDOW - HOP) // 2
  x = np.pad(clips.astype(np.float64) / 32768, ((0, 0), (edge, edge)))
  frames = np.lib.stride_tricks.sliding_window_view(x, WINDOW, axis=1)[:, ::HOP]
  window, bands = np.hanning(WINDOW + 1)[:-1], mel_bands()
  found = np.empty((len(x), BANDS, BANDS, 1), np.float32)
  for i, clip in enumerate(frames):  # of one clip at a time, as all of them would be 400 MB
    power = np.square(np.abs(np.fft.rfft(clip * window)))
    logs = np.log10(power @ bands.T + 1e-6)
    deviation = logs.std()
    found[i, ..., 0] = (logs - logs.mean()) / deviation if deviation > 1e-9 else 0.0
  return found


def mel_bands() -> np.ndarray:
  """Returns the weights of the frequencies 0, 15.625, ..., 4000 Hz in each triangle, float64 [32, 257].

  Triangle b rises from mel point b to 1 at point b + 1 and falls to 0 at point b + 2, of 34 points at equal
  distances on the mel scale from 0 to 4 kHz.
  """
  frequencies = np.arange(WINDOW // 2 + 1) * RATE / WINDOW
  top = 2595 * np.log10(1 + RATE / 2 / 700)
  points = 700 * (10 ** (np.linspace(0, top, BANDS + 2) / 2595) - 1)
  low, middle, high = points[:-2, None], points[1:-1, None], points[2:, None]
  rising, falling = (frequencies - low) / (middle - low), (high - frequencies) / (high - middle)
  return np.clip(np.minimum(rising, falling), 0.0, None)
