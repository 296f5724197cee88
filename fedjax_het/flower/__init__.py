"""Runs an algorithm on Flower's deployment engine: its client part is a `ClientApp`, the rest a `ServerApp`.

Node k is client k. It has the client's rows and state, and computes what the engine computes for one client,
by the same functions and with keys folded in from the same (seed, round, client). The server has the states
of server, mixing and aggregation, and runs what the engine runs after local training. Where all nodes answer,
a deployed run therefore has the figures of the simulated one, up to rounding.

`Node` and `serve` do not import Flower, which is the extra `flower`; `client_app` and `server_app` do.
"""

from fedjax_het.flower.apps import client_app, server_app
from fedjax_het.flower.deployment import Deployment, configured
from fedjax_het.flower.node import Node
from fedjax_het.flower.server import serve

__all__ = ["Deployment", "Node", "client_app", "configured", "serve", "server_app"]
