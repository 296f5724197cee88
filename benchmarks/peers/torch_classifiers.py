"""The classifiers of the speed benchmarks in PyTorch, for the peers that train such."""

from torch import nn

SHAPES = {"two_nn": (1, 28, 28), "two_nn_64": (1, 28, 28), "two_cnn": (3, 32, 32), "small_cnn": (3, 32, 32)}


def two_nn(width=200):
  """784-200-200-10 with ReLU; 199,210 parameters."""
  return nn.Sequential(
    nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
  )


def two_nn_64():
  """784-64-64-10, the leaderboard's on MNIST; 55,050 parameters."""
  return two_nn(64)


def two_cnn():
  """Two 5 x 5 convolutions and two dense layers; 1,664,970 parameters on 32 x 32 x 3.

  ReLU follows the maximum, with which it commutes: the cheaper order, the same function.
  """
  return nn.Sequential(
    nn.Conv2d(3, 32, 5, padding=1), nn.MaxPool2d(2, padding=1), nn.ReLU(),
    nn.Conv2d(32, 64, 5, padding=1), nn.MaxPool2d(2, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10),
  )  # fmt: skip


def small_cnn():
  """The small CNN of pfl-research's CIFAR-10 benchmark, without its dropout."""
  return nn.Sequential(
    nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(14 * 14 * 64, 128), nn.ReLU(), nn.Linear(128, 10),
  )  # fmt: skip


CLASSIFIERS = {"two_nn": two_nn, "two_nn_64": two_nn_64, "two_cnn": two_cnn, "small_cnn": small_cnn}
