"""What somebody removes, cuts or takes from a run, under way or between two starts: made good, or said."""

import json
import shutil

import pytest
from cases import with_every
from launching import records, small, start
from matplotlib.figure import Figure

from fedjax_het.errors import SettingError
from fedjax_het.experiment import experiment, sweep
from fedjax_het.program.display import Display
from fedjax_het.program.where import Where
from fedjax_het.studies import client_metrics
from fedjax_het.workdir import claim
from fedjax_het.workdir.checkpoint import Checkpoints
from fedjax_het.workdir.claim import Claimed, Lost
from fedjax_het.workdir.tracking import Tracker

PICTURES = ("accuracy_over_clients.png", "learning_curve.png", "mixing.png", "partition.png")


def tiny(**changes):
  return small(
    rounds=4, eval_every=1, algorithm={"name": "fedavg"}, model={"name": "logistic_regression"}, **changes
  )


class Shown(Display):
  """Keeps what is said."""

  def __init__(self):
    self.texts = []

  def show(self, *what):
    self.texts += [one for one in what if isinstance(one, str)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """A complete run of four rounds, and its summary."""
  workdir = tmp_path_factory.mktemp("lost") / "run"
  return workdir, start(tiny(), str(workdir))


@pytest.fixture
def copy(whole, tmp_path):
  return shutil.copytree(whole[0], tmp_path / "run")


@pytest.fixture
def after(monkeypatch):
  """Does something once a round is done, by default with its checkpoint on the disk."""

  def arrange(done, act, written=True):
    real, save = experiment.chunks, Checkpoints.save
    if written:
      monkeypatch.setattr(Checkpoints, "save", lambda self, *args: (save(self, *args), self.wait()))

    def watched(engine, *args):
      for chunk in real(engine, *args):
        if engine.rounds_done(chunk.state) == done + 1:
          act()
        yield chunk

    monkeypatch.setattr(experiment, "chunks", watched)

  return arrange


def lines(workdir) -> list[str]:
  return (workdir / "metrics.jsonl").read_text().splitlines(keepends=True)


LOSSES = {
  "gone": (lambda path, own: path.unlink(), "1, 2, 3, 4"),
  "emptied": (lambda path, own: path.write_text(""), "1, 2, 3, 4"),
  "cut": (lambda path, own: path.write_text("".join(own[:2]) + own[2][:9]), "3, 4"),
  "a line in the middle": (lambda path, own: path.write_text("".join([own[0], "{\n", *own[2:]])), "2"),
  "a number": (
    lambda path, own: path.write_text("".join(own).replace('"round": 3', '"round": 3, "x": 1')),
    "3",
  ),
}


@pytest.mark.parametrize("how", LOSSES)
def test_lines_that_were_lost_come_back_from_what_a_checkpoint_holds(tmp_path, how):
  with Tracker(tmp_path) as tracker:
    assert tracker.truncate(-1) == []
    for done in range(1, 6):
      tracker.log({"round": done, "loss": done / 3})
    kept = list(tracker.lines[:4])
  whole = lines(tmp_path)[:4]
  assert kept == whole
  act, rounds = LOSSES[how]
  act(tmp_path / "metrics.jsonl", lines(tmp_path))
  with Tracker(tmp_path) as tracker:
    lost = tracker.truncate(4, kept)
    assert ", ".join(str(json.loads(line)["round"]) for line in lost) == rounds
    tracker.log({"round": 5, "loss": 5 / 3})
  assert lines(tmp_path)[:4] == whole and len(lines(tmp_path)) == 5


def test_a_record_that_is_changed_under_the_run_is_written_again(tmp_path, caplog):
  path = tmp_path / "metrics.jsonl"
  with Tracker(tmp_path) as tracker:
    tracker.truncate(-1)
    for i, act in enumerate((path.unlink, lambda: path.write_text(""), lambda: path.write_text("x" * 999))):
      tracker.log({"round": i})
      act()
      assert len(caplog.messages) == i
      tracker.log({"round": i + 0.5})
    assert [json.loads(line)["round"] for line in lines(tmp_path)] == [0, 0.5, 1, 1.5, 2, 2.5]
  assert len(caplog.messages) == 3 and "removed or changed under the run" in caplog.messages[0]


@pytest.mark.slow
@pytest.mark.parametrize("how", with_every(LOSSES, *list(LOSSES)[::3]))
def test_a_resumed_run_says_what_its_record_lost_and_has_it_again(whole, copy, how, caplog):
  (copy / "summary.json").unlink()
  before = lines(copy)
  act, rounds = LOSSES[how]
  act(copy / "metrics.jsonl", before)
  held = (copy / "metrics.jsonl").read_bytes() if how != "gone" else b""
  summary = start(tiny(), str(copy))
  assert lines(copy) == before and summary["metrics"] == whole[1]["metrics"]
  assert f"metrics.jsonl had lost its lines of rounds {rounds}; the checkpoint has them" in caplog.text
  aside = copy / "metrics.before_damage.jsonl"
  assert aside.exists() == (how == "a number")
  assert not aside.exists() or aside.read_bytes() == held


@pytest.mark.slow
def test_a_complete_run_that_lost_lines_says_how_to_have_them_again(whole, copy, monkeypatch):
  monkeypatch.setattr(experiment, "build", None)
  (copy / "metrics.jsonl").write_text("".join(lines(copy)[2:]))
  shown = Shown()
  assert start(tiny(), str(copy), display=shown) == whole[1]
  assert "metrics.jsonl has lost its lines of rounds 1, 2: without summary.json" in " ".join(shown.texts)


@pytest.mark.slow
def test_a_checkpoint_of_an_earlier_version_cannot_make_it_good_and_says_so(copy, monkeypatch, caplog):
  (copy / "summary.json").unlink()
  real = Checkpoints.restore

  def without_lines(self, like):
    state, books = real(self, like)
    for own in books["runs"]:
      del own["lines"]
    return state, books

  monkeypatch.setattr(Checkpoints, "restore", without_lines)
  (copy / "metrics.jsonl").write_text("".join(lines(copy)[2:]))
  start(tiny(), str(copy))
  assert (
    "has lost its lines of rounds 1, 2, and the checkpoint, of an earlier version, has no copy" in caplog.text
  )
  assert [line["round"] for line in records(copy)] == [3, 4]


@pytest.mark.slow
def test_without_its_checkpoints_a_run_starts_anew_and_says_so(whole, copy, caplog):
  (copy / "summary.json").unlink()
  shutil.rmtree(copy / "checkpoints")
  before = lines(copy)
  start(tiny(), str(copy))
  assert "the run starts at round 0" in caplog.text and records(copy) == records(whole[0])
  assert (copy / "metrics.before_damage.jsonl").read_text() == "".join(before)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["removed", "moved", "begun again"])
def test_a_folder_that_is_removed_under_a_run_ends_it_with_an_error(tmp_path, after, how, monkeypatch):
  run = tmp_path / "run"

  def act():
    run.rename(tmp_path / "elsewhere")
    if how == "removed":
      shutil.rmtree(tmp_path / "elsewhere")
    if how == "begun again":
      shutil.copytree(tmp_path / "elsewhere", run)

  after(2, act)
  with pytest.raises((Lost, Claimed), match=r"workdir = .*writes nothing more"):
    start(tiny(), str(run))
  assert run.exists() == (how == "begun again")
  if how == "begun again":
    assert [line["round"] for line in records(run)] == [1, 2] and not (run / "summary.json").exists()


@pytest.mark.slow
def test_a_folder_that_goes_while_a_checkpoint_is_written_ends_the_run_with_an_error(tmp_path, after, caplog):
  after(2, lambda: shutil.rmtree(tmp_path / "run", ignore_errors=True), written=False)
  with pytest.raises(Lost, match="writes nothing more"):
    start(tiny(), str(tmp_path / "run"))


@pytest.mark.slow
def test_a_folder_that_goes_between_two_writes_ends_the_run_with_the_same_error(tmp_path, monkeypatch):
  real = client_metrics.np.savez_compressed

  def removed(path, **arrays):
    if path.name == f".{client_metrics.FILE}":
      shutil.rmtree(tmp_path / "run")
    real(path, **arrays)

  monkeypatch.setattr(client_metrics.np, "savez_compressed", removed)
  with pytest.raises(Lost, match="writes nothing more"):
    start(tiny(), str(tmp_path / "run"))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["metrics.jsonl", "checkpoints", "figures", "config.json"])
@pytest.mark.parametrize("at", with_every([2, 3], 3))
def test_what_is_removed_under_a_run_is_there_at_its_end(whole, tmp_path, after, what, at):
  run = tmp_path / "run"

  def act():
    path = run / what
    shutil.rmtree(path) if path.is_dir() else path.unlink()

  after(at, act)
  summary = start(tiny(), str(run))
  assert summary["metrics"] == whole[1]["metrics"] and records(run) == records(whole[0])
  assert {path.name for path in (run / "figures").iterdir()} == {*PICTURES}
  assert (run / "checkpoints" / "4").is_dir() and (run / "config.json").exists()
  (run / "summary.json").unlink()
  assert start(tiny(), str(run))["metrics"] == summary["metrics"]


@pytest.mark.slow
def test_metrics_that_become_a_folder_under_a_run_end_it_with_the_remedy(tmp_path, after):
  run = tmp_path / "run"

  def act():
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()

  after(2, act)
  with pytest.raises(Lost, match=r"metrics\.jsonl cannot be written .*start the same command again"):
    start(tiny(), str(run))


def test_a_folder_whose_name_is_no_text_is_refused_before_anything_is_compiled(tmp_path):
  with pytest.raises(SettingError, match=r"no UTF-8.*Name another folder"):
    start(tiny(), f"{tmp_path}/a\udcff")


@pytest.mark.slow
def test_a_last_checkpoint_that_is_removed_is_written_again(whole, tmp_path, monkeypatch, caplog):
  real = Checkpoints.holds
  run = tmp_path / "run"

  def removed(self, round):
    self.wait()
    shutil.rmtree(self.folder)
    return real(self, round)

  monkeypatch.setattr(Checkpoints, "holds", removed)
  start(tiny(), str(run))
  assert "last checkpoint was removed under it" in caplog.text and (run / "checkpoints" / "4").is_dir()


@pytest.mark.slow
def test_nobody_starts_in_a_member_of_a_sweep_under_way_nor_around_it(tmp_path, after):
  seen = []

  def act():
    for folder in (tmp_path / "sweep" / "members" / "seed=0", tmp_path):
      config = tiny() if "members" in folder.parts else tiny(seed=3)
      try:
        start(config, str(folder))
      except Claimed as error:
        seen.append(str(error))

  after(2, act)
  sweep.run_sweep(tiny(), {"seed": [0, 5]}, str(tmp_path / "sweep"), Where(devices=1))
  assert len(seen) == 2 and "at one around it" in seen[0] and "at one below it" in seen[1]
  assert [line["round"] for line in records(tmp_path / "sweep" / "members" / "seed=0")] == [1, 2, 3, 4]
  assert sorted(path.name for path in tmp_path.iterdir()) == ["sweep"]


# The configuration, and the pictures.


@pytest.mark.parametrize("text", [None, "", "{"])
def test_figures_without_a_configuration_are_nobodys(copy, text):
  path = copy / "config.json"
  path.unlink() if text is None else path.write_text(text)
  for config in (tiny(), tiny(seed=3, local__lr=0.5)):
    with pytest.raises(SettingError, match=r"config\.json"):
      start(config, str(copy))


def test_pictures_that_are_missing_are_drawn_by_the_next_start_and_by_no_other(whole, copy, monkeypatch):
  monkeypatch.setattr(experiment, "engine_of", None)  # nothing is trained or evaluated
  for name in PICTURES[1:]:
    (copy / "figures" / name).unlink()
  (copy / "figures" / PICTURES[0]).write_bytes(b"")  # as a full disk leaves it
  before = {name: (copy / name).read_bytes() for name in ("summary.json", "metrics.jsonl", "clients.npz")}
  shown = Shown()
  assert start(tiny(), str(copy), display=shown) == whole[1]
  assert all((copy / "figures" / name).stat().st_size > 1000 for name in PICTURES)
  assert {name: (copy / name).read_bytes() for name in before} == before
  assert shown.texts[0].startswith("This run is complete") and "Pictures are" not in " ".join(shown.texts)
  monkeypatch.setattr(experiment, "build", None)
  assert start(tiny(), str(copy)) == whole[1]


@pytest.mark.slow
def test_pictures_whose_folder_was_removed_are_drawn_by_the_next_start(copy):
  shutil.rmtree(copy / "figures")
  shown = Shown()
  start(tiny(), str(copy), display=shown)
  assert all((copy / "figures" / name).stat().st_size > 1000 for name in PICTURES)
  assert "Pictures are" not in " ".join(shown.texts)


@pytest.mark.slow
def test_pictures_that_cannot_be_drawn_are_said_to_be_missing_until_they_are(whole, copy, monkeypatch):
  real = Figure.savefig

  def full(figure, path, **settings):
    if path.name == "mixing.png":
      raise OSError(28, "No space left on device")
    real(figure, path, **settings)

  for name in ("mixing.png", "learning_curve.png"):
    (copy / "figures" / name).unlink()
  with monkeypatch.context() as patch:
    patch.setattr(Figure, "savefig", full)
    for _ in range(2):
      shown = Shown()
      assert start(tiny(), str(copy), display=shown) == whole[1]
      assert any("Pictures are missing (" in text and "No space left" in text for text in shown.texts)
      assert (copy / "figures" / "learning_curve.png").exists()
  shown = Shown()
  start(tiny(), str(copy), display=shown)
  assert (copy / "figures" / "mixing.png").exists() and "Pictures are" not in " ".join(shown.texts)


@pytest.mark.slow
def test_a_run_that_cannot_draw_says_so_and_its_second_start_draws(whole, tmp_path, monkeypatch):
  def broken(*args, **settings):
    raise ValueError("too dark")

  shown = Shown()
  with monkeypatch.context() as patch:
    patch.setattr(Figure, "savefig", broken)
    summary = start(tiny(), str(tmp_path), display=shown)
  assert summary["metrics"] == whole[1]["metrics"] and not [*(tmp_path / "figures").iterdir()]
  assert "Pictures are missing (ValueError: too dark" in " ".join(shown.texts)
  start(tiny(), str(tmp_path))
  assert {path.name for path in (tmp_path / "figures").iterdir()} == {*PICTURES}


@pytest.mark.slow
def test_a_complete_sweep_draws_what_its_members_and_it_lack(tmp_path, monkeypatch):
  grid = {"local.lr": [0.05, 0.1], "seed": [0]}
  first = sweep.run_sweep(tiny(), grid, str(tmp_path), Where(devices=1))
  member = tmp_path / "members" / "seed=0,local.lr=0.05"
  drawn = tmp_path / "figures" / "sweep.png", member / "figures" / "mixing.png"
  for path in drawn:
    path.unlink()
  monkeypatch.setattr(sweep, "build_members", None)
  assert sweep.run_sweep(tiny(), grid, str(tmp_path), Where(devices=1)) == first
  assert all(path.stat().st_size > 1000 for path in drawn)
  (member / "config.json").unlink()
  with pytest.raises(SettingError, match=r"config\.json"):
    sweep.run_sweep(tiny(), grid, str(tmp_path), Where(devices=1))


def test_what_stands_in_the_way_of_a_folder_is_named(tmp_path):
  (tmp_path / "file").write_text("")
  said = pytest.raises(SettingError, match=r"cannot be written \(Not a directory at .*/file/run")
  with said, claim.writable(tmp_path / "elsewhere"):
    (tmp_path / "file" / "run").mkdir()


def test_a_folder_in_the_place_of_the_model_is_said(whole, copy):
  (copy / "model.npz").unlink()
  (copy / "model.npz").mkdir()
  shown = Shown()
  assert start(tiny(), str(copy), display=shown) == whole[1]
  assert "model.npz is missing" in " ".join(shown.texts)
