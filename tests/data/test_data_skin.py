"""Skin lesions as their authors ship them: HAM10000 and ISIC 2019, from files that are written here."""

import numpy as np
import pytest
from pictures import RNG, jpeg, packed, refused, write
from realdata import real_data

from fedjax_het.data import ham10000, isic2019, sources


def ham(dataset=True):
  """A table of four images of three lesions, and the images."""
  rows = ["HAM_1,ISIC_1,bkl", "HAM_1,ISIC_2,bkl", "HAM_2,ISIC_3,akiec", "HAM_3,ISIC_4,vasc"]
  by = ["rosendahl", "rosendahl", "vidir_modern", "vienna_dias"]
  header = "lesion_id,image_id,dx,dx_type,age,sex,localization" + (",dataset" if dataset else "")
  rows = [f"{row},histo,80.0,male,scalp" + (f",{name}" if dataset else "") for row, name in zip(rows, by)]
  pictures = {f"images/ISIC_{i}.jpg": jpeg(20, 15, (60 * i, 0, 0)) for i in range(1, 5)}
  return {"HAM10000_metadata.csv": "\n".join([header, *rows]) + "\n", **pictures}


def test_ham10000(tmp_path, monkeypatch):
  monkeypatch.setattr(ham10000, "ROWS", 4)
  packed(tmp_path / "ham10000", "all.tar.gz", ham())
  source = sources.load("ham10000", tmp_path, size=10)
  assert source.x.shape == (4, 10, 10, 3) and source.y.tolist() == [2, 2, 0, 6]
  assert np.abs(source.x[:, 5, 5, 0].astype(int) - [60, 120, 180, 240]).max() <= 3
  assert source.groups.tolist() == ["rosendahl", "rosendahl", "vidir_modern", "vienna_dias"]
  assert "4 images of 3 lesions, which a random split of the images separates" in source.notes
  single = sources.load("ham10000", tmp_path, size=10, one_per_lesion=True)
  np.testing.assert_array_equal(single.x, source.x[[0, 2, 3]])
  files = ham()
  files["HAM10000_metadata.tab"] = files.pop("HAM10000_metadata.csv").replace(",", "\t")
  write(tmp_path / "tabs" / "ham10000", files)
  np.testing.assert_array_equal(sources.load("ham10000", tmp_path / "tabs", size=10).groups, source.groups)
  plain = tmp_path / "plain"
  write(plain / "ham10000", ham(dataset=False))
  assert sources.load("ham10000", plain, size=4).groups is None


@pytest.mark.parametrize(
  ("change", "says"),
  [
    (
      lambda f: f.update({"HAM10000_metadata.csv": f["HAM10000_metadata.csv"].replace("bkl", "mole")}),
      "dx 'mole'",
    ),
    (
      lambda f: f.update({"HAM10000_metadata.csv": "image_id,dx\nISIC_1,bkl\n"}),
      "wants the columns lesion_id",
    ),
    (lambda f: f.update({"HAM10000_metadata.csv": f["HAM10000_metadata.csv"][:180]}), "wants the columns"),
    (
      lambda f: f.update({"HAM10000_metadata.csv": f["HAM10000_metadata.csv"].replace("bkl", "b\rl")}),
      "truncated or damaged: new-line",
    ),
    (lambda f: f.pop("images/ISIC_3.jpg"), "ISIC_3.jpg is missing, one of 1 missing images"),
    (lambda f: [f.pop(f"images/ISIC_{i}.jpg") for i in range(1, 5)], "No images ISIC"),
  ],
)
def test_ham10000_of_something_else(tmp_path, monkeypatch, change, says):
  monkeypatch.setattr(ham10000, "ROWS", 4)
  refused(tmp_path / "ham10000", "ham10000", ham(), change, says)


def isic():
  """HAM10000's four images, one of Barcelona's, one of MSK's, one of unknown origin and one incomplete."""
  files = ham()
  lesions = {f"ISIC_{i}": f"HAM_{i}" for i in range(1, 5)}
  lesions |= {"ISIC_5": "BCN_0000001", "ISIC_6_downsampled": "MSK4_7", "ISIC_7": "", "ISIC_8": "BCN_9"}
  metadata = ["image,age_approx,anatom_site_general,lesion_id,sex"]
  truth = ["image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK"]
  for i, (image, lesion) in enumerate(lesions.items()):
    metadata.append(f"{image},{'' if i == 7 else 55.0},head/neck,{lesion},female")
    truth.append(",".join([image, *("1.0" if i % 8 == kind else "0.0" for kind in range(8)), "0.0"]))
    files[f"images/{image}.jpg"] = jpeg(30, 24, (20 * i, 100, 50))
  files[isic2019.METADATA], files[isic2019.TRUTH] = "\n".join(metadata) + "\n", "\n".join(truth) + "\n"
  return files


def test_isic2019_by_hospital(tmp_path, monkeypatch):
  monkeypatch.setattr(isic2019, "ROWS", 8)
  write(tmp_path / "isic2019", isic())
  source = sources.load("isic2019", tmp_path, size=16)
  assert source.x.shape == (7, 16, 16, 3) and source.y.tolist() == [0, 1, 2, 3, 4, 5, 7]
  ours = ["rosendahl", "rosendahl", "vidir_modern", "vienna_dias"]
  assert source.groups.tolist() == [*(f"HAM_{name}" for name in ours), "BCN", "MSK", "BCN"]
  assert np.abs(source.x[:, 8, 8].astype(int) - [[20 * i, 100, 50] for i in (0, 1, 2, 3, 4, 5, 7)]).max() <= 3
  assert "BCN 2, HAM_rosendahl 2" in source.notes[0] and "1 left out" in source.notes[0]
  complete = sources.load("isic2019", tmp_path, size=16, complete=True)
  np.testing.assert_array_equal(complete.x, source.x[:6])
  monkeypatch.setattr(isic2019, "DAMAGED", "ISIC_2")
  np.testing.assert_array_equal(
    sources.load("isic2019", tmp_path, size=16, complete=True).x, source.x[[0, 2, 3, 4, 5]]
  )
  even = sources.load("isic2019", tmp_path, size=16, constancy=True).x[3]
  np.testing.assert_array_equal(even, isic2019.evened(source.x[3]))


def test_light_is_evened_out():
  grey = RNG.integers(50, 90, (7, 5, 1)).repeat(3, 2).astype(np.uint8)
  assert np.abs(isic2019.evened(grey).astype(int) - grey).max() <= 1  # grey stays
  tinted = (grey * np.array([1.6, 1.0, 0.7])).astype(np.uint8)
  even = isic2019.evened(tinted).astype(float)
  m = (tinted.astype(float) ** 6).mean((0, 1)) ** (1 / 6)
  np.testing.assert_array_equal(even, np.floor(tinted * (np.sqrt((m**2).sum()) / (np.sqrt(3) * m))))
  assert np.ptp(even.mean((0, 1))) < 2 < np.ptp(tinted.mean((0, 1)))


@pytest.mark.parametrize(
  ("change", "says"),
  [
    (lambda f: f.pop(isic2019.METADATA), "wants ISIC_2019_Training_Metadata.csv too"),
    (lambda f: f.pop("HAM10000_metadata.csv"), "wants HAM10000_metadata with the column dataset too"),
    (
      lambda f: f.update({isic2019.METADATA: f[isic2019.METADATA].replace("BCN_0", "XXX_0")}),
      "ISIC_5, lesion 'XXX",
    ),
    (
      lambda f: f.update({isic2019.TRUTH: f[isic2019.TRUTH].replace("1.0", "0.0")}),
      "ISIC_1 is not of one kind",
    ),
    (
      lambda f: f.update({isic2019.TRUTH: f[isic2019.TRUTH].replace("SCC", "XXX")}),
      "wants the columns image, MEL",
    ),
    (lambda f: f.update({isic2019.TRUTH: f[isic2019.TRUTH][:150]}), "rows, not 8"),
    (
      lambda f: f.update({isic2019.TRUTH: f[isic2019.TRUTH].replace("1.0", "1\r0")}),
      "truncated or damaged: new-line",
    ),
  ],
)
def test_isic2019_of_something_else(tmp_path, monkeypatch, change, says):
  monkeypatch.setattr(isic2019, "ROWS", 8)
  refused(tmp_path / "isic2019", "isic2019", isic(), change, says)


@pytest.mark.slow
def test_the_real_ham10000():
  source = sources.load("ham10000", real_data("ham10000"), size=16)
  assert np.bincount(source.y).tolist() == [327, 514, 1099, 115, 1113, 6705, 142]
  assert source.notes[0].startswith("10015 images of 7470 lesions")
