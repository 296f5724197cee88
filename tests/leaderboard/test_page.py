"""The board's pages, of made-up raw figures."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedjax_het.leaderboard import launcher, pictures
from fedjax_het.leaderboard.board import Row, read_board
from fedjax_het.leaderboard.page import FITS, main_page, write_page
from fedjax_het.leaderboard.raw import made_by, write_raw
from fedjax_het.leaderboard.summary import summarized
from fedjax_het.leaderboard.work import States

ROOT = Path(__file__).parents[2]
TINY = read_board(ROOT / "tests" / "shared" / "tiny_board.py")


def made(row, mean, seed=0, **changes):
  rng = np.random.default_rng(seed)
  seeds = {
    str(number): {
      "mean": mean + 0.02 * number + 0.001 * rng.normal(), "worst": mean - 0.1, "weighted": mean,
      "global": None, "ece": 0.05, "up": 1e6, "down": 2e6, "client_steps": 100, "train_seconds": 3.0,
      "compile_seconds": 1.0,
    }
    for number in range(1, 6)
  }  # fmt: skip
  return {
    "task": row.task, "method": row.method, "made_by": made_by(TINY, row), "metric": "top1", "num_clients": 6,
    "chosen": {"local.lr": 0.25}, "at_edge": ["local.lr"], "seeds": seeds,
    "tuning": {"valid": 0.9, "client_steps": 500, "seconds": 42.0, "states": {}}, "seconds": 7.0,
    "provenance": {"commit": "abc", "date": "2026-01-02", "machine": "a machine"},
  } | changes  # fmt: skip


@pytest.fixture
def raw(tmp_path):
  for method, mean, seed in (("qffl", 0.8, 1), ("fedavg", 0.8, 2), ("ditto", 0.5, 3)):
    write_raw(tmp_path, Row("one", method), made(Row("one", method), mean, seed))
  return tmp_path


def test_without_raw_figures_the_page_says_what_is_to_run(tmp_path):
  (path,) = write_page(TINY, tmp_path / "raw", tmp_path / "docs")
  text = path.read_text()
  assert "nothing is compared" in text and "Still to run: one (4 methods), two (4 methods)." in text
  assert "## one" not in text and len(text.encode()) < 16_384


def test_the_page_of_all_tasks_has_a_section_a_task(raw, tmp_path):
  old = made(Row("one", "ditto"), 0.5, 3)
  old["made_by"]["trials"] = 9
  write_raw(raw, Row("one", "ditto"), old)
  paths = write_page(TINY, raw, tmp_path / "docs")
  assert [path.relative_to(tmp_path / "docs").as_posix() for path in paths] == [
    "leaderboard.md", "leaderboard/one.md", "leaderboard/one_settings.md", "images/leaderboard/one.png",
  ]  # fmt: skip
  text = paths[0].read_text()
  assert "| label skew of six clients; asks for θ | [one](#one) | `fedavg`, `qffl` (2 of 3 methods) |" in text
  assert "Still to run: one (1 methods), two (4 methods)." in text
  assert "- Stale, see the task's page: one (1 methods)." in text
  assert "- Stale, trials = 5, was 9: `ditto`." in paths[1].read_text()
  section = text.partition("## one\n")[2].partition("\n## ")[0]
  names = re.findall(r"^\| (\w+) \| (\w*) ?\|", section, re.M)
  assert names == [("method", "group"), ("fedavg", "first"), ("qffl", "first"), ("ditto", "")]
  assert "worst client" in section and "3 methods, 2 cannot be told apart" in section
  assert re.search(r"differences below 0\.\d+ points could not be seen", section)
  # The mean of mean + 0.02 s over five seeds, and t_{0.975, 4} s / √5.
  assert re.search(r"^\| ditto \|  \| 56\.0 ± 3\.9 \| 40\.0 ± 0\.0 \|$", section, re.M), section


def test_a_tasks_own_pages_have_all_columns_and_the_commands(raw, tmp_path):
  write_raw(raw, Row("one", "adam"), {"failed": "Every trial has diverged.", "made_by": {}})
  _, own, settings, picture = write_page(TINY, raw, tmp_path / "docs")
  text = own.read_text()
  row = next(line for line in text.splitlines() if line.startswith("| fedavg"))
  assert [cell.strip() for cell in row.split("|")[4:-1]] == [
    "70.0 ± 0.0", "80.0 ± 0.0", "–", "0.050", "1 MB", "2 MB", "100", "3 s", "4, 42 s",
  ]  # fmt: skip
  assert "- No figures of `adam`: Every trial has diverged." in text
  assert "- `cfl` does not go with the task: cohort_size = 3" in text
  assert "(../images/leaderboard/one.png)" in text and picture.stat().st_size > 5000
  text = settings.read_text()
  assert "| ditto | `--config.local.lr=0.25` | local.lr |" in text and "--sweep.seed=1,2,3,4,5" in text
  assert text.endswith("- commit abc, 2026-01-02, a machine\n")


def test_seeds_that_diverged_and_single_methods_are_not_compared():
  lost = made(Row("one", "ditto"), 0.5)
  lost["seeds"]["2"] = {"diverged": True}
  found = summarized("one", {"ditto": lost, "fedavg": made(Row("one", "fedavg"), 0.8)})
  assert found.failed == {"ditto": "1 of 5 seeds have no value (they diverged)"}
  assert found.groups is None and [line.method for line in found.lines] == ["fedavg"]
  assert found.lines[0].mean("global") is None
  assert summarized("one", {"ditto": lost}).lines == []


def test_one_method_is_not_compared_nor_drawn(tmp_path):
  write_raw(tmp_path, Row("one", "fedavg"), made(Row("one", "fedavg"), 0.8))
  paths = write_page(TINY, tmp_path, tmp_path / "docs")
  assert [path.suffix for path in paths] == [".md"] * 3 and ".png" not in paths[1].read_text()
  assert "One method has been run, so nothing is compared." in paths[0].read_text()
  assert "| fedavg |  | 86.0" in paths[0].read_text()


def test_lower_is_better_for_a_loss():
  rows = {
    name: made(Row("one", name), mean, i) for i, (name, mean) in enumerate([("ditto", 0.2), ("fedavg", 0.9)])
  }
  for row in rows.values():
    row["metric"] = "rmse"
  assert [line.method for line in summarized("one", rows).first] == ["ditto"]


@pytest.mark.slow
def test_many_rows_are_cut_so_that_the_page_stays_short():
  many = {
    f"method_of_a_long_name_{i:03}": made(Row("one", "fedavg"), 0.9 if i < 3 else 0.1, i) for i in range(100)
  }
  task = summarized("one", many)
  text = "\n".join(main_page(TINY, States({}, {}, [], {}, []), [task] * 3))
  assert len(text.encode()) < FITS and "methods with lower means are on the task's page." in text
  assert all(f"| method_of_a_long_name_00{i} | first" in text for i in range(3))


def test_raw_figures_are_those_of_the_boards_checkout(tmp_path):
  assert launcher.raw_folder(ROOT / "configs" / "leaderboard.py", None) == (
    ROOT / "docs" / "results" / "raw" / "leaderboard"
  )
  assert launcher.raw_folder(ROOT / "configs" / "leaderboard.py", str(tmp_path)) == tmp_path


def test_names_of_close_points_do_not_cover_each_other_and_stay_in_the_panel():
  figure = Figure(figsize=(4, 3))
  ax = figure.subplots()
  ax.set(xlim=(0, 1), ylim=(0, 1))
  names = [(x, 0.9 - 0.001 * i, f"method_{i}", "black") for x in (0.2, 0.98) for i in range(4)]
  pictures._write(ax, names, figure.dpi / 72.0)
  figure.draw_without_rendering()
  boxes = [Text.get_window_extent(text) for text in ax.texts]  # without the lines to the points
  assert len(boxes) == 8
  for a, b in itertools.combinations(boxes, 2):
    assert a.x1 <= b.x0 or b.x1 <= a.x0 or abs(a.y0 - b.y0) >= 0.9 * pictures.HEIGHT * figure.dpi / 72.0
  panel = ax.get_window_extent()
  assert all(panel.x0 <= box.x0 and box.x1 <= panel.x1 for box in boxes)


def test_methods_far_below_all_others_are_not_drawn_but_counted(monkeypatch):
  kept = []
  monkeypatch.setattr(pictures, "save", lambda figure, path: kept.append(figure))
  rows = {
    name: made(Row("one", "fedavg"), mean, i)
    for i, (name, mean) in enumerate([(f"m{i:02}", 0.9 + 0.002 * i) for i in range(20)] + [("far", 0.2)])
  }
  pictures.draw(summarized("one", rows), None)
  assert kept[0].get_suptitle() == "one: 21 methods, 1 of them below what is shown"
  shown = [len(own.get_offsets()) for own in kept[0].axes[0].collections]
  assert sum(shown) == 20 and kept[0].axes[0].get_ylim()[0] > 50
  for row in rows.values():  # of a metric of which less is better the least are named, and none is too low
    row["metric"] = "rmse"
  rows["far"] = made(Row("one", "fedavg"), 9.0) | {"metric": "rmse"}
  pictures.draw(summarized("one", rows), None)
  assert kept[1].get_suptitle() == "one: 21 methods, 1 of them above what is shown"
  named = {text.get_text() for text in kept[1].axes[2].texts}
  assert named == {f"m{i:02}" for i in range(6)}


def test_a_method_of_which_no_bytes_are_known_is_on_no_panel_of_bytes(monkeypatch):
  kept = []
  monkeypatch.setattr(pictures, "save", lambda figure, path: kept.append(figure))
  rows = {name: made(Row("one", "fedavg"), mean) for name, mean in (("a", 0.9), ("b", 0.8), ("c", 0.7))}
  for seed in rows["b"]["seeds"].values():
    seed["up"] = None
  for seed in rows["c"]["seeds"].values():
    seed["up"] = seed["down"] = 0.0
  pictures.draw(summarized("one", rows), None)
  counts = [sum(len(own.get_offsets()) for own in ax.collections) for ax in kept[0].axes]
  assert counts == [2, 3, 3]
  assert {text.get_text() for text in kept[0].axes[0].texts} == {"a", "c (0)"}
