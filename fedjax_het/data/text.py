"""Texts of one's own, for predicting the next token: a folder of .txt files, or a table's column of texts."""

import os
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np

from fedjax_het.data import tokens
from fedjax_het.data.columns import as_text
from fedjax_het.data.container import FederatedData
from fedjax_het.data.federate import share
from fedjax_het.data.files import Source, below, text_of
from fedjax_het.data.own import of_source
from fedjax_het.data.table import groups_of, read_frame
from fedjax_het.data.untrusted import read
from fedjax_het.errors import DataError, SettingError, check_choice, folder_of, reading
from fedjax_het.settings import Count, Range, Whole, check_settings, checked, settings_of
from fedjax_het.tasks import next_token
from fedjax_het.tasks.missing import missing

Documents = Mapping[str, list[str]]  # client -> its texts, in order; one client "" where nobody has them
BPE = "bpe"
IGNORED = -1  # label of padding


def from_text(corpus: Any, *, key: jax.Array | None = None, **settings: Any) -> FederatedData:
  """Makes clients of texts, each with windows of token ids and the token after each position.

  Args:
    corpus: a folder, a .csv, .tsv or .parquet file, or a pandas frame, see `read_text`.
    key: typed key of the splits, and of the partition where texts have no clients; by default
      `jax.random.key(0)`.
    **settings: further settings of `read_text`, and those of `from_groups` or `from_arrays`.

  Raises:
    SettingError: a setting is unknown or does not fit.
    DataError: the texts or the tokenizer cannot be read.
  """
  own = {name: settings.pop(name) for name in [*settings] if name in settings_of(read_text)}
  return of_source(key, read_text(corpus, **own), **settings)


@checked
def read_text(
  corpus: Any,
  *,
  text: str = "text",
  client: str | None = None,
  tokenizer: str = BPE,
  vocabulary: Annotated[int, Whole(tokens.LEAST, 2**20)] = 1000,
  length: Count = 128,
  train: Annotated[float, Range(above=0.0, below=1.0, on_host=True)] = 0.8,
  end: str = "",
  encoding: str = "utf-8",
  delimiter: str | None = None,
) -> Source:
  """Reads texts as windows of T tokens, int [N, T], and the token after each, int32 [N, T], by client.

  The first ⌊train · n⌋ of a client's n texts, at least one, are for training and the others for testing. A
  client with one text trains on the first part of its letters, up to a space. A client's texts of a part are
  one row of tokens, END text END text ... END, cut into windows without overlap, so that every token but the
  first is predicted once. The last window is filled with labels of -1, which losses and metrics leave out.

  Args:
    corpus: a folder of CLIENT/NAME.txt, or of CLIENT.txt, in UTF-8; or a table, a row a text: a .csv, .tsv or
      .parquet file, or a pandas frame.
    text: a table's column of texts; rows without one are left out, with a note.
    client: a table's column that says whose each row is.
    tokenizer: "bpe", a byte-level BPE that is trained on all clients' training texts, or the path of a
      tokenizer.json, or of a vocabulary of WordPieces, one a line (BERT's uncased tokenizer).
    vocabulary: the largest number of tokens of a BPE that is trained.
    length: T, the number of tokens of a window.
    train: share of a client's texts that are for training.
    end: the token between texts, in the tokenizer of a file; by default the first that it has of
      <|endoftext|>, </s>, <eos>, [SEP], <|end_of_text|>, <EOS>.
    encoding: how a table's characters are written.
    delimiter: what separates a table's columns; by default a tab in a .tsv, and a comma in others.
  """
  where, documents, notes = _documents(corpus, text, client, encoding, delimiter)
  parts = {name: divided(texts, train) for name, texts in documents.items()}
  made = _tokenizer(parts, tokenizer, vocabulary, end)
  stop = tokens.end_of(made, end)
  x, y, groups, split = [], [], [], []
  counts, letters = [0, 0], 0
  for name, of_client in parts.items():
    for use, texts in enumerate(of_client):
      ids, labels = windows(tokens.encoded(made, texts), stop, length)
      x.append(ids)
      y.append(labels)
      groups += [name] * len(ids)
      split += [use] * len(ids)
      counts[use] += int((labels != IGNORED).sum())
      letters += sum(map(len, texts))
  size = made.get_vocab_size()
  ids, labels = np.concatenate(x), np.concatenate(y)
  notes.append(
    f"{sum(map(len, documents.values()))} texts, {counts[0]} tokens to train and {counts[1]} to test on, of"
    f" {letters / max(sum(counts), 1):.2f} letters on average; {size} tokens"
    + (", trained on the training texts" if tokenizer == BPE else f" of {tokenizer}")
  )
  unknown = made.token_to_id(getattr(made.model, "unk_token", None) or "[UNK]")
  if unknown is not None and (lost := int((labels == unknown).sum())):
    notes.append(f"{lost} of {sum(counts)} tokens are unknown to the tokenizer, and predicted as one token")
  if short := [name for name, (_, test) in parts.items() if not test]:
    notes.append(f"{len(short)} clients have too short a text to test on")
  dtype = np.int16 if size <= np.iinfo(np.int16).max else np.int32
  ids = ids.astype(dtype)
  return Source(
    ids, labels, ids[:0], labels[:0], size, Path(where).stem, None if [*parts] == [""] else np.array(groups),
    (where,), tuple(notes), task=next_token(ignore=(IGNORED,)), split=np.array(split, np.int8),
  )  # fmt: skip


def text_tokenizer(corpus: Any, **settings: Any) -> Any:
  """Returns the tokenizer that `from_text` and `text:PATH` use for these texts with these settings.

  `.save("tokenizer.json")` keeps it; `tokenizer="tokenizer.json"` then gives other texts the same tokens.

  Args:
    corpus: the texts, see `read_text`.
    **settings: those of `read_text`.

  Returns:
    a `tokenizers.Tokenizer`.

  Raises:
    SettingError: a setting is unknown or does not fit.
    DataError: the texts or the tokenizer cannot be read.
  """
  known = settings_of(read_text)
  check_settings("setting", known, settings, ("corpus",))
  given = {name: own.default for name, own in known.items() if name != "corpus"} | settings
  _, documents, _ = _documents(corpus, *(given[name] for name in ("text", "client", "encoding", "delimiter")))
  parts = {name: divided(texts, given["train"]) for name, texts in documents.items()}
  return _tokenizer(parts, given["tokenizer"], given["vocabulary"], given["end"])


def divided(texts: list[str], train: float) -> tuple[list[str], list[str]]:
  """Returns a client's texts to train and to test on, see `read_text`."""
  if len(texts) > 1:
    first = max(1, share(len(texts), train))
    return texts[:first], texts[first:]
  at = max(1, share(len(texts[0]), train))
  space = re.search(r"\s", texts[0][at:])
  at = at + space.start() if space else len(texts[0])
  rest = texts[0][at:].strip()
  return [texts[0][:at]], [rest] if rest else []


def windows(texts: list[list[int]], end: int, length: int) -> tuple[np.ndarray, np.ndarray]:
  """Cuts END text END text ... END into (ids, the ids after them), int32 [N, length]; no texts give N = 0."""
  row = np.array([end, *(token for text in texts for token in (*text, end))], np.int32)
  count = -(-(len(row) - 1) // length)
  x, y = np.full(count * length, end, np.int32), np.full(count * length, IGNORED, np.int32)
  x[: len(row) - 1], y[: len(row) - 1] = row[:-1], row[1:]
  return x.reshape(count, length), y.reshape(count, length)


def _tokenizer(parts: Mapping[str, tuple[list[str], list[str]]], tokenizer: str, size: int, end: str) -> Any:
  """Trains or reads the tokenizer of texts to (train, test) on."""
  if tokenizer == BPE:
    if end:
      raise SettingError("end", end, f"a tokenizer that is trained has {tokens.END}", "Leave it out.")
    return tokens.trained((text for train, _ in parts.values() for text in train), size)
  if size != settings_of(read_text)["vocabulary"].default:
    raise SettingError("vocabulary", size, f"{tokenizer} has its own", "Leave it out.")
  path = folder_of("tokenizer", tokenizer)
  if not path.is_file():
    raise SettingError("tokenizer", tokenizer, "no such file", f"Give a tokenizer.json, or {BPE!r}.")
  return tokens.read_tokenizer(path)


def _documents(
  corpus: Any, text: str, client: str | None, encoding: str, delimiter: str | None
) -> tuple[str, Documents, list[str]]:
  """Returns (where it is from, the texts of each client, notes)."""
  if isinstance(corpus, str | os.PathLike) and (folder := folder_of("corpus", corpus)).is_dir():
    given = {"text": text, "client": client, "encoding": encoding, "delimiter": delimiter}
    for name, value in given.items():
      if value != settings_of(read_text)[name].default:
        raise SettingError(name, value, f"is for tables, and {folder} is a folder", "Leave it out.")
    where, pairs = str(folder.resolve()), _of_folder(folder)
  else:
    how = {"encoding": encoding, "delimiter": delimiter, "decimal": ".", "thousands": None, "missing": ()}
    where, frame = read_frame(corpus, how)
    for setting, column in (("text", text), ("client", client)):
      if column is not None:
        check_choice(setting, column, frame.columns)
    values = np.asarray(frame[text])
    there = ~missing(values)
    owners = [""] * len(values)
    if client is not None:
      owners = groups_of(np.asarray(frame[client]), f"{where}, column {client!r}").tolist()
    pairs = [(as_text(owners[row]), as_text(values[row]) if there[row] else "") for row in range(len(values))]
  found: dict[str, list[str]] = defaultdict(list)
  for owner, own in pairs:
    if own.strip():
      found[owner].append(own)
  if not found:
    raise DataError(f"{where} has no text.")
  lost, gone = len(pairs) - sum(map(len, found.values())), {owner for owner, _ in pairs} - {*found}
  notes = [f"{lost} empty texts are left out"] if lost else []
  return where, found, notes + ([f"{len(gone)} clients have no text and are left out"] if gone else [])


def _of_folder(folder: Path) -> list[tuple[str, str]]:
  """Returns (client, text) of each .txt file below a folder, in the order of their paths."""
  where, wanted = folder.resolve(), "Texts belong in CLIENT/NAME.txt, or in CLIENT.txt"
  with reading(where):
    paths = sorted(path for path in below(folder) if path.suffix.lower() == ".txt")
  if not paths:
    raise DataError(f"{where} has no .txt. {wanted}.")
  parts = [path.relative_to(folder).parts for path in paths]
  if len({len(own) > 1 for own in parts}) > 1:
    odd = next(path for path, own in zip(paths, parts) if len(own) == 1)
    raise DataError(f"{odd.resolve()} is in no folder of a client, and others are. {wanted}.")
  owners = [own[0] if len(own) > 1 else Path(own[0]).stem for own in parts]
  return [(owner, text_of(path.resolve(), read(path)[1])) for owner, path in zip(owners, paths)]
