"""Private names of other libraries: few, each in one function, tried with the oldest and the newest JAX."""

import ast
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorstore as ts

import fedjax_het
from fedjax_het import modes
from fedjax_het.workdir.checkpoint import DAMAGE, MACHINE, is_damage, of_machine, status_of

PRIVATE = {"explicit_64_bits": "jax._src.config", "processes_told": "jax._src"}
OF_OTHERS = (
  "jax",
  "flax",
  "optax",
  "orbax",
  "chex",
  "tensorstore",
  "sklearn",
  "rich",
  "absl",
  "ml_collections",
)


def private_imports(tree: ast.AST) -> list[tuple[str, str]]:
  """Returns (function, module) of each import of a private module of another library; "" for none."""
  found = []
  for node in ast.walk(tree):
    for own in ast.iter_child_nodes(node):
      names = [alias.name for alias in own.names] if isinstance(own, ast.Import) else []
      names += [own.module or ""] if isinstance(own, ast.ImportFrom) else []
      for name in names:
        if name.split(".")[0] in OF_OTHERS and any(part.startswith("_") for part in name.split(".")):
          found.append((getattr(node, "name", ""), name))
  return found


def test_private_modules_are_imported_in_known_functions_alone():
  files = [*Path(fedjax_het.__file__).parent.rglob("*.py")]
  assert {own for path in files for own in private_imports(ast.parse(path.read_text()))} == {*PRIVATE.items()}
  assert private_imports(ast.parse("import jax._src.core\nfrom optax._src import base")) == [
    ("", "jax._src.core"), ("", "optax._src"),
  ]  # fmt: skip


def test_explicit_64_bits_are_respected_without_x64():
  with jax.enable_x64(False), modes.explicit_64_bits():
    assert jnp.zeros(2, jnp.float64).dtype == np.float64 and jnp.zeros(2).dtype == np.float32
  with jax.enable_x64(True):
    assert modes.in_float32()(lambda: jnp.arange(3) * 1.0)().dtype == np.float32


def test_jax_knows_the_number_of_processes_before_devices_start():
  from jax._src import distributed

  assert "num_processes" in vars(type(distributed.global_state))
  assert distributed.global_state.num_processes in (None, 1)


def stored(folder: Path) -> dict:
  """Writes a small array, and returns what opens it."""
  kind = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{folder}/a"}}
  array = ts.open(
    {**kind, "metadata": {"shape": [4], "chunks": [4], "dtype": "<f4"}, "create": True}
  ).result()
  array.write(np.arange(4, dtype=np.float32)).result()
  return kind


def test_what_tensorstore_says_of_a_file_that_is_gone_or_damaged(tmp_path):
  kind = stored(tmp_path)
  (tmp_path / "a" / "0").write_bytes(b"no chunk")
  with pytest.raises(ValueError) as damaged:
    ts.open(kind).result().read().result()
  assert status_of(damaged.value) in DAMAGE and is_damage(damaged.value), damaged.value
  (tmp_path / "a" / ".zarray").write_bytes(b"{")
  with pytest.raises(ValueError) as cut:
    ts.open(kind).result()
  assert status_of(cut.value) in DAMAGE and is_damage(cut.value), cut.value
  (tmp_path / "a" / ".zarray").unlink()
  with pytest.raises(ValueError) as gone:
    ts.open(kind).result()
  assert status_of(gone.value) == "NOT_FOUND" and is_damage(gone.value) and not of_machine(gone.value)


@pytest.mark.parametrize("status", MACHINE)
def test_a_machine_that_fails_is_no_damage(status):
  error = ValueError(f"{status}: no room")
  assert status_of(error) == status and of_machine(error) and not is_damage(error)
  assert not status_of(ValueError("Errors: 3")) and not status_of(ValueError("A: 3"))
