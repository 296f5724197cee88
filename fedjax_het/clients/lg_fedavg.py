r"""LG-FedAvg: local representations, a shared head.

Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations,
arXiv:2001.01523, 2020.

FedPer the other way about: a client keeps its body θ^b, with its running statistics, and shares its head.
There is no global model.
"""

from fedjax_het.clients.fedper import fedper
from fedjax_het.clients.variant import variant_of
from fedjax_het.models import Model
from fedjax_het.parts import ClientUpdate


@variant_of(fedper, "shares_body", "name")
def lg_fedavg(model: Model, **settings) -> ClientUpdate:
  """LG-FedAvg's client part, whose state is the client's body; all bodies start alike. Settings: `fedper`."""
  return fedper(model, shares_body=False, name="lg_fedavg", **settings)
