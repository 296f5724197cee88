"""Client steps a second of a PyTorch model in a plain loop, as a line of JSON; called by `models.py`.

    benchmarks/.envs/torch_models/bin/python benchmarks/peers/torch_models.py NAME --shape 32,32,3 \
      --classes 10 --clients 4 --steps 6 --batch 10 --rounds 2 --threads 1

Each client takes the global model's parameters and STEPS steps of SGD on tensors made once.
"""

import argparse
import json
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "parity"))

import originals
import timm
import torch
from originals import theirs

MODELS = {  # of a number of classes, with the widths of models.py
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
}


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("name", choices=MODELS)
  parser.add_argument("--shape", type=lambda text: tuple(map(int, text.split(","))), required=True)
  for number in ("classes", "clients", "steps", "batch", "rounds", "threads"):
    parser.add_argument(f"--{number}", type=int, required=True)
  args = parser.parse_args()
  torch.set_num_threads(args.threads)
  torch.manual_seed(0)
  model = MODELS[args.name](args.classes).train()
  start = {name: value.clone() for name, value in model.state_dict().items()}
  *sides, channels = args.shape
  x = torch.rand(args.clients, args.steps, args.batch, channels, *sides)
  y = torch.randint(args.classes, (args.clients, args.steps, args.batch))

  def train_round():
    for images, labels in zip(x, y):
      model.load_state_dict(start)
      optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
      for batch, wanted in zip(images, labels):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(batch), wanted).backward()
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
