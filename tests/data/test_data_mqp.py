"""Medical question pairs: the real file, hashing, ids that pass through, damaged files."""

import os
import subprocess
import sys
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from realdata import real_data

from fedjax_het import data
from fedjax_het.data import mqp
from fedjax_het.errors import DataError, SettingError

PAIRS = {1: 130, 2: 426, 3: 280, 4: 272, 5: 276, 6: 280, 7: 278, 8: 280, 9: 280, 10: 280, 11: 266}
LINES = ['1,"Is it, well, bad?",Is it bad?,1\n', '2,"Two\nlines",Other,0\n', "11,a,b,0\n"]


@pytest.fixture
def tiny(tmp_path, monkeypatch):
  monkeypatch.setattr(mqp, "ROWS", 3)
  (tmp_path / "medical-question-pairs").mkdir()
  (tmp_path / "medical-question-pairs" / "mqp.csv").write_text("".join(LINES), newline="")
  return tmp_path


def test_the_real_file():
  source = data.load("mqp", real_data("medical-question-pairs"))
  assert (source.x.shape, source.x.dtype, source.num_classes) == ((3048, 2, 64), np.int32, 2)
  assert source.y.dtype == np.int32 and source.y.sum() == 1524
  doctors, pairs = np.unique(source.groups, return_counts=True)
  assert dict(zip(doctors.tolist(), pairs.tolist())) == PAIRS
  assert [len(part) for part in data.natural(source.groups)] == list(PAIRS.values())  # 10 after 9
  assert source.x.min() == 0 and source.x.max() == mqp.VOCABULARY - 1
  assert (source.x[..., 0] > 0).all()
  padding = source.x == 0
  assert (padding[..., 1:] >= padding[..., :-1]).all()  # only at the end
  ids = [1 + zlib.crc32(word) % 4095 for word in (b"after", b"how", b"many", b"hour", b"from", b"drinking")]
  assert source.x[0, 0, :6].tolist() == ids


def test_ids_reach_the_model_as_they_are():
  source = data.load("mqp", real_data("medical-question-pairs"))
  parts = data.natural(source.groups)
  fed = data.federate(source.x, source.y, parts, jax.random.key(0), num_classes=2)
  x, _ = jax.jit(lambda fed: fed.clients(jnp.array(4)).take(jnp.arange(5)))(fed)
  assert x.dtype == jnp.int32 and x.shape == (5, 2, 64)
  own = {row.tobytes() for row in source.x[parts[4]]}
  assert all(row.tobytes() in own for row in np.asarray(x))


def test_tokens_by_hand():
  a, b, ab = (1 + zlib.crc32(gram) % 99 for gram in (b"a", b"b1", b"a b1"))
  assert mqp.tokenize("A, b1!", 5, 100, 1).tolist() == [a, b, 0, 0, 0]
  assert mqp.tokenize("A, b1!", 5, 100, 2).tolist() == [a, b, ab, 0, 0]
  assert mqp.tokenize("A, b1!", 1, 100, 3).tolist() == [a]
  assert mqp.tokenize("?!", 2, 100).tolist() == [0, 0]
  assert mqp.tokenize("a b c", 3, 2).tolist() == [1, 1, 1]


@pytest.mark.slow
def test_tokens_are_the_same_in_another_process():
  code = "from fedjax_het.data.mqp import tokenize; print(tokenize('Can I drink?', ngrams=2).tolist()[:6])"
  environment = {**os.environ, "PYTHONHASHSEED": "123"}
  out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment)
  assert out.stdout.decode().strip() == str(mqp.tokenize("Can I drink?", ngrams=2).tolist()[:6])


def test_options_and_quoted_fields(tiny):
  source = data.load("mqp", tiny, length=6, vocabulary=50, ngrams=2)
  assert source.x.shape == (3, 2, 6) and source.x.max() < 50
  assert source.groups.tolist() == [1, 2, 11] and source.y.tolist() == [1, 0, 0]
  np.testing.assert_array_equal(source.x[1, 0], mqp.tokenize("two lines", 6, 50, 2))
  assert "3 pairs, 1 similar" in source.notes[0] and "1 of 6 questions fill all 6 places" in source.notes[0]


@pytest.mark.parametrize("option", [{"length": 0}, {"vocabulary": 1}, {"ngrams": 0}, {"ngram": 2}])
def test_an_option_that_cannot_work_is_named(tiny, option):
  with pytest.raises(SettingError, match="ngrams" if "ngram" in option else next(iter(option))):
    data.load("mqp", tiny, **option)


@pytest.mark.parametrize(
  ("lines", "problem"),
  [
    (LINES[:2], "2 rows, not 3"),
    (["dr_id,question_1,question_2,label\n", *LINES[:2]], "line 1 .*doctor 'dr_id', label 'label'"),
    ([*LINES[:2], "11,a,b,2\n"], "line 4 .*label '2'"),
    ([*LINES[:2], "12,a,b,1\n"], "line 4 .*doctor '12'"),
    ([*LINES[:2], "11,a\n"], "line 4 is truncated or damaged: 2 fields, not 4"),
    ([*LINES[:2], '11,a,"b'], "truncated or damaged"),
  ],
)
def test_a_damaged_file_is_named(tiny, lines, problem):
  path = tiny / "medical-question-pairs" / "mqp.csv"
  path.write_text("".join(lines), newline="")
  with pytest.raises(DataError, match=f"(?s){path}.*{problem}"):
    data.load("mqp", tiny)


def test_nothing_there(tmp_path):
  with pytest.raises(DataError, match=r"(?s)medical-question-pairs.*mqp.csv from https://"):
    data.load("mqp", tmp_path)
