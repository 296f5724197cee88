"""System parts: the speeds that they give, against plain NumPy and the normal distribution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_het as fh
from fedjax_het.errors import DataError, SettingError

KEY = jax.random.key(3)


def speeds(part, sizes):
  return [np.asarray(own, np.float64) for own in part.speeds(KEY, jnp.asarray(sizes, jnp.int32))]


def test_all_are_equally_fast():
  step, link = speeds(fh.system.constant(step_seconds=0.25, bytes_per_second=512.0), [1, 2, 3])
  assert step.tolist() == [0.25] * 3 and link.tolist() == [512.0] * 3


def test_lognormal_speeds_have_their_medians_and_deviations():
  sizes = np.arange(1, 20_001)
  step, link = speeds(
    fh.system.lognormal(sigma=0.5, step_seconds=0.2, link_sigma=0.25, bytes_per_second=1e4), sizes
  )
  for found, median, sigma in ((step, 0.2, 0.5), (link, 1e4, 0.25)):
    logs = np.log(found / median) / sigma
    assert abs(logs.mean()) < 0.03 and abs(logs.std() - 1.0) < 0.03
    assert abs((logs**3).mean()) < 0.1  # the tails are alike
  assert abs(np.corrcoef(np.log(step), np.log(link))[0, 1]) < 0.03
  assert abs(np.corrcoef(np.log(step), sizes)[0, 1]) < 0.03


@pytest.mark.parametrize("rho", [-1.0, -0.6, 0.0, 0.6, 1.0])
def test_speed_is_correlated_with_data(rho):
  sizes = np.random.default_rng(0).permutation(5000) + 1
  step, _ = speeds(fh.system.lognormal(sigma=2.0, correlation=rho), sizes)
  scores = np.sqrt(2) * np.vectorize(inverse_error_function)((2 * sizes - 1) / len(sizes) - 1)
  assert abs(np.corrcoef(-np.log(step), scores)[0, 1] - rho) < 0.03
  assert abs(np.log(step / 0.25).std() - 2.0) < 0.1


def inverse_error_function(y: float) -> float:
  """Bisection of math.erf."""
  from math import erf

  low, high = -6.0, 6.0
  for _ in range(40):
    middle = (low + high) / 2
    low, high = (middle, high) if erf(middle) < y else (low, middle)
  return low


def test_equal_sizes_have_the_score_0():
  assert speeds(fh.system.lognormal(correlation=1.0, step_seconds=0.5), [7] * 9)[0].tolist() == [0.5] * 9
  ties = speeds(fh.system.lognormal(correlation=-1.0, sigma=1.0, step_seconds=1.0), [1, 1, 5, 5])[0]
  np.testing.assert_allclose(np.log(ties), [-0.67449, -0.67449, 0.67449, 0.67449], rtol=1e-4)


@pytest.mark.parametrize("fixture, said", [("ragged", 0), ("uniform", 1)])
def test_a_correlation_with_clients_of_one_size_is_said_to_have_no_effect(fixture, said, request):
  data = request.getfixturevalue(fixture)
  remarks = [*fh.system.lognormal(correlation=0.5).needs.remarks(data)]
  assert len(remarks) == said and all("correlation: has no effect" in one for one in remarks)
  assert not [*fh.system.lognormal().needs.remarks(data)]


def written(tmp_path, text):
  (tmp_path / "speeds.csv").write_text(text)
  return str(tmp_path / "speeds.csv")


def test_a_trace_has_each_client_s_line(tmp_path):
  part = fh.system.trace(path=written(tmp_path, "# phones\n1, 0.5, 2e5\n\n0,0.25,100\n"), server_seconds=2.0)
  step, link = speeds(part, [4, 4])
  assert step.tolist() == [0.25, 0.5] and link.tolist() == [100.0, 2e5] and part.server_seconds == 2.0
  assert speeds(part, [4])[0].tolist() == [0.25]  # of a longer trace
  part.needs.check_cohort(1, 2)
  with pytest.raises(SettingError, match="has 2 clients, and there are 3"):
    part.needs.check_cohort(1, 3)


@pytest.mark.parametrize(
  "text, words",
  [
    ("0, 1.0\n", "line 1: '0, 1.0' is not client, seconds"),
    ("0, 1, 1\n1, 0.0, 5\n", "line 2"), ("0, 1, nan\n", "line 1"), ("0, 1, inf\n", "line 1"),
    ("-1, 1, 1\n", "line 1"), ("0.5, 1, 1\n", "line 1"), ("0, 1e-60, 1\n", "line 1"),
    ("0, 1, 1\n#\n0, 2, 2\n", "line 3: client 0 has a line already"),
    ("0, 1, 1\n2, 1, 1\n", "client 1 has no line"), ("# nothing\n", "it has no lines"),
  ],
)  # fmt: skip
def test_a_trace_that_is_none_is_refused(tmp_path, text, words):
  with pytest.raises(DataError, match=words):
    fh.system.trace(path=written(tmp_path, text))


def test_a_trace_without_a_file_is_refused(tmp_path):
  with pytest.raises(SettingError, match="path = '': names no file"):
    fh.system.trace()
  with pytest.raises(SettingError, match="cannot be read"):
    fh.system.trace(path=str(tmp_path / "none.csv"))


@pytest.mark.parametrize(
  "make, words",
  [
    (lambda: fh.system.constant(step_seconds=0.0), "step_seconds = 0.0"),
    (lambda: fh.system.lognormal(correlation=1.5), "correlation = 1.5"),
    (lambda: fh.system.lognormal(sigma=-1.0), "sigma = -1.0"),
    (lambda: fh.system.constant(server_seconds=-1.0), "server_seconds = -1.0"),
  ],
)
def test_wrong_settings_are_refused(make, words):
  with pytest.raises(SettingError, match=words):
    make()
