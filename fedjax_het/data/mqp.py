"""Medical Question Pairs: do two questions ask the same? Eleven doctors, a client each.

mqp.csv has no header: dr_id, question_1, question_2, label; 1 is similar, 0 is not.

Source: McCreery et al. 2020, "Effective transfer learning for identifying similar questions: matching user
questions to COVID-19 FAQs" (github.com/curai/medical-question-pair-dataset). The words are hashed to ids
(Weinberger et al. 2009), which needs no vocabulary file and no pass over other clients' questions.
"""

import re
import zlib
from pathlib import Path

import numpy as np

from fedjax_het.data.files import Source, check_rows, find, read_table
from fedjax_het.errors import DataError, check_range

FILE = "mqp.csv"
ROWS = 3048
DOCTORS = 11
LENGTH = 64
VOCABULARY = 4096
_WORD = re.compile(r"[a-z0-9]+")


def tokenize(text: str, length: int = LENGTH, vocabulary: int = VOCABULARY, ngrams: int = 1) -> np.ndarray:
  """Ids of a text's words, then its pairs of words, ..., int32 [length], 0 where the text has ended.

  id = 1 + crc32(n-gram) mod (vocabulary - 1), the n-gram's words in lower case with a space between: the
  same on every machine and in every process. What does not fit in `length` is cut off.

  Args:
    text: any text.
    length: L, the number of ids.
    vocabulary: V; ids lie in 1 .. V - 1.
    ngrams: the longest n-gram.
  """
  words = _WORD.findall(text.lower())
  grams = [" ".join(words[i : i + n]) for n in range(1, ngrams + 1) for i in range(len(words) - n + 1)]
  ids = [1 + zlib.crc32(gram.encode()) % (vocabulary - 1) for gram in grams[:length]]
  return np.array(ids + [0] * (length - len(ids)), np.int32)


def load_mqp(
  folder: Path, length: int = LENGTH, vocabulary: int = VOCABULARY, ngrams: int = 1
) -> Source | None:
  """The question pairs as ids (`tokenize`), int32 [3048, 2, length]; `groups` are the doctors, 1 to 11.

  Args:
    folder: where the file is.
    length: ids a question; a longer one is cut, a shorter one filled up with 0.
    vocabulary: ids that words are hashed to, with 0.
    ngrams: the longest runs of words that get an id.

  Returns:
    The data set, or None where `folder` does not hold the file.

  Raises:
    DataError: the file is truncated or not what its authors ship.
    SettingError: an option out of range.
  """
  check_range("length", length, 1)
  check_range("vocabulary", vocabulary, 2)
  check_range("ngrams", ngrams, 1)
  path = find(folder, FILE)
  if path is None:
    return None
  doctors, questions, labels = [], [], []
  for where, (doctor, first, second, label) in read_table(path, 4):
    if doctor not in map(str, range(1, DOCTORS + 1)) or label not in ("0", "1"):
      raise DataError(f"{where} is not what its authors ship: doctor {doctor[:20]!r}, label {label[:20]!r}.")
    doctors.append(int(doctor))
    questions.append([tokenize(text, length, vocabulary, ngrams) for text in (first, second)])
    labels.append(int(label))
  check_rows(path, len(labels), ROWS)
  x, y = np.array(questions), np.array(labels, np.int32)
  full = int((x[..., -1] > 0).sum())
  notes = (
    f"{len(y)} pairs, {int(y.sum())} similar; words hashed to {vocabulary - 1} ids, n-grams up to {ngrams};"
    f" {full} of {2 * len(y)} questions fill all {length} places and may be cut",
  )
  return Source(x, y, x[:0], y[:0], 2, "mqp", np.array(doctors), (path.name,), notes)
