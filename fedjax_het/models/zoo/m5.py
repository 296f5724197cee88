"""M5: convolutional network for raw audio.

Sources: Dai et al., Very deep convolutional neural networks for raw waveforms, ICASSP 2017; the authors'
AAggFF, src/models/m5.py.
"""

import jax
from flax import linen as nn

from fedjax_het.errors import SettingError
from fedjax_het.models.from_flax import of_flax
from fedjax_het.models.layers import norms
from fedjax_het.models.layers.basic import Conv, Dense
from fedjax_het.models.layers.convolution import ConvMethod
from fedjax_het.models.layers.pooling import max_pool
from fedjax_het.models.model import Model
from fedjax_het.models.shapes import model_factory
from fedjax_het.models.weights.torch_names import named
from fedjax_het.settings import Count

FIRST, STRIDE, POOL = 80, 4, 4  # samples
SHORTEST = FIRST + STRIDE * (POOL**4 - 1)  # samples that leave one value per channel


@model_factory
def m5(
  shape: tuple[int, ...] = (16_000,), num_classes: int = 35, width: Count = 64, norm: norms.Norm = "batch",
  conv: ConvMethod = "auto",
) -> Model:  # fmt: skip
  """M5: conv80 w (stride 4), conv3 w, conv3 2w, conv3 4w, each - norm - relu - maxpool4; mean - dense C.

  The mean is over the remaining time steps. On one channel, with w = 64 and 35 classes: 150,819 parameters.

  Args:
    shape: shape of one example, (samples,) or (samples, channels), at least 1,100 samples.
    num_classes: C, the number of logits.
    width: w, channels of the first layer.
    norm: normalisation layers, "batch", or "group" for groups of eight channels, see `norms.norm`.
    conv: convolution algorithm, see `convolution.conv2d`.

  Raises:
    SettingError: `shape` is not that of a clip or too short, or an option is out of range or unknown.
  """
  if len(shape) not in (1, 2) or shape[0] < SHORTEST:
    problem = f"not (samples,) or (samples, channels) of at least {SHORTEST} samples"
    raise SettingError("shape", shape, problem, "Use longer clips, or another model.")

  def logits(x: jax.Array, train: bool) -> jax.Array:
    h = x.reshape(*x.shape[:2], -1)
    for i, times in enumerate((1, 1, 2, 4), 1):
      size, stride, padding = (FIRST, STRIDE, 0) if i == 1 else (3, 1, 1)
      h = Conv(times * width, (size,), stride, padding, method=conv, name=f"conv{i}")(h)
      h = nn.relu(max_pool(norms.norm(norm, h, train, f"norm{i}"), POOL))  # same as before pooling
    return Dense(num_classes, name="fc")(h.mean(axis=1))

  return of_flax(logits, shape, num_classes, name="m5", head=("fc",))


_NAMES = [("classifier.1", "fc")]
for _i in range(4):  # layers of the authors' Sequential: convolution, norm, ReLU, pooling
  _NAMES += [(rf"features\.{4 * _i}", f"conv{_i + 1}"), (rf"features\.{4 * _i + 1}", f"norm{_i + 1}")]
TORCH = {"m5": named(_NAMES)}
