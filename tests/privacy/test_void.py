"""What voids a guarantee of privacy is refused by name before any compile; docs/privacy.md has the errors."""

from pathlib import Path

import jax
import numpy as np
import pytest
from small_parts import CLASSES, SIZES, federation, linear
from wide_parts import prototypes

import fedjax_het as fh
from fedjax_het.aggregation import gaussian
from fedjax_het.clients.mime import mime
from fedjax_het.engine.engine import Engine
from fedjax_het.methods import CLIENTS

PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"
K, S = len(SIZES), 5


def fedavg():
  return fh.fedavg(linear(), lr=0.1, batch_size=4)


def normed():
  model = linear()
  return fh.fedavg(model._replace(stats={"mean": np.zeros(2, np.float32)}, train=lambda p, s, *_: (p, s)))


def of_regions(epsilon):
  part = CLIENTS["sosicfl"]
  given = fh.regions(np.ones((K, CLASSES), int), endpoints=2, clusters=2, epsilon=epsilon)
  return part.make({"model": linear(), "regions": given}, endpoints=2, epsilon=epsilon)


def addressed():
  return fh.server.sgd()._replace(name="letters", send=lambda state, broadcast, i: broadcast)


def looking():
  update = lambda key, state, broadcast, aggregate, feedback: (aggregate, state)  # noqa: E731
  return fh.ServerUpdate(lambda broadcast: (), update, "looking", takes_feedback=True)


VOID = {  # what is put beside `gaussian` -> what else is given to `federated`, and the participation
  "weights by the numbers of examples": dict(mixing=fh.mixing.static),
  "a mixing that asks for losses": dict(mixing=fh.mixing.term),
  "a mixing that looks at single uploads": dict(mixing=fh.mixing.krum),
  "a mixing that goes by label counts": dict(mixing=lambda: fh.mixing.feddisco(np.ones((K, 2), int))),
  "means by class, with their own weights": dict(client=lambda: prototypes(linear())),
  "running statistics of batch normalisation": dict(client=normed),
  "a first pass before the training": dict(client=lambda: mime(linear())),
  "regions of label counts": dict(client=lambda: of_regions(None)),
  "regions of label counts with noise for an example": dict(client=lambda: of_regions(1.0)),
  "an adaptive clip of uploads": dict(uploads=lambda: [fh.uploads.clip(1.0, quantile=0.5)]),
  "a server that looks at single uploads": dict(server=looking),
  "a server that addresses clients": dict(server=addressed),
  "an attack that knows others' updates": dict(attack=lambda: fh.attacks.alie(share=0.2)),
  "banded noise and cohorts without rounds in between": dict(
    aggregation=lambda: gaussian(correlation="banded", rounds=8)
  ),
  "BLT noise and Poisson cohorts": dict(
    aggregation=lambda: gaussian(correlation="blt", rounds=8), participation=fh.participation.poisson
  ),
  "banded noise and too few blocks": dict(
    aggregation=lambda: gaussian(correlation="banded", rounds=8, bands=4),
    participation=lambda: fh.participation.cyclic(blocks=3),
  ),
  "banded noise and blocks that stay": dict(
    aggregation=lambda: gaussian(correlation="banded", rounds=8, bands=2),
    participation=lambda: fh.participation.cyclic(blocks=4, period=2),
  ),
}  # fmt: skip
USUAL = dict(client=fedavg, mixing=fh.mixing.uniform, aggregation=gaussian)


def told(name: str) -> str:
  """The error of a composition, which is raised before anything is compiled."""
  parts = {part: make() for part, make in {**USUAL, **VOID[name]}.items()}
  with pytest.raises(fh.SettingError) as error:
    Engine(fh.federated(**parts), federation(SIZES), S, devices=1)
  return str(error.value)


def table() -> str:
  """The table of docs/privacy.md."""
  rows = (f"| {name} | {told(name)} |" for name in VOID)
  return "\n".join(["| beside `gaussian` | error |", "|---|---|", *rows])


def test_the_page_has_every_void_composition_and_its_error(monkeypatch):
  def compiles(*_, **__):
    raise AssertionError("something was compiled")

  monkeypatch.setattr(jax.stages.Lowered, "compile", compiles)
  expected = table()
  assert expected in PAGE.read_text(), f"docs/privacy.md should have\n{expected}"


def test_who_is_absent_beside_what_cannot_do_without_is_told_with_a_remedy_that_fits():
  """What voids the privacy is named before who is absent; and no remedy is what is refused in turn."""
  private = dict(mixing=fh.mixing.uniform(), aggregation=gaussian())
  with pytest.raises(fh.SettingError, match=r"server = 'looking': looks at single uploads, which voids"):
    fh.federated(fedavg(), server=looking(), participation=fh.participation.poisson(), **private)
  with pytest.raises(
    fh.SettingError, match=r"gaussian is no mean, .*Use the mean, or leave participation out"
  ):
    fh.federated(fedavg(), participation=fh.participation.importance(), **private)
  absent = dict(participation=fh.participation.poisson())
  with pytest.raises(fh.SettingError, match=r"server looking looks .*Use a server such as sgd, or leave"):
    fh.federated(fedavg(), server=looking(), **absent)
  with pytest.raises(fh.SettingError, match=r"counts on a whole cohort\. Use static mixing, or leave"):
    fh.federated(fedavg(), fh.mixing.fedmgda(), **absent)
  with pytest.raises(fh.SettingError, match=r"has no coefficients .*\. Use static mixing, or leave"):
    fh.federated(fedavg(), fh.mixing.krum(), participation=fh.participation.importance())
  part = prototypes(linear())
  with pytest.raises(fh.SettingError, match=r"before its last step\. Use a method such as fedavg, with"):
    fh.federated(part, participation=fh.participation.uniform(least_work=0.5))


def test_the_same_parts_are_fine_where_nothing_is_promised():
  for name in (
    "weights by the numbers of examples",
    "an adaptive clip of uploads",
    "a first pass before the training",
  ):
    parts = {part: make() for part, make in {**USUAL, **VOID[name]}.items() if part != "aggregation"}
    assert fh.federated(**parts).aggregation.mechanism is None


def test_noise_for_a_mean_is_refused_beside_what_is_none():
  client = fh.fedevg(
    linear(), per_class=2, energy="even", upload_norm=0.5, bounded=False, lam=0.0, chain_steps=0
  )
  server = fh.server.particles(3, signal_noise=0.8, pixels="free")
  with pytest.raises(fh.SettingError, match="aggregation = 'median': is no mean of the uploads"):
    fh.federated(client, fh.mixing.uniform(), server, aggregation=fh.aggregation.median())
  fh.federated(
    client, fh.mixing.uniform(), fh.server.particles(3, pixels="free"), aggregation=fh.aggregation.median()
  )


@pytest.mark.slow
def test_the_list_says_with_which_mixing_it_goes():
  from fedjax_het.config.listing import goes_with

  found = goes_with("aggregation", "gaussian")
  assert found.endswith("; mixing: uniform") and "fedevg" in found and "scaffold" not in found
  assert "mixing" not in goes_with("aggregation", "median")
