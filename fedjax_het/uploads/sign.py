r"""One bit a number: the sign, and the mean magnitude of the tensor (EF-signSGD).

Karimireddy, Rebjock, Stich, Jaggi, Error Feedback Fixes SignSGD and other Gradient Compression Schemes, ICML
2019, algorithm 1, for each tensor of n numbers:

    C(x) = (‖x‖₁ / n) sign(x),        sign(0) = 1.

After a sparse transform only the numbers that it sends count (Sattler et al., Robust and
Communication-Efficient Federated Learning from Non-IID Data, IEEE TNNLS 2020).
"""

import jax
import jax.numpy as jnp

from fedjax_het.parts import Upload
from fedjax_het.settings import checked


@checked
def sign(error_feedback: bool = True) -> Upload:
  """Sends the sign of each number, and the mean magnitude of each tensor in 32 bits.

  Args:
    error_feedback: whether a client adds what the signs lost to its next difference.
  """

  def one(leaf: jax.Array, sent: jax.Array | None) -> jax.Array:
    count = jnp.float32(leaf.size) if sent is None else jnp.maximum(sent.sum(), 1).astype(jnp.float32)
    size = jnp.abs(leaf).sum() * (1.0 / count)
    return jnp.where(leaf < 0.0, -size, size)

  def encode(key, difference, state, way):
    sent = way.sent or [None] * len(difference)
    return [one(leaf, own) for leaf, own in zip(difference, sent)], state

  return Upload(
    encode, "sign", lambda wire: wire._replace(bits=1, more=wire.more + 32), error_feedback=error_feedback,
    compresses=True,
  )  # fmt: skip
