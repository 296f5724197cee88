"""Upload parts: transforms of what clients send, such as clipping, noise and compression."""

from fedjax_het.uploads.chain import chained, transformed
from fedjax_het.uploads.clip import clip
from fedjax_het.uploads.gaussian import gaussian
from fedjax_het.uploads.quantize import quantize
from fedjax_het.uploads.sign import sign
from fedjax_het.uploads.sparse import random_k, top_k

__all__ = ["chained", "clip", "gaussian", "quantize", "random_k", "sign", "top_k", "transformed"]
