"""Counts the lines of Python of commits by folder, and the files of the library that know a `ConfigDict`.

    python benchmarks/checks/size.py COMMIT [COMMIT ...] [--out docs/results]

The files are read out of git, so nothing is checked out. Lines of code are those with a token that is neither
a comment nor part of a docstring. Without --out the counts are only printed.
"""

import argparse
import ast
import io
import json
import subprocess
import tokenize
from pathlib import Path
from typing import Any

from benchmarks.provenance import ROOT, place, provenance

FOLDERS = ("fedjax_het", "tests", "benchmarks")


def git(*args: str) -> str:
  return subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, text=True, check=True).stdout


def lines_of_code(text: str) -> int:
  """Counts the lines of a file that are neither empty, nor comments, nor docstrings."""
  tree, docs = ast.parse(text), set()
  for node in ast.walk(tree):
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
      docs |= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
  silent = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
  }
  found: set[int] = set()
  for token in tokenize.generate_tokens(io.StringIO(text).readline):
    if token.type not in silent:
      found |= {*range(token.start[0], token.end[0] + 1)}
  return len(found - docs)


def counts(commit: str) -> dict[str, Any]:
  """Counts a commit's lines by folder, the library's also by room, and the files with the word ConfigDict."""
  lines: dict[str, int] = dict.fromkeys(FOLDERS, 0)
  rooms: dict[str, int] = {}
  files, code, knowing = 0, 0, []
  for path in git("ls-tree", "-r", "--name-only", commit, *FOLDERS).splitlines():
    if not path.endswith(".py"):
      continue
    text = git("show", f"{commit}:{path}")
    folder, room, *_ = path.split("/")
    lines[folder] += text.count("\n")
    if folder == "fedjax_het":
      rooms[room] = rooms.get(room, 0) + text.count("\n")
      files += 1
      code += lines_of_code(text)
      knowing += [path] * ("ConfigDict" in text)
  return {
    "commit": git("rev-parse", "--short", commit).strip(), "lines": lines, "rooms": rooms, "files": files,
    "code": code, "config_dict": knowing,
  }  # fmt: skip


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("commits", nargs="+")
  parser.add_argument("--out", type=Path)
  args = parser.parse_args()
  found = [counts(commit) for commit in args.commits]
  for one in found:
    lines = ", ".join(f"{folder} {count:,}" for folder, count in one["lines"].items())
    print(
      f"{one['commit']}: {lines}; the library's code {one['code']:,}; {one['files']} files, "
      f"{len(one['config_dict'])} of them with ConfigDict"
    )
  if args.out:
    text = json.dumps({**provenance(), "commits": found}, indent=1)
    place(args.out, "size.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
  main()
