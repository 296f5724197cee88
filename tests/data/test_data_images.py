"""Pictures as their authors ship them: CIFAR-100, TinyImageNet, CelebA; and others."""

import hashlib
import json
import pickle
import pickletools
import shutil

import numpy as np
import pytest
from face_files import faces
from pictures import RNG, jpeg, packed, refused, write
from PIL import Image
from realdata import real_data

from fedjax_het.data import cifar100, images, leaf, sources, tiny_imagenet
from fedjax_het.errors import DataError, SettingError

# CIFAR-100


@pytest.fixture
def tiny_cifar100(tmp_path, monkeypatch):
  """Six training and four test records; (data_dir, pixels, coarse, fine) of the training set."""
  monkeypatch.setattr(cifar100, "ROWS", {"train": 6, "test": 4})
  pixels = RNG.integers(0, 256, (6, 3, 32, 32), np.uint8)
  coarse, fine = np.array([0, 19, 3, 3, 7, 1], np.uint8), np.array([99, 0, 50, 51, 20, 1], np.uint8)
  records = np.concatenate([coarse[:, None], fine[:, None], pixels.reshape(6, -1)], 1)
  write(tmp_path / "cifar100", {"train.bin": records.tobytes(), "test.bin": records[:4].tobytes()})
  return tmp_path, pixels, coarse, fine


def test_cifar100_of_binary_records(tiny_cifar100):
  folder, pixels, coarse, fine = tiny_cifar100
  source = sources.load("cifar100", folder)
  np.testing.assert_array_equal(source.x, pixels.transpose(0, 2, 3, 1))
  np.testing.assert_array_equal(source.y, fine)
  assert (source.num_classes, source.y.dtype, source.x_test.shape) == (100, np.int32, (4, 32, 32, 3))
  groups = sources.load("cifar100", folder, labels="coarse")
  np.testing.assert_array_equal(groups.y, coarse)
  assert groups.num_classes == 20
  with pytest.raises(SettingError, match="Did you mean 'coarse'"):
    sources.load("cifar100", folder, labels="course")


def python2(content):
  """A pickle of protocol 3 as Python 2 wrote it: its bytes are strings there."""
  found = bytearray(content)
  for code, _, at in pickletools.genops(content):
    found[at : at + 1] = {"SHORT_BINBYTES": b"U", "BINBYTES": b"T"}.get(code.name, found[at : at + 1])
  found[1] = 2
  return bytes(found)


def test_cifar100_of_pickles(tiny_cifar100, monkeypatch):
  folder, pixels, coarse, fine = tiny_cifar100
  binary = sources.load("cifar100", folder)
  shutil.rmtree(folder / "cifar100")
  md5 = {}
  for part, count in (("train", 6), ("test", 4)):
    content = python2(
      pickle.dumps(
      {
        b"data": pixels.reshape(6, -1)[:count], b"fine_labels": fine[:count].tolist(),
        b"coarse_labels": coarse[:count].tolist(), b"batch_label": part,
      },
      protocol=3,
    ))  # fmt: skip
    write(folder / "cifar100" / "cifar-100-python", {part: content})
    md5[part] = hashlib.md5(content, usedforsecurity=False).hexdigest()
  monkeypatch.setattr(cifar100, "MD5", md5)
  source = sources.load("cifar100", folder)
  for mine, other in zip(source[:4], binary[:4]):
    np.testing.assert_array_equal(mine, other)
  evil = pickle.dumps({b"data": pytest.skip}, protocol=2)
  write(folder / "cifar100" / "cifar-100-python", {"test": evil})
  monkeypatch.setitem(md5, "test", hashlib.md5(evil, usedforsecurity=False).hexdigest())
  with pytest.raises(DataError, match="is no array"):
    sources.load("cifar100", folder)


@pytest.mark.parametrize(
  ("change", "says"),
  [
    (lambda folder: (folder / "test.bin").unlink(), "wants test.bin too"),
    (lambda folder: (folder / "test.bin").write_bytes(b"\0" * 3074 * 3), "3 rows, not 4"),
    (lambda folder: (folder / "test.bin").write_bytes(b"\0" * 3000), "3000 bytes are not whole records"),
    (
      lambda folder: (folder / "test.bin").write_bytes(b"\x14" * 3074 * 4),
      "coarse labels are not 4 below 20",
    ),
  ],
)
def test_cifar100_of_something_else(tiny_cifar100, change, says):
  folder, *_ = tiny_cifar100
  change(folder / "cifar100")
  with pytest.raises(DataError, match=says):
    sources.load("cifar100", folder)


# TinyImageNet


def layout(classes=("n02", "n01")):
  """The official files of two classes: two training images each, one grey, and two validation images."""
  files = {"wnids.txt": "\n".join(classes) + "\n", "words.txt": "n01\tcat\nn02\tdog\n"}
  for i, name in enumerate(classes):
    files |= {f"train/{name}/images/{name}_{j}.JPEG": jpeg(64, 64, 40 * i + 90 * j, "L") for j in range(2)}
    files[f"train/{name}/{name}_boxes.txt"] = ""
    files[f"val/images/val_{i}.JPEG"] = jpeg(64, 64, (200 * i, 100, 0))
  files["val/val_annotations.txt"] = "val_0.JPEG\tn01\t0\t0\t9\t9\nval_1.JPEG\tn02\t0\t0\t9\t9\n"
  return files


@pytest.mark.parametrize("how", ["folder", "tiny-imagenet-200.zip", "some.tar.gz"])
def test_tiny_imagenet_is_read_packed_or_not(tmp_path, monkeypatch, how):
  monkeypatch.setattr(tiny_imagenet, "CLASSES", 2)
  files = {f"tiny-imagenet-200/{name}": content for name, content in layout().items()}
  if how == "folder":
    write(tmp_path / "tiny-imagenet", files)
  else:
    packed(tmp_path / "tiny-imagenet", how, files)
  source = sources.load("tiny_imagenet", tmp_path)
  assert source.x.shape == (4, 64, 64, 3) and source.x.dtype == np.uint8
  order = np.lexsort((source.x[:, 0, 0, 0], source.y))
  assert source.y[order].tolist() == [0, 0, 1, 1]  # n02 is listed first
  assert np.abs(source.x[order][:, 5, 5].astype(int) - np.array([[0], [90], [40], [130]])).max() <= 1
  assert source.y_test.tolist() == [1, 0]
  assert np.abs(source.x_test[:, 9, 9].astype(int) - [[0, 100, 0], [200, 100, 0]]).max() <= 4
  assert source.notes[0] == "4 train images, 2 of each class of 500" and source.num_classes == 2


@pytest.mark.parametrize(
  ("change", "says"),
  [
    (lambda f: f.update({"wnids.txt": "n02\n"}), "wnids.txt names 1 classes, not 2"),
    (lambda f: [f.pop(f"train/n01/images/n01_{j}.JPEG") for j in range(2)], "no training image of n01"),
    (lambda f: f.pop("val/images/val_1.JPEG"), "val_1.JPEG is missing, one of 1 missing images"),
    (lambda f: f.update({"train/n01/images/n01_1.JPEG": b"no picture"}), "n01_1.JPEG is no picture"),
    (lambda f: f.update({"train/n01/images/n01_1.JPEG": jpeg(64, 60)}), "has 64 x 60 pixels, not 64 x 64"),
    (lambda f: f.update({"val/val_annotations.txt": "val_0.JPEG\tn09\t0\t0\t9\t9\n"}), "'val_0.JPEG.tn09"),
  ],
)
def test_tiny_imagenet_of_something_else(tmp_path, monkeypatch, change, says):
  monkeypatch.setattr(tiny_imagenet, "CLASSES", 2)
  refused(tmp_path / "tiny-imagenet", "tiny_imagenet", layout(), change, says)


def test_a_torn_archive_is_named(tmp_path):
  packed(tmp_path / "tiny-imagenet", "a.tar.gz", layout())
  path = tmp_path / "tiny-imagenet" / "a.tar.gz"
  path.write_bytes(path.read_bytes()[:900])
  with pytest.raises(DataError, match=r"a.tar.gz cannot be read"):
    sources.load("tiny_imagenet", tmp_path)
  path.unlink()
  (tmp_path / "tiny-imagenet" / "b.zip").write_bytes(b"PK no archive")
  with pytest.raises(DataError, match=r"b.zip cannot be read"):
    sources.load("tiny_imagenet", tmp_path)


def test_the_middle_of_a_picture():
  ramp = np.tile(np.arange(0, 240, 2, dtype=np.uint8)[None, :, None], (60, 1, 3))  # 120 wide, 60 high
  middle = np.asarray(images.middle(Image.fromarray(ramp), 60))
  np.testing.assert_array_equal(middle, ramp[:, 30:90])
  small = np.asarray(images.middle(Image.fromarray(ramp), 20, 30))  # 60 x 30, of which the middle
  np.testing.assert_allclose(small[:, :, 0], np.tile(ramp[0, 41:81:2, 0], (20, 1)), atol=2)
  assert images.squeezed(Image.fromarray(ramp), 9).size == (9, 9)


# CelebA


def test_celeba_by_its_lists(tmp_path):
  write(tmp_path / "celeba", faces())
  source = sources.load("celeba", tmp_path, size=12)
  assert source.x.shape == (11, 12, 12, 3) and source.num_classes == 2 and source.task is None
  assert source.y.tolist() == [i % 2 for i in range(11)] and source.groups.tolist() == ["7"] * 5 + ["2"] * 6
  assert np.abs(source.x[:, 6, 6, 0].astype(int) - np.arange(0, 110, 10)).max() <= 4
  assert source.notes == ("Smiling: 2 celebrities of 3, 11 images",)
  two = sources.load("celeba", tmp_path, size=12, attributes=("Bald", "Male"), min_images=4)
  assert (len(two.y), two.num_classes, two.task.name) == (15, 2, "multilabel")
  assert two.y.tolist() == [[0, int(i % 3 > 0)] for i in range(15)]
  for given, says in (
    ({"attributes": ("Smile",)}, "Did you mean 'Smiling'"),
    ({"min_images": 7}, "no celebrity"),
  ):
    with pytest.raises(SettingError, match=says):
      sources.load("celeba", tmp_path, **given)


def test_celeba_by_leaf_s_json(tmp_path):
  files = {name: content for name, content in faces().items() if name.endswith(".jpg")}
  packed(tmp_path / "celeba", "img_align_celeba.zip", files)
  with pytest.raises(DataError, match="celeba was not found"):
    sources.load("celeba", tmp_path)
  for part, rows in (("train", (0, 1, 2)), ("test", (3,))):
    data = {"7": {"x": [f"{i:06d}.jpg" for i in rows], "y": [i % 2 for i in rows]}}
    leaf = {"users": ["7"], "num_samples": [len(rows)], "user_data": data}
    write(tmp_path / "celeba" / "data" / part, {f"all_data_{part}_9.json": json.dumps(leaf)})
  source = sources.load("celeba", tmp_path, size=12)
  assert source.y.tolist() == [0, 1, 0, 1] and source.split.tolist() == [0, 0, 0, 1]
  assert np.abs(source.x[:, 6, 6, 0].astype(int) - [0, 10, 20, 30]).max() <= 4
  with pytest.raises(SettingError, match="Smiling alone"):
    sources.load("celeba", tmp_path, attributes="Male")
  with pytest.raises(SettingError, match=r"min_images = 3: LEAF's json files come without them"):
    sources.load("celeba", tmp_path, min_images=3)


@pytest.mark.parametrize(
  ("change", "says"),
  [
    (lambda f: f.pop("identity_CelebA.txt"), "wants identity_CelebA.txt too"),
    (
      lambda f: f.update({"identity_CelebA.txt": "000001.jpg\n"}),
      "identity_CelebA.txt is not what its authors ship",
    ),
    (lambda f: f.update({"identity_CelebA.txt": "999999.jpg 1\n"}), "'999999.jpg 1'"),
    (lambda f: f.update({"list_attr_celeba.txt": "1\nSmiling\n000001.jpg 2\n"}), "'000001.jpg 2'"),
    (lambda f: f.pop("img_align_celeba/000003.jpg"), "000003.jpg is missing"),
    (lambda f: [f.pop(name) for name in [*f] if name.endswith("jpg")], "wants the images too, 000000.jpg"),
  ],
)
def test_celeba_of_something_else(tmp_path, change, says):
  refused(tmp_path / "celeba", "celeba", faces(), change, says)


# The real files


@pytest.mark.slow
def test_the_real_tiny_imagenet():
  source = sources.load("tiny_imagenet", real_data("tiny-imagenet"))
  for y, count in ((source.y, 60), (source.y_test, 15)):
    assert np.bincount(y).tolist() == [count] * 200
  assert source.x.shape == (12_000, 64, 64, 3) and 90 < source.x.mean() < 140
  grey = (source.x == source.x[..., :1]).all((1, 2, 3)).sum() + (source.x_test == source.x_test[..., :1]).all(
    (1, 2, 3)
  ).sum()
  assert grey >= 281


@pytest.mark.slow
def test_the_real_lists_of_leaf_s_celeba(tmp_path):
  """LEAF's own pair of json files, with pictures made up for their names."""
  files = leaf.leaf_files(real_data("celeba") / "celeba")
  names = [name for rows in leaf.read_leaf(files) for name in rows.x]
  picture = jpeg(4, 4)
  packed(tmp_path / "celeba", "img_align_celeba.zip", {f"img_align_celeba/{name}": picture for name in names})
  for path, _ in files:
    shutil.copy(path, tmp_path / "celeba")
  source = sources.load("celeba", tmp_path, size=4)
  assert len(source.y) == 9_060 + 2_399 and (source.split == 1).sum() == 2_399 and source.split.min() == 0
  assert len(set(source.groups.tolist())) == 515 and 0.4 < source.y.mean() < 0.6
