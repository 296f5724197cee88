r"""The parts of a federated algorithm, and the messages that travel between them.

The objective is  min_θ Σ_i w_i E_{ξ~D_i} L(ξ; θ).  Clients differ in θ, in w or in D, and an algorithm has
one part for each question that this raises:

=================  =======================================================
`Participation`    who takes part, arrives, and how much of the work each does
`ClientUpdate`     what a client does with the broadcast that it receives
`Upload`           what becomes of an upload on its way
`Attack`           what dishonest clients do
`Mixing`           the mixing coefficients of a round's clients
`Aggregation`      how the uploads become one message; by default their mean
`ServerUpdate`     how the server moves
`System`           how long clients and server take
`Asynchronous`     whether the server waits for a whole cohort
=================  =======================================================

Every part is a NamedTuple of pure functions that are safe under `jit`, `vmap` and `scan`. Parts do not import
the engine, and the engine knows no method: it only passes on `Message`s, whose content is agreed between
client part and server part. `fedjax_het.federated` refuses parts that do not go together.

Shapes: K clients in all, a cohort of S clients a round, batches of B examples.
"""

from fedjax_het.parts.aggregation import Aggregation
from fedjax_het.parts.asynchronous import Asynchronous
from fedjax_het.parts.attack import Attack
from fedjax_het.parts.client import (
  ClientInitFn,
  ClientUpdate,
  ClientUpdateFn,
  DataNotRequested,
  FirstPassFn,
  InitBroadcastFn,
  LocalTraining,
  LossFn,
  in_one_go,
)
from fedjax_het.parts.message import Context, Feedback, Info, Message, Pooled, PyTree
from fedjax_het.parts.mixing import Mixing
from fedjax_het.parts.needs import MembershipFn, Needs, PersonalizeFn, Records, Simplex, Studies
from fedjax_het.parts.participation import Draw, Participation
from fedjax_het.parts.privacy import Mechanism, Release, Sampling, Strategy
from fedjax_het.parts.server import Algorithm, Sent, ServerUpdate
from fedjax_het.parts.system import Speeds, System
from fedjax_het.parts.upload import Upload, Way, Wire

__all__ = [
  "Aggregation", "Algorithm", "Asynchronous", "Attack", "ClientInitFn", "ClientUpdate", "ClientUpdateFn",
  "Context", "DataNotRequested", "Draw", "Feedback", "FirstPassFn", "Info", "InitBroadcastFn",
  "LocalTraining", "LossFn", "Mechanism", "MembershipFn", "Message", "Mixing", "Needs", "Participation",
  "PersonalizeFn", "Pooled", "PyTree", "Records", "Release", "Sampling", "Sent", "ServerUpdate", "Simplex",
  "Speeds", "Strategy", "Studies", "System", "Upload", "Way", "Wire", "in_one_go",
]  # fmt: skip
