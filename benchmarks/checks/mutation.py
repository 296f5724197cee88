"""Changes single places of the library at random and reports which of these mutants no test notices.

    pip install cosmic-ray
    git worktree add --detach ../mutated      # a tree that may be changed; the script leaves it at its commit
    python benchmarks/checks/mutation.py --tree=../mutated --out=first.json
    python benchmarks/checks/mutation.py --tree=../mutated --out=second.json --again=first.json
    python benchmarks/checks/mutation.py --table=first.json,second.json

The first call draws --count mutants, spread over the modules of `TESTS` in proportion to the places that can
be changed, and runs each against its module's own tests until one fails. The second call runs only those that
survived the first, wherever their line still exists. Cosmic Ray makes most mutants. Three kinds are this
script's own and delete something: a term or factor, a keyword argument, or a call.
"""

import abc
import argparse
import ast
import datetime
import difflib
import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names

MIXING = (
  "test_quadratic",
  "test_mixing_responses",
  "test_mixing_learners",
  "test_mixing_parts",
  "test_aaggff",
)
PERSONAL = ("test_settings", "test_personal", "test_personal_optima", "test_stats")
TESTS = {  # module -> its own tests, the fastest first; beside `test_defaults`, and as far as a tree has them
  "clients/objective.py": ("test_fedavg", "test_superfed"),
  "clients/sgd.py": ("test_fedavg", "test_superfed"),
  "clients/superfed.py": ("test_superfed", "test_stats"),
  "clients/fedevg.py": ("test_fedevg",),
  "clients/energies.py": ("test_particles", "test_fedevg"),
  "clients/generative.py": ("test_generative",),
  "clients/scaffold.py": PERSONAL,
  "clients/fedper.py": PERSONAL,
  "clients/fedrep.py": PERSONAL,
  "clients/apfl.py": PERSONAL,
  "clients/pfedme.py": PERSONAL,
  "clients/ditto.py": PERSONAL,
  "clients/heads.py": PERSONAL,
  "clients/supervised.py": ("test_shares", "test_fedavg", "test_superfed", *PERSONAL),
  "clients/sosicfl.py": ("test_sosicfl", "test_settings"),
  "clients/regions.py": ("test_simplex", "test_sosicfl"),
  "clients/simplex.py": ("test_simplex",),
  "mixing/aaggff.py": (*MIXING, "test_aaggff"),
  "mixing/afl.py": MIXING,
  "mixing/fedmgda.py": (*MIXING, "test_fedmgda"),
  "mixing/learners.py": (*MIXING, "test_aaggff"),
  "mixing/responses.py": (*MIXING, "test_aaggff"),
  "mixing/simplex.py": MIXING,
  "mixing/static.py": MIXING,
  "mixing/tilted.py": MIXING,
  "mixing/variance.py": ("test_variance",),
  "server/fedopt.py": ("test_fedopt", "test_fedavg"),
  "server/sgld.py": ("test_fedevg",),
  "server/particles.py": ("test_particles", "test_fedevg"),
  "metrics/classification.py": ("test_metrics",),
  "metrics/fairness.py": ("test_metrics",),
  "tasks/task.py": ("test_tasks", "test_tasks_trained"),
  "tasks/labels.py": ("test_tasks", "test_labels"),
  "tasks/classification.py": ("test_tasks", "test_labels"),
  "tasks/binary.py": ("test_tasks",),
  "tasks/multilabel.py": ("test_tasks",),
  "tasks/next_token.py": ("test_tasks",),
  "tasks/regression.py": ("test_tasks",),
  "engine/round.py": ("test_fedavg", "test_border", "test_fedmgda"),
}
KINDS = re.compile(  # of Cosmic Ray's, those that give a program that might work
  r"core/(ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_Div|Div_Mul|Pow_Mul|BitAnd_BitOr)"
  r"|ReplaceComparisonOperator_(Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Lt_Gt|Gt_Lt|LtE_GtE|GtE_LtE|Eq_NotEq|NotEq_Eq)"
  r"|ReplaceUnaryOperator_Delete_\w+|AddNot|Replace(True|False|And|Or)With\w+|NumberReplacer)$"
)


class Without(Operator):
  """Leaves out children of some nodes."""

  kinds: tuple[str, ...]

  @abc.abstractmethod
  def places(self, node):
    """Lists of neighbouring children of a node, each to be left out."""

  def mutation_positions(self, node):
    if node.type in self.kinds:
      for children in self.places(node):
        yield children[0].start_pos, children[-1].end_pos

  def mutate(self, node, index):
    for child in list(self.places(node))[index]:
      node.children.remove(child)
    return node

  @classmethod
  def examples(cls):
    return ()


class WithoutTerm(Without):
  """a + b -> a, a * b -> a."""

  kinds = ("arith_expr", "term", "and_expr")

  def places(self, node):
    return [node.children[i : i + 2] for i in range(1, len(node.children), 2)]


class WithoutKeyword(Without):
  """f(a, b=c) -> f(a)."""

  kinds = ("arglist",)

  def places(self, node):
    return [
      node.children[i - 1 : i + 1]
      for i, child in enumerate(node.children)
      if i and child.type == "argument" and child.children[1] == "="
    ]


class WithoutCall(Operator):
  """f(a, b) -> (a): a step, a bound or a check left out."""

  def mutation_positions(self, node):
    if node.type in ("atom_expr", "power") and node.children[-1].type == "trailer":
      trailer = node.children[-1].children
      if trailer[0] == "(" and len(trailer) == 3 and self.first(trailer).type not in ("argument", "comp_for"):
        yield node.start_pos, node.end_pos

  @staticmethod
  def first(trailer):
    return trailer[1].children[0] if trailer[1].type == "arglist" else trailer[1]

  def mutate(self, node, index):
    opening, _, closing = trailer = node.children[-1].children
    opening.prefix = node.get_first_leaf().prefix
    node.children = [opening, self.first(trailer), closing]
    return node

  @classmethod
  def examples(cls):
    return ()


def operators() -> dict[str, Operator]:
  """Name -> what makes mutants of a kind."""
  found = {name.removeprefix("core/"): get_operator(name)() for name in operator_names() if KINDS.match(name)}
  own = (WithoutTerm, WithoutKeyword, WithoutCall)
  return found | {operator.__name__: operator() for operator in own}


def code_of(source: str) -> set[int]:
  """Lines that hold more than a docstring or an annotation's names."""
  texts = {
    line
    for node in ast.walk(ast.parse(source))
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    for line in range(node.lineno, node.end_lineno + 1)
  }
  return set(range(1, source.count("\n") + 2)) - texts


def mutants_of(module: str, source: str) -> list[dict]:
  """Every mutant of a module: what makes it, and its one changed line before and after."""
  tree, lines, found = get_ast(source), code_of(source), []
  for name, operator in operators().items():
    places = [place for node in ast_nodes(tree) for place in operator.mutation_positions(node)]
    for occurrence, ((line, column), _) in enumerate(places):
      if line in lines:
        where = {"module": module, "line": line, "column": column}
        found.append({**where, "operator": name, "occurrence": occurrence})
  return found


def changed(source: str, mutant: dict) -> tuple[str, str] | None:
  """The lines that a mutant changes, before and after; None for one that is no other program."""
  other = mutate_code(source, operators()[mutant["operator"]], mutant["occurrence"])
  try:
    if other is None or ast.dump(ast.parse(other)) == ast.dump(ast.parse(source)):
      return None
  except SyntaxError:
    return None
  diff = [line for line in difflib.ndiff(source.splitlines(True), other.splitlines(True)) if line[0] in "+-"]
  before, after = ("".join(line[2:] for line in diff if line[0] == sign) for sign in "-+")
  return (before, after) if source.replace(before, after) == other else None


def sample(tree: Path, count: int, seed: int) -> list[dict]:
  """At most one mutant a place, over the modules by the number of their places, at least three each."""
  rng = random.Random(seed)
  sources = {module: (tree / "fedjax_het" / module).read_text() for module in TESTS}
  every = {module: mutants_of(module, source) for module, source in sources.items()}
  places = {module: len({(m["line"], m["column"]) for m in mutants}) for module, mutants in every.items()}
  chosen = []
  for module, mutants in every.items():
    rng.shuffle(mutants)
    wanted, taken = max(3, round(count * places[module] / sum(places.values()))), set()
    for mutant in mutants:
      place = mutant["line"], mutant["column"]
      if len(taken) < wanted and place not in taken and (lines := changed(sources[module], mutant)):
        taken.add(place)
        chosen.append({**mutant, "before": lines[0], "after": lines[1]})
  return chosen


def commit(tree: Path) -> str:
  """Of a tree, asked without the library, which only children may import."""
  command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
  return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def tests_pass(tree: Path, names: tuple[str, ...], log: Path, limit: float | None) -> bool | None:
  """Whether all tests pass, in a child of this process, which has imported what they need; None: too slow."""
  if any(name.partition(".")[0] == "fedjax_het" for name in sys.modules):
    raise RuntimeError("The library is imported already: no mutant of it would be seen.")
  child = os.fork()
  if not child:
    os.setsid()
    os.chdir(tree)
    sys.path[:0] = [str(tree), str(tree / "tests" / "shared")]
    with log.open("w") as file:
      for stream in (1, 2):
        os.dup2(file.fileno(), stream)
    import pytest

    options = ["-n", "0", "-x", "-q", "-p", "no:cacheprovider", "--tb=line"]
    files = [file for name in ("test_defaults", *names) for file in Path("tests").rglob(f"{name}.py")]
    options += ["--all"] if "--all" in Path("tests/conftest.py").read_text() else []
    os._exit(int(pytest.main([*options, *map(str, files)])))
  until = time.monotonic() + (limit or 3600.0)
  while time.monotonic() < until:
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
      return status == 0
    time.sleep(0.05)
  os.killpg(child, signal.SIGKILL)
  os.waitpid(child, 0)
  return None


def test(tree: Path, mutant: dict, log: Path, limit: float) -> str:
  """What became of a mutant: killed, timeout, survived, or gone with the line that it changed."""
  path = tree / "fedjax_het" / mutant["module"]
  source = path.read_text()
  if source.count(mutant["before"]) != 1:
    return "gone"
  try:
    path.write_text(source.replace(mutant["before"], mutant["after"]))
    passed = tests_pass(tree, TESTS[mutant["module"]], log, limit)
  finally:
    path.write_text(source)
  return {True: "survived", False: "killed", None: "timeout"}[passed]


def table(first: dict, second: dict) -> str:
  """Counts by module before and after, and the survivors' lines, in Markdown."""
  place = lambda m: (m["module"], m["before"], m["after"])  # noqa: E731
  later = {place(mutant): mutant["result"] for mutant in second["mutants"]}
  lines = [
    f"| module | mutants | survive at {first['commit']} | survive at {second['commit']} |",
    "|---|---|---|---|",
  ]
  for module in dict.fromkeys(mutant["module"] for mutant in first["mutants"]):
    own = [mutant for mutant in first["mutants"] if mutant["module"] == module]
    alive = [mutant for mutant in own if mutant["result"] == "survived"]
    still = [mutant for mutant in alive if later.get(place(mutant)) == "survived"]
    lines.append(f"| {module} | {len(own)} | {len(alive)} | {len(still)} |")
  for mutant in (mutant for mutant in first["mutants"] if mutant["result"] == "survived"):
    result = later.get(place(mutant), "not run again")
    diff = [f"- {mutant['before'].strip()}", f"+ {mutant['after'].strip()}"]
    lines += ["", f"{mutant['module']}, {result}:", "```diff", *diff, "```"]
  return "\n".join(lines)


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--tree", type=Path)
  parser.add_argument("--out", type=Path)
  parser.add_argument("--table", help="two files of results to print, before and after")
  parser.add_argument("--count", type=int, default=72)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--again", type=Path, help="a file of results, whose survivors to run again")
  parser.add_argument("--modules", default="", help="only modules whose name holds this")
  settings = parser.parse_args()
  if settings.table:
    print(table(*(json.loads(Path(file).read_text()) for file in settings.table.split(","))))
    return
  if not settings.tree or not settings.out:
    parser.error("--tree and --out are needed")
  tree = settings.tree.resolve()
  sys.dont_write_bytecode = True
  os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
  for cache in tree.rglob("__pycache__"):
    for file in cache.glob("*.pyc"):
      file.unlink()
  for name in ("jax", "jax.numpy", "optax", "flax", "scipy.stats", "sklearn.metrics"):
    __import__(name)  # once, before the forks; no device is touched

  if settings.again:
    mutants = [m for m in json.loads(settings.again.read_text())["mutants"] if m["result"] == "survived"]
  else:
    mutants = sample(tree, settings.count, settings.seed)
  mutants = [mutant for mutant in mutants if settings.modules in mutant["module"]]
  log, limits = settings.out.with_suffix(".log"), {}
  for names in dict.fromkeys(TESTS[mutant["module"]] for mutant in mutants):
    started = time.monotonic()
    if not tests_pass(tree, names, log, None):
      raise SystemExit(f"{names} fail without a mutant: see {log}")
    limits[names] = 30.0 + 3.0 * (time.monotonic() - started)
    print(names, f"{time.monotonic() - started:.1f} s", flush=True)
  about = {
    "commit": commit(tree),
    "date": datetime.date.today().isoformat(),
    "python": platform.python_version(),
    "seed": settings.seed,
  }
  for i, mutant in enumerate(mutants):
    mutant["result"] = test(tree, mutant, log, limits[TESTS[mutant["module"]]])
    print(f"{i + 1}/{len(mutants)} {mutant['result']}: {mutant['module']}:{mutant['line']} "
          f"{mutant['operator']}\n{mutant['before']}{mutant['after']}", flush=True)  # fmt: skip
    settings.out.write_text(json.dumps({**about, "mutants": mutants[: i + 1]}, indent=1) + "\n")


if __name__ == "__main__":
  main()
