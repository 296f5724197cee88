"""How much each client counts."""

from fedjax_het.mixing.static import static, uniform

__all__ = ["static", "uniform"]
