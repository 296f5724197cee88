"""Sections that a configuration may leave out, and that choose further parts of the algorithm."""

import numpy as np
import pytest

from configs.quickstart import get_config
from fedjax_het.config.algorithm import algorithm_maker, build_algorithm
from fedjax_het.config.listing import entries
from fedjax_het.config.override import change
from fedjax_het.config.plan import plan
from fedjax_het.config.same import with_defaults
from fedjax_het.config.values import at
from fedjax_het.errors import SettingError
from fedjax_het.methods import AGGREGATIONS, CLIENTS, CONDITIONS, asked, chosen, small_model
from fedjax_het.parts import Aggregation


def config_of(**fields):
  config = get_config("algorithm=fedavg")
  change(config, fields)
  return config


def built(**fields):
  own = plan(config_of(**fields))
  return build_algorithm(own, small_model(CLIENTS["fedavg"]))


def test_a_section_that_is_left_out_is_the_default_and_stands_nowhere():
  assert plan(config_of()).parts["aggregation"] == {}
  assert "aggregation" not in plan(config_of()).written
  assert built().aggregation.combine is None
  assert "aggregation" not in with_defaults(plan(config_of()).written)


@pytest.mark.parametrize("name", AGGREGATIONS)
def test_every_aggregation_is_chosen_by_its_name(name):
  part = built(**{"aggregation.name": name, "cohort_size": 11}).aggregation
  assert (
    isinstance(part, Aggregation)
    and part.name == name
    and isinstance(asked(AGGREGATIONS[name])[0], Aggregation)
  )


def test_its_settings_reach_the_part_and_its_numbers_are_values_of_the_program():
  own = plan(config_of(**{"aggregation.name": "trimmed_mean", "aggregation.share": 0.2, "cohort_size": 10}))
  assert own.numbers["aggregation.share"] == 0.2
  make = algorithm_maker(own, small_model(CLIENTS["fedavg"]))
  uploads = np.arange(10.0, dtype=np.float32) ** 2
  for share, kept in ((0.2, slice(2, 8)), (0.1, slice(1, 9))):
    found, _ = make(**{"aggregation.share": share}).aggregation.combine(
      None, (), np.ones(10) / 10, uploads, 0.0
    )
    np.testing.assert_allclose(found, uploads[kept].mean(), rtol=1e-6)
  assert with_defaults(plan(config_of(**{"aggregation.name": "trimmed_mean"})).written)["aggregation"] == {
    "name": "trimmed_mean", "share": 0.1,
  }  # fmt: skip


@pytest.mark.parametrize(
  ("fields", "words"),
  [
    ({"aggregation.name": "medain"}, r"aggregation.name = 'medain': unknown. Did you mean 'median'"),
    ({"aggregation.share": 0.1}, r"aggregation = .*has no name, and so no effect. Name one of mean, median"),
    ({"aggregation.name": "median", "aggregation.share": 0.1}, r"aggregation.share = 0.1: unknown to median"),
    (
      {"aggregation.name": "trimmed_mean", "aggregation.share": 0.7},
      r"aggregation.share = 0.7: out of range. It must be below 0.5",
    ),
    ({"aggregation.name": "bulyan", "aggregation.byzantine": 40}, r"bulyan needs 4f \+ 3 = 163 clients"),
    ({"agregation.name": "median"}, "agregation is unknown .*aggregation"),
  ],
)
def test_what_cannot_be_is_refused_by_name(fields, words):
  with pytest.raises(SettingError, match=words):
    plan(config_of(**fields))


def test_parts_that_a_section_chooses_in_order_have_numbered_places(monkeypatch):
  monkeypatch.setitem(CONDITIONS, "several", AGGREGATIONS)
  parts = {
    "algorithm": {"name": "fedavg"}, "mixing": {"name": "static"}, "server": {"name": "sgd"},
    "several": ({"name": "median"}, {"name": "trimmed_mean", "share": 0.2}),
  }  # fmt: skip
  places = {place: method.name for place, method, _ in chosen(parts)}
  assert [*places.values()] == ["fedavg", "static", "sgd", "median", "trimmed_mean"]
  assert [*places] == ["algorithm", "mixing", "server", "several.0", "several.1"]
  assert at(parts, "several.1.share") == 0.2


def test_the_list_has_them():
  listed = {entry.name: entry for entry in entries()["aggregation.name"]}
  assert [*listed] == [*AGGREGATIONS]
  assert "share" in listed["trimmed_mean"].settings and "Yin" in listed["median"].facts()["source"]
