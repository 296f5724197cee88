"""Shakespeare: predict the next character after eighty. Each speaking role is a client, by LEAF's rules.

In the plain text a line "  ROLE. words" begins a role's speech, and lines indented by four spaces continue
it; in The Comedy of Errors no line is indented. Roles with two lines or fewer, roles with at most eighty
characters, and plays with one role are left out. A role's lines are joined by spaces, and repeated spaces
become one. Sources: McMahan et al. 2017; Caldas et al., LEAF, 2018; text: Project Gutenberg, eBook 100.
"""

import re
import unicodedata
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_het.data.files import Source
from fedjax_het.data.leaf import joined, leaf_files, read_leaf
from fedjax_het.data.packed import locate, read_one
from fedjax_het.errors import DataError, SettingError, check_range, check_whole

SYMBOLS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WINDOW = 80
TEXTS = ("/raw_data.txt", "/100.txt", "/100-0.txt", "/pg100.txt")
AUTHOR, ERRORS = "by William Shakespeare", "THE COMEDY OF ERRORS"
POEMS = (
  "THE SONNETS", "A LOVER’S COMPLAINT", "THE PASSIONATE PILGRIM", "THE PHOENIX AND THE TURTLE",
  "THE RAPE OF LUCRECE", "VENUS AND ADONIS",
)  # fmt: skip
_ROLE, _MORE = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"    (.*)")
_ROLE_OF_ERRORS, _MORE_OF_ERRORS = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)"), re.compile(r"(?!<)(.*)")
_LIKE = str.maketrans(
  {"‘": "'", "’": "'", "“": '"', "”": '"', "—": "-", "–": "-", "æ": "ae", "Æ": "AE", "œ": "oe"}
)


def load_shakespeare(folder: Path, train: float | None = 0.8, stride: int = 1) -> Source | None:
  """Loads windows of 80 characters, int8 [N, 80], and each next character, int32 [N], as ids of `SYMBOLS`.

  `groups` are the roles.

  `split` is LEAF's (`-t sample -tf 0.8`): the first ⌊train · n⌋ of a role's n windows, at least one, are for
  training; the windows that begin 79 or more further on are for testing, and share at most one character with
  them. Roles without a test window are left out: 630 of 907 stay for the release of 2018, in which nine plays
  have another layout and give no roles.

  Args:
    folder: the folder with the text (100.txt, 100-0.txt, pg100.txt or raw_data.txt), in an archive or not, or
      with LEAF's json files, for which `train` and `stride` cannot be changed.
    train: fraction of a role's windows to train on; None keeps all roles, without a split.
    stride: distance in characters between the beginnings of two windows; LEAF uses 1.

  Returns:
    The data set, or None where the folder holds neither.

  Raises:
    SettingError: an option is out of range or has no effect.
    DataError: fewer than a hundred roles are found in the text, or the json files are of another data set.
  """
  check_whole("stride", stride, 1)
  if train is not None:
    check_range("train", train, above=0.0, below=1.0, on_host=True)
  found = next((found for ending in TEXTS if (found := locate(folder, ending))), None)
  if found is None:
    files = leaf_files(folder)
    if files and (train, stride) != (0.8, 1):
      raise SettingError(
        "train, stride", (train, stride), "LEAF's json files come cut and divided", "Leave them out."
      )
    return _of_json(files) if files else None
  place, (name, *_) = found
  said = roles(plays(read_one(place, name).decode("utf-8-sig", errors="replace")))
  if len(said) < 100:
    raise DataError(
      f"{place.resolve()}: {name} is not the whole of Shakespeare's plays: {len(said)} roles found."
    )
  x, y, sizes, split = [], [], [], []
  left = 0
  for words in said.values():
    ids = np.array([SYMBOLS.index(letter) for letter in words], np.int8)
    windows = np.lib.stride_tricks.sliding_window_view(ids, WINDOW + 1)[::stride]
    own = np.zeros(len(windows), np.int8)
    if train is not None:
      first = max(1, int(train * len(windows)))
      apart = -(
        -WINDOW // stride
      )  # the first window after the training windows that shares at most one character with them
      own[first : first + apart - 1], own[first + apart - 1 :] = -1, 1
      if not (own == 1).any():
        left += 1
        continue
    x.append(windows[:, :-1])
    y.append(windows[:, -1])
    sizes.append(len(windows))
    split.append(own)
  if not sizes:
    raise DataError(
      f"{place.resolve()}: none of {len(said)} roles is long enough for windows of {WINDOW} characters"
      f" {stride} apart that are divided. A smaller stride gives more windows."
    )
  groups = np.repeat(np.arange(len(sizes)), sizes)
  notes = (
    f"{len(said)} roles with more than {WINDOW} characters, {left} of them too short to be divided;"
    f" {len(groups)} windows",
  )
  every = np.concatenate(x)
  return Source(
    every, np.concatenate(y).astype(np.int32), every[:0], np.zeros(0, np.int32), len(SYMBOLS), "shakespeare",
    groups, (place.name,), notes, split=None if train is None else np.concatenate(split),
  )  # fmt: skip


def plays(text: str) -> dict[str, list[str]]:
  """Returns the lines of each play, by title.

  If "by William Shakespeare" occurs at least twenty times (the release of 1994 that LEAF starts from), a play
  begins below it, two to seven lines under its title, and all text above the second occurrence is skipped.
  Otherwise plays begin at the titles that the table of contents lists, without the poems.
  """
  lines = text.splitlines()
  authors = [i for i, line in enumerate(lines) if AUTHOR in line][1:]
  if len(authors) >= 20:
    titles = [next((t for d in range(2, 8) if (t := lines[i - d].strip())), "") for i in authors]
    ends = [*authors[1:], len(lines)]
    return {title: lines[i + 1 : end] for title, i, end in zip(titles, authors, ends)}
  contents = next((i for i, line in enumerate(lines) if line.strip() == "Contents"), len(lines))
  below = lines[contents + 1 :]
  end = next((i for i, line in enumerate(below) if line.strip() and not line.startswith(" ")), len(below))
  listed = {line.strip() for line in below[:end] if line.strip()}
  first: dict[str, int] = {}
  for i, line in enumerate(below[end:], contents + 1 + end):
    if line.strip() in listed:
      first.setdefault(line.strip(), i)
  starts = sorted((at, title) for title, at in first.items())
  ends = [*(at for at, _ in starts[1:]), len(lines)]
  return {title: lines[at + 1 : end] for (at, title), end in zip(starts, ends) if title not in POEMS}


def roles(of_plays: dict[str, list[str]]) -> dict[tuple[str, str], str]:
  """Returns what each role says: (play, role) -> text in letters of `SYMBOLS`, longer than 80 characters.

  Letters outside `SYMBOLS` are replaced by similar ones ("’" by an apostrophe, "é" by e) or left out.
  """
  said: dict[tuple[str, str], str] = {}
  for play, lines in of_plays.items():
    begin, more = (_ROLE_OF_ERRORS, _MORE_OF_ERRORS) if play == ERRORS else (_ROLE, _MORE)
    spoken: dict[str, list[str]] = defaultdict(list)
    role = None
    for line in lines:
      if match := begin.match(line):
        role = match[1].upper()
        if play == ERRORS and role.startswith("ACT "):
          role = None
        else:
          spoken[role].append(match[2])
      elif role and (match := more.match(line)):
        spoken[role].append(match[1])
      elif role and play == ERRORS:
        role = None
    for role, bites in spoken.items():
      words = _in_symbols(re.sub("   *", " ", "".join(f"{bite} " for bite in bites)))
      if len(spoken) > 1 and len(bites) > 2 and len(words) > WINDOW:
        said[play, role] = words
  return said


def _in_symbols(text: str) -> str:
  plain = unicodedata.normalize("NFKD", text.translate(_LIKE))
  return "".join(letter for letter in plain if letter in SYMBOLS)


def _of_json(files: list[tuple[Path, bool]]) -> Source:
  """Loads LEAF's json files, where x are texts of 80 characters and y is the next character."""
  known = np.full(256, -1, np.int8)
  known[[ord(letter) for letter in SYMBOLS]] = np.arange(len(SYMBOLS))
  runs = []
  for rows in read_leaf(files, counted=False):
    fits = all(_is_text(x, WINDOW) and _is_text(y, 1) for x, y in zip(rows.x, rows.y))
    letters = "".join([*rows.x, *rows.y] if fits else ()).encode("latin-1", errors="ignore")
    ids = known[np.frombuffer(letters, np.uint8)]
    if len(ids) != (WINDOW + 1) * len(rows.y) or (ids < 0).any():
      raise DataError(
        f"{rows.where}: its examples are not texts of {WINDOW} of LEAF's letters, and the next one."
      )
    x, y = np.split(ids, [WINDOW * len(rows.y)])
    runs.append(rows._replace(x=x.reshape(-1, WINDOW), y=y.astype(np.int32)))
  every, labels = np.concatenate([run.x for run in runs]), np.concatenate([run.y for run in runs])
  groups, split, note = joined(runs, every)
  names = tuple(path.name for path, _ in files)
  return Source(
    every, labels, every[:0], labels[:0], len(SYMBOLS), "shakespeare", groups, names, (note,), split=split
  )  # fmt: skip


def _is_text(given: Any, length: int) -> bool:
  return isinstance(given, str) and len(given) == length
