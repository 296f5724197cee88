"""Packs the data sets of gpu_queue.py in parts below 60 MB.

    python benchmarks/gpu_data.py --data_dir=DATA --out=FOLDER

FOLDER gets the files of mnist, femnist and shakespeare, the weights of ImageNet's SqueezeNet as
`write_red_first` changes them, and CIFAR-10 as lossless sheets of 100 x 100 images in cifar10_a (training
batches 1 to 3) and cifar10_b (4, 5 and the test images), each below 60 MB. What DATA lacks is left out.
`gpu_queue.py` restores CIFAR-10's batches from the sheets in its data folder, if both parts are there.
"""

import argparse
import gzip
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

PARTS = {"cifar10_a": ("data_batch_1", "data_batch_2", "data_batch_3"),
         "cifar10_b": ("data_batch_4", "data_batch_5", "test_batch")}  # fmt: skip
COPIED = {"mnist": "*.gz", "femnist": "*.npz", "shakespeare": "*.zip"}
SQUEEZENET = "squeezenet1_0_deepcompressed_torchvision_names.npz"  # for images whose channels are blue first
RGB = "squeezenet1_0_red_first.npz"
STD = 0.225  # of standardised images
RECORD, SIDE = 3073, 100


def pack_batch(content: bytes, place: Path) -> None:
  """Writes a binary batch as place.npy, its labels, and place.webp, its images in rows of a hundred."""
  records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
  np.save(place.with_suffix(".npy"), records[:, 0])
  rows = -(-len(records) // SIDE)
  images = np.zeros((rows * SIDE, 3, 32, 32), np.uint8)
  images[: len(records)] = records[:, 1:].reshape(-1, 3, 32, 32)
  sheet = images.reshape(rows, SIDE, 3, 32, 32).transpose(0, 3, 1, 4, 2).reshape(32 * rows, 32 * SIDE, 3)
  Image.fromarray(sheet).save(place.with_suffix(".webp"), lossless=True, quality=100, method=4)


def unpack_batch(place: Path) -> bytes:
  """Returns the binary batch that `pack_batch` wrote."""
  labels, sheet = np.load(place.with_suffix(".npy")), np.asarray(Image.open(place.with_suffix(".webp")))
  rows = len(sheet) // 32
  images = sheet.reshape(rows, 32, SIDE, 32, 3).transpose(0, 2, 4, 1, 3).reshape(rows * SIDE, -1)
  return np.concatenate([labels[:, None], images[: len(labels)]], axis=1).tobytes()


def write_red_first(data: Path, out: Path) -> None:
  """Writes SqueezeNet's weights for images that are standardised with torchvision's std, red first.

  The file's own are for images from 0 to 255. With all biases divided by 255 · STD, as such images are, the
  network is the same with activations that many times smaller. Training at SosicFL's rate, 0.001, needs it:
  with the file's own, of norm 1,400 before the last kernel, FedAvg's accuracy on CIFAR-10 stayed at chance.
  """
  (out / "weights").mkdir(parents=True, exist_ok=True)
  arrays = dict(np.load(data / "weights" / SQUEEZENET))
  arrays["features.0.weight"] = arrays["features.0.weight"][:, ::-1]
  arrays = {
    name: own / np.float32(255 * STD) if name.endswith("bias") else own for name, own in arrays.items()
  }
  np.savez_compressed(out / "weights" / RGB, **arrays)


def pack_data(data: Path, out: Path) -> list[Path]:
  """Packs what there is of the data sets; returns the folders."""
  found = []
  for name, pattern in COPIED.items():
    for path in sorted((data / name).glob(pattern)):
      (out / name).mkdir(parents=True, exist_ok=True)
      shutil.copy(path, out / name)
    found += [out / name] if (out / name).is_dir() else []
  if (data / "weights" / SQUEEZENET).is_file():
    write_red_first(data, out)
    found.append(out / "weights")
  for part, batches in PARTS.items():
    for batch in batches:
      for path in sorted((data / "cifar10").glob(f"{batch}*.bin*"))[:1]:
        (out / part).mkdir(parents=True, exist_ok=True)
        content = path.read_bytes()
        stem = path.name.partition(".bin")[0]  # test_batch_first1000 for a part of the test images
        pack_batch(gzip.decompress(content) if path.suffix == ".gz" else content, out / part / stem)
    found += [out / part] if (out / part).is_dir() else []
  return found


def unpack_data(data: Path) -> None:
  """Makes DATA/cifar10 of its two parts, if both are there and it is not."""
  if (data / "cifar10").exists() or not all((data / part).is_dir() for part in PARTS):
    return
  (data / "cifar10").mkdir()
  for place in sorted(sheet.with_suffix("") for part in PARTS for sheet in (data / part).glob("*.webp")):
    (data / "cifar10" / f"{place.name}.bin").write_bytes(unpack_batch(place))


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data_dir", type=Path, required=True)
  parser.add_argument("--out", type=Path, required=True)
  args = parser.parse_args()
  for folder in pack_data(args.data_dir, args.out):
    size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
    print(f"{folder}: {size:.1f} MB")


if __name__ == "__main__":
  main()
