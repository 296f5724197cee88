"""Prints the bytes that a client sends and receives a round: FedEvg's synthetic set beside several models.

    python benchmarks/speed/communication.py

The bytes are counted from the shapes of what the client parts exchange, in float32; nothing is trained.
FedEvg has ten synthetic examples a class.
"""

import jax
import numpy as np

import fedjax_het as fh
from fedjax_het.experiment.traffic import traffic

DATASETS = {  # shape, classes
  "MNIST": ((32, 32, 1), 10), "CIFAR-10": ((32, 32, 3), 10), "OrganCMNIST": ((64, 64, 1), 11),
  "DermaMNIST": ((64, 64, 3), 7),
}  # fmt: skip


def parts(shape: tuple[int, ...], classes: int) -> dict[str, fh.ClientUpdate]:
  """What is compared."""
  models = fh.models
  return {
    "FedEvg": fh.fedevg(models.resnet10(shape, classes)),
    "FedAvg of ResNet-10": fh.fedavg(models.resnet10(shape, classes)),
    "FedCVAE": fh.fedcvae(models.make("cvae_conv", shape, classes)),
    "FedCGAN": fh.fedcgan(models.make("cgan_conv", shape, classes)),
  }


def main() -> None:
  print("| data | method | up, MB | down, MB | ResNet-10's over it |\n|---|---|---|---|---|")
  for name, (shape, classes) in DATASETS.items():
    x, y = np.zeros((10, *shape), np.float32), np.arange(10) % classes
    data = fh.federate(x, y, [np.arange(10)], jax.random.key(0), num_classes=classes, test_fraction=0.0)
    rows = {}
    for method, client in parts(shape, classes).items():
      server = fh.server.sgld(500) if method == "FedEvg" else None
      algorithm = fh.federated(client, server=server)
      rows[method] = traffic(algorithm, data, 1)
    whole = sum(rows["FedAvg of ResNet-10"].values())
    for method, found in rows.items():
      up, down = (found[way] / 1e6 for way in ("up", "down"))
      print(f"| {name} | {method} | {up:.3f} | {down:.3f} | {whole / sum(found.values()):.1f} |")


if __name__ == "__main__":
  main()
