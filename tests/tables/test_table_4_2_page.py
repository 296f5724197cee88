"""The page of table 4.2's runs is what its script writes, with figures as they stand in the raw file."""

import json

import numpy as np

from benchmarks.papers import fedcvae_deal, table_4_2
from benchmarks.provenance import END, START
from benchmarks.tables import run_figures


def test_the_page_is_what_the_script_writes():
  _, _, rest = table_4_2.PAGE.read_text(encoding="utf-8").partition(START)
  written = table_4_2.page_tables().strip()
  assert rest.partition(END)[0].strip() == written, "run python benchmarks/papers/table_4_2.py"


def test_a_row_has_ours_in_percent_beside_the_thesis_s(tmp_path):
  cell = "dataset=cifar10,alpha=0.01,clients=100,algorithm=fedcgan,protocol=thesis"
  learnt = {"local": {"mean": 0.25, "std": 0.125}, "official": 0.5}
  trained = {"mean": 0.25, "std": 0.125, "worst10": 0.0, "best10": 1.0, "gap": 1.0}
  synthetic = {
    "downstream": learnt | {"seeds": [learnt, {"local": {"mean": 0.375}}]},
    "real": {"downstream": {"local": {"mean": 0.75}}},
    "within_class_distance": {"synthetic": 1.5, "real": 3.0}, "frechet": 7.4, "kernel": 0.1,
  }  # fmt: skip
  summary = {
    "algorithm": "fedcgan", "dataset": "cifar10", "rounds": 500, "num_clients": 100,
    "seconds": {"train": 7200}, "metrics": {"personalized": {"top1": trained}}, "synthetic": synthetic,
  }  # fmt: skip
  folder = tmp_path / cell
  folder.mkdir()
  (folder / "summary.json").write_text(json.dumps(summary))
  (folder / "metrics.jsonl").write_text("")
  rows = run_figures.collect(tmp_path, tmp_path / "kept.json", "some runs")
  assert rows == json.loads((tmp_path / "kept.json").read_text())["runs"] and [*rows] == [cell]
  line = [*table_4_2.tables(rows | {cell: rows[cell] | {"starts": [by()]}})][1]
  assert line == (
    "| cifar10 | 0.01 | 100 | 500 | FedCGAN | 25.00 (12.50) | 25.0, 37.5 | 14.88 (1.78) | 50.00 | 75.0 | 7 "
    "| 1.50 (3.00) | 2.0 |"
  )
  assert table_4_2.picture(cell) == "table_4_2_cifar10_0.01_100_fedcgan_thesis.png"


def test_the_deal_of_the_authors_code_gives_later_clients_the_rows_of_earlier_ones():
  labels = np.arange(60_000) % 10
  slipped = fedcvae_deal.of_code(labels, 0.01, np.random.default_rng(3))
  mended = fedcvae_deal.of_code(labels, 0.01, np.random.default_rng(3), keep_rest=True)
  assert len(slipped) == len(mended) == fedcvae_deal.CLIENTS
  assert len({*np.concatenate(slipped)}) < 10_000 and len(np.concatenate(slipped)) > 10_000
  assert len({*np.concatenate(mended)}) == len(np.concatenate(mended)) > 50_000
  for label in range(10):  # the rows of a class that a client gets are the first of those before it
    counts = [np.sum(labels[own] == label) for own in slipped]
    of_last = [own[labels[own] == label] for own in slipped][-1]
    assert {*of_last} <= {*range(label, 60_000, 10)[: min(count for count in counts if count)]}
  assert all(len({*labels[own]}) >= 1 and len(own) > fedcvae_deal.LEAST for own in slipped)
  assert sum(len({*labels[own]}) > 1 for own in slipped) > 90, "a draw of one class is repeated"


def by():
  return {"commit": "abc", "date": "2026-01-01", "machine": "one", "devices": "1 x cpu", "jax": "0.10.2"}
