"""Texts of one's own: documents by client, the split, windows by hand, tokenizers, a run from end to end."""

import json

import jax
import numpy as np
import pytest
from changed_configs import with_values
from realdata import real_data

import fedjax_het as fh
from fedjax_het.config.quickstart import get_config
from fedjax_het.data import text, tokens, wordpiece
from fedjax_het.data.files import read_table
from fedjax_het.data.sources import load

tokenizers = pytest.importorskip("tokenizers")
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "the", "dog", "ran", "to", "the", "cat"]


def said(seed, count):
  """A text of some words."""
  return " ".join(np.random.default_rng(seed).choice(WORDS, count))


@pytest.fixture
def letters(tmp_path):
  """A folder with two clients of several texts and one of one, and a fourth without."""
  for name, counts in {"ann": (30, 20, 9), "bob": (25, 14), "cyd": (60,), "dan": (0,)}.items():
    (tmp_path / "letters" / name / "inner").mkdir(parents=True)
    for i, count in enumerate(counts):
      (tmp_path / "letters" / name / "inner" / f"{i}.txt").write_text(said(i, count))
  return tmp_path / "letters"


def test_windows_by_hand():
  """Every token but the first is a label once, and padding none."""
  x, y = text.windows([[5, 6, 7], [8]], 0, 4)
  assert x.tolist() == [[0, 5, 6, 7], [0, 8, 0, 0]] and y.tolist() == [[5, 6, 7, 0], [8, 0, -1, -1]]
  x, y = text.windows([[5, 6, 7]], 0, 4)  # which fills its window
  assert x.tolist() == [[0, 5, 6, 7]] and y.tolist() == [[5, 6, 7, 0]]
  assert text.windows([], 0, 4)[0].shape == (0, 4)


def test_the_split_is_of_texts_in_their_order_and_of_one_text_at_a_space():
  assert text.divided([*"abcde"], 0.8) == ([*"abcd"], ["e"])
  assert text.divided([*"ab"], 0.1) == (["a"], ["b"]) and text.divided([*"ab"], 0.99) == (["a"], ["b"])
  assert text.divided(["one two three"], 0.3) == (["one"], ["two three"])
  assert text.divided(["one two"], 0.5) == (["one"], ["two"])
  assert text.divided(["one two"], 0.9) == (["one two"], []) and text.divided(["x"], 0.5) == (["x"], [])


def test_a_folder_of_texts_by_client(letters):
  source = text.read_text(letters, vocabulary=300, length=16)
  made = fh.data.text_tokenizer(letters, vocabulary=300)
  assert sorted({*source.groups}) == ["ann", "bob", "cyd"] and source.task.name == "next_token"
  assert source.num_classes == made.get_vocab_size() <= 300 and source.x.dtype == np.int16
  for name, first in {"ann": [said(0, 30), said(1, 20)], "bob": [said(0, 25)]}.items():
    own = (source.groups == name) & (source.split == 0)
    row = source.y[own].ravel()
    row = [0, *row[row >= 0]]
    assert made.decode(row, skip_special_tokens=False) == tokens.END + "".join(
      own + tokens.END for own in first
    )
    np.testing.assert_array_equal(source.x[own].ravel()[: len(row) - 1], row[:-1])
  assert "1 clients have no text" in " ".join(source.notes) and "6 texts, " in " ".join(source.notes)
  assert "1 empty texts are left out" in source.notes


def test_the_tokenizer_is_trained_on_training_texts_alone_and_always_the_same(letters):
  before = fh.data.text_tokenizer(letters, vocabulary=300).to_str()
  (letters / "ann" / "inner" / "2.txt").write_text("qqzz " * 50)  # a text to test on
  assert fh.data.text_tokenizer(letters, vocabulary=300).to_str() == before
  (letters / "ann" / "inner" / "1.txt").write_text("qqzz " * 50)
  assert fh.data.text_tokenizer(letters, vocabulary=300).to_str() != before


def test_a_tokenizer_that_is_kept_gives_the_same_tokens(letters, tmp_path):
  trained = text.read_text(letters, vocabulary=300)
  fh.data.text_tokenizer(letters, vocabulary=300).save(str(tmp_path / "tokenizer.json"))
  kept = text.read_text(letters, tokenizer=str(tmp_path / "tokenizer.json"))
  assert np.array_equal(trained.x, kept.x) and np.array_equal(trained.y, kept.y)


def test_a_table_and_a_file_for_each_client(letters, tmp_path):
  pandas = pytest.importorskip("pandas")
  rows = [
    ("ann", said(0, 30)),
    ("ann", said(1, 20)),
    ("ann", said(2, 9)),
    ("bob", said(0, 25)),
    ("bob", said(1, 14)),
  ]
  rows += [("cyd", said(0, 60)), ("eve", None)]
  frame = pandas.DataFrame(rows, columns=["who", "words"])
  frame.to_csv(tmp_path / "t.csv", sep=";", index=False)
  wanted = text.read_text(letters, vocabulary=300)
  for table, how in ((frame, {}), (tmp_path / "t.csv", {"delimiter": ";"})):
    found = text.read_text(table, text="words", client="who", vocabulary=300, **how)
    assert np.array_equal(found.y, wanted.y) and found.groups.tolist() == wanted.groups.tolist()
  dealt = fh.data.from_text(frame, text="words", num_clients=2, vocabulary=300, length=8)
  assert dealt.num_clients == 2
  flat = tmp_path / "flat"
  flat.mkdir()
  for name in ("ann", "bob"):
    (flat / f"{name}.txt").write_text(said(0, 40))
  assert {*text.read_text(flat, vocabulary=300).groups} == {"ann", "bob"}


def test_what_cannot_be_read(letters, tmp_path):
  (letters / "odd.txt").write_text("who said this")
  empty = tmp_path / "empty"
  empty.mkdir()
  file = tmp_path / "tokenizer.json"
  file.write_text("{")
  other = tmp_path / "other.json"
  other.write_text(
    json.dumps(
      {"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}, "version": "1.0"}
    )
  )
  for settings, says in (
    ({}, "odd.txt is in no folder of a client"),
    ({"corpus": empty}, "has no .txt. Texts belong in CLIENT/NAME.txt"),
    ({"corpus": tmp_path / "none.csv"}, "no such file"),
    ({"client": "who"}, "client = 'who': is for tables"),
    ({"vocabulary": 200}, "vocabulary = 200"),
    ({"length": 0}, "length = 0"),
    ({"train": 1.0}, "train = 1.0"),
  ):
    with pytest.raises((fh.DataError, fh.SettingError), match=says):
      text.read_text(**{"corpus": letters, **settings})
  (letters / "odd.txt").unlink()
  for settings, says in (
    ({"tokenizer": "none.json"}, "tokenizer = 'none.json': no such file"),
    ({"tokenizer": str(file)}, "is no tokenizer.json"),
    ({"tokenizer": str(other)}, "The tokenizer has none of .*Name the token that ends a text: end="),
    ({"tokenizer": str(other), "end": "c"}, "end = 'c': is no token of this tokenizer"),
    ({"tokenizer": str(other), "vocabulary": 400}, "vocabulary = 400: .*has its own"),
    ({"end": "</s>"}, "end = '</s>': a tokenizer that is trained has"),
  ):
    with pytest.raises((fh.DataError, fh.SettingError), match=says):
      text.read_text(letters, **settings)
  for settings, says in (
    ({"lenght": 3}, "setting = 'lenght'"),
    ({"train": 2.0}, "train = 2.0"),
    ({"vocabulary": 5}, "vocabulary = 5"),
    ({"length": -1}, "length = -1"),
  ):
    with pytest.raises(fh.SettingError, match=says):
      fh.data.text_tokenizer(letters, **settings)
  assert "are unknown to the tokenizer" in " ".join(
    text.read_text(letters, tokenizer=str(other), end="b").notes
  )


@pytest.mark.slow
def test_a_run_reports_perplexity_by_client(letters, tmp_path):
  from fedjax_het.experiment.experiment import run_experiment
  from fedjax_het.program.where import Where

  config = with_values(
    get_config("algorithm=fedavg"),
    {
      "dataset": f"text:{letters}", "dataset_options": {"vocabulary": 280, "length": 8},
      "partition": {"name": "natural"}, "num_clients": None, "test_fraction": None, "stratify": False,
      "model": {"name": "gpt", "width": 8, "layers": 1, "heads": 2}, "rounds": 2, "eval_every": 1,
      "cohort_size": 3,
    },
  )  # fmt: skip
  run_experiment(config, str(tmp_path / "run"), Where(devices=1))
  summary = json.loads((tmp_path / "run" / "summary.json").read_text())
  assert {"mean", "worst10"} <= summary["metrics"]["global"]["perplexity"].keys()
  lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
  assert lines[-1]["metrics"]["global"]["perplexity"]["mean"] > 1
  with np.load(tmp_path / "run" / "clients.npz") as clients:
    assert clients["names"].tolist() == ["ann", "bob", "cyd"] and clients["global/perplexity"].shape == (3,)


def test_bert_s_ids_are_those_of_wordpiece(tmp_path):
  pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "able", "##able", "?", "is", "##i", "e"]
  (tmp_path / "vocab.txt").write_text("\n".join(pieces))
  made, vocabulary = (
    tokens.read_tokenizer(tmp_path / "vocab.txt"),
    wordpiece.read_vocabulary(tmp_path / "vocab.txt"),
  )
  texts = ["Is able?", "unaffable unaffi ISI", "\u00e9 is\u4e2dis", 101 * "i", ""]
  assert tokens.encoded(made, texts) == [wordpiece.encode(own, vocabulary) for own in texts]


@pytest.mark.slow
def test_all_question_pairs_have_the_same_ids_by_both():
  weights, folder = real_data("weights") / "weights", real_data("medical-question-pairs")
  vocabulary = wordpiece.read_vocabulary(weights / "bert_uncased_vocab.txt")
  made = tokens.read_tokenizer(weights / "bert_uncased_vocab.txt")
  rows = read_table(folder / "medical-question-pairs" / "mqp.csv", 4)
  questions = [question for _, (_, *pair, _) in rows for question in pair]
  assert len(questions) == 6096
  assert tokens.encoded(made, questions) == [wordpiece.encode(own, vocabulary) for own in questions]
  ours, theirs = (load("mqp", folder, tokenizer=own) for own in ("wordpiece", "hf"))
  assert jax.tree.all(jax.tree.map(np.array_equal, ours.x, theirs.x))
