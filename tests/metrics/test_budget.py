"""Budgets of runs, out of their summaries, and the sentence where they differ."""

import pytest

from fedjax_het.metrics.budget import amount, budget, mean_budget, spans, unequal


def test_a_budget_is_read_from_a_summary():
  whole = {"client_steps": 10, "bytes": {"up": 3, "down": 4}, "seconds": {"compile": 9.0, "train": 2.0}}
  assert budget(whole) == {"client_steps": 10.0, "bytes": 7.0, "seconds": 2.0}
  assert budget({"simulated_seconds": 90.5}) == {"simulated_seconds": 90.5}
  assert (
    spans({"client_steps": [3.0], "simulated_seconds": [90.5, 200.0]})
    == "3 client steps, 90.5 s to 200 s simulated"
  )
  damaged = {"client_steps": "x", "bytes": {"up": None, "down": 4}, "seconds": 3}
  assert budget(damaged) == {} == budget({}) and budget({"client_steps": float("nan")}) == {}
  assert mean_budget([whole, {**whole, "client_steps": 20, "seconds": None}]) == {
    "client_steps": 15.0,
    "bytes": 7.0,
  }
  assert mean_budget([]) == {}


def test_budgets_that_differ_are_said_once_for_each_part():
  own = {"a": {"client_steps": 100.0, "bytes": 1e9}, "b": {"client_steps": 104.0, "bytes": 3e9}, "c": {}}
  assert unequal(own) == ["Budgets differ: b took 3.0 times the bytes of a (3 GB; 1 GB)."]
  assert unequal({"a": own["a"]}) == [] == unequal({})


@pytest.mark.parametrize(
  ("name", "value", "text"),
  [("client_steps", 37500.4, "37,500"), ("bytes", 999, "999 B"), ("bytes", 3.25e9, "3.25 GB"),
   ("bytes", 999.4e6, "999 MB"), ("bytes", 999.6e6, "1 GB"),
   ("seconds", 0.126, "0.126 s"), ("seconds", 4321.5, "4,322 s"), ("bytes", None, "–")],
)  # fmt: skip
def test_amounts_have_units(name, value, text):
  assert amount(name, value) == text


def test_spans_are_of_the_least_and_the_most():
  assert spans({"bytes": [1e6, 2e6], "client_steps": [5, 5]}) == "5 client steps, 1 MB to 2 MB"
