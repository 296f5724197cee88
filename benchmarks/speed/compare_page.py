"""Measures the page of `python -m fedjax_het.compare`: its size, and how long a headless Chromium takes.

    python benchmarks/speed/compare_page.py RUN RUN ... [--page=page.html] [--picture=docs/images/compare.png]

The script needs the extras `compare` and `browser`, and a Chromium on the PATH. Times are those of the
browser's own clock (PerformanceNavigationTiming): `interactive`, when the page is drawn, since its script
runs while the page is parsed, and `load`, when the browser is done. The 50 runs of
docs/results/raw/compare_page.json were made by

    python -m fedjax_het.run --config.rounds=20 --config.eval_every=2 --sweep.seed=0,1 \
      --sweep.algorithm.nu=0,0.1,0.2,...,2.4 --workdir=DIR

--picture writes a picture of the page's upper part, 1400 pixels wide.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from benchmarks.provenance import RAW, provenance
from fedjax_het.compare.launcher import compare
from fedjax_het.compare.runs import find

TIMES = {"responseEnd": "read", "domInteractive": "interactive", "loadEventEnd": "load"}
COLOURS = 128  # of the picture


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("runs", nargs="+")
  parser.add_argument("--page", type=Path)
  parser.add_argument("--picture", type=Path)
  parser.add_argument("--turns", type=int, default=7)
  parser.add_argument("--height", type=int, default=1555, help="of the picture, pixels")
  parser.add_argument("--out", type=Path, default=RAW / "compare_page.json")
  args = parser.parse_args()
  page = args.page or Path(tempfile.mkdtemp()) / "page.html"
  compare(args.runs, out=str(page))
  path = shutil.which("chromium") or shutil.which("google-chrome")
  with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=path)
    if args.picture:
      take(browser, page, args.picture, args.height)
    else:
      record(browser, page, args)


def record(browser: Browser, page: Path, args: argparse.Namespace) -> None:
  """Writes OUT."""
  turns = [timed(browser, page) for _ in range(args.turns)]
  found = provenance() | {
    "load_average": round(os.getloadavg()[0], 1),
    "browser": browser.version, "runs": len(find(args.runs)), "bytes": page.stat().st_size, "turns": turns,
    "median_ms": {name: statistics.median(turn[name] for turn in turns) for name in TIMES.values()},
  }  # fmt: skip
  args.out.write_text(json.dumps(found, indent=1) + "\n")
  print(json.dumps(found["median_ms"]), found["bytes"])


def timed(browser: Browser, page: Path) -> dict[str, float]:
  """Milliseconds from the start of a load in a fresh tab."""
  with browser.new_page(viewport={"width": 1400, "height": 1000}) as tab:
    tab.goto(f"file://{page.absolute()}", wait_until="load", timeout=120_000)
    tab.wait_for_selector("body[data-ready]", timeout=120_000)
    found = tab.evaluate("performance.getEntriesByType('navigation')[0].toJSON()")
  return {ours: round(found[theirs], 1) for theirs, ours in TIMES.items()}


def take(browser: Browser, page: Path, target: Path, height: int) -> None:
  """A picture of the page, of few colours."""
  from PIL import Image

  with browser.new_page(viewport={"width": 1400, "height": height}) as tab:
    tab.goto(f"file://{page.absolute()}")
    tab.wait_for_selector("body[data-ready]", timeout=120_000)
    tab.wait_for_timeout(2000)
    tab.screenshot(path=target)
  Image.open(target).convert("RGB").quantize(COLOURS).save(target, optimize=True)


if __name__ == "__main__":
  main()
