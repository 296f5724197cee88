"""Tokenizers of Hugging Face's library `tokenizers`: read from a file, made of BERT's vocabulary, or trained.

Byte-level BPE: Sennrich et al., Neural Machine Translation of Rare Words with Subword Units, ACL 2016, on
bytes as in Radford et al., GPT-2, 2019, so that no text has an unknown token.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedjax_het.data.untrusted import read
from fedjax_het.data.wordpiece import LONGEST, UNKNOWN, read_vocabulary
from fedjax_het.errors import DataError, SettingError, near, reading

END = "<|endoftext|>"  # of a trained tokenizer, which gives it the id 0
ENDS = (
  END,
  "</s>",
  "<eos>",
  "[SEP]",
  "<|end_of_text|>",
  "<EOS>",
)  # tokens that end a text, as files name them
LEAST = 257  # tokens: the 256 bytes and the end


def library() -> Any:
  """Returns the module `tokenizers`; raises `SettingError` if the extra `hf` is not installed."""
  try:
    import tokenizers
  except ImportError as error:
    raise SettingError(
      "tokenizer", "tokenizers", "is not installed", "pip install 'fedjax_het[hf]'."
    ) from error
  return tokenizers


def read_tokenizer(path: Path) -> Any:
  """Reads a `tokenizer.json`; a text file with one WordPiece a line is BERT's tokenizer, see `wordpiece`.

  Truncation and padding that the file asks for are left out.

  Returns:
    a `tokenizers.Tokenizer`.

  Raises:
    SettingError: `tokenizers` is not installed.
    DataError: the file is missing or damaged.
  """
  if path.suffix != ".json":
    return wordpiece(path)
  content = read(path)[1]
  with reading(path.resolve(), "is no tokenizer.json, or a damaged one"):
    try:
      tokenizer = library().Tokenizer.from_str(content.decode())
    except SettingError:
      raise
    except Exception as error:  # the library raises nothing narrower
      raise ValueError(str(error)) from error
  tokenizer.no_truncation()
  tokenizer.no_padding()
  return tokenizer


def wordpiece(path: Path) -> Any:
  """Makes BERT's uncased tokenizer of a vocabulary file, whose ids are those of `data.wordpiece.encode`."""
  own = library()
  model = own.models.WordPiece(read_vocabulary(path), unk_token=UNKNOWN, max_input_chars_per_word=LONGEST)
  tokenizer = own.Tokenizer(model)
  tokenizer.normalizer = own.normalizers.BertNormalizer(lowercase=True)
  tokenizer.pre_tokenizer = own.pre_tokenizers.BertPreTokenizer()
  tokenizer.decoder = own.decoders.WordPiece()
  return tokenizer


def trained(texts: Iterable[str], size: int) -> Any:
  """Trains byte-level BPE: pairs of tokens that are next to each other most often become a token.

  The same texts give the same tokenizer, in every process.

  Args:
    texts: the texts, of training rows alone if what is tested is not to leak into the tokenizer.
    size: the largest number of tokens, at least `LEAST`; a short text has fewer pairs.

  Returns:
    a `tokenizers.Tokenizer`, in which `END` has the id 0.
  """
  own = library()
  tokenizer = own.Tokenizer(own.models.BPE())
  tokenizer.pre_tokenizer = own.pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = own.decoders.ByteLevel()
  alphabet = sorted(own.pre_tokenizers.ByteLevel.alphabet())
  trainer = own.trainers.BpeTrainer(
    vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
  )
  tokenizer.train_from_iterator(texts, trainer)
  return tokenizer


def encoded(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
  """Returns the ids of each text, without tokens that frame it."""
  return [found.ids for found in tokenizer.encode_batch([*texts], add_special_tokens=False)]


def end_of(tokenizer: Any, end: str) -> int:
  """Returns the id of the token that ends a text: `end`, or "" for the first of `ENDS` that there is."""
  known = tokenizer.get_vocab()
  found = next((known[name] for name in ((end,) if end else ENDS) if name in known), None)
  if found is None and end:
    raise SettingError("end", end, "is no token of this tokenizer", near(end, known))
  if found is None:
    raise DataError(
      f"The tokenizer has none of {', '.join(ENDS)}. Name the token that ends a text: end='TOKEN'."
    )
  return found
