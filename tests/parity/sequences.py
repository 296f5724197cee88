"""LSTMs, M5, LEAF's networks, BERT and its kin, GPTs: of PyTorch's layers and of transformers' models."""

import originals  # noqa: F401  declares what transformers, by way of torchvision, asks for
import torch
from torch import nn
from transformers import (
  BertConfig,
  BertModel,
  DistilBertConfig,
  DistilBertForSequenceClassification,
  GPT2Config,
  GPT2LMHeadModel,
  GPTNeoXConfig,
  GPTNeoXForCausalLM,
)


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


class Bert(nn.Module):
  """transformers' with its pooler, or the mean of the tokens, and our head."""

  def __init__(self, classes, pooling, width, layers, heads, vocabulary, positions, dropout):
    super().__init__()
    config = BertConfig(
      vocab_size=vocabulary, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
      intermediate_size=4 * width, max_position_embeddings=positions, hidden_dropout_prob=dropout,
      attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    self.bert = BertModel(config, add_pooling_layer=pooling == "cls")
    self.classifier = nn.Linear(width, classes)

  def forward(self, x):
    found = self.bert(input_ids=x["tokens"], attention_mask=x["mask"], token_type_ids=x["types"])
    if self.bert.pooler is not None:
      return self.classifier(found.pooler_output)
    real = x["mask"][..., None]
    return self.classifier((found.last_hidden_state * real).sum(1) / real.sum(1))


class DistilBert(nn.Module):
  """transformers' with its head."""

  def __init__(self, classes, width, layers, heads, vocabulary, positions, dropout):
    super().__init__()
    config = DistilBertConfig(
      vocab_size=vocabulary, dim=width, n_layers=layers, n_heads=heads, hidden_dim=4 * width,
      max_position_embeddings=positions, dropout=dropout, attention_dropout=dropout,
      seq_classif_dropout=dropout, num_labels=classes,
    )  # fmt: skip
    found = DistilBertForSequenceClassification(config)
    self.distilbert, self.pre_classifier, self.classifier = (
      found.distilbert, found.pre_classifier, found.classifier,
    )  # fmt: skip

  def forward(self, x):
    states = self.distilbert(input_ids=x["tokens"], attention_mask=x["mask"]).last_hidden_state
    return self.classifier(torch.relu(self.pre_classifier(states[:, 0])))


class Logits(nn.Module):
  """transformers' logits alone."""

  def __init__(self, lm):
    super().__init__()
    self.lm = lm

  def forward(self, x):
    return self.lm(input_ids=x).logits


def gpt_2(classes, width, layers, heads, longest):
  """transformers', with tied embeddings and learned positions."""
  off = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
  config = GPT2Config(
    vocab_size=classes, n_positions=longest, n_embd=width, n_layer=layers, n_head=heads, **off
  )
  return GPT2LMHeadModel(config)


def gpt_neox(classes, width, layers, heads):
  """transformers', with rotary positions over whole heads and a layer of logits."""
  config = GPTNeoXConfig(
    vocab_size=classes, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
    intermediate_size=4 * width, hidden_act="gelu_new", use_parallel_residual=False,
    max_position_embeddings=64, tie_word_embeddings=False,
    rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 1.0},
  )  # fmt: skip
  return GPTNeoXForCausalLM(config)


def as_gpt_2(heads):
  """(state of GPT-NeoX) -> the same by GPT-2's names: its queries, keys and values lie head by head."""
  parts = {
    "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2", "attention.query_key_value": "attn.c_attn",
    "attention.dense": "attn.c_proj", "mlp.dense_h_to_4h": "mlp.c_fc", "mlp.dense_4h_to_h": "mlp.c_proj",
  }  # fmt: skip
  whole = {"embed_in": "wte", "final_layer_norm": "ln_f", "lm_head": "lm_head"}

  def read(state):
    found = {}
    for name, value in state.items():
      module, _, leaf = name.removeprefix("lm.").removeprefix("gpt_neox.").rpartition(".")
      if module.startswith("layers."):
        _, number, part = module.split(".", 2)
        if part == "attention.query_key_value":
          value = value.reshape(heads, 3, -1, *value.shape[1:]).swapaxes(0, 1).reshape(value.shape)
        found[f"h.{number}.{parts[part]}.{leaf}"] = value.T
      elif module in whole:
        found[f"{whole[module]}.{leaf}"] = value
    return found

  return read
