"""Runs side by side that have not ended, or ended badly: their figures, and what is said of them."""

import json

from run_folders import write_run
from terminal_text import shown

from fedjax_het.compare.content import content
from fedjax_het.compare.groups import baseline_of, grouped
from fedjax_het.compare.runs import find


def test_an_unfinished_run_counts_where_none_has_ended(tmp_path):
  for seed, means in enumerate([(0.5, 0.6), (0.4, 0.5, 0.9)]):
    write_run(tmp_path / str(seed), means, ended=False, seed=seed)
  (group,) = grouped(find([tmp_path]))
  assert group.label == "fedavg on digits"
  assert group.values("personalized", "top1", "mean") == {0: 0.6, 1: 0.5}  # round 20, which both have
  assert group.state == "1 round 20 of 30; 1 round 30 of 30; figures of round 20"
  write_run(tmp_path / "2", (0.1, 0.2, 0.3), seed=2)
  (group,) = grouped(find([tmp_path]))
  assert group.values("personalized", "top1", "mean") == {2: 0.3}
  write_run(tmp_path / "3", (), ended=False, seed=3, algorithm__name="ditto")
  early = grouped(find([tmp_path]))[1]
  early.runs[0].config["eval_every"] = None
  assert early.runs[0].state == "round 0 of 30, first evaluation at 30"
  early.runs[0].config["eval_every"] = 10
  assert (
    early.values("personalized", "top1", "mean") == {}
    and early.state == "round 0 of 30, first evaluation at 10"
  )
  assert "ditto: round 0 of 30, first evaluation at 10" in shown([early])


def test_a_stopped_run_is_as_far_as_its_checkpoint(tmp_path):
  for name in ("run", "sweep/members/seed=0"):
    write_run(tmp_path / name, (), ended=False, rounds=20000, eval_every=2000)
  for folder in ("run", "sweep"):
    for saved in ("600", "627", "damaged_700", "701.orbax-checkpoint-tmp", "stray"):
      (tmp_path / folder / "checkpoints" / saved).mkdir(parents=True)
  for name in ("run", "sweep"):
    (group,) = grouped(find([tmp_path / name]))
    assert group.state == "round 627 of 20000, first evaluation at 2000"
    assert f"{group.label}: {group.state}" in shown([group])
    assert content([group])["groups"][0]["state"] == content([group])["runs"][0]["state"] == group.state
  write_run(tmp_path / "later", (0.5,), ended=False)
  (tmp_path / "later" / "checkpoints" / "15").mkdir(parents=True)
  (group,) = grouped(find([tmp_path / "later"]))
  assert group.state == "round 15 of 30; figures of round 10"
  write_run(tmp_path / "short", (), ended=False, rounds=5)
  assert find([tmp_path / "short"])[0].state == "round 0 of 5, first evaluation at 5"


def test_a_diverged_run_does_not_count(tmp_path):
  gone = {"diverged": {"round": 12, "client": 3, "loss": None}}
  write_run(tmp_path / "0", (0.5, None, None), summary=gone)
  write_run(tmp_path / "1", (0.5, 0.6, 0.8), seed=1)
  write_run(tmp_path / "2", (0.5, None), ended=False, seed=2)
  write_run(tmp_path / "3", (0.5,), ended=False, seed=3)
  (tmp_path / "3" / "failed.json").write_text('{"failed": "NonFiniteLoss: gone"}')
  (group,) = grouped(find([tmp_path]))
  assert group.values("personalized", "top1", "mean") == {1: 0.8}
  assert group.state == (
    "1 diverged in round 12; 1 complete; 1 diverged by round 20; 1 failed: NonFiniteLoss: gone"
  )
  assert [run.diverged for run in group.runs][3] == "NonFiniteLoss: gone"
  assert "round 12" in group.runs[0].diverged and "client 3" in group.runs[0].diverged
  (alone,) = grouped(find([tmp_path / "0"]))
  assert "–" in shown([alone]) and content([alone])["groups"][0]["counted"] == []


def test_a_failed_run_says_why(tmp_path):
  loss = "diverged: The training loss became nan in round 4 at client 7"
  notes = {
    f"{loss}. Lower the learning rate, or look at that client's data.": loss,
    f"{loss}.": loss,
    "OSError: disk full\nat line 3": "failed: OSError: disk full",
    "diverged: " + "word " * 40: "diverged: " + "word " * 17 + "…",
  }
  for place, (note, state) in enumerate(notes.items()):
    folder = write_run(tmp_path / str(place), (), ended=False)
    (folder / "failed.json").write_text(json.dumps({"failed": note}))
    (group,) = grouped(find([folder]))
    assert shown([group], width=200).strip() == f"fedavg on digits: {state}"
    own = content([group])
    assert own["groups"][0]["state"] == own["runs"][0]["state"] == state
    assert own["runs"][0]["diverged"] == note


def test_a_group_without_figures_is_no_baseline_unless_named(tmp_path):
  gone = {"diverged": {"round": 12, "client": 3, "loss": None}}
  write_run(tmp_path / "a", summary=gone, algorithm__lr=9.0)
  write_run(tmp_path / "b")
  groups = grouped(find([tmp_path / "a", tmp_path / "b"]))
  assert [len(group.counted) for group in groups] == [0, 1]
  assert baseline_of(groups) == 1 and baseline_of(groups[:1]) == 0 and baseline_of(groups, "a") == 0
