"""Models that start from a file: what is read, from which files, what stays random, what is refused."""

import json
import logging
import pickle
import struct
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pictures import scrambled

import fedjax_het as fh
from fedjax_het.config.plan import plan
from fedjax_het.config.quickstart import get_config
from fedjax_het.errors import DataError, SettingError
from fedjax_het.models.convert import convert, main
from fedjax_het.models.weights import files as weight_files
from fedjax_het.models.weights.files import read_arrays

SHAPE, CLASSES = (3,), 4
TWO_NN = dict(hidden=5)


def two_nn(classes=CLASSES, shape=SHAPE, **options):
  return fh.models.make("two_nn", shape, classes, **TWO_NN | options)


def other(tree):
  """The same arrays with other numbers."""
  return jax.tree.map(lambda leaf: np.arange(leaf.size, dtype=np.float32).reshape(leaf.shape) + 0.5, tree)


@pytest.fixture(scope="module")
def params():
  return other(jax.eval_shape(two_nn().init, jax.random.key(0)))


@pytest.fixture
def path(tmp_path, params):
  fh.models.save_weights(tmp_path / "two_nn.npz", params)
  return str(tmp_path / "two_nn.npz")


def test_a_model_starts_from_its_file_whatever_the_key(path, params, caplog):
  model = two_nn(weights=path)
  found = model.init(jax.random.key(3))
  chex.assert_trees_all_equal(found, params)
  assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found))
  stacked = jax.jit(jax.vmap(model.init))(jax.random.split(jax.random.key(0), 2))
  chex.assert_trees_all_equal(stacked, jax.tree.map(lambda leaf: np.stack([leaf] * 2), params))
  assert not caplog.text
  x = jnp.ones((2, 3))
  shown = two_nn(weights=path, mean=[1.0, 2.0, 3.0], std=0.5)
  chex.assert_trees_all_close(
    shown.apply(params, x), model.apply(params, (x - np.array([1, 2, 3])) / 0.5), rtol=1e-6
  )
  assert two_nn(weights="").init(jax.random.key(0))["fc1"]["bias"].sum() == 0  # none


def test_running_statistics_are_read_too(tmp_path):
  options = dict(width=2)
  plain = fh.models.make("m5", (1200,), 3, **options)
  params, stats = other(jax.eval_shape(plain.init, jax.random.key(0))), other(plain.stats)
  fh.models.save_weights(tmp_path / "m5.npz", params, stats)
  model = fh.models.make("m5", (1200,), 3, weights=str(tmp_path / "m5.npz"), **options)
  chex.assert_trees_all_equal(model.stats, stats)
  fh.models.save_weights(tmp_path / "bare.npz", params)
  with pytest.raises(SettingError, match=r"it lacks stats/norm1/mean.*and 5 more"):
    fh.models.make("m5", (1200,), 3, weights=str(tmp_path / "bare.npz"), **options)


def test_a_head_of_other_classes_stays_random_and_it_is_said(path, params, caplog):
  with caplog.at_level(logging.WARNING):
    model = two_nn(classes=7, weights=path)
  assert "has fc3 for other classes, which starts at random" in caplog.text
  one, two = (model.init(jax.random.key(seed)) for seed in (0, 1))
  assert one["fc3"]["kernel"].shape == (5, 7) and not np.allclose(one["fc3"]["kernel"], two["fc3"]["kernel"])
  for layer in ("fc1", "fc2"):
    chex.assert_trees_all_equal(one[layer], params[layer])


def test_a_file_without_a_head(tmp_path, params, caplog):
  fh.models.save_weights(tmp_path / "body.npz", {name: params[name] for name in ("fc1", "fc2")})
  with caplog.at_level(logging.WARNING):
    two_nn(weights=str(tmp_path / "body.npz"))
  assert "has no fc3 for this model, which starts at random" in caplog.text


@pytest.mark.parametrize("shape", [(6, 4), (6, 7), (4, 5)])
def test_a_head_of_other_inputs_is_refused(tmp_path, params, shape):
  """Also one of other classes besides, and one that lies on its side."""
  head = {"kernel": np.ones(shape, np.float32), "bias": np.ones(shape[1], np.float32)}
  fh.models.save_weights(tmp_path / "other.npz", params | {"fc3": head})
  with pytest.raises(SettingError, match=rf"other shapes of .*params/fc3/kernel \({shape[0]}, {shape[1]}\)"):
    two_nn(weights=str(tmp_path / "other.npz"))


def test_weights_that_are_not_finite_are_refused(tmp_path, params):
  broken = {"kernel": params["fc2"]["kernel"] * np.nan, "bias": params["fc2"]["bias"]}
  fh.models.save_weights(tmp_path / "nan.npz", params | {"fc2": broken})
  with pytest.raises(DataError, match=r"nan\.npz: params/fc2/kernel is not finite"):
    two_nn(weights=str(tmp_path / "nan.npz"))


def test_a_file_that_cannot_be_unpacked_is_damaged(tmp_path, params):
  scrambled(tmp_path / "torn.npz", {"params/fc1/kernel": params["fc1"]["kernel"]})
  with pytest.raises(DataError, match=r"torn\.npz cannot be read as \.npz"):
    two_nn(weights=str(tmp_path / "torn.npz"))
  words = jax.tree.map(lambda leaf: np.asarray(leaf).astype(str), params["fc1"])
  fh.models.save_weights(tmp_path / "words.npz", params | {"fc1": words})
  with pytest.raises(DataError, match=r"words\.npz: params/fc1/.* is <U\d+, not numbers"):
    two_nn(weights=str(tmp_path / "words.npz"))
  (tmp_path / "whole.pth").write_bytes(b"")

  def refused(path):
    raise pickle.UnpicklingError("Weights only load failed")

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(weight_files, "_torch", refused)
    with pytest.raises(DataError, match=r"whole\.pth cannot be read as \.pth: Weights only"):
      read_arrays(tmp_path / "whole.pth")


def test_weights_of_half_precision_are_written_as_float32(tmp_path, params):
  half = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), params)
  fh.models.save_weights(tmp_path / "half.npz", half)
  read = two_nn(weights=str(tmp_path / "half.npz")).init(jax.random.key(0))
  chex.assert_trees_all_equal(read, jax.tree.map(lambda leaf: leaf.astype(jnp.float32), half))


def test_what_the_model_has_no_place_for_is_said(tmp_path, params, caplog):
  path = tmp_path / "more.npz"
  fh.models.save_weights(path, params | {"fc4": {"kernel": np.ones((2, 2))}})
  with caplog.at_level(logging.WARNING):
    two_nn(weights=str(path))
  assert "no place for params/fc4/kernel." in caplog.text


@pytest.mark.parametrize(
  "changes, message",
  [
    (dict(hidden=6), r"this two_nn: it has other shapes of params/fc1/bias \(5,\), not \(6,\).* and 2 more"),
    (dict(layers=3), r"other shapes of params/fc3/bias \(4,\), not \(5,\), params/fc3/kernel"),
    (dict(bias=False, shape=(2,)), r"other shapes of params/fc1/kernel \(3, 5\), not \(2, 5\)"),
    (dict(weights="nowhere.npz"), "no such file"),
    (dict(weights="model.pth"), "python -m fedjax_het.models.convert"),
    (dict(weights="model.h5"), r"\.npz or \.safetensors"),
    (dict(weights=3), "of the wrong type"),
  ],
)
def test_a_file_that_does_not_fit_is_refused(path, changes, message):
  with pytest.raises(SettingError, match=message):
    two_nn(**{"weights": path} | changes)


def test_a_configuration_with_a_file_that_is_not_there_is_refused_before_any_data_are_read():
  config = get_config("algorithm=fedavg")
  config.dataset, config.model.weights = "mnist", "nowhere.npz"
  with pytest.raises(SettingError, match=r"weights = 'nowhere\.npz': no such file"):
    plan(config)


# ------------------------------------------------------------------------- files with PyTorch's names

STATE = {
  "0.weight": np.arange(15, dtype=np.float32).reshape(5, 3), "0.bias": np.arange(5, dtype=np.float32),
  "2.weight": np.ones((5, 5), np.float32), "2.bias": np.ones(5, np.float32),
  "4.weight": np.ones((4, 5), np.float32), "4.bias": np.zeros(4, np.float32),
}  # fmt: skip


def read(state):
  """Of a `torch.nn.Sequential` of three linear layers and what is between them."""
  layers = {"0": "fc1", "2": "fc2", "4": "fc3"}
  return {
    own: {"kernel": np.asarray(state[f"{name}.weight"], np.float32).T, "bias": state[f"{name}.bias"]}
    for name, own in layers.items()
  }, {}


@pytest.fixture
def known(monkeypatch):
  monkeypatch.setattr(sys.modules["fedjax_het.models.zoo.two_nn"], "TORCH", {"two_nn": read}, raising=False)


def safetensors(path, arrays, kinds):
  """Writes the format as its authors describe it."""
  header, offset = {"__metadata__": {"format": "pt"}}, 0
  for name, array in arrays.items():
    header[name] = {
      "dtype": kinds[array.dtype.name], "shape": array.shape, "data_offsets": [offset, offset + array.nbytes]
    }  # fmt: skip
    offset += array.nbytes
  text = json.dumps(header).encode()
  path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for a in arrays.values()))


def test_safetensors_are_read(tmp_path):
  path = tmp_path / "a.safetensors"
  arrays = {
    "one": np.arange(6, dtype=np.float32).reshape(2, 3), "half": np.array([1.5, -2], np.float16),
    "brain": np.array([[3.0]], jnp.bfloat16), "ids": np.array([7], np.int64),
    "none": np.zeros((0, 2), np.float32),
  }  # fmt: skip
  safetensors(path, arrays, {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64"})
  found = read_arrays(path)
  assert {*found} == {*arrays}
  for name, array in arrays.items():
    assert (
      found[name].dtype == array.dtype
      and np.array_equal(found[name], array)
      and array.shape == found[name].shape
    )
  for keep in (4, 40, len(path.read_bytes()) - 1):
    cut = tmp_path / f"{keep}.safetensors"
    cut.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match="cannot be read"):
      read_arrays(cut)


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_pytorchs_names_are_converted_and_read_at_once(tmp_path, known, kind, prefix, capsys):
  source, target = tmp_path / f"in.{kind}", tmp_path / "out.npz"
  state = {prefix + name: array for name, array in STATE.items()}
  safetensors(source, state, {"float32": "F32"}) if kind == "safetensors" else np.savez(source, **state)
  main(["--model=two_nn", str(source), str(target)])
  assert "6 arrays, 74 numbers" in capsys.readouterr().out
  for path in (source, target):
    found = two_nn(weights=str(path)).init(jax.random.key(0))
    chex.assert_trees_all_equal(found, read(STATE)[0])


def test_what_cannot_be_converted_is_said(tmp_path, known, capsys):
  np.savez(tmp_path / "in.npz", **STATE)
  with pytest.raises(SettingError, match=r"Those that have: .*two_nn"):
    convert("text_pair", str(tmp_path / "in.npz"), str(tmp_path / "out.npz"))
  with pytest.raises(SettingError, match="two_nn"):
    convert("two_n", str(tmp_path / "in.npz"), str(tmp_path / "out.npz"))
  with pytest.raises(SettingError, match="OUT"):
    convert("two_nn", str(tmp_path / "in.npz"), str(tmp_path / "out"))
  with pytest.raises(SystemExit) as stopped:
    main(["--model=two_nn", str(tmp_path / "no.npz"), str(tmp_path / "out.npz")])
  assert stopped.value.code == 2 and "no such file" in capsys.readouterr().err
  with pytest.raises(SettingError, match="folder does not exist"):
    convert("two_nn", str(tmp_path / "in.npz"), str(tmp_path / "nowhere" / "out.npz"))
  fh.models.save_weights(tmp_path / "ours.npz", read(STATE)[0])
  with pytest.raises(SettingError, match="has this library's names already"):
    convert("two_nn", str(tmp_path / "ours.npz"), str(tmp_path / "out.npz"))
  np.savez(tmp_path / "none.npz")
  with pytest.raises(DataError, match="holds no arrays"):
    convert("two_nn", str(tmp_path / "none.npz"), str(tmp_path / "out.npz"))
  np.save(tmp_path / "array.npy", np.ones(3))
  for content in (b"PK\x03\x04", (tmp_path / "array.npy").read_bytes()):
    (tmp_path / "bad.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"bad\.npz cannot be read"):
      convert("two_nn", str(tmp_path / "bad.npz"), str(tmp_path / "out.npz"))
  for header in (b"[]", b'{"a": "b"}'):
    (tmp_path / "bad.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(DataError, match=r"bad\.safetensors cannot be read"):
      convert("two_nn", str(tmp_path / "bad.safetensors"), str(tmp_path / "out.npz"))


def test_foreign_names_of_a_model_that_nobody_mapped(tmp_path):
  np.savez(tmp_path / "in.npz", **STATE)
  with pytest.raises(SettingError, match=r"other names than this library's.*save_weights"):
    fh.models.make("text_pair", (2, 8), 1, weights=str(tmp_path / "in.npz"))


def test_pytorchs_own_files(tmp_path, known):
  """A checkpoint around a state of DataParallel's; or, without PyTorch, what to do."""
  path = tmp_path / "in.pth"
  path.write_bytes(b"")
  try:
    import torch
  except ImportError:
    with pytest.raises(SettingError, match="pip install torch"):
      convert("two_nn", str(path), str(tmp_path / "out.npz"))
    return
  state = {f"module.{name}": torch.tensor(array) for name, array in STATE.items()}
  torch.save({"state_dict": state, "epoch": 3}, path)
  convert("two_nn", str(path), str(tmp_path / "out.npz"))
  chex.assert_trees_all_equal(
    two_nn(weights=str(tmp_path / "out.npz")).init(jax.random.key(0)), read(STATE)[0]
  )
