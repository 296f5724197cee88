"""Frozen layers and low-rank adapters: by arithmetic in float64, in every method, in runs and files."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import REPRESENTATIVE, client
from launching import config_of, small, start
from small_parts import SIZES, federation, float64, linear, linear_loss_and_gradient, mlp, one_client, walk

import fedjax_het as fh
from fedjax_het.config.plan import plan
from fedjax_het.errors import SettingError
from fedjax_het.experiment.build import build
from fedjax_het.experiment.dry_run import dry_run
from fedjax_het.experiment.traffic import traffic
from fedjax_het.methods import CLIENTS
from fedjax_het.models import GENERATORS, frozen, lora, merged
from fedjax_het.parts import Context

DATA, KEY, BATCH = federation(SIZES), jax.random.key(3), 4
SUPERVISED = [
  name for name, method in CLIENTS.items()
  if method.models is not GENERATORS and name in REPRESENTATIVE
]  # fmt: skip


def x_of(model, rows=5):
  return jax.random.normal(jax.random.key(1), (rows, *model.shape))


def flat(tree):
  return fh.models.weights.by_name(tree)


def start_of(model):
  return jax.jit(model.init)(jax.random.key(0))


# Freezing.


def test_a_frozen_layer_is_a_constant_of_the_model():
  model = mlp()
  own = frozen(model, "fc1")
  params, base = own.init(jax.random.key(7)), start_of(model)
  assert {*params} == {"fc2"} and own.head == ("fc2",)
  whole = merged(own, params)
  np.testing.assert_array_equal(whole["fc1"]["kernel"], base["fc1"]["kernel"])
  np.testing.assert_array_equal(whole["fc2"]["kernel"], model.init(jax.random.key(7))["fc2"]["kernel"])
  x = x_of(model)
  np.testing.assert_array_equal(own.apply(params, x), model.apply(whole, x))
  gradient = jax.grad(lambda params: own.apply(params, x).sum())(params)
  of_all = jax.grad(lambda params: model.apply(params, x).sum())(whole)
  np.testing.assert_allclose(gradient["fc2"]["kernel"], of_all["fc2"]["kernel"], rtol=1e-6)


def test_a_frozen_head_is_no_head_and_everything_frozen_is_refused():
  assert frozen(mlp(), "fc2").head == ()
  with pytest.raises(SettingError, match=r"layers = 'fc1,fc2': mlp has no other layers"):
    frozen(mlp(), "fc1,fc2")
  with pytest.raises(SettingError, match=r"layers = 'fc_1': mlp has no layer 'fc_1'.*fc1"):
    frozen(mlp(), "fc_1")
  with pytest.raises(SettingError, match="no head"):
    jax.eval_shape(fh.fedper(frozen(mlp(), "fc2")).init_broadcast, jax.random.key(0))


# Low-rank adapters.


@pytest.mark.parametrize("variant", ["standard", "ffa", "shared_a"])
def test_a_model_with_adapters_starts_as_the_model_itself_bit_for_bit(variant):
  model = mlp()
  own = lora(model, rank=2, variant=variant, trained="")
  params = own.init(jax.random.key(7))
  jax.tree.map(np.testing.assert_array_equal, merged(own, params), start_of(model))
  x = x_of(model)
  np.testing.assert_array_equal(own.apply(params, x), model.apply(start_of(model), x))
  assert sorted(params) == ["fc1", "fc2"]
  assert {*params["fc1"]} == ({"kernel_b"} if variant == "ffa" else {"kernel_a", "kernel_b"})


def test_what_is_adapted_and_what_is_trained_in_full():
  names = lambda **own: sorted(flat(lora(mlp(), rank=1, **own).init(KEY)))  # noqa: E731
  head = ["params/fc2/bias", "params/fc2/kernel"]
  assert names() == ["params/fc1/kernel_a", "params/fc1/kernel_b", *head]  # the head in full by default
  assert names(layers="fc2") == ["params/fc2/kernel_a", "params/fc2/kernel_b"]
  assert names(layers="fc2", trained="fc1") == [
    "params/fc1/bias", "params/fc1/kernel", "params/fc2/kernel_a", "params/fc2/kernel_b",
  ]  # fmt: skip
  assert lora(mlp(), rank=1).head == ("fc2",)
  assert lora(mlp(), rank=1, variant="shared_a").head == ("fc1/kernel_b",)


@pytest.mark.parametrize("rank", [2, 3])  # 3 is the full rank
def test_training_with_adapters_is_that_of_the_reparametrised_model_in_float64(rank):
  """W = W0 + (α/r) A B: ∇A = (α/r) ∇W Bᵀ and ∇B = (α/r) Aᵀ ∇W, by two epochs of SGD with momentum."""
  alpha, lr, momentum, decay = 1.5, 0.1, 0.8, 0.01
  model = linear()
  own = lora(model, rank=rank, alpha=alpha)
  assert own.head == () or own.head == ("fc/bias",)
  settings = {"lr": lr, "momentum": momentum, "weight_decay": decay, "epochs": 2, "batch_size": BATCH}
  part, context = fh.fedavg(own, **settings), Context(2, 0, 3, 12)
  broadcast = part.init_broadcast(jax.random.key(0))
  upload, *_ = jax.jit(part.update)(KEY, broadcast, (), one_client(DATA, 2), context)
  params, base = float64(broadcast.params)["fc"], float64(start_of(model))["fc"]
  buffer, scale = jax.tree.map(np.zeros_like, params), alpha / rank
  assert np.abs(params["kernel_a"]).max() > 0 and not params["kernel_b"].any()
  for x, y, _ in walk(KEY, DATA, 2, BATCH, 2):
    a, b = params["kernel_a"], params["kernel_b"]
    whole = {"fc": {"kernel": base["kernel"] + scale * a @ b, "bias": params["bias"]}}
    w = linear_loss_and_gradient(whole, x, y)[1]["fc"]
    g = {"kernel_a": scale * w["kernel"] @ b.T, "kernel_b": scale * a.T @ w["kernel"], "bias": w["bias"]}
    for name in params:
      buffer[name] = momentum * buffer[name] + g[name] + decay * params[name]
    params = {name: params[name] - lr * buffer[name] for name in params}
  jax.tree.map(lambda ours, by_hand: np.testing.assert_allclose(ours, by_hand, rtol=2e-5, atol=2e-6),
               upload.params["fc"], params)  # fmt: skip


def test_the_mean_of_uploads_with_a_frozen_a_is_the_mean_of_their_models():
  """FFA-LoRA: W is affine in B, which it is not in (A, B)."""
  for variant, same in (("ffa", True), ("standard", False)):
    own = lora(mlp(), rank=2, variant=variant)
    params = [own.init(jax.random.key(i)) for i in range(2)]
    params = [jax.tree.map(lambda leaf: leaf + jnp.cos(i + jnp.arange(leaf.size)).reshape(leaf.shape), one)
              for i, one in enumerate(params)]  # fmt: skip
    mean = lambda trees: jax.tree.map(lambda a, b: (a + b) / 2, *trees)  # noqa: E731
    of_mean, of_models = merged(own, mean(params)), mean([merged(own, one) for one in params])
    assert np.allclose(of_mean["fc1"]["kernel"], of_models["fc1"]["kernel"], atol=1e-5) == same


@pytest.mark.parametrize(
  ("settings", "problem"),
  [
    ({"rank": 9}, r"rank = 9: above 4, the rank of fc1/kernel \[4, 5\]"),
    ({"rank": 0}, "rank = 0"),
    ({"rank": 1, "layers": "fc3"}, r"layers = 'fc3': mlp has no layer 'fc3'"),
    ({"rank": 1, "layers": "fc1/bias"}, r"has no layer|has no matrix in fc1/bias"),
    ({"rank": 1, "layers": "fc1", "trained": "fc1"}, r"trained = 'fc1': fc1/kernel is in layers too"),
    ({"rank": 1, "variant": "lora+"}, r"variant = 'lora\+'"),
    ({"rank": 1, "alpha": 0.0}, "alpha"),
  ],
)
def test_adapters_that_cannot_be_are_refused(settings, problem):
  with pytest.raises(SettingError, match=problem):
    lora(mlp(), **settings)


# In every method.


@pytest.mark.parametrize("name", SUPERVISED)
@pytest.mark.parametrize(
  "make", [lambda m: frozen(m, "fc1/bias"), lambda m: lora(m, rank=2)], ids=["frozen", "lora"]
)
def test_every_method_trains_such_models(name, make):
  if name == "fedevg":
    pytest.skip("trains an energy model")
  part, context = client(name, make(mlp())), Context(2, 1, 3, 12)
  data = DATA.clients(jnp.int32(2))
  key = jax.random.key(0)
  broadcast = jax.eval_shape(part.init_broadcast, key)
  state = jax.eval_shape(lambda b: part.init(key, b, part.shown("init", data), context), broadcast)
  upload, after, _ = jax.eval_shape(lambda b, s: part.update(key, b, s, data, context), broadcast, state)
  assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
  assert not any(name.endswith(("fc1/bias", "fc1/kernel")) and make is None for name in flat(upload.params))


def test_personal_layers_are_found_in_transformed_models():
  """FedPer shares the adapters and keeps the head; with `shared_a` it shares A and keeps B."""
  sent = lambda part: sorted(flat(jax.eval_shape(part.init_broadcast, KEY).params))  # noqa: E731
  assert sent(fh.fedper(lora(mlp(), rank=1))) == ["params/fc1/kernel_a", "params/fc1/kernel_b"]
  assert sent(fh.lg_fedavg(lora(mlp(), rank=1))) == ["params/fc2/bias", "params/fc2/kernel"]
  shared = lora(mlp(), rank=1, variant="shared_a")
  assert sent(fh.fedper(shared)) == ["params/fc1/kernel_a", "params/fc2/bias", "params/fc2/kernel"]
  assert sent(fh.fedrep(frozen(mlp(), "fc1/bias"))) == ["params/fc1/kernel"]


@pytest.mark.slow
@pytest.mark.parametrize("make", [fh.fedavg, fh.fedper, fh.superfed_mm])
def test_methods_learn_with_adapters_and_the_base_stays(make):
  data = fh.data.from_arrays(jax.random.key(0), *_blobs(), num_clients=6)
  own = lora(fh.models.two_nn((4,), 3, hidden=16), rank=2)
  more = {"nu": 0.1, "start_round": 2} if make is fh.superfed_mm else {}
  found = fh.run(
    fh.federated(make(own, lr=0.1, epochs=2, **more)), data, rounds=8, cohort_size=3, key=jax.random.key(0)
  )
  assert found.metrics["personalized"]["top1"]["mean"] > 0.6
  assert set(flat(merged(own, own.init(KEY)))) == set(flat(fh.models.two_nn((4,), 3, hidden=16).init(KEY)))


def _blobs():
  rng = np.random.default_rng(0)
  y = np.arange(600) % 3
  return (3 * np.eye(3, 4)[y] + rng.normal(size=(600, 4))).astype(np.float32), y


# In configurations.


def traffic_of(config):
  built = build(plan(config))
  return traffic(built.algorithm, built.data, 1)


def test_frozen_layers_and_adapters_are_counted_as_sent():
  """Digits: 64-8-8-10, 64·8 + 8, 8·8 + 8, 8·10 + 10 numbers of four bytes."""
  net = {"name": "two_nn", "hidden": 8}
  assert traffic_of(config_of(model=net)) == {"up": 4 * 682, "down": 4 * 682}
  assert traffic_of(config_of(model={**net, "frozen": "fc1"})) == {"up": 4 * 162, "down": 4 * 162}
  adapted = 2 * (64 + 8) + 2 * (8 + 8) + 90
  assert traffic_of(config_of(model=net, lora={"rank": 2})) == {"up": 4 * adapted, "down": 4 * adapted}
  only_b = 2 * 8 + 2 * 8 + 90
  assert traffic_of(config_of(model=net, lora={"rank": 2, "variant": "ffa"}))["up"] == 4 * only_b


@pytest.mark.parametrize(
  ("changes", "problem"),
  [
    ({"model": {"name": "two_nn", "frozen": "fc9"}}, r"model\.frozen = 'fc9': two_nn has no layer 'fc9'.*fc"),
    ({"model": {"name": "two_nn", "frozen": 5}}, r"model\.frozen = 5: not names of layers"),
    ({"lora": {"rank": 2, "layers": "fc9"}}, r"lora\.layers = 'fc9': two_nn has no layer"),
    ({"lora": {"layers": "fc1"}}, r"lora\.rank = None: is missing"),
    ({"lora": {"rank": 0}}, r"lora\.rank = 0"),
    ({"lora": {"rang": 2}}, r"lora\.rang"),
    ({"lora": {"rank": 2, "variant": "shared_a"}}, r"lora\.variant = 'shared_a'.*fedavg has none.*fedper"),
  ],
)
def test_a_configuration_that_cannot_be_is_refused(changes, problem):
  with pytest.raises(SettingError, match=problem):
    build(plan(config_of(**changes)))


@pytest.mark.slow
def test_a_run_with_adapters_predicts_from_its_folder_and_from_a_file(tmp_path):
  config = small(algorithm={"name": "fedper"}, lora={"rank": 2}, model__frozen="fc1/bias")
  summary = start(config, str(tmp_path / "run"))
  run = fh.load_run(tmp_path / "run")
  rows = np.asarray(run.experiment.data.x)[:20]
  with np.load(tmp_path / "run" / "model.npz") as file:
    assert not any(name.endswith("fc1/kernel") for name in file.files)
  run.save(tmp_path / "models.npz")
  again = fh.load_model(tmp_path / "models.npz")
  np.testing.assert_array_equal(run.predict_proba(rows, 3), again.predict_proba(rows, 3))
  assert summary["bytes"]["up"] > 0


@pytest.mark.slow
def test_a_dry_run_tells_what_is_trained_and_sent(capsys):
  found = dry_run(small(algorithm={"name": "fedavg"}, lora={"rank": 2}))
  assert found["whole"] == 682 and found["trained"] == found["parameters"] == 2 * (64 + 8) + 2 * (8 + 8) + 90
  assert found["bytes"]["up"] == 5 * 4 * found["trained"]
  assert "of these trained" in capsys.readouterr().out
