"""A model of ours beside PyTorch's of the same parameters: logits, gradients, running statistics.

Both compute in float64: in float32 one of a million activations falls on the other side of a ReLU's kink, and
a gradient that sums few of them is off by more than rounding. The logits are also compared in float32.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import torch

TOLERANCE, SINGLE = 1e-5, 1e-4  # in float64, in which Winograd's coefficients are rounded to float32; in that


def close(ours, wanted, what, tolerance=TOLERANCE):
  """Every leaf within the tolerance: of its largest value, or of a hundredth of the largest of all leaves.

  The latter for gradients that are nothing but rounding, such as that of a bias before a batch norm.
  """
  chex.assert_trees_all_equal_structs(ours, wanted)
  least = 0.01 * max(np.abs(leaf).max() for leaf in jax.tree.leaves(wanted))
  for (path, b), a in zip(jax.tree_util.tree_leaves_with_path(wanted), jax.tree.leaves(ours), strict=True):
    assert np.shape(a) == np.shape(b), f"{what} {jax.tree_util.keystr(path)}"
    off = np.abs(np.asarray(a) - b).max() / max(np.abs(b).max(), least)
    assert off <= tolerance, f"{what} {jax.tree_util.keystr(path)}: off by {off:.1e}"


def drawn(module, seed=0):
  """The module in float64, all its parameters and statistics drawn, so that none is a 0 or a 1."""
  generator, kept = torch.Generator().manual_seed(seed), module.state_dict().keys()
  for name, value in [*module.named_parameters(), *module.named_buffers()]:
    if name not in kept or not value.is_floating_point():  # constants, such as the rates of rotary positions
      continue
    noise = torch.randn(value.shape, generator=generator)
    if name.endswith("running_var"):
      value.data = 1.0 + 0.5 * noise.tanh()
    elif value.ndim > 1:
      value.data = noise * (2.0 / value[0].numel()) ** 0.5
    else:
      value.data = (1.0 if name.endswith("weight") else 0.0) + 0.2 * noise
  return module.double()


def arrays(tensors):
  return {name: value.detach().numpy() for name, value in tensors.items()}


def compare(model, module, reader, batch=3, seed=0, inputs=None):
  """Asserts that a model is a module, in use and in training.

  Args:
    model: ours; dropout is off.
    module: PyTorch's, of inputs [B, C, H, W], whose dropout is off.
    reader: the family's, see `models.torch_names`.
    batch: B.
    seed: of parameters and inputs.
    inputs: examples for both, (ours, PyTorch's); by default images.
  """
  drawn(module, seed)
  single = reader(arrays(module.state_dict()))
  params, stats = jax.tree.map(np.float64, single)
  x, theirs = inputs or images(model.shape, batch, seed)
  for train in (False, True):
    module.train(train)
    module.zero_grad()
    logits = module(theirs)
    g = np.cos(np.arange(logits.numel())).reshape(logits.shape)
    (logits * torch.tensor(g)).sum().backward()
    grads = {name: value.grad for name, value in module.named_parameters() if value.grad is not None}
    wanted_grads, _ = reader(arrays(grads))
    _, wanted_stats = reader(arrays(module.state_dict()))

    def loss(params):
      if train and model.train is not None:
        found, moved = model.train(params, stats or (), x, jnp.ones(len(g)), jax.random.key(0))
      else:
        found, moved = model.apply(params, x, *([stats] if stats else [])), stats or ()
      return (found * g).sum(), (found, moved)

    (_, (found, moved)), found_grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    mode = "in training" if train else "in use"
    close(found, logits.detach().numpy(), f"logits {mode}")
    if not train:
      found = jax.jit(model.apply)(single[0], in_single(x), *([single[1]] if stats else []))
      close(found, logits.detach().numpy(), "logits in float32", SINGLE)
    close(found_grads, wanted_grads, f"gradient {mode}")
    if train and stats:
      close(moved, wanted_stats, "running statistics")
  initial = jax.eval_shape(model.init, jax.random.key(0))
  chex.assert_trees_all_equal_shapes(params, initial)
  if stats:
    chex.assert_trees_all_equal_shapes(stats, model.stats)


def in_single(x):
  """Examples of which what is float64 is float32."""
  return jax.tree.map(lambda leaf: np.float32(leaf) if leaf.dtype == np.float64 else leaf, x)


def images(shape, batch, seed):
  """The same images as ours, float64 [B, H, W, C], and as PyTorch's, [B, C, H, W]."""
  x = np.random.default_rng(seed).normal(size=(batch, *shape))
  return x, torch.tensor(np.moveaxis(x, -1, 1))
