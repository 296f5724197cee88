"""Weights as their publishers ship them, on real images: CIFAR-10's ResNet-20, ImageNet's SqueezeNet 1.0."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from realdata import real_data
from torch_file import read_state

from benchmarks import gpu_data
from fedjax_het import models
from fedjax_het.data.cifar import parse_batch
from fedjax_het.data.files import find, read
from fedjax_het.data.images import as_is, read_images
from fedjax_het.data.packed import locate, names

CLASSES = {  # of TinyImageNet, and their place among ImageNet's
  "n01443537": 1, "n02099601": 207, "n02129165": 291, "n02504458": 386, "n02509815": 387,
}  # fmt: skip
AS_USERS = {"xla_backend_optimization_level": 3, "xla_cpu_use_fusion_emitters": True}  # see compiler.py


def test_a_file_of_weights_is_read_without_pytorch():
  state = read_state(real_data("weights") / "weights" / "resnet20-12fca82f.th")
  assert state["conv1.weight"].shape == (16, 3, 3, 3) and len(state) == 97
  params, stats = models.reader_of("resnet20")(state)
  assert models.count_parameters(params) == 269_722
  np.testing.assert_array_equal(params["fc"]["kernel"][:, 3], state["linear.weight"][3])
  np.testing.assert_array_equal(stats["stem_norm"]["var"], state["bn1.running_var"])


@pytest.mark.slow
def test_resnet20_knows_cifar10():
  """Published: 91.73 % of 10,000 test images; of the first 1,000 alone the share has a deviation of 0.9 %."""
  root = real_data("weights")
  path = find(real_data("cifar10") / "cifar10", "test_batch_first1000.bin")
  x, y = parse_batch(path, read(path)[1])
  params, stats = models.reader_of("resnet20")(read_state(root / "weights" / "resnet20-12fca82f.th"))
  model = models.make("resnet20", (32, 32, 3), 10, mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
  use = jax.jit(lambda x: model.apply(params, x / 255.0, stats).argmax(-1), compiler_options=AS_USERS)
  found = np.concatenate([use(x[i : i + 200].astype(np.float32)) for i in range(0, len(x), 200)])
  print(f"ResNet-20: {(found == y).mean():.1%} of {len(y)} test images")
  assert 0.90 <= (found == y).mean() <= 0.935


@pytest.mark.slow
def test_squeezenet_names_images_of_classes_it_knows():
  """Goldfish, retrievers, lions, elephants, pandas of 64 x 64: the class is among the best five."""
  weights = real_data("weights") / "weights" / "squeezenet1_0_deepcompressed_torchvision_names.npz"
  place, (listed, *_) = locate(real_data("tiny-imagenet") / "tiny-imagenet", "/wnids.txt")
  root = listed.removesuffix("wnids.txt")
  files = [
    name
    for own in CLASSES
    for name in sorted(n for n in names(place) if n.startswith(f"{root}train/{own}/images/"))[:8]
  ]
  x = read_images(place, {name: i for i, name in enumerate(files)}, 64, as_is)
  y = np.repeat([*CLASSES.values()], 8)
  mean = [104 / 255, 117 / 255, 123 / 255]  # of blue, green and red
  model = models.make(
    "squeezenet", (224, 224, 3), 1000, dropout=0.0, weights=str(weights), mean=mean, std=1 / 255
  )
  params = jax.jit(model.init)(jax.random.key(0))

  @functools.partial(jax.jit, compiler_options=AS_USERS)
  def first_five(x):
    large = jax.image.resize(x / 255.0, (len(x), 224, 224, 3), "bilinear")
    return jax.lax.top_k(model.apply(params, large), 5)[1]

  blue_first, red_first = (first_five(jnp.asarray(images, jnp.float32)) for images in (x[..., ::-1], x))
  known = (np.asarray(blue_first) == y[:, None]).any(1).mean()
  print(f"SqueezeNet: {known:.1%} of {len(y)} images of {len(CLASSES)} classes among the best five")
  assert known >= 0.5  # by chance 0.005
  assert known > (np.asarray(red_first) == y[:, None]).any(1).mean()


@pytest.mark.slow
def test_squeezenet_for_standardised_images_is_the_same_network(tmp_path):
  """Red first, and logits 255 · 0.225 times smaller: gpu_data.py's file beside its source."""
  folder = real_data("weights")
  gpu_data.write_red_first(folder, tmp_path)
  given = dict(dropout=0.0, weights=str(folder / "weights" / gpu_data.SQUEEZENET))
  mean = np.array([123, 117, 104]) / 255  # of red, green and blue
  source = models.make("squeezenet", (48, 48, 3), 1000, mean=[*mean[::-1]], std=1 / 255, **given)
  given["weights"] = str(tmp_path / "weights" / gpu_data.RGB)
  ours = models.make("squeezenet", (48, 48, 3), 1000, mean=[*mean], std=gpu_data.STD, **given)
  x = jax.random.uniform(jax.random.key(1), (2, 48, 48, 3))
  theirs = source.apply(source.init(jax.random.key(0)), x[..., ::-1])
  found = 255 * gpu_data.STD * ours.apply(ours.init(jax.random.key(0)), x)
  assert np.abs(theirs).max() > 1
  np.testing.assert_allclose(found, theirs, rtol=1e-3, atol=1e-3)
