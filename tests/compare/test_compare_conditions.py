"""Runs of other conditions, side by side: labels, the note with names and ε, and curves without a clock."""

from run_folders import write_run
from terminal_text import shown

from fedjax_het.compare.conditions import unequal_conditions
from fedjax_het.compare.content import content
from fedjax_het.compare.groups import grouped
from fedjax_het.compare.launcher import compare
from fedjax_het.compare.runs import find


def note(*folders):
  return " ".join(unequal_conditions(grouped(find(folders))))


def test_conditions_and_epsilon_are_told_where_they_differ(tmp_path):
  write_run(tmp_path / "clean")
  write_run(
    tmp_path / "liars", attack={"name": "alie", "share": 0.2}, uploads=[{"name": "clip"}, {"name": "sign"}]
  )
  private = {"aggregation": {"name": "gaussian", "epsilon": 8.0}, "participation": {"name": "poisson"}}
  told = {"of": "uploads", "epsilon": 7.991, "delta": 0.01}
  write_run(tmp_path / "private", summary={"privacy": told}, **private)
  more = {"privacy": told | {"epsilon": 6.0}}
  write_run(tmp_path / "again", ended=False, line=more, seed=1, **private)
  groups = grouped(find([tmp_path]))
  assert {group.label for group in groups} == {
    "otherwise", "attack=alie", "participation=poisson, aggregation=gaussian",
  }  # fmt: skip
  (said,) = unequal_conditions(groups)
  assert "otherwise: none" in said and "attack=alie: uploads clip and sign, attack alie" in said
  assert "participation poisson, aggregation gaussian (epsilon=8.0), ε = 7.991 at δ = 0.01" in said
  assert said in " ".join(shown(groups).split())
  assert content(groups)["conditions"] == [said]


def test_nothing_is_said_of_equal_conditions(tmp_path):
  for name, lr in (("a", 0.1), ("b", 0.2)):
    write_run(tmp_path / name, local__lr=lr, attack={"name": "alie", "share": 0.2})
  assert note(tmp_path) == "" and "Conditions" not in shown(grouped(find([tmp_path])))
  write_run(tmp_path / "c", attack={"name": "alie", "share": 0.4})
  assert "attack alie (share=0.4)" in note(tmp_path) and "attack alie (share=0.2)" in note(tmp_path)


def test_the_largest_epsilon_counts_and_no_bound_is_none(tmp_path):
  for seed, epsilon in enumerate((2.0, 3.0)):
    write_run(tmp_path / f"a{seed}", seed=seed, summary={"privacy": {"epsilon": epsilon}}, local__dp_clip=1.0)
  beside = {"privacy_of_records": {"epsilon": None, "delta": 0.001}}
  write_run(tmp_path / "b", summary=beside, local__dp_clip=2.0)
  write_run(tmp_path / "damaged", summary={"privacy": "text"}, local__dp_clip=3.0)
  said = note(tmp_path)
  assert "ε = 3;" in said and "no bound of ε at δ = 0.001" in said and "none" in said


def test_runs_without_a_clock_are_named(tmp_path, capsys):
  write_run(tmp_path / "a", line={"simulated_seconds": 3.0}, system={"name": "constant"})
  write_run(tmp_path / "b")
  compare([str(tmp_path)], picture=str(tmp_path / "p.png"), over="simulated_seconds")
  assert (
    "Not drawn, as they have no simulated seconds (no section system): otherwise." in capsys.readouterr().err
  )
  compare([str(tmp_path)], picture=str(tmp_path / "p.png"))
  assert "Not drawn" not in capsys.readouterr().err
