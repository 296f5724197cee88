"""Labels of one task with a model of another: refused, with the task that the labels look like."""

import jax
import numpy as np
import pytest

import fedjax_het as fh

KEY, RNG = jax.random.key(0), np.random.default_rng(0)
X = RNG.normal(size=(30, 4)).astype(np.float32)
PARTS = np.array_split(np.arange(30), 3)
CLASSES, NUMBERS = np.arange(30) % 3, RNG.normal(size=30).astype(np.float32)
YES, TOKENS = RNG.integers(0, 2, (30, 5)), RNG.integers(0, 9, (30, 5))
REGRESSION, MULTI, NEXT = fh.tasks.regression(), fh.tasks.multilabel(), fh.tasks.next_token()


def federate(y, num_classes, task=None):
  return fh.federate(X, y, PARTS, KEY, num_classes=num_classes, task=task)


def engine(data, model):
  return fh.Engine(fh.federated(fh.fedavg(model, epochs=1)), data, 2)


def model(outputs, task=None):
  made = fh.models.two_nn((4,), outputs, hidden=3)
  return made if task is None else made._replace(task=task)


@pytest.mark.parametrize(
  ("call", "said"),
  [
    (lambda: federate(NUMBERS, 1), r"regression targets.*fh.tasks.regression\(\).*task.name=regression"),
    (lambda: fh.data.from_arrays(KEY, X, NUMBERS, 3), r"look like regression targets.*fh.tasks.regression"),
    (lambda: fh.data.from_arrays(KEY, X, CLASSES * 1.0, 3), r"Convert them: y.astype\(int\)"),
    (lambda: federate(NUMBERS.reshape(15, 2), 1), "."),
    (lambda: federate(RNG.normal(size=(30, 2)), 2), "look like regression targets"),
    (lambda: federate(YES, 5), "several yes-or-no labels an example: give task=fh.tasks.multilabel"),
    (lambda: federate(np.eye(3, dtype=int)[CLASSES], 3), r"one-hot rows, give y.argmax\(1\)"),
    (lambda: fh.data.from_arrays(KEY, X, np.eye(3)[CLASSES], 3), r"one-hot rows, give y.argmax\(1\)"),
    (lambda: federate(TOKENS, 9), "task=fh.tasks.next_token"),
    (lambda: engine(federate(NUMBERS, 1, REGRESSION), model(3)), r"regression targets.*regression\)\.$"),
    (lambda: engine(federate(CLASSES, 3), model(1, REGRESSION)), "regression': is the model's.*int32"),
    (lambda: engine(federate(YES, 5, MULTI), model(5, REGRESSION)), "data were made for"),
    (lambda: engine(federate(TOKENS, 9, NEXT), model(5, REGRESSION)), "data were made for"),
    (lambda: engine(federate(YES, 5, MULTI), model(5)), "fh.tasks.multilabel"),
    (lambda: engine(federate(CLASSES, 3), model(3, MULTI)), "y is int32"),
  ],
)  # fmt: skip
def test_labels_of_another_task_are_refused(call, said):
  with pytest.raises(fh.SettingError, match=said):
    call()


def test_labels_of_the_model_s_task_are_taken():
  engine(federate(NUMBERS, 1, REGRESSION), model(1, REGRESSION))
  engine(federate(CLASSES, 1, REGRESSION), model(1, REGRESSION))  # whole numbers as targets
  engine(federate(CLASSES, 3), model(3))
  engine(federate(YES, 5, MULTI), model(5, MULTI))
