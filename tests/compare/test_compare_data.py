"""Runs side by side on other data, or of other lengths: what the lines say, and what is not subtracted."""

import pytest
from run_folders import write_run
from terminal_text import shown

from fedjax_het.compare.content import content
from fedjax_het.compare.groups import grouped, of_data, unlike
from fedjax_het.compare.runs import find


def groups_of(folder, *runs):
  """A line a run, in this order, each 0.1 better than the one before."""
  for place, changes in enumerate(runs):
    write_run(folder / str(place), (0.5, 0.5 + place / 10), **changes)
  return grouped(find([folder]))


def differences(groups, **options):
  """label -> the last column of the table."""
  lines = [line.strip() for line in shown(groups, width=200, **options).splitlines()]
  return {
    group.label: next(line.split()[-1] for line in lines if line.startswith(f"{group.label}  "))
    for group in groups
  }


def test_other_data_sets_are_named_and_not_subtracted(tmp_path):
  mnist = {"dataset": "mnist", "num_clients": 50}
  groups = groups_of(
    tmp_path, {"num_clients": 20}, mnist, mnist | {"algorithm__name": "fedper"},
    {"num_clients": 20, "algorithm__name": "ditto"},
  )  # fmt: skip
  labels = ["fedavg, digits", "fedavg, mnist", "fedper, mnist", "ditto, digits"]
  assert [group.label for group in groups] == labels
  assert differences(groups) == dict(zip(labels, ["–", "–", "–", "+30.00"]))
  assert differences(groups, baseline=2) == dict(zip(labels, ["–", "-10.00", "–", "–"]))
  others = "fedavg, mnist (another dataset); fedper, mnist (another dataset)."
  text = shown(groups, width=300)
  assert f"No difference from fedavg, digits, whose clients' data are others: {others}" in text
  assert max(map(len, shown(groups).splitlines())) <= 80
  assert content(groups)["groups"][1]["data"] == {"dataset": "mnist", "num_clients": 50}


def test_rounds_are_named_and_subtracted(tmp_path):
  groups = groups_of(tmp_path, {"rounds": 20}, {"rounds": 100, "algorithm__name": "superfed_mm"})
  assert [group.label for group in groups] == ["fedavg, rounds=20", "superfed_mm, rounds=100"]
  text = shown(groups)
  assert "+10.00" in text and "No difference" not in text


@pytest.mark.parametrize(
  "field, value",
  [("num_clients", 50), ("partition__alpha", 1.0), ("dataset_options__resize", 8), ("test_fraction", 0.5),
   ("unseen__fraction", 0.2), ("dataset_options__train", None), ("dataset_options__train", 0)],
)  # fmt: skip
def test_other_clients_of_a_data_set_are_not_subtracted(tmp_path, field, value):
  groups = groups_of(tmp_path, {}, {field: value, "algorithm__name": "ditto"})
  assert f"ditto (another {field.replace('__', '.')})" in shown(groups, width=200)
  assert "+10.00" not in shown(groups)


def test_what_is_not_of_the_data_is_subtracted(tmp_path):
  changes = {"label_noise__ratio": 0.2, "model__hidden": 3, "valid_fraction": 0.2, "unseen__fraction": 0.0}
  groups = groups_of(tmp_path, {}, changes)
  assert "+10.00" in shown(groups) and "No difference" not in shown(groups)
  assert not of_data("partitions") and of_data("partition.name")
  assert unlike({"num_clients": 1, "stratify": None}, {"num_clients": 2, "stratify": None}) == ["num_clients"]
