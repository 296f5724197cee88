"""Escapes foreign text for the place that shows it, with one function for each place.

Names of data sets and methods, settings, exception texts and values in JSON files may contain anything. They
must not move a terminal's cursor, open a LaTeX command, a link or an HTML element, or become a formula in a
spreadsheet.
"""

import re
from typing import Any

_DIRECTION = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_HIDDEN = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *_DIRECTION)
_SURROGATES = range(0xD800, 0xE000)  # halves of characters, which cannot be encoded
_VISIBLE = {code: repr(chr(code))[1:-1] for code in (*_HIDDEN, *_SURROGATES) if chr(code) not in "\t\n"}
_MARKDOWN = str.maketrans({sign: f"\\{sign}" for sign in "|\\`*[]~"} | {"<": "&lt;", ">": "&gt;", "\0": "\\"})
_MARKS = re.compile(  # Markdown's marks by position: "_" around words, entities, headings, bare addresses
  r"(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)|^#|(?<=:)//|(?<=\bwww)\.|(?<=\w)@(?=\w)"
)
_LATEX = str.maketrans(
  {sign: f"\\{sign}" for sign in "&%$#_{}"}
  | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
  | {"<": r"\textless{}", ">": r"\textgreater{}", "±": r"$\pm$", "−": "$-$", "–": "--"}
  | {"[": "{[}", "]": "{]}", "*": "{*}"}  # at a row's start, [ or * would be an argument of the preceding \\
)
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"})
_FORMULA = re.compile(r"\s*[-=+@＝＋－＠]")


def terminal(text: object) -> str:
  r"""Escapes control characters and changes of writing direction for a terminal, such as "\x1b".

  Line breaks and tabs are kept.
  """
  return str(text).translate(_VISIBLE)


def one_line(text: object) -> str:
  """Escapes text for one line of a terminal or a file, including line breaks and tabs."""
  return terminal(str(text).replace("\r\n", " ").translate({ord(own): " " for own in "\t\n\r"}))


def markdown(text: object) -> str:
  """Escapes text for a paragraph, a heading or a cell of Markdown, so that no markup in it takes effect."""
  return _MARKS.sub("\0\\g<0>", one_line(text)).translate(_MARKDOWN)


def latex(text: object) -> str:
  """Escapes text for LaTeX, so that it holds no command, comment or argument."""
  return one_line(text).translate(_LATEX)


def latex_comment(text: object) -> str:
  """Makes text a LaTeX comment that ends with its line."""
  return f"% {one_line(text)}"


def csv_field(value: Any) -> Any:
  """Formats a field of a CSV file: text that a spreadsheet would evaluate gets a quote in front."""
  if not isinstance(value, str):
    return value
  text = terminal(value)
  return f"'{text}" if _FORMULA.match(text) and not _is_number(text) else text


def html(text: object) -> str:
  """Escapes text for an element or an attribute of HTML."""
  return terminal(text).translate(_HTML)


def _is_number(text: str) -> bool:
  try:
    float(text)
  except ValueError:
    return False
  return True
