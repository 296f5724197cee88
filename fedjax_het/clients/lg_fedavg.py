r"""LG-FedAvg: local bodies (representations) and a shared head.

Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations,
arXiv:2001.01523, 2020.

It is FedPer with the roles exchanged: a client keeps its body θ^b, with its running statistics, and shares
its head. There is no global model.
"""

from fedjax_het.clients.fedper import fedper
from fedjax_het.clients.variant import variant_of
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate


@variant_of(fedper, "shares_body", "name")
def lg_fedavg(model: Model, **settings) -> ClientUpdate:
  """LG-FedAvg's client part; its state is the client's body, with the same initial value on all clients.

  See `fedper` for the settings.
  """
  return fedper(model, shares_body=False, name="lg_fedavg", **settings)
