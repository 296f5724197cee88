"""Client steps a second of a PyTorch model in a plain loop, as a line of JSON; called by `models.py`.

    benchmarks/.envs/torch_models/bin/python benchmarks/peers/torch_models.py NAME --shape 32,32,3 \
      --classes 10 --clients 4 --steps 6 --batch 10 --rounds 2 --threads 1

Each client takes the global model's parameters and STEPS steps of fused SGD with momentum 0.9 and weight
decay 1e-4 on tensors made once.
"""

import argparse
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "parity"))

import originals
import sequences
import timm
import torch
from originals import theirs
from torch_classifiers import CLASSIFIERS

ENCODER = {
  "width": 128, "layers": 2, "heads": 2, "vocabulary": 30522, "positions": 512, "dropout": 0.0
}  # fmt: skip
MODELS = {  # of a number of classes, with the sizes of models.py
  "two_nn": lambda c: CLASSIFIERS["two_nn"](),
  "two_cnn": lambda c: CLASSIFIERS["two_cnn"](),
  "simple_cnn": originals.SimpleCNN,
  "leaf_cnn": lambda c: sequences.LeafCNN(c, 32, "group"),
  "femnist_cnn": lambda c: sequences.FemnistCNN(c, 32, 2048),
  "resnet9": lambda c: originals.ResNet9(c, 64, True),
  "resnet18": lambda c: theirs.resnet18(num_classes=c),
  "resnet20": originals.resnet20,
  "mobilenet": lambda c: originals.superfed_mobilenet(32, c),
  "mobilenet_v2": lambda c: theirs.mobilenet_v2(num_classes=c),
  "mobilenet_v3_small": lambda c: theirs.mobilenet_v3_small(num_classes=c),
  "vgg9": lambda c: originals.superfed_vgg9(16, c),
  "vgg11": lambda c: originals.narrow_vgg11(16, c, False),
  "squeezenet": lambda c: theirs.squeezenet1_0(num_classes=c),
  "efficientnet_b0": lambda c: theirs.efficientnet_b0(num_classes=c, stochastic_depth_prob=0.0),
  "efficientnet_lite0": lambda c: timm.create_model("efficientnet_lite0", num_classes=c),
  "mobilevit": lambda c: timm.create_model("mobilevit_xxs", num_classes=c),
  "m5": lambda c: sequences.M5(c, 64),
  "stacked_lstm": lambda c: sequences.StackedLSTM(c, 80, 8, 256, False, True),
  "stacked_lstm_words": lambda c: sequences.StackedLSTM(c, 10_000, 200, 256, True, True),
  "bert": lambda c: sequences.Bert(c, "cls", **ENCODER),
  "distilbert": lambda c: sequences.DistilBert(c, **ENCODER),
}


def drawn(kind, ahead, shape, vocabulary):
  """Random examples [*ahead, ...], a tensor or several, on PyTorch's axes."""
  if kind in ("tokens", "texts"):
    tokens = torch.randint(1, vocabulary, (*ahead, *shape))
    texts = {"tokens": tokens, "mask": torch.ones_like(tokens), "types": torch.zeros_like(tokens)}
    return texts if kind == "texts" else tokens
  *sides, channels = shape
  return torch.rand(*ahead, channels, *sides) if kind == "images" else torch.rand(*ahead, *shape)


def arguments(about):
  """A parser of the work's settings."""
  parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("name", choices=MODELS)
  parser.add_argument("--shape", type=lambda text: tuple(map(int, text.split(","))), required=True)
  for number in ("classes", "clients", "steps", "batch", "rounds", "threads"):
    parser.add_argument(f"--{number}", type=int, required=True)
  parser.add_argument("--kind", choices=("images", "series", "tokens", "texts"), default="images")
  parser.add_argument("--vocabulary", type=int, default=0)
  parser.add_argument("--every", action="store_true", help="a label at every position")
  return parser


def main():
  args = arguments(__doc__).parse_args()
  torch.set_num_threads(args.threads)
  torch.manual_seed(0)
  model = MODELS[args.name](args.classes).train()
  start = {name: value.clone() for name, value in model.state_dict().items()}
  batches = [
    [drawn(args.kind, (args.batch,), args.shape, args.vocabulary) for _ in range(args.steps)]
    for _ in range(args.clients)
  ]
  every = args.shape if args.every else ()
  y = torch.randint(args.classes, (args.clients, args.steps, args.batch, *every))

  def train_round():
    for own, labels in zip(batches, y):
      model.load_state_dict(start)
      optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)
      for batch, wanted in zip(own, labels):
        optimizer.zero_grad()
        logits = model(batch).flatten(0, -2)
        torch.nn.functional.cross_entropy(logits, wanted.flatten()).backward()
        optimizer.step()

  train_round()
  started = time.perf_counter()
  for _ in range(args.rounds):
    train_round()
  seconds = time.perf_counter() - started
  parameters = sum(value.numel() for value in model.parameters())
  steps = args.rounds * args.clients * args.steps
  print(json.dumps({"steps_per_second": steps / seconds, "parameters": parameters}))


if __name__ == "__main__":
  main()
