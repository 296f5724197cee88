"""CelebA: 200,288 face images with 40 binary attributes. Each of 9,343 celebrities is a client.

Labels and celebrities come from the authors' lists or from LEAF's json files. identity_CelebA.txt has a line
"image celebrity" for each image; list_attr_celeba.txt has the number of images, the attributes' names, and a
line "image ±1 ±1 ..." for each image. Celebrities with fewer than five of their images are left out, as in
LEAF: 9,343 of 10,177 stay. In LEAF's json, x are file names and y says whether the person smiles. Sources:
Liu et al., Deep learning face attributes in the wild, ICCV 2015; Caldas et al., LEAF, 2018.
"""

import functools
from collections import Counter
from pathlib import Path

import numpy as np

from fedjax_het.data.files import Source, check_rows, find, text_of
from fedjax_het.data.images import read_images, squeezed
from fedjax_het.data.leaf import joined, leaf_files, read_leaf
from fedjax_het.data.packed import locate
from fedjax_het.data.untrusted import MOST, read
from fedjax_het.errors import DataError, SettingError, check_choice, check_whole
from fedjax_het.tasks import multilabel

IDENTITIES, ATTRIBUTES = "identity_CelebA.txt", "list_attr_celeba.txt"
SMILING = "Smiling"
MIN_IMAGES = 5


def load_celeba(
  folder: Path, attributes: tuple[str, ...] | str = (SMILING,), size: int = 84, min_images: int = MIN_IMAGES
) -> Source | None:
  """Loads images, uint8 [N, size, size, 3], and one or several binary attributes of each.

  Labels are int32 [N] for one attribute and int32 [N, A] for A attributes; `groups` are the celebrities. The
  whole image is resized without keeping its proportions.

  Args:
    folder: the folder with the two lists or LEAF's json files, and with the images, in a subfolder or an
      archive such as img_align_celeba.zip.
    attributes: names of the attributes to predict; several of them make the task multilabel.
    size: height and width of the images in pixels; LEAF uses 84.
    min_images: celebrities with fewer images are left out. LEAF's json files come without them.

  Returns:
    The data set, or None where neither lists nor json files are there.

  Raises:
    SettingError: an attribute is unknown; or, with LEAF's json files, `attributes` is not Smiling or
      `min_images` is set.
    DataError: one of the two lists is missing or damaged, or an image is missing or damaged.
  """
  check_whole("size", size, 1)
  check_whole("min_images", min_images, 1)
  if not isinstance(attributes, str | tuple | list) or not all(isinstance(own, str) for own in attributes):
    raise SettingError("attributes", attributes, "not names", "Give one, or a tuple of some.")
  wanted = [attributes] if isinstance(attributes, str) else list(attributes)
  if not wanted or len(set(wanted)) < len(wanted):
    raise SettingError("attributes", wanted, "none, or one twice", "Name at least one, each once.")
  lists = {name: path for name in (IDENTITIES, ATTRIBUTES) if (path := find(folder, name))}
  files = leaf_files(folder)
  if lists:
    names, y, groups, split, note = _of_lists(folder, lists, wanted, min_images)
    read_from = [path.name for path in lists.values()]
  elif files:
    if min_images != MIN_IMAGES:
      raise SettingError("min_images", min_images, "LEAF's json files come without them", "Leave it out.")
    if wanted != [SMILING]:
      raise SettingError("attributes", wanted, "LEAF's json files have Smiling alone", f"Add {ATTRIBUTES}.")
    runs = list(read_leaf(files, most=MOST))
    for run in runs:
      if not all(isinstance(name, str) and label in (0, 1) for name, label in zip(run.x, run.y)):
        raise DataError(f"{run.where}: not LEAF's CelebA, names of images and labels 0 and 1.")
    groups, split, note = joined(runs)
    names, y = [name for r in runs for name in r.x], np.array([label for r in runs for label in r.y])[:, None]
    read_from = [path.name for path, _ in files]
  else:
    return None
  if len({*names}) < len(names):
    raise DataError(
      f"{folder.resolve()}: {', '.join(read_from)} name {Counter(names).most_common(1)[0][0]} twice."
    )
  found = locate(folder, ".jpg")
  if found is None:
    raise DataError(
      f"celeba wants the images too, {names[0]} and others, in a folder or img_align_celeba.zip; looked in"
      f" {folder.resolve()}."
    )
  place, pictures = found
  file_of = {Path(name).name: name for name in pictures}
  absent = [name for name in names if name not in file_of]
  if absent:
    raise DataError(f"{place.resolve()}: {absent[0]} is missing, one of {len(absent)} missing images.")
  rows = {file_of[name]: i for i, name in enumerate(names)}
  x = read_images(place, rows, size, functools.partial(squeezed, size=size))
  y = y.astype(np.int32)[:, 0] if len(wanted) == 1 else y.astype(np.int32)
  return Source(
    x, y, x[:0], y[:0], max(2, len(wanted)), "celeba", groups, (*read_from, place.name),
    (f"{', '.join(wanted)}: {note}",), task=multilabel() if len(wanted) > 1 else None, split=split,
  )  # fmt: skip


def _of_lists(
  folder: Path, lists: dict[str, Path], wanted: list[str], min_images: int
) -> tuple[list[str], np.ndarray, np.ndarray, None, str]:
  """Reads the authors' lists: image names, attributes bool [N, A], celebrities [N], no split, and a note."""
  if len(lists) == 1:
    (missing,) = {IDENTITIES, ATTRIBUTES} - {*lists}
    raise DataError(f"celeba wants {missing} too; looked in {folder.resolve()}.")
  texts = {name: text_of(path.resolve(), read(path)[1]) for name, path in lists.items()}
  count, header, *lines = [*texts[ATTRIBUTES].splitlines(), "", ""]
  known = header.split()
  if not count.strip().isdecimal() or len(count) > 20 or SMILING not in known:
    raise DataError(f"{lists[ATTRIBUTES].resolve()} is not what its authors ship: it begins {count[:60]!r}.")
  for attribute in wanted:
    check_choice("attributes", attribute, known)
  columns = [known.index(attribute) for attribute in wanted]
  marks = {}
  for line in filter(str.strip, lines):
    name, *values = line.split()
    if len(values) != len(known) or not {*values} <= {"1", "-1"}:
      raise DataError(f"{lists[ATTRIBUTES].resolve()} is not what its authors ship: {line[:60]!r}.")
    marks[name] = [values[column] == "1" for column in columns]
  check_rows(lists[ATTRIBUTES], len(marks), int(count))
  who: dict[str, list[str]] = {}
  for line in texts[IDENTITIES].splitlines():
    fields = line.split()
    if len(fields) != 2 or fields[0] not in marks:
      raise DataError(f"{lists[IDENTITIES].resolve()} is not what its authors ship: {line[:60]!r}.")
    who.setdefault(fields[1], []).append(fields[0])
  check_rows(lists[IDENTITIES], sum(map(len, who.values())), len(marks))
  kept = {celebrity: images for celebrity, images in who.items() if len(images) >= min_images}
  if not kept:
    raise SettingError("min_images", min_images, "no celebrity has as many", "Lower it.")
  names = [image for images in kept.values() for image in images]
  groups = np.repeat([*kept], [len(images) for images in kept.values()])
  note = f"{len(kept)} celebrities of {len(who)}, {len(names)} images"
  return names, np.array([marks[name] for name in names]), groups, None, note
