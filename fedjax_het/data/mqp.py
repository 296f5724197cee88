"""Medical Question Pairs: predict whether two questions ask the same. Each of eleven doctors is a client.

mqp.csv has no header: dr_id, question_1, question_2, label; 1 is similar, 0 is not.

Source: McCreery et al. 2020, "Effective transfer learning for identifying similar questions: matching user
questions to COVID-19 FAQs" (github.com/curai/medical-question-pair-dataset). Words are either hashed to ids
(Weinberger et al. 2009), which needs no vocabulary file and no pass over other clients' questions, or split
into BERT's WordPiece tokens, for models pretrained on these.
"""

import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from fedjax_het.data.files import Source, check_rows, find, read_table
from fedjax_het.data.tokens import encoded, read_tokenizer
from fedjax_het.data.wordpiece import encode, framed, read_vocabulary
from fedjax_het.errors import DataError, SettingError, check_choice, check_memory, check_whole, folder_of

FILE = "mqp.csv"
ROWS = 3048
DOCTORS = 11
LENGTH, PIECES = 64, 200  # default lengths of a hashed question, and of the WordPiece tokens of a pair
VOCABULARY = 4096
NGRAMS = 1000  # more words than any question has
_WORD = re.compile(r"[a-z0-9]+")


def tokenize(text: str, length: int = LENGTH, vocabulary: int = VOCABULARY, ngrams: int = 1) -> np.ndarray:
  """Hashes a text's n-grams to ids, int32 [length]: its words, then its pairs of words, ..., then zeros.

  id = 1 + crc32(n-gram) mod (vocabulary - 1), where the n-gram's words are in lower case with a space
  between, so ids are the same on every machine and in every process. Ids beyond `length` are cut off.

  Args:
    text: any text.
    length: L, the number of ids.
    vocabulary: V; ids lie in 1 .. V - 1.
    ngrams: the largest n of the n-grams, in words.
  """
  words = _WORD.findall(text.lower())
  grams = [" ".join(words[i : i + n]) for n in range(1, ngrams + 1) for i in range(len(words) - n + 1)]
  ids = [1 + zlib.crc32(gram.encode()) % (vocabulary - 1) for gram in grams[:length]]
  return np.array(ids + [0] * (length - len(ids)), np.int32)


def load_mqp(
  folder: Path,
  length: int | None = None,
  vocabulary: int = VOCABULARY,
  ngrams: int = 1,
  tokenizer: str = "hash",
  vocabulary_file: str = "",
  apart: bool = False,
) -> Source | None:
  """Loads question pairs as ids, int32 [3048, 2, length], and labels, int32 [3048], 1 for similar ones.

  `groups` are the doctors, 1 to 11.

  With tokenizer="wordpiece" or "hf" a pair is one text, [CLS] a [SEP] b [SEP], and an example is a tree of
  `tokens` int32, `mask` bool and `types` int8, [3048, length] each (see `framed`), which `bert` and its kin
  read. With `apart` each question is a text, [CLS] a [SEP], and these arrays are [3048, 2, length].

  Args:
    folder: the folder with mqp.csv.
    length: number of ids of a question, 64 by default, or of WordPiece tokens of a pair, 200 by default as in
      the thesis; longer texts are cut, and shorter ones padded with 0.
    vocabulary: number of ids that words are hashed to, including the padding 0.
    ngrams: the largest n of the n-grams, in words.
    tokenizer: "hash" (`tokenize`), "wordpiece", or "hf": WordPiece by Hugging Face's `tokenizers`, with the
      same ids for the same vocabulary; a tokenizer.json also says how texts are normalised.
    vocabulary_file: a text file with one WordPiece token a line, or a tokenizer.json; by default vocab.txt or
      bert_uncased_vocab.txt in `folder` or in its sibling folder weights.
    apart: whether the two questions are separate texts, for models that encode each and compare them;
      `length` is then that of a question.

  Returns:
    The data set, or None where `folder` does not hold the file.

  Raises:
    DataError: the file or the vocabulary file is missing, truncated or differs from what its authors ship.
    SettingError: an option is out of range, or belongs to the other tokenizer.
  """
  check_choice("tokenizer", tokenizer, ("hash", "wordpiece", "hf"))
  hashed = tokenizer == "hash"
  length = (LENGTH if hashed or apart else PIECES) if length is None else length
  check_whole("length", length, 1 if hashed else 3 if apart else 4)
  check_whole("vocabulary", vocabulary, 2, np.iinfo(np.int32).max)
  check_whole("ngrams", ngrams, 1, NGRAMS)
  check_memory("length", length, 2 * 2 * ROWS * length * 6, f"{ROWS} pairs of questions of {length} ids")
  ours = (("vocabulary", vocabulary, VOCABULARY), ("ngrams", ngrams, 1))
  theirs = (("vocabulary_file", vocabulary_file, ""), ("apart", apart, False))
  for setting, value, default in theirs if hashed else ours:
    if value != default:
      raise SettingError(setting, value, f"has no effect with tokenizer={tokenizer!r}", "Leave it out.")
  path = find(folder, FILE)
  if path is None:
    return None
  doctors: list[int] = []
  questions: list[Any] = []
  labels: list[int] = []
  file = Path() if hashed else _vocabulary(folder, vocabulary_file)
  ids = {} if hashed else read_vocabulary(file)
  theirs_of = read_tokenizer(file) if tokenizer == "hf" else None
  for where, (doctor, first, second, label) in read_table(path, 4):
    if doctor not in map(str, range(1, DOCTORS + 1)) or label not in ("0", "1"):
      raise DataError(f"{where} is not what its authors ship: doctor {doctor[:20]!r}, label {label[:20]!r}.")
    doctors.append(int(doctor))
    if hashed:
      questions.append([tokenize(text, length, vocabulary, ngrams) for text in (first, second)])
    else:
      pair = (first, second)
      pieces = encoded(theirs_of, pair) if theirs_of else [encode(text, ids) for text in pair]
      texts = [framed([own], ids, length) for own in pieces] if apart else [framed(pieces, ids, length)]
      questions.append({name: np.squeeze([text[name] for text in texts]) for name in texts[0]})
    labels.append(int(label))
  check_rows(path, len(labels), ROWS)
  y = np.array(labels, np.int32)
  if hashed:
    x: Any = np.array(questions)
    full = int((x[..., -1] > 0).sum())
    how = (
      f"words hashed to {vocabulary - 1} ids, n-grams up to {ngrams}; {full} of {2 * len(y)} questions fill"
    )
  else:
    x = {name: np.stack([row[name] for row in questions]) for name in questions[0]}
    full, texts = int(x["mask"][..., -1].sum()), x["mask"][..., -1].size
    how = f"WordPiece of {len(ids)} pieces; {full} of {texts} {'questions' if apart else 'pairs'} fill"
  notes = (f"{len(y)} pairs, {int(y.sum())} similar; {how} all {length} places and may be cut",)
  none = {name: leaf[:0] for name, leaf in x.items()} if isinstance(x, dict) else x[:0]
  return Source(x, y, none, y[:0], 2, "mqp", np.array(doctors), (path.name,), notes)


def _vocabulary(folder: Path, file: str) -> Path:
  """Returns the path of the WordPiece vocabulary; raises `DataError` where there is none."""
  places = [
    folder / "vocab.txt",
    folder / "bert_uncased_vocab.txt",
    folder.parent / "weights/bert_uncased_vocab.txt",
  ]
  path = next(
    (path for path in ([folder_of("vocabulary_file", file)] if file else places) if path.is_file()), None
  )
  if path is None:
    looked = file or ", ".join(str(place.resolve()) for place in places)
    raise DataError(
      f"tokenizer='wordpiece' and 'hf' want the vocabulary of bert-base-uncased: looked for {looked}."
      " Put it there, or name it by vocabulary_file, from https://huggingface.co/bert-base-uncased."
    )
  return path
