"""Speech Commands v0.02: 105,829 one-second clips of 35 words. Each of 2,618 speakers is a client.

Clips are files WORD/SPEAKER_nohash_N.wav, 16 kHz, mono, 16 bit, where SPEAKER is a hash of eight digits.
validation_list.txt and testing_list.txt name the files of the speakers that the authors hold out. Source:
Warden, Speech Commands, 2018, v0.02.
"""

import re
from pathlib import Path

import numpy as np

from fedjax_het.data.files import Source, text_of
from fedjax_het.data.packed import contents, locate
from fedjax_het.data.wav import samples_of
from fedjax_het.errors import DataError, check_choice

WORDS = (
  "backward", "bed", "bird", "cat", "dog", "down", "eight", "five", "follow", "forward", "four", "go",
  "happy", "house", "learn", "left", "marvin", "nine", "no", "off", "on", "one", "right", "seven", "sheila",
  "six", "stop", "three", "tree", "two", "up", "visual", "wow", "yes", "zero",
)  # fmt: skip
RATE = LENGTH = 16_000
CLIPS = {"all": 105_829, "training": 84_843}  # in v0.02
LISTS = {"validation": "validation_list.txt", "testing": "testing_list.txt"}
_NAME = re.compile(r"(?:.*/)?([a-z]+)/([0-9a-f]{8})_nohash_\d+\.wav")


def load_speech_commands(folder: Path, subset: str = "all") -> Source | None:
  """Loads clips, int16 [N, 16000, 1], and their words, int32 [N], as indices of `WORDS`.

  Samples are read as floats in [-1, 1), and `groups` are the speakers.

  Shorter clips are padded with silence. The background noises are not read.

  Args:
    folder: the folder with the words' folders, at any depth, or with an archive of them.
    subset: "all", or "training", which leaves out the files of both lists, as the thesis does: 84,843 of
      105,829 clips stay.

  Returns:
    The data set, or None where there is no clip.

  Raises:
    SettingError: `subset` has another value.
    DataError: a clip is damaged, has another format or is longer than a second, or a list is missing.
  """
  check_choice("subset", subset, ("all", "training"))
  found = locate(folder, ".wav")
  if found is None:
    return None
  place, files = found
  named = {name: match for name in files if (match := _NAME.fullmatch(name)) and match[1] in WORDS}
  if not named:
    return None
  apart: set[str] = set()
  for ending in LISTS.values() if subset == "training" else ():
    lists = locate(folder, f"/{ending}")
    if lists is None:
      raise DataError(f"speech_commands wants {ending} for subset='training'; looked in {folder.resolve()}.")
    for name, content in contents(*lists):
      apart |= {*text_of(f"{lists[0].resolve()}: {name}", content).split()}
  kept = {name: match for name, match in named.items() if "/".join(name.split("/")[-2:]) not in apart}
  if not kept:
    raise DataError(f"{place.resolve()}: no clip is left that is in neither of {', '.join(LISTS.values())}.")
  row = {name: i for i, name in enumerate(kept)}
  x = np.zeros((len(row), LENGTH, 1), np.int16)
  for name, content in contents(place, row):
    clip = samples_of(f"{place.resolve()}: {name}", content, RATE, LENGTH)
    x[row[name], : len(clip), 0] = clip
  y = np.array([WORDS.index(match[1]) for match in kept.values()], np.int32)
  groups = np.array([match[2] for match in kept.values()])
  whole = CLIPS[subset]
  few = "" if len(y) >= whole else f"; the whole data set has {whole} clips"
  notes = (f"{len(y)} clips of {len(set(y.tolist()))} words by {len(set(groups.tolist()))} speakers{few}",)
  return Source(
    x, y, x[:0], y[:0], len(WORDS), "speech_commands", groups, (place.name,), notes, scale=1 / 32768
  )  # fmt: skip
