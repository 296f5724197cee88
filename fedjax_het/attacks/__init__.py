"""Attack parts: what dishonest clients do with their rows, and what they send instead."""

from fedjax_het.attacks.forged import alie, gaussian, ipm, mimic, sign_flip
from fedjax_het.attacks.rows import backdoor, label_flip, triggered

__all__ = ["alie", "backdoor", "gaussian", "ipm", "label_flip", "mimic", "sign_flip", "triggered"]
