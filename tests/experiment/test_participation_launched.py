"""Launched runs of which clients are absent: what is counted, whole and resumed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from launching import config_of, records, start

from fedjax_het.config.plan import plan
from fedjax_het.engine.cohort import participation_key
from fedjax_het.experiment.build import build
from fedjax_het.experiment.traffic import traffic

SOME = dict(
  algorithm={"name": "fedavg"}, participation={"name": "available", "probability": 0.3, "dropout": 0.4}
)


def counted(config):
  """(clients that were sent the model, uploads that arrived, bytes of one client), by a plain count."""
  built = build(plan(config))
  key = participation_key(jax.random.split(built.key, 3)[2])
  num, size = built.data.num_clients, config["cohort_size"]
  sent = came = 0
  for t in range(config["rounds"]):
    drawn = built.algorithm.participation.draw(key, jnp.int32(t), (), num, size)
    for contacted, present in zip(np.asarray(drawn.contacted).tolist(), np.asarray(drawn.present).tolist()):
      sent, came = sent + contacted, came + present
  one = traffic(built.algorithm, built.data, 1)
  return sent, came, one


def test_a_lost_upload_was_sent():
  """Dropouts are among those that were contacted; clients that were not there received nothing."""
  sent, came, one = counted(config_of(rounds=40, **SOME))
  assert 0 < came < sent < 40 * config_of()["cohort_size"]
  assert one["up"] == one["down"] > 0


@pytest.mark.slow
def test_bytes_are_of_those_that_were_contacted_and_count_on_after_a_stop(tmp_path):
  config = config_of(rounds=7, **SOME)
  sent, _, one = counted(config)
  expected = {way: sent * each for way, each in one.items()}
  assert start(config, str(tmp_path / "whole"))["bytes"] == expected
  start(config_of(rounds=3, **SOME), str(tmp_path / "part"))
  assert start(config, str(tmp_path / "part"))["bytes"] == expected
  assert records(tmp_path / "part")[-1]["bytes"] == expected
