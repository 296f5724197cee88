"""The clock of pfl-research's rounds."""

import time

import torch
from pfl.callback.base import TrainingProcessCallback
from pfl.metrics import Metrics


class Clock(TrainingProcessCallback):
  """Reads the clock after every round, once the device is done with it."""

  def __init__(self):
    self.times = []

  def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
    if torch.cuda.is_available():
      torch.cuda.synchronize()
    self.times.append(time.perf_counter())
    return False, Metrics()
