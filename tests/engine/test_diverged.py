"""A launched run that diverges."""

import json

import jax
import numpy as np
import pytest
from launching import small, start

from fedjax_het.compare.groups import grouped
from fedjax_het.compare.runs import find
from fedjax_het.engine.engine import Engine
from fedjax_het.errors import NonFiniteLoss
from fedjax_het.experiment.sweep import run_sweep


@pytest.mark.slow
def test_it_names_round_client_and_checkpoint_and_leaves_a_note(tmp_path, monkeypatch):
  real = Engine.advance

  def poisoned(self, state, num_rounds):
    if int(state.round) >= 3:
      broken = jax.tree.map(lambda leaf: leaf * np.float32(np.nan), state.broadcast)
      state = state._replace(broadcast=broken)
    return real(self, state, num_rounds)

  with monkeypatch.context() as patch:
    patch.setattr(Engine, "advance", poisoned)
    with pytest.raises(NonFiniteLoss, match=r"nan in round 4 at client \d+.*Last good checkpoint: .*3"):
      start(small(), str(tmp_path))
  note = tmp_path / "failed.json"
  assert "diverged: " in (why := json.loads(note.read_text())["failed"]) and "in round 4 at client" in why
  (group,) = grouped(find([tmp_path]))
  assert group.runs[0].diverged == why
  start(small(), str(tmp_path))
  assert not note.exists() and (tmp_path / "summary.json").exists()


@pytest.mark.slow
def test_of_a_sweep_that_diverges_whole_each_member_notes_its_own(tmp_path):
  with pytest.raises(NonFiniteLoss, match="Every member has diverged"):
    run_sweep(small(), {"seed": [0, 1], "local.lr": [1e30]}, str(tmp_path))
  notes = [json.loads(path.read_text())["failed"] for path in sorted(tmp_path.rglob("failed.json"))]
  assert len(notes) == 2
  for note in notes:
    assert note.startswith("diverged: The training loss became") and note.count("client") == 1
