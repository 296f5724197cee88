"""The name that configuration files import from here; it lives in `fedjax_het.config.quickstart`."""

from fedjax_het.config.quickstart import get_config as get_config
