"""Runs side by side: which are found, how they are grouped, figures beside SciPy's, what the page holds."""

import base64
import io
import json
import sys

import numpy as np
import pytest
from PIL import Image
from run_folders import both, figures, read_page, write_run
from scipy import stats
from terminal_text import shown

from fedjax_het.compare import launcher, page
from fedjax_het.compare.content import content
from fedjax_het.compare.groups import baseline_of, grouped, labels, unnamed
from fedjax_het.compare.runs import find
from fedjax_het.errors import SettingError
from fedjax_het.metrics.seeds import over_seeds, paired

RNG = np.random.default_rng(3)
FEDAVG, DITTO = (0.71, 0.74, 0.69, 0.75), (0.81, 0.79, 0.83)


@pytest.fixture
def seeds(tmp_path):
  """FedAvg with seeds 0 to 3, Ditto with seeds 0 to 2."""
  for name, values in (("fedavg", FEDAVG), ("ditto", DITTO)):
    for seed, value in enumerate(values):
      write_run(tmp_path / f"{name}{seed}", (0.5, 0.6, value), algorithm__name=name, seed=seed)
  return tmp_path


def test_intervals_are_students():
  low, high = stats.t.interval(0.95, len(FEDAVG) - 1, np.mean(FEDAVG), stats.sem(FEDAVG))
  found = over_seeds(FEDAVG)
  assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high), rel=1e-12)
  assert over_seeds([0.0, 2.0]).half == pytest.approx(12.7062047, rel=1e-7)
  assert over_seeds([3.0]) == (3.0, None, 1)
  assert np.isnan(over_seeds([]).mean) and over_seeds([])[1:] == (None, 0)


def test_pairs_are_of_the_seeds_that_both_have():
  own, other = dict(enumerate(DITTO)), {**dict(enumerate(FEDAVG)), 9: 0.1}
  low, high = stats.ttest_rel(DITTO, FEDAVG[:3]).confidence_interval(0.95)
  found = paired(own, other)
  assert (found.mean - found.half, found.mean + found.half, found.seeds) == pytest.approx((low, high, 3))
  assert paired({0: 1.0}, {1: 1.0}).seeds == 0


def test_what_no_label_says_is_told(tmp_path):
  """Ditto's own setting is in no label, and no difference of both."""
  for name, more in (("fedavg", {}), ("ditto", {"algorithm__lam": 0.5})):
    write_run(tmp_path / name, algorithm__name=name, local__lr=0.1 if more else 0.2, **more)
  groups = grouped(find([tmp_path]))
  assert [group.label for group in groups] == ["ditto", "fedavg"]
  assert unnamed(groups) == {"local.lr": [0.1, 0.2]}
  assert "differ also in what their labels do not say: local.lr (0.1, 0.2)." in shown(groups)
  assert not unnamed(grouped(find([tmp_path / "ditto"])))
  write_run(tmp_path / "a", algorithm__name="a", model__std=[0.2, 0.3])
  write_run(tmp_path / "b", algorithm__name="b", model__std=[0.2, 0.4])
  lists = unnamed(grouped(find([tmp_path / "a", tmp_path / "b"])))
  assert lists == {"model.std": [[0.2, 0.3], [0.2, 0.4]]}


def test_runs_are_one_group_but_for_the_seed(seeds):
  write_run(seeds / "elsewhere", seed=4, data_dir="/other", tracking={"wandb": "offline"})
  write_run(seeds / "again", seed=1)
  groups = grouped(find([seeds]))
  members = {tuple(run.name for run in group.runs) for group in groups}
  assert members == {  # a seed that is there twice counts once
    ("fedavg0", "again", "fedavg2", "fedavg3", "elsewhere"), ("ditto0", "ditto1", "ditto2"), ("fedavg1",),
  }  # fmt: skip
  assert {group.label for group in groups} == {"fedavg (1)", "fedavg (2)", "ditto"}
  ditto = next(group for group in groups if group.label == "ditto")
  assert ditto.fields == {"algorithm.name": "ditto"}
  assert ditto.values("personalized", "top1", "mean") == dict(enumerate(DITTO))
  assert ditto.values("global", "top1", "worst10")[1] == pytest.approx(DITTO[1] - 0.1 - 0.02)


def test_labels_say_what_tells_apart_and_no_more():
  superfed = {"algorithm.name": "superfed_mm", "rounds": 20, "local.lr": 0.1, "algorithm.nu": 2.0}
  fields = [
    {"algorithm.name": "fedavg", "rounds": 20, "local.lr": 0.1}, superfed | {"algorithm.nu": 1.0}, superfed,
    superfed | {"rounds": 40}, superfed | {"rounds": 40, "local.lr": 0.2, "landscape.points": 3},
  ]  # fmt: skip
  assert labels(fields) == [
    "fedavg, rounds=20", "superfed_mm, nu=1.0, rounds=20", "superfed_mm, nu=2.0, lr=0.1, rounds=20",
    "superfed_mm, nu=2.0, lr=0.1, rounds=40", "superfed_mm, nu=2.0, lr=0.2, rounds=40",
  ]  # fmt: skip
  assert labels([{"dataset": "a", "x.y": 1}, {"dataset": "a"}, {"dataset": "a"}]) == [
    "x.y=1", "otherwise (1)", "otherwise (2)",
  ]  # fmt: skip


def test_runs_are_found_where_they_are(tmp_path):
  write_run(tmp_path / "one")
  sweep = tmp_path / "sweep"
  for seed in range(2):
    write_run(sweep / "members" / f"seed={seed}", seed=seed, algorithm__name="ditto")
  (sweep / "config.json").write_text(json.dumps({"config": {}, "sweep": {"seed": [0, 1]}}))
  (tmp_path / "model").mkdir()
  (tmp_path / "model" / "config.json").write_text('{"hidden": 3}')
  write_run(tmp_path / "one" / "within")  # in a run's own folder, which is that run alone
  with (tmp_path / "one" / "metrics.jsonl").open("a") as file:
    file.write('{"round": 40, "metr')
  found = find([tmp_path / "one", sweep, tmp_path])
  assert [run.name for run in found] == ["one", "sweep/seed=0", "sweep/seed=1"]
  assert found[0].round == 30 and len(found[0].lines) == 3
  assert [run.name for run in find([sweep / "members" / "seed=1"])] == ["seed=1"]
  for config in ({"rounds": 3, "seed": 0, "algorithm": "fedavg"}, {"algorithm": {"name": "a"}, "rounds": 3}):
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    assert len(find([tmp_path])) == 3
  with pytest.raises(SettingError, match="no such folder"):
    find([tmp_path / "none"])
  with pytest.raises(SettingError, match=r"RUN = .*model.* holds no run"):
    find([tmp_path / "one", tmp_path / "model"])


def test_the_table_fits_a_terminal_and_says_what_scipy_says(seeds):
  groups = grouped(find([seeds]))
  text = shown(groups, baseline=baseline_of(groups, "fedavg"))
  assert max(map(len, text.splitlines())) <= 80 and "…" not in text
  low, high = (100 * end for end in stats.ttest_rel(DITTO, FEDAVG[:3]).confidence_interval(0.95))
  half = 100 * stats.sem(FEDAVG) * stats.t.ppf(0.975, 3)
  assert f"+{(low + high) / 2:.2f} ± {(high - low) / 2:.2f}" in text
  assert f"{100 * np.mean(FEDAVG):.2f} ± {half:.2f}" in text
  assert f"{100 * (np.mean(FEDAVG) - 0.02):.2f}" in text  # worst 10 %
  assert next(line for line in text.splitlines() if line.startswith("fedavg")).rstrip().endswith("–")
  worse = shown(groups, model="global")
  assert f"{100 * (np.mean(FEDAVG) - 0.1):.2f}" in worse and "global model" in worse


def test_tasks_of_different_metrics_have_a_table_each(tmp_path):
  write_run(tmp_path / "one")
  other = {"personalized": {"auroc": figures(0.9), "loss": figures(0.2)}}
  write_run(tmp_path / "two", summary={"metrics": other}, dataset="heart")
  groups = grouped(find([tmp_path]))
  text = shown(groups)
  assert "top-1 (%) of the personalised models" in text and "AUROC of the personalised models" in text
  assert "0.9000" in text and "70.00" in text
  assert set(content(groups)["metrics"]) == {"auroc", "loss", "top1"}


def test_brackets_in_a_label_are_no_markup(tmp_path):
  for name in ("a[old]", "a[/y]"):
    write_run(tmp_path / name)
  text = shown(grouped(find([tmp_path])))
  assert "a[old]" in text and "a[/y]" in text


def test_what_older_or_other_programs_left_is_read_as_far_as_it_goes(tmp_path):
  write_run(tmp_path / "a")
  summary = json.loads((tmp_path / "a" / "summary.json").read_text())
  summary["lambda"] = {"grid": [0.0, 1.0], "mean": [0.5, 0.6], "common": 1.0}  # of what was not yet said
  (tmp_path / "a" / "summary.json").write_text(json.dumps(summary))
  (tmp_path / "a" / "starts.jsonl").unlink(missing_ok=True)
  (tmp_path / "a" / "starts.jsonl").mkdir()
  found = content(grouped(find([tmp_path])))
  assert found["runs"][0]["lambda"]["metric"] == "top1" and "top1" in found["metrics"]


def test_the_baseline_is_named_by_label_name_or_folder(seeds):
  groups = grouped(find([seeds]))
  place = [group.label for group in groups].index("fedavg")
  for name in ("fedavg", "fedavg2", str(seeds / "fedavg1")):
    assert baseline_of(groups, name) == place
  with pytest.raises(SettingError, match=r"baseline = 'fedprox'.*ditto; fedavg"):
    baseline_of(groups, "fedprox")


def test_the_page_holds_the_figures(seeds, tmp_path):
  groups = grouped(find([seeds]))
  found = read_page(page.write_page(content(groups, 1), tmp_path / "new" / "page.html"))
  assert found["baseline"] == 1 and found["metric"] == "top1" and found["fields"] == ["algorithm.name"]
  assert found["quantiles"] == pytest.approx([stats.t.ppf(0.975, n) for n in (1, 2, 3)], rel=1e-12)
  fedavg = next(group for group in found["groups"] if group["label"] == "fedavg")
  runs = [found["runs"][place] for place in fedavg["counted"]]
  assert [run["metrics"]["personalized"]["top1"]["mean"] for run in runs] == list(FEDAVG)
  assert runs[0]["metrics"] == both(FEDAVG[0])
  assert runs[1]["curves"]["round"] == [10, 20, 30]
  assert runs[1]["curves"]["metrics/global/top1/worst10"] == pytest.approx([0.38, 0.48, FEDAVG[1] - 0.12])
  assert runs[1]["curves"]["train_loss"] == pytest.approx([0.5, 0.4, 1 - FEDAVG[1]])
  assert found["metrics"]["top1"]["unit"] == "%" and found["metrics"]["top1"]["factor"] == 100
  assert found["metrics"]["loss"]["higher_is_better"] is False


def test_the_page_needs_no_network_and_no_text_ends_its_scripts(tmp_path):
  write_run(tmp_path / "a", algorithm__note="</script><b>&amp;")
  write_run(tmp_path / "b")
  path = page.write_page(content(grouped(find([tmp_path]))), tmp_path / "page.html", title="<b> & co")
  text = path.read_text()
  assert text.count("</script>") == 3 and "<title>&lt;b&gt; &amp; co</title>" in text
  assert "default-src 'none'" in text and "{{" not in text.split("<script>")[0]
  assert read_page(path)["groups"][0]["fields"]["algorithm.note"] == "</script><b>&amp;"


def test_clients_are_sorted_from_worst_to_best(tmp_path):
  top1, loss, many = RNG.random(7), RNG.random(7), RNG.random(1500).astype(np.float32)
  top1[2] = np.nan
  arrays = {"clients.npz": {"personalized/top1": top1, "personalized/loss": loss, "global/top1": many}}
  write_run(tmp_path / "run", arrays=arrays)
  found = content(grouped(find([tmp_path])))["runs"][0]["clients"]
  assert found["personalized/top1"]["count"] == 6
  assert found["personalized/top1"]["values"] == pytest.approx(sorted(top1[np.isfinite(top1)]), rel=1e-5)
  assert found["personalized/loss"]["values"] == pytest.approx(sorted(loss)[::-1], rel=1e-5)
  assert found["global/top1"]["count"] == 1500
  wanted = np.quantile(many, np.linspace(0, 1, 200))
  assert found["global/top1"]["values"] == pytest.approx(wanted, rel=1e-4)


def test_mixtures_are_lines_of_few_clients_and_quantiles_of_many(tmp_path):
  def mixing(*p, cohort=None):
    return {"mixing": {"cohort": cohort or list(range(len(p))), "coefficients": list(p), "entropy": 1.0}}

  many = RNG.dirichlet(np.ones(40))
  write_run(tmp_path / "few", line=mixing(0.2, 0.8, cohort=[4, 7]), algorithm__name="a")
  write_run(tmp_path / "many", line=mixing(*many), algorithm__name="b")
  write_run(tmp_path / "one", line=mixing(1.0), algorithm__name="c")
  others = write_run(tmp_path / "others", line=mixing(0.2, 0.8), algorithm__name="d") / "metrics.jsonl"
  others.write_text(others.read_text().replace('"cohort": [0, 1]', '"cohort": [0, 2]', 1))
  few, large, one, changing = (run["mixture"] for run in content(grouped(find([tmp_path])))["runs"])
  assert few == {"round": [10, 20, 30], "each": True, "even": 0.5,
                 "lines": {"client 4": [0.2] * 3, "client 7": [0.8] * 3}}  # fmt: skip
  assert not large["each"] and one is None and not changing["each"]
  for q, line in large["lines"].items():
    assert line == pytest.approx([np.quantile(many, float(q[:-2]) / 100)] * 3, rel=1e-5)


def test_a_partition_is_there_once_and_a_large_one_is_its_picture(tmp_path):
  counts = RNG.integers(0, 9, (5, 3))
  for name in "ab":
    write_run(tmp_path / name, arrays={"partition.npz": {"counts": counts}}, algorithm__name=name)
  write_run(tmp_path / "c", arrays={"partition.npz": {"counts": np.ones((3000, 10), int)}}, seed=7)
  write_run(tmp_path / "d", algorithm__name="d")
  (tmp_path / "c" / "figures").mkdir()
  Image.new("RGB", (2, 2)).save(tmp_path / "c" / "figures" / "partition.png")
  found = content(grouped(find([tmp_path])))
  assert [run["partition"] for run in found["runs"]] == [0, 0, 1, None]
  assert found["partitions"][0] == {"counts": counts.tolist(), "runs": ["a", "b"]}
  picture = base64.b64decode(found["partitions"][1]["picture"].partition(",")[2])
  assert Image.open(io.BytesIO(picture)).size == (2, 2)


def test_synthetic_examples_are_pictures_of_ten_rounds(tmp_path):
  x, y = RNG.random((6, 4, 5, 1)).astype(np.float32), np.array([0, 0, 1, 1, 2, 2])
  rounds = {f"samples/{round:06d}.npz": {"x": x, "y": y} for round in range(1, 26)}
  for seed in range(2):
    write_run(tmp_path / str(seed), arrays=rounds, seed=seed)
  (tmp_path / "0" / "samples" / "000025.npz").write_bytes(b"PK torn")
  np.savez(tmp_path / "0" / "samples" / "000024 (1).npz", x=x, y=y)
  first, second = (run["samples"] for run in content(grouped(find([tmp_path])))["runs"])
  assert [frame["round"] for frame in first] == [1, 4, 6, 9, 12, 14, 17, 20, 22] and not second
  image = np.asarray(Image.open(io.BytesIO(base64.b64decode(first[0]["picture"].partition(",")[2]))))
  assert image.shape == (3 * 5 + 1, 10 * 6 + 1)
  np.testing.assert_allclose(image[1:5, 1:6] / 255, x[0, ..., 0], atol=0.5 / 255 + 1e-6)


def test_what_synthetic_examples_are_worth_is_a_table_of_its_own(seeds):
  assert "synthetic" not in shown(grouped(find([seeds])))
  for name, values in (("fedavg", FEDAVG), ("ditto", DITTO)):
    for seed, value in enumerate(values):
      path = seeds / f"{name}{seed}" / "summary.json"
      summary = json.loads(path.read_text())
      own = {"local": {"mean": value / 2, "std": 0.1}}
      path.write_text(json.dumps(summary | {"synthetic": {"downstream": own}}))
  groups = grouped(find([seeds]))
  assert groups[0].values("synthetic", "top1", "mean") == {seed: v / 2 for seed, v in enumerate(DITTO)}
  table = shown(groups, baseline=1).split("learnt from the synthetic examples alone")[1]
  assert f"{100 * np.mean(FEDAVG) / 2:.2f}" in table and f"{100 * np.mean(DITTO) / 2:.2f}" in table
  apart = np.subtract(DITTO, FEDAVG[:3]) / 2
  assert f"+{100 * apart.mean():.2f}" in table


def test_without_plotly_there_is_the_table(seeds, tmp_path, monkeypatch, capsys):
  monkeypatch.setitem(sys.modules, "plotly.offline", None)
  monkeypatch.setenv("COLUMNS", "80")
  monkeypatch.chdir(tmp_path)
  launcher.main([str(seeds), "--plain", "--baseline=fedavg"])
  assert "differences from fedavg" in capsys.readouterr().out and not (tmp_path / "compare.html").exists()
  for given, out in (([], "compare.html"), (["--out=report.html"], "report.html")):
    with pytest.raises(SystemExit) as ended:
      launcher.main([str(seeds), *given])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert f"out = {out!r}: a page needs" in said and "None" not in said
    assert "pip install 'fedjax_het[compare]'" in said and "--plain" in said


def test_mistakes_are_one_line(seeds, tmp_path, capsys):
  for wrong, says in (
    ([str(tmp_path / "none")], "no such folder"),
    ([str(seeds), "--baseline=x"], "no run is called that"),
    ([str(seeds), f"--out={tmp_path / 'fedavg0' / 'config.json'}/x.html"], "cannot be written"),
  ):
    with pytest.raises(SystemExit) as ended:
      launcher.main(wrong)
    said = capsys.readouterr().err
    assert ended.value.code == 1 and says in said and len(said.splitlines()) == 1
