"""BERT's tokens: words in lower case, without accents, cut greedily into the longest pieces of a vocabulary.

Sources: Devlin et al., BERT, NAACL 2019; Wu et al., Google's neural machine translation system, 2016, section
4.1. The vocabulary is a text file of a piece a line, whose number is its id; "##" marks pieces within a word.
"""

import unicodedata
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedjax_het.data.untrusted import read
from fedjax_het.errors import DataError, SettingError, check_whole

PAD, UNKNOWN, BEGIN, END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
LONGEST = 100  # letters of a word that is cut at all
_IDEOGRAPHS = (
  (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
  (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


def read_vocabulary(path: Path) -> dict[str, int]:
  """The pieces of a vocabulary file, and their ids.

  Raises:
    DataError: no text, a piece that stands twice, or [PAD] (which must be the first), [UNK], [CLS] or [SEP]
      is not there.
  """
  try:
    pieces = read(path)[1].decode().splitlines()
  except UnicodeDecodeError as error:
    raise DataError(f"{path.resolve()} is no vocabulary: {error}") from error
  ids = {piece: i for i, piece in enumerate(pieces)}
  missing = [piece for piece in (PAD, UNKNOWN, BEGIN, END) if piece not in ids]
  if missing or ids[PAD] or len(ids) < len(pieces):
    what = (
      f"it has no {missing[0]}" if missing else "[PAD] is not its first line" if ids[PAD] else "a piece twice"
    )
    raise DataError(f"{path.resolve()} is no vocabulary of BERT's: {what}.")
  return ids


def words(text: str) -> list[str]:
  """The words of a text: lower case, without accents, each mark of punctuation and each ideograph its own."""
  spaced = []
  for letter in text:
    kind = unicodedata.category(letter)
    if letter in "\t\n\r" or kind == "Zs":
      spaced.append(" ")
    elif any(first <= ord(letter) <= last for first, last in _IDEOGRAPHS):
      spaced.append(f" {letter} ")
    elif kind[0] != "C" and letter != "\ufffd":
      spaced.append(letter)
  plain = unicodedata.normalize("NFD", "".join(letter.lower() for letter in "".join(spaced)))
  return "".join(
    f" {letter} " if _punctuation(letter) else letter
    for letter in plain
    if unicodedata.category(letter) != "Mn"
  ).split()


def pieces(word: str, vocabulary: Mapping[str, int]) -> list[str]:
  """The pieces of a word, each the longest in the vocabulary; [UNK] where there is none for a part."""
  found: list[str] = []
  start = 0
  while start < len(word) <= LONGEST:
    prefix = "##" if start else ""
    end = next((end for end in range(len(word), start, -1) if prefix + word[start:end] in vocabulary), start)
    if end == start:
      return [UNKNOWN]
    found.append(prefix + word[start:end])
    start = end
  return found if len(word) <= LONGEST else [UNKNOWN]


def encode(text: str, vocabulary: Mapping[str, int]) -> list[int]:
  """The ids of a text's pieces, without [CLS] and [SEP]."""
  return [vocabulary[piece] for word in words(text) for piece in pieces(word, vocabulary)]


def framed(texts: list[list[int]], vocabulary: Mapping[str, int], length: int) -> dict[str, np.ndarray]:
  """[CLS] a [SEP], or [CLS] a [SEP] b [SEP], filled up with [PAD]; the longer of a and b is cut to fit.

  Args:
    texts: ids of one text or two.
    vocabulary: pieces -> ids.
    length: L.

  Returns:
    `tokens` int32 [L], `mask` bool [L], true where a token is, and `types` int8 [L], 1 for b and its [SEP].

  Raises:
    SettingError: `length` has no room for what stands around the texts.
  """
  around = len(texts) + 1
  check_whole("length", length, around + 1)
  if len(texts) not in (1, 2):
    raise SettingError("texts", len(texts), "neither one nor two", "Give one or two.")
  sizes = [len(text) for text in texts]
  room = length - around
  if len(sizes) == 1:
    sizes = [min(sizes[0], room)]
  elif sum(sizes) > room:
    shorter = sizes.index(min(sizes))
    sizes[shorter] = min(sizes[shorter], room // 2)
    sizes[1 - shorter] = room - sizes[shorter]
  row, types = [vocabulary[BEGIN]], [0]
  for i, (text, size) in enumerate(zip(texts, sizes)):
    row += [*text[:size], vocabulary[END]]
    types += [i] * (size + 1)
  fill = length - len(row)
  return {
    "tokens": np.array(row + [vocabulary[PAD]] * fill, np.int32),
    "mask": np.arange(length) < len(row),
    "types": np.array(types + [0] * fill, np.int8),
  }


def _punctuation(letter: str) -> bool:
  """Of ASCII all that is neither letter, digit nor space; of the rest what Unicode calls so."""
  if letter.isascii():
    return not letter.isalnum() and letter.isprintable() and letter != " "
  return unicodedata.category(letter)[0] == "P"
