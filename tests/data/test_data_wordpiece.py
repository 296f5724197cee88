"""WordPiece: by hand with a small vocabulary, and ids of another implementation with BERT's own."""

import json

import jax
import numpy as np
import pytest
from realdata import real_data

from fedjax_het import data
from fedjax_het.data import mqp, wordpiece
from fedjax_het.errors import DataError, SettingError

# Ids by the library `tokenizers` 0.23.3 (BertWordPieceTokenizer, lowercase, bert-base-uncased).
CASES = [
  (
    "After how many hours from drinking an antibiotic can I drink alcohol?",
    [2044, 2129, 2116, 2847, 2013, 5948, 2019, 3424, 26591, 2064, 1045, 4392, 6544, 1029],
  ),
  (
    "Hello,   World!\tIt's 3.5mg/dL (b12)...",
    [
      7592,
      1010,
      2088,
      999,
      2009,
      1005,
      1055,
      1017,
      1012,
      1019,
      24798,
      1013,
      21469,
      1006,
      29491,
      2475,
      1007,
      1012,
      1012,
      1012,
    ],
  ),
  ("caf\u00e9 NA\u00cfVE \u00c5ngstr\u00f6m \ufb01anc\u00e9", [7668, 15743, 17076, 15687, 1984, 6651]),
  ("\u4e2d\u6587 words\u6df7\u5408", [1746, 1861, 2616, 100, 1792]),
  ("unaffable electroencephalographically", [14477, 20961, 3468, 16175, 10127, 21890, 21197, 20721, 3973]),
  (101 * "x", [100]),
  (
    100 * "a",
    [
      13360,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      11057,
      2050,
    ],
  ),
  ("", []),
  ("   ", []),
  (
    "don\u2019t \u201cquote\u201d \u2014 dash\u2026",
    [2123, 1521, 1056, 1523, 14686, 1524, 1517, 11454, 1529],
  ),
  ("emoji \U0001f600 ok", [7861, 29147, 2072, 100, 7929]),
  (
    "$5 + 10% = ^x_y~`|<z>",
    [1002, 1019, 1009, 2184, 1003, 1027, 1034, 1060, 1035, 1061, 1066, 1036, 1064, 1026, 1062, 1028],
  ),
  ("\u00c6\u00d8\u0152 \u00df \u0130stanbul", [1097, 16415, 29674, 1096, 9960]),
  (
    "zero\u200bwidth\u00a0nbsp\u00adsoft\0nul\ufffd",
    [5717, 9148, 11927, 2232, 1050, 5910, 4523, 15794, 11231, 2140],
  ),
  ("\uff26\uff55\uff4c\uff4c\u3000width", [100, 9381]),
  (
    "\ud55c\uad6d\uc5b4 \u65e5\u672c\u8a9e\u30ab\u30bf\u30ab\u30ca",
    [1469, 30006, 30021, 29991, 30014, 30020, 29999, 30008, 1864, 1876, 1950, 1700, 30235, 30226, 30241],
  ),
  (
    "HbA1c of 7.2% \u2014 type-2 diabetes; metformin 500mg bid",
    [
      1044,
      3676,
      2487,
      2278,
      1997,
      1021,
      1012,
      1016,
      1003,
      1517,
      2828,
      1011,
      1016,
      14671,
      1025,
      2777,
      14192,
      2378,
      3156,
      24798,
      7226,
    ],
  ),
  ("\u03b1\u03b2\u03b3 \u03a3\u0391\u03a3", [1155, 29720, 29721, 1173, 14608, 29733]),
  ("\u03c0\u22483.14\u00b2", [1170, 30133, 2509, 1012, 2403, 10701]),
  ("e\u0301le\u0300ve", [3449, 18697]),
  ("--", [1011, 1011]),
  ("##ing able", [1001, 1001, 13749, 2583]),
]
# Pairs framed in twelve places: ids, how many are there, types.
PAIRS = [
  (
    "how are you today my friend",
    "fine",
    [101, 2129, 2024, 2017, 2651, 2026, 2767, 102, 2986, 102, 0, 0],
    10,
    [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0],
  ),
  (
    "a b c d e f g h",
    "i j k l m n o",
    [101, 1037, 1038, 1039, 1040, 1041, 102, 1045, 1046, 1047, 1048, 102],
    12,
    [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1],
  ),
  (
    "one two",
    "three four",
    [101, 2028, 2048, 102, 2093, 2176, 102, 0, 0, 0, 0, 0],
    7,
    [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0],
  ),
  (
    "a b c d",
    "a b c d e f g h i j",
    [101, 1037, 1038, 1039, 1040, 102, 1037, 1038, 1039, 1040, 1041, 102],
    12,
    [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1],
  ),
  (
    "a b c d e f",
    "a b c d e f",
    [101, 1037, 1038, 1039, 1040, 102, 1037, 1038, 1039, 1040, 1041, 102],
    12,
    [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1],
  ),
]
SMALL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "una", "able", "?", "is", "##i"]
IDS = {piece: i for i, piece in enumerate(SMALL)}


@pytest.fixture(scope="module")
def vocabulary():
  return wordpiece.read_vocabulary(real_data("weights") / "weights" / "bert_uncased_vocab.txt")


@pytest.mark.parametrize(("text", "ids"), CASES)
def test_ids_are_those_of_another_library(vocabulary, text, ids):
  assert wordpiece.encode(text, vocabulary) == ids


@pytest.mark.parametrize(("first", "second", "ids", "there", "types"), PAIRS)
def test_pairs_are_framed_as_another_library_does(vocabulary, first, second, ids, there, types):
  row = wordpiece.framed([wordpiece.encode(text, vocabulary) for text in (first, second)], vocabulary, 12)
  assert row["tokens"].tolist() == ids and row["types"].tolist() == types
  assert row["mask"].tolist() == [True] * there + [False] * (12 - there)


def test_words_and_pieces_by_hand():
  assert wordpiece.words("Ab,c\u00e9\t D\u4e2d\x07e\u00a0f") == ["ab", ",", "ce", "d", "\u4e2d", "e", "f"]
  assert wordpiece.pieces("unaffable", IDS) == ["[UNK]"]  # greedy: "una", of which nothing goes on
  assert wordpiece.pieces("unable", {**IDS, "una": 99}) == ["[UNK]"]
  assert wordpiece.pieces("isi", IDS) == ["is", "##i"] and wordpiece.pieces("isab", IDS) == ["[UNK]"]
  assert wordpiece.pieces(51 * "is", {**IDS, "##is": 12}) == ["[UNK]"]  # of 102 letters
  assert wordpiece.encode("is able?", IDS) == [10, 8, 9]


def test_one_text_and_two():
  one = wordpiece.framed([[8, 9, 10]], IDS, 6)
  assert one["tokens"].tolist() == [2, 8, 9, 10, 3, 0] and one["mask"].sum() == 5 and not one["types"].any()
  assert wordpiece.framed([[8, 9, 10]], IDS, 4)["tokens"].tolist() == [2, 8, 9, 3]
  two = wordpiece.framed([[8] * 2, [9] * 9], IDS, 8)
  assert two["tokens"].tolist() == [2, 8, 8, 3, 9, 9, 9, 3] and two["types"].tolist() == [0] * 4 + [1] * 4
  with pytest.raises(SettingError, match="length = 3"):
    wordpiece.framed([[8], [9]], IDS, 3)
  with pytest.raises(SettingError, match="texts = 3: is not one or two texts"):
    wordpiece.framed([[8], [9], [8]], IDS, 9)


@pytest.mark.parametrize(
  ("content", "says"),
  [
    ("\n".join(SMALL[:2]), r"it has no \[CLS\]"),
    ("\n".join(SMALL[::-1]), r"\[PAD\] is not its first line"),
    ("\n".join([*SMALL, "is"]), "a piece twice"),
    (b"\xff\xfe", "is no vocabulary"),
  ],
)
def test_a_vocabulary_of_something_else(tmp_path, content, says):
  path = tmp_path / "vocab.txt"
  path.write_bytes(content if isinstance(content, bytes) else content.encode())
  with pytest.raises(DataError, match=says):
    wordpiece.read_vocabulary(path)


@pytest.fixture
def tiny(tmp_path, monkeypatch):
  monkeypatch.setattr(mqp, "ROWS", 2)
  folder = tmp_path / "medical-question-pairs"
  folder.mkdir()
  (folder / "mqp.csv").write_text("1,Is able?,is,1\n2,able able able able,Isi un,0\n")
  return tmp_path


def test_question_pairs_in_pieces(tiny):
  with pytest.raises(DataError, match=r"vocab.txt. Put it there, or name it by vocabulary_file"):
    data.load("mqp", tiny, tokenizer="wordpiece")
  (tiny / "weights").mkdir()
  (tiny / "weights" / "bert_uncased_vocab.txt").write_text("\n".join(SMALL))
  source = data.load("mqp", tiny, tokenizer="wordpiece", length=9)
  assert source.x["tokens"].tolist() == [[2, 10, 8, 9, 3, 10, 3, 0, 0], [2, 8, 8, 8, 3, 10, 11, 4, 3]]
  assert source.x["mask"].sum(1).tolist() == [7, 9] and source.x["mask"].dtype == bool
  assert source.x["types"].tolist() == [[0, 0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1, 1]]
  assert "1 of 2 pairs fill all 9 places" in source.notes[0] and source.groups.tolist() == [1, 2]
  apart = data.load("mqp", tiny, tokenizer="wordpiece", length=5, apart=True)
  assert apart.x["tokens"].tolist() == [
    [[2, 10, 8, 9, 3], [2, 10, 3, 0, 0]], [[2, 8, 8, 8, 3], [2, 10, 11, 4, 3]]
  ]  # fmt: skip
  assert apart.x["mask"].sum(2).tolist() == [[5, 3], [5, 5]] and not apart.x["types"].any()
  assert "3 of 4 questions fill all 5 places" in apart.notes[0]
  own = tiny / "own.txt"
  own.write_text("\n".join([*SMALL, "##e"]))
  longer = data.load("mqp", tiny, tokenizer="wordpiece", vocabulary_file=str(own))
  assert longer.x["tokens"].shape == (2, 200) and "13 pieces" in longer.notes[0]
  made = data.from_groups(jax.random.key(0), source.x, source.y, source.groups, test_fraction=0.0)
  x, _ = made.clients(0).take(np.arange(1))
  assert {name: str(leaf.dtype) for name, leaf in x.items()} == {
    "tokens": "int32",
    "mask": "bool",
    "types": "int32",
  }


@pytest.mark.parametrize(
  ("options", "says"),
  [
    ({"tokenizer": "wordpieces"}, "Did you mean 'wordpiece'"),
    ({"tokenizer": "wordpiece", "ngrams": 2}, "ngrams = 2: has no effect with tokenizer='wordpiece'"),
    ({"tokenizer": "wordpiece", "vocabulary": 9}, "vocabulary = 9: has no effect"),
    ({"vocabulary_file": "v.txt"}, "vocabulary_file = 'v.txt': has no effect with tokenizer='hash'"),
    ({"tokenizer": "wordpiece", "length": 3}, "length = 3"),
    ({"apart": True}, "apart = True: has no effect with tokenizer='hash'"),
  ],
)
def test_options_of_the_other_tokenizer_are_named(tiny, options, says):
  with pytest.raises(SettingError, match=says):
    data.load("mqp", tiny, **options)


@pytest.mark.slow
def test_the_real_pairs_in_pieces():
  source = data.load("mqp", real_data("medical-question-pairs"), tokenizer="wordpiece")
  assert source.x["tokens"].shape == (3048, 200) and source.x["tokens"].max() < 30_522
  unknown = (source.x["tokens"] == 100).sum() / source.x["mask"].sum()
  assert unknown < 1e-3 and not source.x["mask"][:, -1].any()
  assert (source.x["tokens"][:, 0] == 101).all() and ((source.x["tokens"] == 102).sum(1) == 2).all()


def test_a_tokenizer_s_json_is_a_vocabulary(tmp_path):
  """Hugging Face's file, as packages of weights have it, whatever the order of its pieces."""
  path = tmp_path / "tokenizer.json"
  path.write_text(json.dumps({"model": {"vocab": dict(sorted(IDS.items()))}}))
  assert wordpiece.read_vocabulary(path) == IDS
  for wrong in ({}, [], {"model": {"vocab": {"a": 1}}}, {"model": {"vocab": ["a"]}}):
    path.write_text(json.dumps(wrong))
    with pytest.raises(DataError, match=r"has no model\.vocab with the ids"):
      wordpiece.read_vocabulary(path)
