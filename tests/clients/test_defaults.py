"""Settings that are left out are those of the papers, and of the thesis's experiments."""

import inspect

import pytest

from fedjax_het import mixing, server
from fedjax_het.clients import fedevg, generative, sgd, superfed
from fedjax_het.errors import SettingError

LOCAL_SGD = dict(lr=0.01, lr_decay=1.0, momentum=0.9, weight_decay=1e-4, epochs=10, batch_size=10)
LOCAL_ADAM = dict(lr=1e-3, b1=0.5, b2=0.999, weight_decay=1e-4, epochs=1, batch_size=64)
DEFAULTS = [
  (sgd.fedprox, LOCAL_SGD | dict(mu=0.01)),
  (superfed.superfed, LOCAL_SGD | dict(mu=0.01, nu=2.0, nu_from="start", granularity="model")),
  (fedevg.fedevg, LOCAL_ADAM | dict(lr_decay=0.9 ** (1 / 50), per_class=10, energy="signed", persistent=False,
                                    cap=None, upload_norm=None, start_scale=1.0,
                                    chain_steps=1, chain_step_size=1.0, chain_noise=0.01, lam=0.1, clip=3.0)),
  (generative.generative, LOCAL_ADAM | dict(lr_decay=0.9 ** (1 / 5), per_class=10)),
  (server.sgd, dict(lr=1.0)),
  (server.adam, dict(lr=0.01, b1=0.9, b2=0.99, tau=1e-3)),
  (server.yogi, dict(lr=0.01, b1=0.9, b2=0.99, tau=1e-3)),
  (server.adagrad, dict(lr=0.01, b1=0.0, tau=1e-3)),
  (server.sgld, dict(step_size=10.0, last_step_size=0.01, noise=0.01, bounded=True, ends="after")),
  (server.particles, dict(step_size=10.0, last_step_size=0.01, temperature=0.3, heat=0.0, last_heat=0.0,
                          noise=0.01, rms=None, signal_noise=0.0, pixels="bounded", renew_below=0.0,
                          space="pixels")),
  (mixing.afl, dict(lr=0.01)),
  (mixing.qffl, dict(q=1.0, lipschitz=None)),
  (mixing.term, dict(lam=0.1)),
  (mixing.propfair, dict(baseline=3.0, margin=0.2)),
  (mixing.fedmgda, dict(epsilon=0.1)),
  (mixing.aaggff_d, dict(cdf="normal", sampling_probability=None)),
]  # fmt: skip


@pytest.mark.parametrize("factory, settings", DEFAULTS, ids=[factory.__name__ for factory, _ in DEFAULTS])
def test_defaults(factory, settings):
  found = {name: p.default for name, p in inspect.signature(factory).parameters.items()}
  assert {name: found[name] for name in settings} == settings


def test_a_setting_that_a_variant_does_not_have_is_named():
  with pytest.raises(
    SettingError, match=r"superfed_mm's setting = 'momentun': unknown. Did you mean 'momentum'\?"
  ):
    superfed.superfed_mm(None, momentun=0.9)
