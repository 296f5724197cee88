"""LSTMs, M5, LEAF's networks and BERT and its kin beside PyTorch's layers and transformers' models."""

import numpy as np
import pytest
import torch
from oracle import compare
from sequences import M5, Bert, DistilBert, FemnistCNN, LeafCNN, StackedLSTM

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
