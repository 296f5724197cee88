"""Hooks of the site: the README is the first page, links into the repository lead on, the API has pages.

A link that leaves docs/ leads to the file's place in the API where it is of the package, else to a copy of it
below `source/`, as a page; one to a folder without a README loses its link. The API has a page a room.
"""

import ast
import json
import posixpath
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PACKAGE = "fedjax_het"
COPIES = "source/"
NOTEBOOK = "notebook"
PROGRAMS = ("__init__", "__pycache__", "command", "reproduce", "run", "py")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def rooms() -> list[str]:
  """The package's folders and files of one level, but for its programs."""
  return sorted({path.name.partition(".")[0] for path in (ROOT / PACKAGE).iterdir()} - {*PROGRAMS})


def modules(room: str) -> list[str]:
  """A room's modules by their full names."""
  folder = ROOT / PACKAGE / room
  files = sorted(folder.glob("*.py")) if folder.is_dir() else [folder.with_suffix(".py")]
  names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files)
  return [name.removesuffix(".__init__") for name in names]


def on_config(config):
  """Adds the API and the results to the navigation."""
  results = [f"results/{path.name}" for path in sorted((ROOT / "docs" / "results").glob("*.md"))]
  pages = [{"The package": "api/index.md"}, *({room: f"api/{room}.md"} for room in rooms())]
  config.nav += [{"Results": results}, {"API": pages}]
  return config


def on_files(files, config):
  """Adds the first page, the API, the notebook as a page, and what of the repository is linked to."""
  made = {
    "index.md": (ROOT / "README.md").read_text(),
    "api/index.md": api_index(),
    f"{NOTEBOOK}.md": notebook(),
  }
  made |= {f"api/{room}.md": api_page(room) for room in rooms()}
  for name, text in made.items():
    files.append(File.generated(config, name, content=text))
  left = [file.src_uri for file in files.documentation_pages() if not file.src_uri.startswith("api/")]
  while left:
    name = left.pop()
    file = files.get_file_from_path(name)
    for *_, target, _ in LINK.findall(file.content_string):
      copy = place(name, target)
      if copy and copy.startswith(COPIES) and files.get_file_from_path(copy) is None:
        files.append(File.generated(config, copy, content=source(copy)))
        left.append(copy)
  return files


def on_page_markdown(markdown, page, config, files):
  """Turns links into the repository into links of the site."""
  name = page.file.src_uri

  def turned(match: re.Match) -> str:
    mark, text, target, anchor = match.groups()
    found = place(name, target)
    if found is None:
      return text
    at, _, module = found.partition("#")
    where = posixpath.relpath(at, posixpath.dirname(name) or ".")
    return f"{mark}[{text}]({where}{f'#{module}' if module else anchor or ''})"

  return LINK.sub(turned, markdown)


def place(page: str, target: str) -> str | None:
  """Where on the site a page's link leads; None for what the site has not.

  Args:
    page: the page, from the site's root.
    target: the link, as it stands in the repository.
  """
  if page == "index.md":
    origin = "README.md"
  elif page.startswith(COPIES):
    origin = page.removeprefix(COPIES)
    origin = origin if (ROOT / origin).is_file() else origin.removesuffix(".md")
  else:
    origin = f"docs/{page}"
  found = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target))
  path = ROOT / found
  if path.is_dir():
    found, path = f"{found}/README.md", path / "README.md"
  if found == "README.md":
    return "index.md"
  if not path.is_file():
    return None if found.endswith("/README.md") else target  # which the strict build then names
  first, _, rest = found.partition("/")
  if first == "docs" and not found.endswith(".py"):
    return rest.replace(f"{NOTEBOOK}.ipynb", f"{NOTEBOOK}.md")
  if first == PACKAGE and found.endswith(".py"):
    module = found.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    room = module.split(".")[1] if "." in module else "index"
    return f"api/{room}.md#{module}" if room in rooms() else f"{COPIES}{found}.md"
  return f"{COPIES}{found}" + ("" if found.endswith(".md") else ".md")


def source(copy: str) -> str:
  """A file of the repository as a page."""
  path = ROOT / copy.removeprefix(COPIES)
  if path.is_file():
    return path.read_text()
  path = path.with_suffix("")
  language = {".py": "python", ".sh": "bash", ".yaml": "yaml"}.get(path.suffix, "text")
  return f"# {path.relative_to(ROOT)}\n\n````{language}\n{path.read_text()}````\n"


def api_page(room: str) -> str:
  """A page of the API: a room's modules, one after another."""
  return f"# {room}\n\n" + "\n\n".join(f"::: {module}" for module in modules(room)) + "\n"


def api_index() -> str:
  """What `import fedjax_het as fh` gives, and where it is from."""
  tree = ast.parse((ROOT / PACKAGE / "__init__.py").read_text())
  lines = [
    "# The package",
    "",
    "`import fedjax_het as fh` has these names.",
    "",
    "| name | from |",
    "|---|---|",
  ]
  for node in tree.body:
    for alias in node.names if isinstance(node, ast.ImportFrom) else ():
      lines.append(f"| [`fh.{alias.name}`][{node.module}.{alias.name}] | `{node.module}` |")
  return "\n".join(lines) + "\n"


def notebook() -> str:
  """The notebook's cells as a page."""
  cells = json.loads((ROOT / "docs" / f"{NOTEBOOK}.ipynb").read_text())["cells"]
  texts = ("".join(cell["source"]) for cell in cells)
  shown = (
    text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```" for cell, text in zip(cells, texts)
  )
  return "\n\n".join(shown) + "\n"
