"""Files that were made to be misread: LEAF's users twice, tensors that overlap, images of other formats."""

import functools
import gzip
import io
import json
import lzma
import os
import struct
import sys
import tarfile
import types
import zipfile

import jax
import numpy as np
import pytest
from pictures import jpeg, write
from pictures import packed as packed_by_name
from PIL import Image
from test_data_refused import IMAGE, leaf, load

import fedjax_het as fh
from fedjax_het.data import packed, sources
from fedjax_het.data.images import middle
from fedjax_het.data.untrusted import MOST_PIXELS, open_image, read_arrays, read_json
from fedjax_het.errors import DataError, SettingError, reading
from fedjax_het.models import reader_of
from fedjax_het.models.convert import convert
from fedjax_het.models.weights import files as weight_files
from fedjax_het.models.weights.starting import read_weights

ROWS = json.dumps({"x": [IMAGE] * 2, "y": [1, 2]})


# JSON


@pytest.mark.parametrize("name", ["femnist", "shakespeare", "reddit", "celeba"])
def test_a_user_twice_is_refused_not_replaced(tmp_path, name):
  text = (
    f'{{"users": ["a", "b"], "num_samples": [2, 2], "user_data": {{"a": {ROWS}, "b": {ROWS}, "a": {ROWS}}}}}'
  )
  write(tmp_path / name, {"train/a_train_9.json": text})
  with pytest.raises(DataError, match=r"a_train_9.json is no JSON, .*: 'a' stands twice in one object"):
    sources.load(name, tmp_path)


@pytest.mark.parametrize("part", ["train", "test"])
def test_a_user_in_two_files_of_one_set_is_refused(tmp_path, part):
  one, other = leaf("femnist"), leaf("femnist")
  other["user_data"] = {"b": {"x": [IMAGE], "y": [7]}, "c": {"x": [IMAGE], "y": [8]}}
  other |= {"users": ["b", "c"], "num_samples": [1, 1]}
  rest = {"train/z_train_9.json": leaf("femnist", 3)} if part == "test" else {}
  files = {f"{part}/a_{part}_9.json": one, f"{part}/b_{part}_9.json": other}
  with pytest.raises(DataError, match=rf"b_{part}_9.json, user b has rows in a_{part}_9.json too"):
    load(tmp_path, "femnist", files | rest)


@pytest.mark.parametrize(
  ("text", "says"),
  [
    ("[" * 100_000, "recursion"), ('{"a": NaN}', "NaN is no number of JSON's"), ("-Infinity", "-Inf"),
    ('{"a": {"b": 1, "b": 2}}', "'b' stands twice"), ("9" * 5000, "digits"), ('{"a"', "delimiter"),
    (b"\xff\xfe\x00", "codec"), ("", "Expecting value"),
  ],
)  # fmt: skip
def test_json_that_is_none(text, says):
  with pytest.raises(DataError, match=f"where is no JSON, or it is truncated or damaged: .*{says}"):
    read_json("where", text if isinstance(text, bytes) else text.encode())


@pytest.mark.parametrize("users", [["a", ""], ["a", " "], [1, 2], ["a", None]])
def test_a_user_has_a_name(tmp_path, users):
  content = leaf("femnist") | {"users": users}
  with pytest.raises(DataError, match="a user without a name, or whose name is no text"):
    load(tmp_path, "femnist", {"train/a_train_9.json": content})


@pytest.mark.parametrize("number", [10**400, "1e999", -1])
def test_numbers_that_are_no_pixels(tmp_path, number):
  content = json.dumps(leaf("femnist")).replace("1.0", str(number), 1)
  write(tmp_path / "femnist", {"train/a_train_9.json": content})
  with pytest.raises(DataError, match="user a"):
    sources.load("femnist", tmp_path)


# Weights


def tensors(path, header, size=16, length=None):
  text = header if isinstance(header, bytes) else json.dumps(header).encode()
  path.write_bytes(
    struct.pack("<Q", len(text) if length is None else length) + text + np.ones(size // 4, "<f4").tobytes()
  )
  return path


def tensor(first, last, shape=(2,), dtype="F32"):
  return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


@pytest.mark.parametrize(
  ("header", "says"),
  [
    ({"a": tensor(-8, 0), "b": tensor(0, 16, [4])}, "a has the data_offsets .*-8, 0.*not whole numbers of 0"),
    ({"a": tensor(0, 8), "b": tensor(4, 12)}, "b begins at byte 4, within the tensor before it"),
    ({"a": tensor(0, 16, [4]), "b": tensor(0, 16, [4])}, "b begins at byte 0, within"),
    ({"a": tensor(0, 8), "b": tensor(12, 16, [1])}, "b begins at byte 12, after a hole, .* at byte 8"),
    ({"a": tensor(4, 12)}, "a begins at byte 4, after a hole"),
    ({"a": tensor(0, 8)}, "its last 8 bytes belong to no tensor"),
    ({"a": tensor(0, 16)}, r"a, F32 \[2\], lies at the bytes \[0, 16\] of 16, and takes 8"),
    ({"a": tensor(8, 24, [4])}, r"a, F32 \[4\], lies at the bytes \[8, 24\] of 16"),
    ({"a": tensor(8, 0)}, "a, F32 .*, and takes 8"),
    ({"a": tensor(0, 16, [-2, -2])}, r"a has the shape \[-2, -2\]"),
    ({"a": tensor(0, 16, [4.0])}, r"a has the shape \[4.0\]"),
    ({"a": tensor(0, 16, [True, 4])}, "a has the shape"),
    ({"a": tensor(0, 16, "4")}, "a has the shape 4"),
    ({"a": tensor(0, 16, [4], "F31")}, "a is of type F31, which is none of F64, F32"),
    ({"a": tensor(0, 16, [4], ["F32"])}, "a is of type"),
    ({"a": [0, 16]}, "a has no dtype, shape and data_offsets"),
    ({"a": {"dtype": "F32", "shape": [4]}}, "a has no dtype, shape and data_offsets"),
    (b'{"a": %s, "a": %s}' % ((json.dumps(tensor(0, 16, [4])).encode(),) * 2), "'a' stands twice"),
    (b'[{"a": 1}]', "the header is no JSON object"),
    (b"[" * 100_000, "its header is no JSON.*recursion"),
  ],
)  # fmt: skip
def test_safetensors_that_are_none(tmp_path, header, says):
  path = tensors(tmp_path / "a.safetensors", header)
  with pytest.raises(DataError, match=f"a.safetensors.*{says}"):
    weight_files.read_arrays(path)


def test_safetensors_whose_header_is_longer_than_the_file(tmp_path):
  for length in (10**6, 2**63, 2**64 - 1):
    path = tensors(tmp_path / "a.safetensors", {"a": tensor(0, 16, [4])}, length=length)
    with pytest.raises(DataError, match=f"its header of {length} bytes is longer than"):
      weight_files.read_arrays(path)
  header = {"b": tensor(8, 16), "a": tensor(0, 8), "none": tensor(8, 8, [0])}
  found = weight_files.read_arrays(tensors(path, header))
  assert {name: own.tolist() for name, own in found.items()} == {"b": [1, 1], "a": [1, 1], "none": []}


@functools.cache
def initial():
  return jax.tree.map(np.asarray, model().init(jax.random.key(0)))


def model(**options):
  return fh.models.make("two_nn", (2,), 2, hidden=3, **options)


@pytest.mark.parametrize(
  ("change", "says"),
  [
    (lambda own: own.astype(np.int64), "is int64, not numbers in floating point"),
    (lambda own: own > 0, "is bool, not numbers"),
    (lambda own: own.astype(complex), "is complex128, not numbers"),
    (lambda own: own * np.nan, "is not finite"),
    (lambda own: own.astype(float) + 1e300, "is not finite"),
  ],
)
def test_weights_are_finite_floats(tmp_path, change, says):
  params = {name: dict(layer) for name, layer in initial().items()}
  fh.models.save_weights(tmp_path / "a.npz", params)
  assert model(weights=str(tmp_path / "a.npz")).name == "two_nn"
  params["fc2"]["kernel"] = change(params["fc2"]["kernel"])
  fh.models.save_weights(tmp_path / "a.npz", params)
  with pytest.raises(DataError, match=f"a.npz: params/fc2/kernel {says}"):
    model(weights=str(tmp_path / "a.npz"))


def test_weights_by_pytorch_s_names_are_finite_floats(tmp_path):
  name, path = "features.0.weight", tmp_path / "in.npz"
  np.savez(path, **{name: np.ones((64, 1, 80), np.int32), "features.1.num_batches_tracked": np.array(3)})
  with pytest.raises(DataError, match=r"in.npz: features.0.weight is int32, not numbers in floating point"):
    read_weights(path, reader_of("m5"))
  np.savez(path, **{name: np.full((64, 1, 80), np.nan, np.float32)})
  with pytest.raises(DataError, match=r"in.npz: params/conv1/kernel is not finite"):
    convert("m5", str(path), str(tmp_path / "out.npz"))
  np.savez(path, **{name: np.ones((64, 1, 80), np.float16), "features.1.num_batches_tracked": np.array(3)})
  assert {key: own.shape for key, own in read_weights(path, reader_of("m5")).items()} == {
    "params/conv1/kernel": (80, 1, 64)
  }


def test_pytorch_that_runs_files_is_refused(tmp_path, monkeypatch):
  (tmp_path / "a.pth").write_bytes(b"")
  monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__="2.5.1+cpu"))
  with pytest.raises(SettingError, match=r"PyTorch 2.5.1\+cpu may run what the file holds .*torch>=2.6"):
    weight_files.read_arrays(tmp_path / "a.pth")


# Arrays


def test_arrays_of_two_names_and_of_objects(tmp_path):
  path = tmp_path / "a.npz"
  with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "w") as archive:
    for value in (1.0, 2.0):
      content = io.BytesIO()
      np.save(content, np.full(3, value))
      archive.writestr("a.npy", content.getvalue())
  with pytest.raises(DataError, match="holds two arrays 'a'"):
    read_arrays(path)
  np.savez(path, a=np.array([{}], object))
  with pytest.raises(DataError, match="a: the array holds Python objects, which are not read"):
    read_arrays(path)


# Images and archives


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 178 218\n%%EndComments\nshowpage\n%%EOF\n"


def of_format(kind, size=(30, 20)):
  content = io.BytesIO()
  Image.new("RGB", size).save(content, kind)
  return content.getvalue()


@pytest.mark.parametrize("content", [EPS, *map(of_format, ("PNG", "GIF", "TIFF", "BMP", "PDF"))])
def test_images_of_other_formats_are_not_opened(tmp_path, monkeypatch, content):
  mark = tmp_path / "ran"
  gs = tmp_path / "bin" / "gs"
  write(tmp_path / "bin", {"gs": f"#!/bin/sh\ntouch {mark}\n"})
  gs.chmod(0o755)
  monkeypatch.setenv("PATH", f"{gs.parent}:{os.environ['PATH']}")
  files = {"list_attr_celeba.txt": "1\nSmiling\n000001.jpg 1\n", "identity_CelebA.txt": "000001.jpg 7\n"}
  write(tmp_path / "celeba", files | {"img/000001.jpg": content})
  with pytest.raises(DataError, match=r"000001.jpg is no picture"):
    sources.load("celeba", tmp_path, min_images=1)
  assert not mark.exists()


def test_images_of_too_many_pixels_are_not_decoded():
  content = bytearray(jpeg(16, 16))
  at = content.index(b"\xff\xc0") + 5
  content[at : at + 4] = struct.pack(">HH", 60_000, 60_000)
  with pytest.raises((ValueError, Image.DecompressionBombError)):
    open_image(bytes(content))
  content[at : at + 4] = struct.pack(">HH", 7_100, 7_100)
  with pytest.raises(ValueError, match=f"7100 x 7100 pixels, and at most {MOST_PIXELS:,} are read"):
    open_image(bytes(content))
  with pytest.raises(ValueError, match="pixels, and at most"):
    middle(Image.new("RGB", (40_000, 2)), 100)


@pytest.mark.parametrize("ending", ["zip", "tar"])
def test_a_file_twice_or_too_large_in_an_archive(tmp_path, monkeypatch, ending):
  place = tmp_path / f"a.{ending}"

  def make(files):
    if ending == "zip":
      with zipfile.ZipFile(place, "w") as archive:
        for name, content in files:
          archive.writestr(name, content)
    else:
      with tarfile.open(place, "w") as archive:
        for name, content in files:
          info = tarfile.TarInfo(name)
          info.size = len(content)
          archive.addfile(info, io.BytesIO(content))
    packed._members.cache_clear()

  make([("a.jpg", b"1"), ("b.jpg", b"2" * 2000)])
  assert dict(packed.contents(place, {"a.jpg", "b.jpg"})) == {"a.jpg": b"1", "b.jpg": b"2" * 2000}
  monkeypatch.setattr(packed, "MOST", 1999)
  with pytest.raises(DataError, match=rf"a.{ending}.*holds or unpacks to more than 2 kB"):
    packed.names(place), dict(packed.contents(place, {"b.jpg"}))
  monkeypatch.undo()
  with pytest.warns(UserWarning, match="Duplicate") if ending == "zip" else reading("nothing"):
    make([("a.jpg", b"1"), ("a.jpg", b"2")])
  with pytest.raises(DataError, match=rf"a.{ending} holds a.jpg twice"):
    packed.names(place)


def test_a_tar_does_not_end_at_a_damaged_header(tmp_path):
  with tarfile.open(tmp_path / "a.tar", "w") as archive:
    for name in ("a", "b", "c"):
      info = tarfile.TarInfo(name)
      archive.addfile(info)
  content = bytearray((tmp_path / "a.tar").read_bytes())
  content[512] ^= 1
  (tmp_path / "a.tar").write_bytes(content)
  with pytest.raises(DataError, match=r"what follows \['a'\] is no header of a file, and no end"):
    packed.names(tmp_path / "a.tar")


@pytest.mark.parametrize(
  "error", [MemoryError(), RecursionError("deep"), struct.error("short"), KeyError("k")]
)
def test_whatever_a_reader_raises_names_the_file(error):
  with pytest.raises(DataError, match="file x cannot be read"), reading("file x"):
    raise error
  with pytest.raises(DataError, match=r"file x may not be read. Ask its owner"), reading("file x"):
    raise PermissionError(13, "Permission denied")
  with pytest.raises(KeyboardInterrupt), reading("file x"):
    raise KeyboardInterrupt


def test_names_in_a_file_cannot_steer_a_terminal(tmp_path):
  content = leaf("femnist") | {"users": ["a", "\x1b[2J\x07b"], "num_samples": [2, 2]}
  with pytest.raises(DataError, match=r"user \\x1b\[2J\\x07b is not once in users") as told:
    load(tmp_path, "femnist", {"train/a_train_9.json": content})
  assert str(told.value).isprintable() and str(DataError("é 中 \n\ud800")) == "é 中 \n\\ud800"


def test_a_tar_is_told_by_how_it_begins(tmp_path):
  packed_by_name(tmp_path, "a.tar.gz", {"a.jpg": b"1"})
  (tmp_path / "b.tar.xz").write_bytes(lzma.compress(gzip.decompress((tmp_path / "a.tar.gz").read_bytes())))
  (tmp_path / "c.tar.gz").write_bytes(gzip.decompress((tmp_path / "a.tar.gz").read_bytes()))
  for name in ("a.tar.gz", "b.tar.xz", "c.tar.gz"):
    assert packed.names(tmp_path / name) == ["a.jpg"]
    assert dict(packed.contents(tmp_path / name, {"a.jpg"})) == {"a.jpg": b"1"}
