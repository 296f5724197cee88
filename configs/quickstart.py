"""The quickstart: SuPerFed-MM on scikit-learn's bundled digits; no download, under a minute on two cores.

python -m fedjax_het.run --config=configs/quickstart.py --workdir=runs/quickstart
"""

from fedjax_het.config.quickstart import get_config

__all__ = ["get_config"]
