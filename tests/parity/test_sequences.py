"""LSTMs, M5, LEAF's networks and BERT and its kin beside PyTorch's layers and transformers' models."""

import numpy as np
import originals  # noqa: F401  declares what transformers, by way of torchvision, asks for
import pytest
import torch
from oracle import compare
from torch import nn
from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertForSequenceClassification

from fedjax_het import models


class Outputs(nn.Module):
  """An LSTM's states, without its last ones."""

  def forward(self, x):
    return x[0]


class StackedLSTM(nn.Module):
  """The authors'."""

  def __init__(self, classes, words, embedding, hidden, every, bias):
    super().__init__()
    lstm = nn.LSTM(embedding, hidden, 2, batch_first=True, bias=bias)
    self.features = nn.Sequential(nn.Embedding(words, embedding), lstm, Outputs())
    self.classifier, self.every = nn.Linear(hidden, classes, bias=bias), every

  def forward(self, x):
    h = self.features(x)
    return self.classifier(h if self.every else h[:, -1])


@pytest.mark.parametrize("every, bias", [(False, True), (True, False)])
def test_stacked_lstm(every, bias):
  model = models.stacked_lstm(
    (9,), 7, vocabulary=11, embedding=5, hidden=12, positions="every" if every else "last", bias=bias
  )
  x = np.random.default_rng(0).integers(0, 11, (4, 9))
  module = StackedLSTM(7, 11, 5, 12, every, bias)
  compare(model, module, models.reader_of("stacked_lstm"), inputs=(x, torch.tensor(x)))


class Channels(nn.Module):
  """[B, L] -> [B, 1, L]."""

  def forward(self, x):
    return x[:, None]


class Mean(nn.Module):
  """Of time."""

  def forward(self, x):
    return x.mean(-1)


class M5(nn.Module):
  """The authors'."""

  def __init__(self, classes, width):
    super().__init__()
    layers, inputs = [], 1
    for i, outputs in enumerate((width, width, 2 * width, 4 * width)):
      conv = nn.Conv1d(inputs, outputs, 3, padding=1) if i else nn.Conv1d(1, width, 80, 4)
      layers += [conv, nn.BatchNorm1d(outputs), nn.ReLU(), nn.MaxPool1d(4)]
      inputs = outputs
    self.channels, self.features = Channels(), nn.Sequential(*layers)
    self.classifier = nn.Sequential(Mean(), nn.Linear(inputs, classes))

  def forward(self, x):
    return self.classifier(self.features(self.channels(x)))


def test_m5():
  x = np.random.default_rng(0).normal(size=(3, 1500))
  compare(models.m5((1500,), 5, width=8), M5(5, 8), models.reader_of("m5"), inputs=(x, torch.tensor(x)))


class LeafCNN(nn.Module):
  """LEAF's of CelebA, with the thesis's norms or its own."""

  def __init__(self, classes, width, norm):
    super().__init__()
    layers = []
    for i in range(4):
      norms = nn.BatchNorm2d(width) if norm == "batch" else nn.GroupNorm(width >> i, width)
      layers += [nn.Conv2d(width if i else 3, width, 3, padding=1, bias=False), norms]
      layers += [nn.MaxPool2d(2, padding=1), nn.ReLU()]
    self.features = nn.Sequential(*layers)
    self.classifier = nn.Sequential(nn.AdaptiveAvgPool2d(5), nn.Flatten(), nn.Linear(25 * width, classes))

  def forward(self, x):
    return self.classifier(self.features(x))


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_leaf_cnn(norm):
  model = models.leaf_cnn((30, 34, 3), 2, width=8, norm=norm)
  compare(model, LeafCNN(2, 8, norm), models.reader_of("leaf_cnn"))


class FemnistCNN(nn.Module):
  """LEAF's of FEMNIST, as the authors have it."""

  def __init__(self, classes, hidden, dense):
    super().__init__()
    self.features = nn.Sequential(
      nn.Conv2d(1, hidden, 5, padding=1), nn.ReLU(), nn.MaxPool2d(2, padding=1),
      nn.Conv2d(hidden, 2 * hidden, 5, padding=1), nn.ReLU(), nn.MaxPool2d(2, padding=1),
    )  # fmt: skip
    self.classifier = nn.Sequential(
      nn.AdaptiveAvgPool2d(7),
      nn.Flatten(),
      nn.Linear(98 * hidden, dense),
      nn.ReLU(),
      nn.Linear(dense, classes),
    )

  def forward(self, x):
    return self.classifier(self.features(x))


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


def config(**changes):
  return BertConfig(
    vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96,
    max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **changes,
  )  # fmt: skip


class Bert(nn.Module):
  """transformers' with its pooler, or the mean of the tokens, and our head."""

  def __init__(self, classes, pooling):
    super().__init__()
    self.bert = BertModel(config(), add_pooling_layer=pooling == "cls")
    self.classifier = nn.Linear(24, classes)

  def forward(self, x):
    found = self.bert(input_ids=x["tokens"], attention_mask=x["mask"], token_type_ids=x["types"])
    if self.bert.pooler is not None:
      return self.classifier(found.pooler_output)
    real = x["mask"][..., None]
    return self.classifier((found.last_hidden_state * real).sum(1) / real.sum(1))


@pytest.mark.parametrize("name, pooling", [("bert", "cls"), ("minilm", "mean")])
def test_bert(name, pooling):
  ours, theirs = texts((4, 12), True)
  model = models.make(name, {part: (12,) for part in ours}, 5, pooling=pooling, **SIZES)
  compare(model, Bert(5, pooling), models.reader_of(name), inputs=(ours, theirs))


class DistilBert(nn.Module):
  """transformers' with its head."""

  def __init__(self, classes):
    super().__init__()
    sizes = DistilBertConfig(
      vocab_size=50, dim=24, n_layers=2, n_heads=3, hidden_dim=96, max_position_embeddings=16, dropout=0.0,
      attention_dropout=0.0, seq_classif_dropout=0.0, num_labels=classes,
    )  # fmt: skip
    found = DistilBertForSequenceClassification(sizes)
    self.distilbert, self.pre_classifier, self.classifier = (
      found.distilbert, found.pre_classifier, found.classifier,
    )  # fmt: skip

  def forward(self, x):
    states = self.distilbert(input_ids=x["tokens"], attention_mask=x["mask"]).last_hidden_state
    return self.classifier(torch.relu(self.pre_classifier(states[:, 0])))


def test_distilbert():
  ours, theirs = texts((4, 12), False)
  model = models.distilbert({part: (12,) for part in ours}, 5, **SIZES)
  compare(model, DistilBert(5), models.reader_of("distilbert"), inputs=(ours, theirs))
