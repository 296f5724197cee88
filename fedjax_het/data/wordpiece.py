"""BERT's WordPiece tokenizer: lower-case words without accents, split greedily into the longest known pieces.

Sources: Devlin et al., BERT, NAACL 2019; Wu et al., Google's neural machine translation system, 2016, section
4.1. The vocabulary is a text file with one piece a line, whose line number from 0 is its id; "##" marks
pieces that do not begin a word.
"""

import unicodedata
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedjax_het.data.untrusted import read, read_json
from fedjax_het.errors import DataError, SettingError, check_whole

PAD, UNKNOWN, BEGIN, END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
LONGEST = 100  # letters of the longest word that is split; longer words become [UNK]
_IDEOGRAPHS = (
  (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
  (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


def read_vocabulary(path: Path) -> dict[str, int]:
  """Reads a vocabulary file: piece -> id.

  Args:
    path: a text file with one piece a line, or a `tokenizer.json` of Hugging Face, whose ids are 0, 1, ...

  Raises:
    DataError: the file is not UTF-8 or no vocabulary, a piece is repeated, [PAD] is not the first, or [UNK],
      [CLS] or [SEP] is missing.
  """
  content = read(path)[1]
  try:
    pieces = _listed(path, content) if path.suffix == ".json" else content.decode().splitlines()
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


def _listed(path: Path, content: bytes) -> list[str]:
  """Returns the pieces of a tokenizer.json in the order of their ids."""
  found = read_json(path, content)
  ids = found.get("model", {}).get("vocab") if isinstance(found, dict) else None
  if not isinstance(ids, dict) or sorted(map(str, ids.values())) != sorted(map(str, range(len(ids)))):
    raise DataError(f"{path.resolve()} is no vocabulary: it has no model.vocab with the ids 0, 1, ...")
  return sorted(ids, key=ids.__getitem__)


def words(text: str) -> list[str]:
  """Splits a text into lower-case words without accents; punctuation marks and ideographs are words too."""
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
  """Splits a word greedily into the longest pieces of the vocabulary; [UNK] where that is impossible."""
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
  """Returns the ids of a text's pieces, without [CLS] and [SEP]."""
  return [vocabulary[piece] for word in words(text) for piece in pieces(word, vocabulary)]


def framed(texts: list[list[int]], vocabulary: Mapping[str, int], length: int) -> dict[str, np.ndarray]:
  """Frames token ids as [CLS] a [SEP] or [CLS] a [SEP] b [SEP], padded with [PAD].

  If they do not fit, the longer of a and b is cut first.

  Args:
    texts: token ids of one text or of two.
    vocabulary: pieces -> ids.
    length: L, the number of tokens after padding.

  Returns:
    `tokens` int32 [L]; `mask` bool [L], false for padding; `types` int8 [L], 1 for b and its [SEP], else 0.

  Raises:
    SettingError: `length` has no room for a token besides [CLS] and [SEP], or there are not one or two texts.
  """
  around = len(texts) + 1
  check_whole("length", length, around + 1)
  if len(texts) not in (1, 2):
    raise SettingError("texts", len(texts), "is not one or two texts", "Give one or two.")
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
  """Returns whether a letter is punctuation: printable ASCII symbols, and Unicode's category P."""
  if letter.isascii():
    return not letter.isalnum() and letter.isprintable() and letter != " "
  return unicodedata.category(letter)[0] == "P"
