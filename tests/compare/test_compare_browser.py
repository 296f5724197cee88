"""The page of runs in a headless Chromium: it loads, sorts, switches, slides; no error, no network."""

import shutil

import numpy as np
import pytest
from run_folders import write_run
from scipy import stats

from fedjax_het.compare import launcher

pytestmark = pytest.mark.slow
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
VALUES = {"fedavg": (0.71, 0.74, 0.69), "ditto": (0.81, 0.79, 0.83), "fedper": (0.75, 0.6)}
RNG = np.random.default_rng(5)


@pytest.fixture(scope="module")
def browser():
  sync_api = pytest.importorskip("playwright.sync_api", reason="pip install -e '.[browser]' runs it")
  path = next(filter(None, map(shutil.which, NAMES)), None)
  if path is None:
    pytest.skip(f"no browser: none of {', '.join(NAMES)} is on the PATH")
  with sync_api.sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=path)
    yield browser
    browser.close()


@pytest.fixture
def opened(browser, tmp_path):
  """Opens the page of some runs; afterwards there must be no error and no request of its."""
  said, asked = [], []

  def open_page(*folders, **options):
    path = launcher.compare([str(folder) for folder in folders], out=str(tmp_path / "page.html"), **options)
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"file://{path}")
    page.wait_for_selector("body[data-ready]", timeout=120_000)
    return page

  yield open_page
  assert not said
  assert all(url.startswith(("file:///", "data:", "blob:")) for url in asked)
  assert len([url for url in asked if url.startswith("file:")]) == 1


@pytest.fixture
def runs(tmp_path):
  """Two or three seeds of three methods, with something for each section."""
  for name, values in VALUES.items():
    for seed, value in enumerate(values):
      x = RNG.random((4, 4, 4, 1)).astype(np.float32)
      arrays = {
        "clients.npz": {
          "personalized/top1": np.arange(12) / 12,
          "personalized/loss": RNG.random(12),
          "names": np.array([f"Köln {i}" for i in range(12)]),
        },
        "partition.npz": {"counts": RNG.integers(0, 9, (12, 3))},
        "landscape.npz": {
          "line": np.linspace(-1, 1, 5),
          "losses": RNG.random((5, 5)),
          **({"models": np.array([[0, 0], [0.5, 0], [0.2, 0.7]])} if seed else {}),
        },
        "samples/000010.npz": {"x": x, "y": np.array([0, 0, 1, 1])},
        "samples/000030.npz": {"x": 1 - x, "y": np.array([0, 0, 1, 1])},
      }
      alphas = [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0]]
      grid = {"metric": "top1", "grid": [0.0, 0.5, 1.0], "mean": [0.1, value, None], "common": 0.5}
      summary = {
        "lambda": grid, "rounds": 30, "client_steps": 300, "bytes": {"up": 1000, "down": 1000},
        "simplex": {"metric": "top1", "alphas": alphas, "all": [0.1, 0.2, 0.3, 0.4],
                    "clusters": {"2": [None] * 4}},
      }  # fmt: skip
      line = {"mixing": {"cohort": [0, 1], "coefficients": [0.3, 0.7], "entropy": 0.6}}
      write_run(
        tmp_path / "runs" / f"{name}{seed}", (0.3, 0.5, value), summary=summary, arrays=arrays, line=line,
        seed=seed, algorithm__name=name,
      )  # fmt: skip
  return tmp_path / "runs"


def column(page, title):
  """The texts of a column of the table of groups, from above."""
  titles = page.locator("#groups thead th").all_inner_texts()
  place = next(i for i, text in enumerate(titles) if text.startswith(title))
  return page.locator(f"#groups tbody td:nth-child({place + 1})").all_inner_texts()


def click(page, title):
  page.locator("#groups thead th button", has_text=title).first.click()


def lines(page, plot):
  """name -> y of the lines of a plot, without bands."""
  script = "id => document.getElementById(id).data.filter(t => t.name).map(t => [t.name, Array.from(t.y)])"
  return dict(page.evaluate(script, plot))


def over_seeds(values, factor=100.0, digits=2):
  half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values)
  return f"{factor * np.mean(values):.{digits}f} ± {factor * half:.{digits}f}"


def test_it_loads_and_sorts(opened, runs):
  page = opened(runs)
  assert page.title() == "Runs compared" and "8 runs" in page.inner_text("#about")
  assert column(page, "runs") == ["ditto", "fedavg", "fedper"]
  assert column(page, "top-1: mean (%)") == [
    over_seeds(VALUES[name]) for name in ("ditto", "fedavg", "fedper")
  ]
  click(page, "top-1: mean (%)")
  assert column(page, "runs") == ["fedper", "fedavg", "ditto"]
  click(page, "top-1: mean (%)")
  assert column(page, "runs") == ["ditto", "fedavg", "fedper"]
  assert page.locator("th[aria-sort=descending]").inner_text().startswith("top-1: mean")
  click(page, "runs")
  assert column(page, "runs") == ["ditto", "fedavg", "fedper"]


def test_differences_are_to_the_line_that_is_chosen(opened, runs):
  page = opened(runs, baseline="fedavg")
  low, high = stats.ttest_rel(VALUES["ditto"], VALUES["fedavg"]).confidence_interval(0.95)
  shown = column(page, "mean less fedavg")
  assert shown[:2] == [f"+{50 * (low + high):.2f} ± {50 * (high - low):.2f}", "–"]
  page.get_by_label("compare with ditto").check()
  shown = column(page, "mean less ditto")
  assert shown[:2] == ["–", f"{-50 * (low + high):.2f} ± {50 * (high - low):.2f}"]
  assert page.locator("tr.baseline td").nth(2).inner_text() == "ditto"


def test_no_difference_is_shown_to_a_line_of_other_data(opened, tmp_path):
  for name, dataset in (("fedavg", "digits"), ("ditto", "digits"), ("fedper", "mnist")):
    write_run(tmp_path / "r" / name, dataset=dataset, algorithm__name=name)
  page = opened(tmp_path / "r", baseline="fedavg")
  assert column(page, "runs") == ["ditto, digits", "fedavg, digits", "fedper, mnist"]
  assert column(page, "mean less fedavg") == ["0.00", "–", "–"]
  others = "whose clients’ data are others"
  assert page.inner_text("#apart") == (
    f"No difference from fedavg, digits, {others}: fedper, mnist (another dataset)."
  )
  page.get_by_label("compare with fedper").check()
  assert column(page, "mean less fedper") == ["–"] * 3
  assert "ditto, digits (another dataset); fedavg, digits" in page.inner_text("#apart")


def test_the_metric_and_the_model_switch_table_and_curves(opened, runs):
  page = opened(runs)
  ditto = np.array([(0.3, 0.5, value) for value in VALUES["ditto"]])
  assert lines(page, "curves")["ditto"] == pytest.approx(100 * ditto.mean(0))
  page.select_option("#metric", "loss")
  assert lines(page, "curves")["ditto"] == pytest.approx(2 - ditto.mean(0))
  losses = 2 - np.array(VALUES["ditto"])
  assert column(page, "loss: mean")[0] == over_seeds(losses, 1.0, 4)
  page.select_option("#model", "global")
  assert lines(page, "curves")["ditto"] == pytest.approx(2.1 - ditto.mean(0))
  page.select_option("#curve", "worst10")
  assert lines(page, "curves")["ditto"] == pytest.approx(2.08 - ditto.mean(0))
  page.select_option("#curve", "train_loss")
  assert lines(page, "curves")["ditto"] == pytest.approx(1 - ditto.mean(0))
  page.select_option("#over", "client_steps")
  script = "document.getElementById('curves').data.filter(t => t.name).map(t => Array.from(t.x))"
  assert page.evaluate(script)[0] == pytest.approx([100, 200, 300])
  assert column(page, "client steps") == ["300", "300", "300"] and column(page, "bytes") == ["2 kB"] * 3
  assert lines(page, "lambda")["fedavg"][:2] == pytest.approx([10, 100 * np.mean(VALUES["fedavg"])])


def test_lines_are_hidden_and_shown(opened, runs):
  page = opened(runs)
  bands = "document.getElementById('curves').data.filter(t => t.fill).map(t => Array.from(t.y))"
  ends = {max(values) for values in VALUES.values()}
  assert {round(max(band) / 100, 9) for band in page.evaluate(bands)} == ends
  page.get_by_label("show ditto").uncheck()
  assert {*lines(page, "curves")} == {"fedavg", "fedper"} == {*lines(page, "clients")}
  modes = "document.getElementById('clients').data.map(trace => trace.mode)"
  assert {*page.evaluate(modes)} == {"markers"}  # twelve clients
  page.locator("#by_name summary").click()
  assert page.locator("#named tbody tr").first.inner_text().split("\t") == ["Köln 0", "0.00", "0.00"]
  assert page.locator("#named tbody tr").count() == 12
  page.click("#none")
  assert not lines(page, "curves")
  page.click("#all")
  assert {*lines(page, "curves")} == {*VALUES}
  page.locator("summary").first.click()
  assert page.locator("#runs tbody tr").count() == 8


def test_the_slider_moves_the_rounds_of_synthetic_examples(opened, runs):
  page = opened(runs)
  image = page.locator("#samples img").first
  late = image.get_attribute("src")
  assert page.inner_text("#round_shown") == "30" and page.locator("#samples figure").count() == 3
  page.locator("#round").focus()
  page.keyboard.press("ArrowLeft")
  assert page.inner_text("#round_shown") == "10" and "round 10" in page.inner_text("#samples")
  early = image.get_attribute("src")
  assert early != late and early.startswith("data:image/png")
  assert image.evaluate("image => image.decode().then(() => image.naturalWidth)") == 10 * 5 + 1


def test_two_panes_show_what_is_chosen(opened, runs):
  page = opened(runs)
  for section in ("mixture", "partition", "simplex", "landscape"):
    assert page.locator(f"#{section} .js-plotly-plot").count() == 2, section
  marks = "document.querySelectorAll('#landscape .plot')[%d].data.map((own) => own.x.length)"
  assert page.evaluate(marks % 0)[1:] == [0, 1] and page.evaluate(marks % 1)[1:] == [2, 1]
  select = page.locator("#mixture select").first
  labels = select.locator("option").all_inner_texts()
  assert labels[:2] == ["ditto, seed 0", "ditto, seed 1"] and len(labels) == 8
  script = "document.querySelector('#partition .plot').data[0].z"
  before = page.evaluate(script)
  page.locator("#partition select").first.select_option("3")
  assert page.evaluate(script) != before
  page.emulate_media(color_scheme="dark")
  for _ in range(100):  # the page's own policy forbids what `wait_for_function` does
    if page.evaluate("document.getElementById('curves').layout.font.color") == "#e4e8ec":
      break
    page.wait_for_timeout(100)
  else:
    pytest.fail("the plots stay light")


def test_runs_without_an_end_or_with_a_bad_one_have_a_page(opened, tmp_path):
  gone = {"diverged": {"round": 12, "client": 3, "loss": None}}
  write_run(tmp_path / "r" / "a", (0.5, 0.6), ended=False)
  write_run(tmp_path / "r" / "b", (), ended=False, local__lr=0.1)
  write_run(tmp_path / "r" / "c", (0.5, None, None), summary=gone, local__lr=0.2)
  page = opened(tmp_path / "r")
  assert column(page, "state") == [
    "round 20 of 30",
    "round 0 of 30, first evaluation at 10",
    "diverged in round 12",
  ]
  assert column(page, "top-1: mean (%)") == ["60.00", "–", "–"]
  assert {name: len(y) for name, y in lines(page, "curves").items()} == {"lr=0.05": 2, "lr=0.2": 1}
  assert (
    not page.locator("#samples_section").is_visible() and not page.locator("#lambda_section").is_visible()
  )
