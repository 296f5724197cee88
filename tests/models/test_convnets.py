"""Convolutional models: parameters as published, settings that cannot be, and training in a federation.

Their logits and gradients are held against PyTorch's in tests/parity.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_parts import federation

import fedjax_het as fh
from fedjax_het import models
from fedjax_het.errors import DataError, SettingError
from fedjax_het.models.weights.torch_names import kernel, named, of_flattened

slow = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize(
  "name, classes, options, count",
  [
    ("resnet9", 100, {}, 5_054_784),
    pytest.param("resnet20", 10, {}, 269_722, marks=slow),
    ("vgg9", 62, {}, 1_718_416),
    ("vgg11", 1000, {}, 132_863_336),
    ("mobilenet", 200, {}, 364_480),
    pytest.param("squeezenet", 1000, {}, 1_248_424, marks=pytest.mark.slow),
    pytest.param("squeezenet", 1000, {"version": "1.1"}, 1_235_496, marks=slow),
    pytest.param("resnet18", 1000, {}, 11_689_512, marks=slow),
    pytest.param("mobilenet_v2", 1000, {}, 3_504_872, marks=slow),
    pytest.param("mobilenet_v3_small", 1000, {}, 2_542_856, marks=slow),
    pytest.param("efficientnet_b0", 1000, {}, 5_288_548, marks=slow),
    pytest.param("efficientnet_lite0", 1000, {}, 4_652_008, marks=slow),
    pytest.param("mobilevit", 1000, {}, 1_272_024, marks=slow),
    pytest.param("mobilevit", 1000, {"size": "s"}, 5_578_632, marks=slow),
  ],
)
def test_parameters(name, classes, options, count):
  model = models.MODELS[name](num_classes=classes, **options)
  params = jax.eval_shape(model.init, jax.random.key(0))
  assert models.count_parameters(params) == count
  assert model.name == name
  assert all(layer in params for layer in model.head)
  assert models.reader_of(name) is not None


@pytest.mark.parametrize(
  "name, options, word",
  [
    ("resnet9", {"norm": "layer"}, "norm"),
    ("resnet18", {"stem": "superfed"}, "stem"),
    ("resnet20", {"conv": "patch"}, "patches"),
    ("vgg9", {"shape": (15, 15, 1)}, "16 x 16"),
    ("vgg11", {"dropout": 1.0}, "dropout"),
    ("squeezenet", {"version": "1.2"}, "1.1"),
    ("squeezenet", {"shape": (20, 20, 3)}, "21 x 21"),
    ("mobilenet", {"shape": (32, 32, 3)}, "padding=1"),
    ("mobilenet_v2", {"width": 0.0}, "width"),
    ("mobilenet_v2", {"width": np.inf}, "width"),
    ("mobilenet_v3_small", {"shape": (28, 28)}, r"\(height, width, channels\). Add an axis of channels"),
    ("mobilenet", {"shape": (28, 28)}, "Add an axis of channels"),
    ("two_cnn", {"shape": (28, 28)}, "Add an axis of channels"),
    ("leaf_cnn", {"shape": (28, 28)}, "Add an axis of channels"),
    ("simple_cnn", {"shape": (784,)}, "Use two_nn instead"),
    ("resnet10", {"shape": (32, 32)}, "Add an axis of channels"),
    ("resnet10", {"shape": (28, 28, 1)}, "not divisible by 8. Resize"),
    ("mobilenet", {"padding": -1}, "padding = -1: out of range. It must be at least 0"),
    (
      "mobilenet_v2",
      {"stem_stride": 0},
      "stem_stride = 0: out of range. It must be at least 1 and at most 2",
    ),
    ("mobilenet_v2", {"stem_stride": 3}, "stem_stride = 3: out of range"),
    ("mobilenet_v3_small", {"stem_stride": 1.5}, "stem_stride = 1.5: must be a whole number"),
    ("efficientnet_b0", {"grid": 0}, "grid = 0: out of range"),
    ("vgg11", {"grid": 0}, "grid = 0: out of range"),
    ("squeezenet", {"version": 1.2}, "version = '1.2': unknown"),
    ("efficientnet_b0", {"drop_path": -0.1}, "drop_path"),
    ("efficientnet_lite0", {"conv": "fft"}, "conv"),
    ("mobilevit", {"size": "m"}, "xxs"),
  ],
)
def test_what_cannot_be_is_named(name, options, word):
  with pytest.raises(SettingError, match=word):
    models.MODELS[name](**options)


TREES = {"bert", "distilbert", "minilm"}


@pytest.mark.parametrize("name", sorted({*models.MODELS, *models.GENERATORS} - TREES))
@pytest.mark.parametrize("shape", [{"tokens": (200,), "mask": (200,)}, [(28, 28, 1), (3,)]])
def test_a_tree_is_refused_where_one_array_is_read(name, shape):
  with pytest.raises(SettingError, match=rf"shape = .*: {name} reads one array. For trees take"):
    models.make(name, shape, 2)


@pytest.mark.slow
def test_squeezenet_s_version_may_be_a_number():
  for version in (1, 1.0, "1.0", 1.1, "1.1"):
    model = models.make("squeezenet", (32, 32, 3), 10, version=version, width=0.1)
    assert ("fire5" in jax.eval_shape(model.init, jax.random.key(0))) == (version in (1, "1.0"))


def test_squeezenet_s_last_kernel_starts_small_as_torchvision_s():
  params = models.make("squeezenet", (21, 21, 3), 100, width=0.5).init(jax.random.key(0))
  kernel = np.asarray(params["fc"]["kernel"])
  assert kernel.size == 25600 and abs(kernel.std() / 0.01 - 1) < 0.02 and abs(kernel.mean()) < 3e-4
  other = np.asarray(params["fire12"]["expand3x3"]["kernel"])
  assert other.std() > 0.03


def test_an_option_of_every_classifier_is_known_where_one_is_mistyped():
  with pytest.raises(SettingError, match=r"'weigths': unknown\. Did you mean 'weights'"):
    models.make("efficientnet_lite0", (64, 64, 3), 7, weigths="x.npz")


def test_lite0_s_weights_of_tensorflow_say_what_they_want(caplog):
  """EfficientNet-PyTorch numbers the blocks through; each array is where timm's name would put it."""
  names = {
    "_conv_stem.weight": "conv_stem.weight", "_bn0.bias": "bn1.bias", "_bn1.weight": "bn2.weight",
    "_blocks.0._bn1.bias": "blocks.0.0.bn1.bias",
    "_blocks.0._project_conv.weight": "blocks.0.0.conv_pw.weight",
    "_blocks.2._expand_conv.weight": "blocks.1.1.conv_pw.weight",
    "_blocks.2._bn2.bias": "blocks.1.1.bn3.bias",
    "_blocks.15._depthwise_conv.weight": "blocks.6.0.conv_dw.weight", "_fc.bias": "classifier.bias",
  }  # fmt: skip
  read = models.reader_of("efficientnet_lite0")
  arrays = {name: np.full((1, 1, 1, 1) if "conv" in name else (1,), float(i)) for i, name in enumerate(names)}
  ours = read(arrays)
  assert "give the model same=True" in caplog.text
  caplog.clear()
  theirs = read({names[name]: array for name, array in arrays.items()})
  chex.assert_trees_all_equal(ours, theirs)
  assert not caplog.text
  with pytest.raises(DataError, match=r"_blocks\.16\._bn0\.bias is no array.*blocks\.0\.0\.conv_dw"):
    read({"_blocks.16._bn0.bias": np.zeros(1)})


def test_a_task_is_made():
  with pytest.raises(
    SettingError, match=r"task = 'binary': not a task. Give one, such as task=fh.tasks.binary"
  ):
    models.make("two_nn", (3,), 2, task=fh.tasks.binary)


@pytest.mark.slow
def test_mobilenet_s_smallest_image_without_padding():
  model = models.mobilenet((33, 33, 3), 3, width=4)
  params = jax.jit(model.init)(jax.random.key(0))
  assert np.isfinite(jax.jit(model.apply)(params, jnp.ones((1, 33, 33, 3)), model.stats)).all()


@slow
@pytest.mark.parametrize("name", ["vgg9", "squeezenet", "mobilenet"])
def test_the_smallest_image_that_is_taken_leaves_a_pixel(name):
  side = {"vgg9": 16, "squeezenet": 21, "mobilenet": 33}[name]
  model = models.MODELS[name]((side, side, 3), 3)
  x = jax.ShapeDtypeStruct((2, side, side, 3), jnp.float32)
  params = jax.eval_shape(model.init, jax.random.key(0))
  assert jax.eval_shape(model.apply, params, x, *([model.stats] if model.stats else [])).shape == (2, 3)
  assert all(min(leaf.shape) > 0 for leaf in jax.tree.leaves(params))


def test_pytorchs_layouts():
  weight = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)  # [O, C, height, width]
  assert kernel(weight)[3, 4, 2, 1] == weight[1, 2, 3, 4]
  assert kernel(weight[..., 0, 0])[2, 1] == weight[1, 2, 0, 0]
  dense = of_flattened(weight.reshape(2, -1), (4, 5))
  image = np.random.default_rng(0).normal(size=(3, 4, 5))  # PyTorch's, [C, height, width]
  ours = np.moveaxis(image, 0, -1).reshape(-1) @ dense
  np.testing.assert_allclose(ours, weight.reshape(2, -1) @ image.reshape(-1))


def test_pytorchs_names():
  read = named(
    ((r"features\.0", "stem/conv"), (r"features\.(\d)", r"block\1/norm"), ("fc", "fc")),
    {"fc": (1, 2)},
    ("aux",),
  )
  ones = np.ones(2)
  state = {"features.0.weight": np.ones((2, 1, 3, 3)), "features.1.weight": ones, "features.1.bias": ones,
           "features.1.running_mean": ones, "features.1.running_var": ones, "aux.weight": ones,
           "features.1.num_batches_tracked": ones, "fc.weight": np.arange(8.0).reshape(2, 4)}  # fmt: skip
  params, stats = read(state)
  assert jax.tree.map(np.shape, (params, stats)) == (
    {"stem": {"conv": {"kernel": (3, 3, 1, 2)}}, "block1": {"norm": {"scale": (2,), "bias": (2,)}},
     "fc": {"kernel": (4, 2)}},
    {"block1": {"norm": {"mean": (2,), "var": (2,)}}},
  )  # fmt: skip
  np.testing.assert_array_equal(params["fc"]["kernel"][:, 0], [0, 2, 1, 3])
  with pytest.raises(DataError, match=r"head\.weight is no array"):
    read({"head.weight": ones})


@slow
def test_a_federation_trains_one():
  """Clients of unequal sizes, whose last batches are filled up; running statistics are averaged."""
  data = federation([5, 9, 12, 7])
  data = dataclasses.replace(data, x=data.x.reshape(-1, 4, 1, 1))
  model = models.mobilenet((4, 1, 1), 3, width=8, padding=1)
  client = fh.fedavg(model, epochs=2, batch_size=4, lr=0.02)
  result = fh.run(fh.federated(client), data, rounds=8, cohort_size=4, key=jax.random.key(0))
  losses = result.infos.clients.loss.mean(axis=1)
  assert losses[-2:].mean() < 0.9 * losses[0]
