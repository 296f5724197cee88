"""Small files of the true format of every data set of the papers, for tests of configurations."""

import io
import json
import wave
from pathlib import Path

import numpy as np
from pictures import jpeg, write

from fedjax_het.data import cifar100, isic2019, mqp, tiny_imagenet
from fedjax_het.data.shakespeare import SYMBOLS

RNG = np.random.default_rng(8)
CLIENTS, ROWS = 3, 15  # of natural clients, each of as many rows


def _leaf(folder: Path, name: str, rows) -> None:
  """LEAF's pair of json files: every user has `rows(count)` to train and to test on."""
  for part, count in (("train", ROWS - 5), ("test", 5)):
    data = {f"user{i}": dict(zip("xy", rows(count))) for i in range(CLIENTS)}
    content = {"users": [*data], "num_samples": [count] * CLIENTS, "user_data": data}
    write(folder / name / part, {f"all_data_{part}.json": json.dumps(content)})


def _cifar100(folder: Path, patch) -> None:
  patch.setattr(cifar100, "ROWS", {"train": 60, "test": 4})
  records = RNG.integers(0, 256, (60, 3074), np.uint8)
  records[:, 0], records[:, 1] = np.arange(60) % 2, np.arange(60) % 4
  write(folder / "cifar100", {"train.bin": records.tobytes(), "test.bin": records[:4].tobytes()})


def _tiny_imagenet(folder: Path, patch) -> None:
  patch.setattr(tiny_imagenet, "CLASSES", 3)
  files = {"wnids.txt": "n1\nn2\nn3\n"}
  files |= {f"train/{c}/images/{c}_{i}.JPEG": jpeg(64, 64) for c in ("n1", "n2", "n3") for i in range(16)}
  write(folder / "tiny-imagenet", files)


def _femnist(folder: Path, patch) -> None:
  def rows(count):
    return (RNG.integers(0, 256, (count, 784)) / 255).tolist(), RNG.integers(0, 62, count).tolist()

  _leaf(folder, "femnist", rows)


def _shakespeare(folder: Path, patch) -> None:
  def rows(count):
    texts = ["".join(RNG.choice([*SYMBOLS], 81)) for _ in range(count)]
    return [text[:80] for text in texts], [text[80] for text in texts]

  _leaf(folder, "shakespeare", rows)


def _reddit(folder: Path, patch) -> None:
  def rows(count):
    lines = RNG.choice([*"abcdefgh"], (count, 11)).tolist()
    return [[line[:10]] for line in lines], [{"target_tokens": [line[1:]]} for line in lines]

  _leaf(folder, "reddit", rows)


def _celeba(folder: Path, patch) -> None:
  names = [f"{i:06d}.jpg" for i in range(CLIENTS * ROWS)]
  marks = "".join(f"{name} {2 * (i % 2) - 1}\n" for i, name in enumerate(names))
  who = "".join(f"{name} {i // ROWS}\n" for i, name in enumerate(names))
  files = {"list_attr_celeba.txt": f"{len(names)}\nSmiling\n{marks}", "identity_CelebA.txt": who}
  write(folder / "celeba", files | {f"img_align_celeba/{name}": jpeg(20, 24) for name in names})


def _speech_commands(folder: Path, patch) -> None:
  files = {"validation_list.txt": "", "testing_list.txt": "yes/00000000_nohash_9.wav\n"}
  for i in range(CLIENTS * ROWS):
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
      file.setparams((1, 2, 16_000, 0, "NONE", ""))
      file.writeframes(RNG.integers(-9000, 9000, 16_000).astype("<i2").tobytes())
    files[f"{('yes', 'no')[i % 2]}/{i // ROWS:08x}_nohash_{i}.wav"] = content.getvalue()
  write(folder / "speech_commands", files)


def _fsdd(folder: Path, patch) -> None:
  for i in range(CLIENTS * ROWS):
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
      file.setparams((1, 2, 8_000, 0, "NONE", ""))
      file.writeframes(RNG.integers(-9000, 9000, 2_000).astype("<i2").tobytes())
    name = f"{i % 2}_{'abcdefghij'[i // ROWS % 10] * (1 + i // ROWS // 10)}_{i % ROWS}.wav"
    write(folder / "fsdd", {f"recordings/{name}": content.getvalue()})


def _isic2019(folder: Path, patch) -> None:
  count = 6 * 10
  patch.setattr(isic2019, "ROWS", count)
  lesions = [("BCN_1", ""), ("MSK4_1", ""), *(("HAM_1", name) for name in ("a", "b", "c", "d"))]
  ham, truth = ["lesion_id,image_id,dx,dataset"], [f"image,{','.join(isic2019.KINDS)},UNK"]
  metadata, files = ["image,age_approx,anatom_site_general,lesion_id,sex"], {}
  for i in range(count):
    lesion, name = lesions[i % 6]
    ham += [f"{lesion},ISIC_{i},nv,{name}"] if name else []
    metadata.append(f"ISIC_{i},50,torso,{lesion},male")
    truth.append(",".join([f"ISIC_{i}", *("1.0" if i // 6 % 8 == c else "0.0" for c in range(8)), "0.0"]))
    files[f"ISIC_2019_Training_Input/ISIC_{i}.jpg"] = jpeg(40, 36)
  files |= {isic2019.TRUTH: "\n".join(truth), isic2019.METADATA: "\n".join(metadata)}
  write(folder / "isic2019", files | {"HAM10000_metadata": "\n".join(ham)})


def _mqp(folder: Path, patch) -> None:
  patch.setattr(mqp, "ROWS", 11 * 10)
  rows = "".join(f"{i % 11 + 1},is a {'bcd'[i % 3]}?,a b c,{i // 11 % 2}\n" for i in range(110))
  pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "is", "a", "b", "c", "?"]
  write(folder / "medical-question-pairs", {"mqp.csv": rows, "vocab.txt": "\n".join(pieces)})


def write_small(name: str, folder: Path, patch) -> None:
  """The files of data set `name` in `folder`, a data_dir; `patch` is pytest's monkeypatch, for counts."""
  globals()[f"_{name}"](folder, patch)
