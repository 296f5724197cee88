"""Deployments: nodes and server beside the engine, in this process without Flower; what is refused."""

import copy
import importlib.util
import json
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import with_every
from small_parts import federation, linear, mlp
from wide_parts import addressed, mime, prototypes

import fedjax_het as fh
from fedjax_het.errors import DataError, SettingError
from fedjax_het.flower import Deployment, Node, apps, client_app, configured, serve
from fedjax_het.flower.arrays import of_arrays, to_arrays
from fedjax_het.flower.node import at_place

LOCAL = {"lr": 0.1, "epochs": 1, "batch_size": 4}
SIZES = (9, 6, 4)


def deployed(algorithm, data, rounds, tmp_path, again=(), **settings):
  """A deployment's run in this process: (final state, lines). A (round, client) `again` answers twice."""
  made = Deployment(algorithm, lambda node: data, data.num_clients, rounds, jax.random.key(3), **settings)

  def node(k, of=None):  # `of` lends its compiled programs
    made_anew = copy.copy(of or Node(made, {"partition-id": k, "folder": str(tmp_path)}, "7"))
    made_anew.place = k
    return made_anew

  nodes = [first := node(0), *(node(k, first) for k in range(1, data.num_clients))]

  def ask(kind, parcels):
    answers = {}
    for k, parcel in parcels.items():
      json.dumps(parcel[1])  # plain numbers and texts
      answers[k] = nodes[k].answer(kind, parcel)
      if (parcel[1]["round"], k) in again:
        once, twice = answers[k][0], node(k, first).answer(kind, parcel)[0]
        assert all(np.array_equal(once[name], twice[name]) for name in once)
    return answers

  lines = []
  about = {k: nodes[k].answer("query", ({}, {}))[1] for k in range(data.num_clients)}
  return serve(made, about, ask, lines.append), lines


def check_same(algorithm, tmp_path, rounds=3, again=(), **settings):
  """A deployed run has the figures of the simulated one."""
  data = federation(SIZES)
  state, lines = deployed(algorithm, data, rounds, tmp_path, again, **settings)
  size = settings.get("cohort_size") or data.num_clients
  own = fh.run(
    algorithm, data, rounds=rounds, cohort_size=size, key=jax.random.key(3),
    eval_every=settings.get("eval_every"), devices=1,
  )  # fmt: skip
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), state.broadcast, own.state.broadcast)
  assert [line["round"] for line in lines] == [line["round"] for line in own.history]
  for line, simulated in zip(lines, own.history):
    mine, theirs = (jax.tree.leaves({k: v for k, v in one.items()}) for one in (line, simulated))
    np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_scaffold_is_as_simulated_also_if_an_answer_is_lost(tmp_path):
  check_same(fh.federated(fh.scaffold(linear(), **LOCAL)), tmp_path, again=((1, 2),))
  assert sorted(path.name for path in tmp_path.glob("run_7/client_1/*")) == ["000002.npz", "000003.npz"]


@pytest.mark.slow
@pytest.mark.parametrize("sampled", with_every([None, 2], 2))
@pytest.mark.parametrize(
  "name", ["fedavg", "ditto", "superfed_mm", "prototypes", "addressed", "afl", "median", "quantized"]
)
@pytest.mark.filterwarnings("ignore:aggregation = median")
def test_parts_are_as_simulated(name, sampled, tmp_path):
  clients = {"ditto": fh.ditto, "superfed_mm": fh.superfed_mm, "prototypes": prototypes}
  client = clients.get(name, fh.fedavg)(mlp(), **LOCAL)
  parts = {
    "addressed": {"server": addressed(len(SIZES))},
    "afl": {"mixing": fh.mixing.afl()},
    "median": {"aggregation": fh.aggregation.median()},
    "quantized": {"uploads": [fh.uploads.quantize(bits=4)], "server": fh.server.adam(0.1)},
  }.get(name, {})
  check_same(fh.federated(client, **parts), tmp_path, cohort_size=sampled, rounds=4, eval_every=1)


def test_trees_travel_as_named_arrays():
  tree = {"a": jnp.ones((2, 3)), "b": [jnp.int32(4), jnp.full(2, 0.5, jnp.bfloat16)], "c": ()}
  arrays = to_arrays(tree)
  assert [*arrays] == ["0000['a']", "0001['b'][0]", "0002['b'][1]"]
  arrays["0002['b'][1]"] = arrays["0002['b'][1]"].view("V2")  # as NumPy's files have it
  back = of_arrays(arrays, tree, "It")
  assert jax.tree.structure(back) == jax.tree.structure(tree) and back["b"][1].dtype == jnp.bfloat16
  jax.tree.map(np.testing.assert_array_equal, back, tree)
  with pytest.raises(DataError, match=r"model: 0000\['a'\] is float32 \[3\], and here float32 \[2, 3\]"):
    of_arrays({**arrays, "0000['a']": np.ones(3, np.float32)}, tree, "It")
  with pytest.raises(DataError, match="only in one"):
    of_arrays({"0000['a']": arrays["0000['a']"]}, tree, "It")


def test_rows_of_one_client_stand_at_its_place():
  alone = at_place(federation((5,)), 1, 3)
  np.testing.assert_array_equal(alone.train.size, [0, 5, 0])
  assert at_place(alone, 0, 3) is alone
  with pytest.raises(SettingError, match="the data have 3 clients, and the deployment 4"):
    at_place(alone, 0, 4)


def test_what_cannot_go_is_refused(tmp_path):
  data, client = federation(SIZES), fh.fedavg(linear(), **LOCAL)

  def node(algorithm, config={"partition-id": 0}, **settings):  # noqa: B006
    Node(Deployment(algorithm, lambda node: data, 3, 2, jax.random.key(0), **settings), config, "7")

  for algorithm, setting in (
    (fh.federated(client, attack=fh.attacks.sign_flip(share=0.4)), "attack = 'sign_flip'"),
    (fh.federated(client, participation=fh.participation.available(probability=0.5)), "participation = "),
    (fh.federated(client, system=fh.system.constant()), "system = .constant.: simulates time"),
    (fh.federated(client, asynchronous=fh.asynchronous.fedbuff(2, 2)), "asynchronous = .fedbuff.: is simul"),
    (fh.federated(mime(linear())), "algorithm = 'custom': has a pass before"),
  ):
    with pytest.raises(SettingError, match=setting):
      node(algorithm)
  with pytest.raises(SettingError, match="partition-id = 3: is no client's number"):
    node(fh.federated(client), {"partition-id": 3})
  with pytest.raises(SettingError, match="cohort_size"):
    node(fh.federated(client), cohort_size=4)


def test_a_state_that_is_missing_is_an_error(tmp_path):
  data, algorithm = federation(SIZES), fh.federated(fh.scaffold(linear(), **LOCAL))
  made = Deployment(algorithm, lambda node: data, 3, 2, jax.random.key(0))
  with pytest.raises(SettingError, match="folder = None: clients of scaffold keep a state"):
    _ = Node(made, {"partition-id": 1}, "7").folder
  first = to_arrays(fh.flower.node.first_message(algorithm, jax.random.key(0)))
  said = {"key": [0, 0], "round": 4, "trained": 2, "losses": False}
  with pytest.raises(DataError, match=r"000002.npz is missing, this client's state after round 2"):
    Node(made, {"partition-id": 1, "folder": str(tmp_path)}, "7").answer("train", (first, said))


def test_configurations_are_deployed_or_refused():
  cell = {"config": "configs/quickstart.py:algorithm=scaffold", "flags": "--config.rounds=4 --config.seed=2"}
  made = configured(cell)
  assert (made.num_clients, made.rounds, made.size, made.eval_every) == (20, 4, 5, 1)
  for flags, wrong in (
    ("--sweep.seed=0,1", "flags = '--sweep.seed=0,1': is not deployed"),
    ("--config.unseen.fraction=0.2", "unseen = 0.2: is not deployed"),
  ):
    with pytest.raises(SettingError, match=wrong):
      configured({**cell, "flags": flags})
  with pytest.raises(SettingError, match=r"algorithm.name = 'sosicfl': is made of the clients' data"):
    configured({"config": "configs/quickstart.py:algorithm=sosicfl"})


@pytest.mark.slow
def test_noise_for_a_target_counts_no_secrecy_of_who_is_asked():
  """With T rounds of multiplier z / (2√T), as the server's rounds have it; a simulated run takes less."""
  flags = "--config.num_clients=6 --config.cohort_size=2 --config.rounds=3 --config.mixing.name=uniform "
  flags += "--config.aggregation.name=gaussian --config.aggregation.epsilon=5.0"
  flags += " --config.aggregation.delta=0.01"
  made = configured({"config": "configs/quickstart.py:algorithm=fedavg", "flags": flags})
  given = dict(rounds=3, num_clients=6, cohort_size=2, delta=0.01)
  seen = fh.privacy.noise_multiplier(5.0, participation=fh.participation.available(0.5), **given)
  assert made.settings["aggregation.noise_multiplier"] == pytest.approx(seen)
  assert fh.privacy.noise_multiplier(5.0, **given) < 0.95 * seen
  assert made.checked().algorithm.aggregation.mechanism is not None


class Grid:
  """A stand-in for Flower's grid: nodes that answer with their number, are silent, or fail."""

  def __init__(self):
    self.nodes, self.asked, self.answers = {}, [], {}

  def get_node_ids(self):
    return [*self.nodes]

  def push_messages(self, messages):
    names = [f"{len(self.asked) + i}" for i in range(len(messages))]
    self.asked += messages
    for name, (_, node, kind) in zip(names, messages):
      client, fate = self.nodes[node]
      if fate == "silent" and kind != "query":
        self.nodes[100] = (client, "answers")  # the same client's, started again
      elif fate != "silent":
        self.answers[name] = node, client, fate
      else:
        self.answers[name] = node, client, "answers"
    return names

  def pull_messages(self, names):
    replies = []
    for name in names:
      if name in self.answers:
        node, client, fate = self.answers.pop(name)
        error = None if fate == "answers" else types.SimpleNamespace(code=2, reason=fate)
        replies.append(types.SimpleNamespace(
          metadata=types.SimpleNamespace(reply_to_message_id=name), has_error=lambda error=error: bool(error),
          error=error, content=({"node": node}, {"client": client, "size": 1}),
        ))  # fmt: skip
    return replies


def test_a_node_that_is_started_again_takes_its_place(monkeypatch, capsys):
  monkeypatch.setattr(apps, "_message", lambda parcel, node, kind, ttl: (parcel, node, kind))
  monkeypatch.setattr(apps, "_opened", lambda content: content)
  monkeypatch.setattr(apps, "GLANCE", 0.0)
  algorithm = fh.federated(fh.fedavg(linear()))
  grid = Grid()
  grid.nodes = {7: (1, "silent"), 8: (0, "answers"), 9: (None, "has no place")}
  nodes = apps.Nodes(grid, Deployment(algorithm, lambda node: None, 2, 1, jax.random.key(0)))
  nodes.meet()
  assert "The node 9 failed: has no place" in capsys.readouterr().out
  found = nodes.ask("train", {0: ({}, {}), 1: ({}, {})})
  assert {k: own[0]["node"] for k, own in found.items()} == {0: 8, 1: 100}
  assert [own[1:] for own in grid.asked if own[2] == "train"] == [(8, "train"), (7, "train"), (100, "train")]
  grid.nodes[8] = (0, "its disk is full")
  with pytest.raises(RuntimeError, match="The node 8 of client 0 failed: its disk is full"):
    nodes.ask("evaluate", {0: ({}, {})})


@pytest.mark.skipif(importlib.util.find_spec("flwr") is not None, reason="Flower is installed")
def test_without_flower_the_error_names_the_extra():
  with pytest.raises(SettingError, match=r"pip install 'fedjax_het\[flower\]'"):
    client_app()


def test_parcels_travel_in_flowers_records():
  pytest.importorskip("flwr", reason="the extra flower is not installed")
  tree = {"a": jnp.float32(2.5), "b": jnp.full((2, 1), 0.5, jnp.bfloat16), "c": jnp.arange(3)}
  said = {"round": 2, "key": [0, 2**32 - 1], "losses": False, "rows": "{}"}
  arrays, back = apps._opened(apps._packed((to_arrays(tree), said)))
  jax.tree.map(np.testing.assert_array_equal, of_arrays(arrays, tree, "It"), tree)
  assert back == said and apps._opened(apps._packed(({}, {}))) == ({}, {})
