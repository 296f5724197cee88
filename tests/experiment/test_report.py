"""What a run leaves behind: its folder, its record, its progress and its table."""

import io
import json
import math

import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from fedjax_het.errors import SettingError
from fedjax_het.experiment.report import report
from fedjax_het.metrics.fairness import summarize_all
from fedjax_het.output import progress as progress_module
from fedjax_het.output.progress import Progress, of_library
from fedjax_het.workdir.folder import Workdir, prepare, write_atomic
from fedjax_het.workdir.tracking import Tracker, to_json

CONFIG = {"seed": 0, "algorithm": {"name": "superfed_mm", "nu": 2.0}, "hidden": (200, 200), "rounds": 500}


# The folder.


def test_prepare_makes_the_folder_and_takes_it_up_again(tmp_path):
  run = prepare(tmp_path / "a" / "b", CONFIG)
  assert run.checkpoints.is_dir() and run.figures.is_dir()
  assert [p.name for p in (run.config_path, run.metrics_path, run.summary_path)] == [
    "config.json", "metrics.jsonl", "summary.json",
  ]  # fmt: skip
  text = run.config_path.read_text()
  assert list(json.loads(text)) == sorted(CONFIG)
  again = prepare(str(tmp_path / "a" / "b"), dict(reversed(CONFIG.items())))
  assert again == run and run.config_path.read_text() == text
  assert sorted(p.name for p in run.root.iterdir()) == ["checkpoints", "config.json", "figures"]


@pytest.mark.parametrize(
  "change, field, old, new",
  [
    ({"rounds": 100, "seed": 3}, "rounds", "500", "100"),
    ({"algorithm": {"name": "superfed_mm", "nu": 1.0}, "seed": 3}, "algorithm.nu", "2.0", "1.0"),
    ({"hidden": (200, 100)}, "hidden", "[200, 200]", "[200, 100]"),
    ({"extra": None}, "extra", "absent", "None"),
    ({"algorithm": {"name": "superfed_mm", "mu": 0.5}}, "algorithm.mu", "0.0", "0.5"),
  ],
)
def test_another_config_names_the_first_difference(tmp_path, change, field, old, new):
  run = prepare(tmp_path, CONFIG)
  before = run.config_path.read_bytes()
  with pytest.raises(SettingError) as error:
    prepare(tmp_path, {**CONFIG, **change})
  assert error.value.setting == field
  for part in (old, new, str(tmp_path), "another workdir", "same config"):
    assert part in str(error.value)
  assert run.config_path.read_bytes() == before


def test_all_differences_are_named_those_of_the_user_first(tmp_path):
  """Of a configuration whose `eval_every` follows from `rounds` nobody has set the former."""
  config = {"rounds": 100, "eval_every": 10, "algorithm": {"mu": 0.1, "name": "superfed_mm"}}
  prepare(tmp_path, config)
  with pytest.raises(SettingError) as error:
    prepare(tmp_path, {**config, "rounds": 200, "eval_every": 20})
  assert str(error.value).startswith(f"rounds = 200: the run in {tmp_path} was started with rounds = 100, ")
  assert "and with eval_every = 10 (here 20). Use another workdir" in str(error.value)
  with pytest.raises(SettingError, match=r"^algorithm\.name = 'fedavg'.*mu = 0\.1 \(here absent\)"):
    prepare(tmp_path, {**config, "algorithm": {"name": "fedavg"}})


def test_config_leaves(tmp_path):
  config = {"lr": np.float32(0.5), "nan": math.nan, "path": tmp_path, "empty": {}, "grid": np.arange(3)}
  prepare(tmp_path, config)
  prepare(tmp_path, config)
  with pytest.raises(SettingError, match="empty"):
    prepare(tmp_path, {**config, "empty": {"a": 1}})
  with pytest.raises(TypeError, match="JSON cannot"):
    prepare(tmp_path / "x", {"f": print})


def test_a_folder_that_cannot_be_written(tmp_path):
  file = tmp_path / "file"
  file.write_text("")
  for path in (file, file / "below"):
    with pytest.raises(SettingError, match="cannot be written") as error:
      prepare(path, CONFIG)
    assert error.value.setting == "workdir" and str(path) in str(error.value)


def test_a_broken_config_file(tmp_path):
  prepare(tmp_path, CONFIG).config_path.write_text('{"seed": ')
  with pytest.raises(SettingError, match=r"config\.json cannot be read"):
    prepare(tmp_path, CONFIG)


def test_write_atomic_leaves_the_old_file_on_failure(tmp_path, monkeypatch):
  path = tmp_path / "f"
  write_atomic(path, "old")

  def disk_full(descriptor):
    raise OSError("disk full")

  monkeypatch.setattr("os.fsync", disk_full)
  with pytest.raises(OSError, match="disk full"):
    write_atomic(path, "new")
  assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["f"]


# The record.


def record(r, clients=20):
  rng = np.random.default_rng(r)
  top1 = np.clip(0.95 - 0.8 * math.exp(-r / 50) + 0.04 * rng.standard_normal(clients), 0, 1)
  figures = summarize_all({"top1": top1, "loss": 2 * (1 - top1)})
  return {
    "round": r,
    "train_loss": jnp.float32(2.3 * math.exp(-r / 40)),
    "metrics": {"personalized": figures, "global": figures},
    "seconds": {"train": np.float64(r)},
    "rounds_per_second": 2.0,
    "note": "text",
  }


def test_tracker_writes_valid_json_lines(tmp_path):
  with Tracker(Workdir(tmp_path)) as tracker:
    bad = {"round": 1, "a": math.nan, "b": [1.0, -math.inf], "c": jnp.arange(2), "d": {"e": np.bool_(True)}}
    tracker.log(bad)
    assert (tmp_path / "metrics.jsonl").read_text().endswith("\n")  # flushed
  tracker.close()
  line = (tmp_path / "metrics.jsonl").read_text()
  assert json.loads(line) == {"round": 1, "a": None, "b": [1.0, None], "c": [0, 1], "d": {"e": True}}
  assert to_json({"x": math.inf}) == '{"x": null}'


def test_resumed_record_equals_an_uninterrupted_one(tmp_path):
  for name in ("whole", "resumed"):
    (tmp_path / name).mkdir()
  with Tracker(tmp_path / "whole") as tracker:
    for r in range(0, 60, 10):
      tracker.log(record(r))
  with Tracker(tmp_path / "resumed") as tracker:
    for r in range(0, 50, 10):  # past the checkpoint at 20
      tracker.log(record(r))
  with (tmp_path / "resumed" / "metrics.jsonl").open("a") as file:
    file.write('{"round": 5, "train_l')  # a crash in the middle of a line
  with Tracker(tmp_path / "resumed") as tracker:
    tracker.truncate(20)
    for r in range(30, 60, 10):
      tracker.log(record(r))
  whole, resumed = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", "resumed"))
  assert whole == resumed and whole.count(b"\n") == 6
  with Tracker(tmp_path / "resumed") as tracker:
    tracker.truncate(-1)
  assert (tmp_path / "resumed" / "metrics.jsonl").read_bytes() == b""


def test_a_complete_line_without_its_end_is_dropped(tmp_path):
  (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n{"round": 2}')
  with Tracker(tmp_path) as tracker:
    tracker.truncate(2)
  assert (tmp_path / "metrics.jsonl").read_text() == '{"round": 1}\n'


def events_in(folder):
  from tensorboardX.proto.event_pb2 import Event

  found = []
  for path in sorted(folder.glob("events*")):
    data, at = path.read_bytes(), 0
    while at < len(data):
      size = int.from_bytes(data[at : at + 8], "little")
      found.append(Event.FromString(data[at + 12 : at + 12 + size]))
      at += 16 + size
  return found


def test_tensorboard_events(tmp_path):
  with Tracker(tmp_path) as tracker:
    tracker.log({**record(10), "hole": math.nan})
  seen = {value.tag: value.simple_value for event in events_in(tmp_path / "tensorboard")
          for value in event.summary.value}  # fmt: skip
  assert "metrics/personalized/top1/worst10" in seen and "seconds/train" in seen
  assert not {"hole", "note", "round"} & set(seen)
  assert seen["train_loss"] == pytest.approx(float(record(10)["train_loss"]))
  with Tracker(tmp_path) as tracker:
    tracker.truncate(5)
    tracker.log(record(10))
  assert any(
    event.HasField("session_log") and event.step == 10 for event in events_in(tmp_path / "tensorboard")
  )


# Progress.


def test_progress_in_a_log_file(monkeypatch):
  now = [0.0]
  monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
  out = io.StringIO()
  with Progress(100, console=Console(file=out, width=60), every=5.0) as progress:
    progress.begin(20)
    with progress.doing("compiling the rounds"):
      now[0] = 30.0
    for r in range(30, 101, 10):
      progress.update(r, train_loss=0.25, top1=0.5)
      now[0] += 2.0
  lines = out.getvalue().splitlines()
  assert lines.pop(0) == "continuing after round 20"
  assert lines.pop(0) == "compiling the rounds" and 3 <= len(lines) <= 5
  assert lines[0].startswith("round 30/100 (30 %)")
  assert "5 rounds/s" in lines[1] and "ETA 0:00:0" in lines[1]  # the compilation does not count
  assert "train loss 0.25" in lines[-1] and "top-1 50.00 %" in lines[-1] and "100/100" in lines[-1]
  assert "\x1b" not in out.getvalue()


def test_what_is_compiled_on_the_way_does_not_slow_the_rate(monkeypatch):
  now, out = [0.0], io.StringIO()
  monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
  with Progress(100, console=Console(file=out, width=60), every=0.0) as progress:
    for r in (10, 20):
      progress.update(r)
      now[0] += 2.0
    with progress.doing("outer"):
      now[0] += 30.0
      with progress.doing("compiling the evaluation"):
        now[0] += 70.0
    progress.update(30)
  assert out.getvalue().splitlines()[-1].startswith("round 30/100 (30 %)  5 rounds/s  ETA 0:00:14")


def test_progress_is_a_flag():
  assert of_library(5, None, True) and of_library(5, True, False)
  with pytest.raises(SettingError, match="progress = 'yes': neither True nor False"):
    of_library(5, "yes", True)


@pytest.mark.parametrize("width", [80, 200])
def test_progress_on_a_terminal(width, monkeypatch):
  """What goes on stands beside the bar with its seconds, the figures below, and nothing is cut off."""
  now = [0.0]
  monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
  screen = Console(file=io.StringIO(), force_terminal=True, width=width)
  figures = {"train_loss": 0.01471, "top1": 0.9749, "auroc": 0.9, "cosine": 0.03159, "disagreement": 0.5}
  with Progress(1000, console=screen) as progress:

    def seen() -> list[str]:
      paper = Console(file=io.StringIO(), width=width)
      paper.print(progress._bar.get_renderable())
      return [line.rstrip() for line in paper.file.getvalue().splitlines()]

    with progress.doing("compiling the first state"):
      now[0] = 12.4
      with progress.doing("compiling the rounds"):
        now[0] += 3.0
        assert seen()[0].endswith("0/1000 rounds compiling the rounds: 3 s") and len(seen()) == 1
      assert seen()[0].endswith("compiling the first state: 15 s")
    progress.begin(200)
    assert seen()[0].endswith("200/1000 rounds")
    for done in (300, 900):
      progress.update(done, **figures)
      now[0] += 100.0
    lines = seen()
  assert lines[0].endswith("900/1000 rounds 6 rounds/s  ETA 0:00:17")
  assert " ".join(" ".join(lines[1:]).split()) == (
    "train loss 0.01471 top-1 97.49 % AUROC 0.9 cosine 0.03159 disagreement 0.5"
  )
  assert len(lines) == 2 and "…" not in "".join(lines)


def test_what_goes_on_before_the_rounds():
  plain, screen = io.StringIO(), io.StringIO()
  with progress_module.doing("reading the data", Console(file=plain)):
    pass
  with progress_module.doing("reading the data", Console(file=screen, force_terminal=True, width=80)):
    pass
  assert not plain.getvalue() and "reading the data: 0 s" in screen.getvalue()


def test_progress_survives_errors_and_nothing_to_do():
  out = io.StringIO()
  with pytest.raises(RuntimeError), Progress(10, console=Console(file=out)) as progress:
    progress.update(3)
    raise RuntimeError
  assert "round 3/10" in out.getvalue()
  with Progress(0, console=Console(file=out)) as progress:
    progress.update(0)


# The table.


def make_summary(**more):
  rng = np.random.default_rng(0)

  def block(a):
    top1 = np.clip(a + 0.05 * rng.standard_normal(50), 0, 1)
    wrong = 1 - top1
    return summarize_all({"top1": top1, "top5": top1, "loss": wrong, "ece": wrong / 3, "mce": wrong / 2})

  return {
    "algorithm": "superfed_mm", "dataset": "mnist", "rounds": 500, "num_clients": 100, "client_steps": 120000,
    "seconds": {"compile": 3.2, "train": 290.0, "eval": 4.5}, "bytes": {"up": 2.4e9, "down": 2.4e9},
    "metrics": {"personalized": block(0.9), "global": block(0.7)}, **more,
  }  # fmt: skip


def shown(summary, width=100):
  out = io.StringIO()
  Console(file=out, width=width).print(report(summary))
  return out.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_holds_every_figure(width):
  summary = make_summary()
  text = shown(summary, width)
  for block in summary["metrics"].values():
    for name, figures in block.items():
      scale, digits = (100, 2) if name.startswith("top") else (1, 4)
      for key, value in figures.items():
        number = f"{value:.4f}" if key == "gini" else f"{scale * value:.{digits}f}"
        assert number in text, (name, key)
  for part in ("superfed_mm", "mnist", "100 clients", "500 rounds", "120,000", "train 290.0", "2.4 GB up"):
    assert part in text
  assert max(map(len, text.splitlines())) <= width
  assert text.splitlines()[1] == "100 clients · 500 rounds · 120,000 client steps"  # no line is broken


def test_both_models_have_the_same_rows_and_one_block_where_they_are_one():
  summary = make_summary()
  both = summary["metrics"]
  assert shown(summary).count("top-5") == 2
  both["personalized"]["top5"]["mean"] = 1.0
  assert shown(summary).count("top-5") == 2
  both["global"]["top5"]["mean"] = 1.0
  assert "top-5" not in shown(summary) and "personalised = global" not in shown(summary)
  both["personalized"]["loss"]["gini"] = both["global"]["loss"]["gini"] = math.nan
  summary["metrics"] = {name: json.loads(json.dumps(both["global"])) for name in both}
  assert "personalised = global" in shown(summary)


def test_the_table_tolerates_what_is_missing():
  summary = make_summary()
  del summary["metrics"]["global"], summary["seconds"], summary["metrics"]["personalized"]["mce"]
  summary["metrics"]["personalized"]["loss"]["std"] = None
  summary["metrics"]["personalized"]["auroc"] = dict.fromkeys(["mean", "std"], math.nan)
  text = shown(summary)
  assert "global" not in text and "AUROC" in text and "± –" in text and "MCE" not in text
  assert "?" in shown({})
  same = make_summary()
  same["metrics"]["global"] = same["metrics"]["personalized"]
  assert "= global" in shown(same) and shown(same).count("top-1 (%)") == 1


def test_the_lambda_sweep_in_the_table():
  grid = np.linspace(0, 1, 11)
  sweep = {
    "grid": grid.tolist(), "mean": (0.9 - 0.1 * (grid - 0.4) ** 2).tolist(), "std": [0.0123] * 11,
    "common": 0.4, "validation": {"mean": 0.8912, "std": 0.02}, "per_client_test_optimistic": 0.9345,
  }  # fmt: skip
  text = shown(make_summary(**{"lambda": sweep}))
  assert next(line for line in text.splitlines() if "best common" in line).split()[:4] == [
    "0.40", "90.00", "±", "1.23",
  ]  # fmt: skip
  assert "89.12 ± 2.00 %" in text and "93.45 %" in text and "optimistic" in text


@pytest.mark.parametrize("width", [80, 120])
def test_the_lambda_sweep_says_what_it_shows_and_what_it_was_picked_on(width):
  sweep = {
    "grid": [0.0, 0.5, 1.0], "metric": "auroc", "mean": [0.9, 0.7, 0.5], "std": [0.0123] * 3, "common": 0.5,
    "picked_on": "validation", "picked_by": "auroc", "validation": {"mean": 0.8912, "std": 0.02},
    "per_client_test_optimistic": 0.9345,
  }  # fmt: skip
  text = shown(make_summary(**{"lambda": sweep}), width)
  assert "AUROC, mean ± std" in text
  marked = next(line for line in text.splitlines() if "best common" in line)
  assert " ".join(marked.split()) == "0.50 0.7000 ± 0.0123 best common λ on the validation parts, by AUROC"
  assert "part: 0.8912 ± 0.0200\n" in text and "0.9345\n" in text
  on_test = {**sweep, "metric": "top1", "picked_on": "test", "picked_by": "top1"}
  assert "best common λ on the test parts, by top-1" in shown(make_summary(**{"lambda": on_test}), width)


def test_the_table_says_who_is_left_out():
  counts = {"top1": 1, "loss": 1, "auroc": 3}
  text = " ".join(shown(make_summary(left_out={"personalized": counts, "global": counts})).split())
  assert "(for AUROC, of both classes): 1 client of top-1, loss; 3 clients of AUROC" in text
  assert "left out" not in shown(make_summary())


def test_an_empty_workdir_is_no_folder():
  """As an unset variable of a shell makes it: the run would lie in the current folder."""
  with pytest.raises(SettingError, match="workdir = '': is empty"):
    prepare("", {})
