"""LSTMs, M5, LEAF's networks, BERT and its kin, and GPTs beside PyTorch's layers and transformers' models."""

import jax
import numpy as np
import pytest
import torch
from oracle import arrays, compare, drawn
from sequences import (
  M5,
  Bert,
  DistilBert,
  FemnistCNN,
  LeafCNN,
  Logits,
  StackedLSTM,
  as_gpt_2,
  gpt_2,
  gpt_neox,
)

import fedjax_het as fh
from fedjax_het import models


@pytest.mark.parametrize("every, bias", [(False, True), (True, False)])
def test_stacked_lstm(every, bias):
  model = models.stacked_lstm(
    (9,), 7, vocabulary=11, embedding=5, hidden=12, positions="every" if every else "last", bias=bias
  )
  x = np.random.default_rng(0).integers(0, 11, (4, 9))
  module = StackedLSTM(7, 11, 5, 12, every, bias)
  compare(model, module, models.reader_of("stacked_lstm"), inputs=(x, torch.tensor(x)))


def test_m5():
  x = np.random.default_rng(0).normal(size=(3, 1500))
  compare(models.m5((1500,), 5, width=8), M5(5, 8), models.reader_of("m5"), inputs=(x, torch.tensor(x)))


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_leaf_cnn(norm):
  model = models.leaf_cnn((30, 34, 3), 2, width=8, norm=norm)
  compare(model, LeafCNN(2, 8, norm), models.reader_of("leaf_cnn"))


def test_femnist_cnn():
  model = models.femnist_cnn((28, 28, 1), 6, hidden=4, dense=20)
  compare(model, FemnistCNN(6, 4, 20), models.reader_of("femnist_cnn"))


SIZES = dict(width=24, layers=2, heads=3, vocabulary=50, positions=16, dropout=0.0)


def texts(shape, typed):
  """Ids (0 is padding, whose embedding PyTorch leaves where it is), their mask and which text they are of."""
  rng = np.random.default_rng(0)
  real = np.arange(shape[-1]) < rng.integers(2, shape[-1] + 1, shape[:-1])[..., None]
  x = {"tokens": rng.integers(1, 50, shape), "mask": real.astype(np.int32)}
  if typed:
    x["types"] = np.broadcast_to(np.arange(shape[-1]) > 4, shape).astype(np.int32)
  return x, {name: torch.tensor(own).long() for name, own in x.items()}


@pytest.mark.parametrize("name, pooling", [("bert", "cls"), ("minilm", "mean")])
def test_bert(name, pooling):
  ours, theirs = texts((4, 12), True)
  model = models.make(name, {part: (12,) for part in ours}, 5, pooling=pooling, **SIZES)
  compare(model, Bert(5, pooling, **SIZES), models.reader_of(name), inputs=(ours, theirs))


def test_distilbert():
  ours, theirs = texts((4, 12), False)
  model = models.distilbert({part: (12,) for part in ours}, 5, **SIZES)
  compare(model, DistilBert(5, **SIZES), models.reader_of("distilbert"), inputs=(ours, theirs))


DECODER = dict(width=24, layers=2, heads=3)


def gpts(places):
  """(our model, PyTorch's, the reader of its names)."""
  reader = models.reader_of("gpt")
  if places == "learned":
    theirs = Logits(gpt_2(31, longest=16, **DECODER))
    ours = models.gpt((12,), 31, longest=16, **DECODER)
    return ours, theirs, lambda state: reader({name.removeprefix("lm."): own for name, own in state.items()})
  ours = models.gpt((12,), 31, places="rotary", tied=False, **DECODER)
  turned = as_gpt_2(3)
  return ours, Logits(gpt_neox(31, **DECODER)), lambda state: reader(turned(state))


@pytest.mark.parametrize("places", ["learned", "rotary"])
def test_gpt(places):
  ours, theirs, reader = gpts(places)
  x = np.random.default_rng(0).integers(0, 31, (4, 12))
  compare(ours, theirs, reader, inputs=(x, torch.tensor(x)))


@pytest.mark.parametrize("places", ["learned", "rotary"])
def test_a_client_s_perplexity_is_pytorchs(places):
  """Of the same weights, over the client's test texts, whose padding PyTorch ignores as label -100."""
  ours, theirs, reader = gpts(places)
  rng = np.random.default_rng(1)
  x = rng.integers(0, 31, (10, 12))
  y = np.where(np.arange(12) < rng.integers(1, 13, 10)[:, None], rng.integers(0, 31, (10, 12)), -1)
  drawn(theirs)
  params, _ = reader(arrays(theirs.state_dict()))
  with torch.no_grad():
    logits, labels = theirs.eval()(torch.tensor(x)), torch.tensor(np.where(y < 0, -100, y))
  split = (np.arange(10) > 5).astype(int)
  loss = torch.nn.functional.cross_entropy(logits[6:].flatten(0, 1), labels[6:].flatten())
  task = fh.tasks.next_token()
  data = fh.data.from_groups(
    jax.random.key(0), x, y, np.zeros(10, int), num_classes=31, task=task, split=split
  )
  model = ours._replace(init=lambda key: params)
  algorithm = fh.federated(fh.fedavg(model, lr=1e-30))
  found = fh.run(algorithm, data, rounds=1, cohort_size=1, key=jax.random.key(0), devices=1)
  perplexity = found.clients["personalized"]["perplexity"]
  np.testing.assert_allclose(perplexity, [np.exp(loss.item())], rtol=1e-5)
