"""The embedded default: SuPerFed-MM on scikit-learn's digits, ten clients, Dirichlet(0.3)."""

from ml_collections import ConfigDict


def get_config() -> ConfigDict:
  """All fields that a configuration has, at the quickstart's values."""
  return ConfigDict(
    dict(
      dataset="digits",
      data_dir="",
      num_clients=20,
      partition=dict(name="dirichlet", alpha=0.3),
      test_fraction=0.2,
      valid_fraction=0.1,
      model=dict(name="two_nn", hidden=64),
      algorithm=dict(name="superfed_mm", mu=0.01, nu=1.0, start_round=40),
      local=dict(
        epochs=5, batch_size=10, lr=0.05, lr_decay=0.99, momentum=0.9, weight_decay=1e-4,
      ),
      mixing=dict(name="static"),
      server=dict(name="sgd", lr=1.0),
      rounds=100,
      cohort_size=5,
      seed=0,
      eval_every=10,
      client_batch=None,
      devices=None,
    ),
    convert_dict=True,
  )  # fmt: skip
