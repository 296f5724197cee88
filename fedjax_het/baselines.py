"""The field's client parts beside those of the thesis: rows of the table of `methods`.

A new one is a file with its factory, and an entry here.
"""

from fedjax_het.clients.apple import apple
from fedjax_het.clients.cfl import cfl
from fedjax_het.clients.fd import fd
from fedjax_het.clients.fedadmm import fedadmm
from fedjax_het.clients.fedala import fedala
from fedjax_het.clients.fedamp import fedamp, heurfedamp
from fedjax_het.clients.fedas import fedas
from fedjax_het.clients.fedbabu import fedbabu
from fedjax_het.clients.fedbn import fedbn
from fedjax_het.clients.fedcac import fedcac
from fedjax_het.clients.fedcm import fedcm, mofedsam
from fedjax_het.clients.fedcp import fedcp
from fedjax_het.clients.feddbe import feddbe
from fedjax_het.clients.feddc import feddc
from fedjax_het.clients.feddf import feddf
from fedjax_het.clients.feddyn import feddyn, fedspeed
from fedjax_het.clients.fedem import fedem
from fedjax_het.clients.fedfomo import fedfomo
from fedjax_het.clients.fedgen import fedgen
from fedjax_het.clients.fedkd import fedkd
from fedjax_het.clients.fedpac import fedpac
from fedjax_het.clients.fedphp import fedphp
from fedjax_het.clients.fedproto import fedproto
from fedjax_het.clients.fedrod import fedrod
from fedjax_het.clients.fedsmoo import fedsmoo
from fedjax_het.clients.fml import fml
from fedjax_het.clients.gpfl import gpfl
from fedjax_het.clients.ifca import ifca
from fedjax_het.clients.knn_per import knn_per
from fedjax_het.clients.label_skew import fedlc, fedntd, fedrs
from fedjax_het.clients.local_only import local_only
from fedjax_het.clients.mime import mime, mimelite
from fedjax_het.clients.moon import moon
from fedjax_het.clients.per_fedavg import per_fedavg
from fedjax_het.clients.pfedhn import pfedhn
from fedjax_het.entries import PUBLIC, SIZES, Method

BASELINES = (
  Method("feddyn", feddyn, "FedAvg with a penalty that makes the clients' optima meet",
         "Acar et al., ICLR 2021", "a client's drift"),
  Method("fedspeed", fedspeed, "feddyn along sharpness-aware gradients", "Sun et al., ICLR 2023",
         "a client's drift"),
  Method("local", local_only, "training at each client alone; nothing is sent", "-", "a client's own model"),
  Method("moon", moon, "FedAvg whose features stay near the received model's", "Li, He, Song, CVPR 2021",
         "a client's last model"),
  Method("fedbn", fedbn, "FedAvg without the normalisation layers", "Li et al., ICLR 2021",
         "a client's normalisation layers"),
  Method("per_fedavg", per_fedavg, "a start for one gradient step on a client's data",
         "Fallah, Mokhtari, Ozdaglar, NeurIPS 2020"),
  Method("fedbabu", fedbabu, "a body trained under a random head; clients fine-tune", "Oh et al., ICLR 2022",
         "the head"),
  Method("fedproto", fedproto, "classes' mean features are shared, models are not", "Tan et al., AAAI 2022",
         "a client's own model"),
  Method("fedrod", fedrod, "a generic and a personal head on one body", "Chen and Chao, ICLR 2022",
         "a client's head"),
  Method("fedlc", fedlc, "FedAvg with logits calibrated by the client's label counts",
         "Zhang et al., ICML 2022"),
  Method("fedrs", fedrs, "FedAvg with smaller logits of classes that the client lacks",
         "Li and Zhan, KDD 2021"),
  Method("fedntd", fedntd, "FedAvg that distils the received model's other classes",
         "Lee et al., NeurIPS 2022"),
  Method("fedcm", fedcm, "FedAvg along the client's and the last round's gradient", "Xu et al., 2021"),
  Method("mofedsam", mofedsam, "fedcm along sharpness-aware gradients", "Qu et al., ICML 2022"),
  Method("feddc", feddc, "feddyn with gradients corrected as in SCAFFOLD", "Gao et al., CVPR 2022",
         "a client's drift and gradient"),
  Method("fedadmm", fedadmm, "augmented Lagrangians; the server adds what changed",
         "Gong, Li, Freris, ICDE 2022", "a client's model and dual variable"),
  Method("fedsmoo", fedsmoo, "fedspeed whose ascents are made to agree", "Sun et al., ICML 2023",
         "a client's drift and dual variable"),
  Method("mimelite", mimelite, "FedAvg with the server's momentum in local steps",
         "Karimireddy et al., NeurIPS 2021"),
  Method("mime", mime, "mimelite with gradients corrected as in SVRG", "Karimireddy et al., NeurIPS 2021"),
  Method("fedala", fedala, "starts from a learnt mixture of the own and the received head",
         "Zhang et al., AAAI 2023", "a client's head and its weights"),
  Method("feddbe", feddbe, "features shifted by a vector of the client's, and pulled to a common mean",
         "Zhang et al., NeurIPS 2023", "a client's vector"),
  Method("fedphp", fedphp, "a moving average of the client's models teaches the received one",
         "Li et al., ECML-PKDD 2021", "a client's private model"),
  Method("gpfl", gpfl, "features read under a generic and a client's condition", "Zhang et al., ICCV 2023",
         "a client's head"),
  Method("fedcp", fedcp, "a policy splits features between a personal and a global head",
         "Zhang et al., KDD 2023", "a client's head"),
  Method("knn_per", knn_per, "FedAvg interpolated with the client's nearest examples",
         "Marfoq et al., ICML 2022"),
  Method("ifca", ifca, "several models, of which a client trains the one that fits",
         "Ghosh et al., NeurIPS 2020"),
  Method("fedem", fedem, "a mixture of shared models with weights of each client's own",
         "Marfoq et al., NeurIPS 2021", "a client's weights"),
  Method("fedamp", fedamp, "each client's own average, in which similar models count more",
         "Huang et al., AAAI 2021", "a client's model, twice", prepares=SIZES),
  Method("heurfedamp", heurfedamp, "fedamp with attention by cosines", "Huang et al., AAAI 2021",
         "a client's model, twice", prepares=SIZES),
  Method("fedfomo", fedfomo, "clients move towards others' models that do better on their own rows",
         "Zhang et al., ICLR 2021", "a client's model, twice, and K x K affinities", prepares=SIZES),
  Method("cfl", cfl, "clusters, split in two where their updates cancel", "Sattler et al., IEEE TNNLS 2020",
         "each cluster's model", prepares=SIZES),
  Method("apple", apple, "mixtures of all clients' core models, with weights that clients learn",
         "Luo and Wu, IJCAI 2022", "a client's core model and K weights", prepares=SIZES),
  Method("fedcac", fedcac, "critical parameters are averaged with similar clients, the others with all",
         "Wu et al., ICCV 2023", "what each client is sent", prepares=SIZES),
  Method("fedpac", fedpac, "aligned features, and a mixture of all heads for each client",
         "Xu, Tong, Huang, ICLR 2023", "a client's head", prepares=SIZES),
  Method("fedas", fedas, "the received body is aligned with the client's own; clients count by information",
         "Yang, Huang, Ye, CVPR 2024", "a client's own model"),
  Method("pfedhn", pfedhn, "a network makes each client's model of a vector of its own",
         "Shamsian et al., ICML 2021", "the network and a client's vector", prepares=SIZES),
  Method("fml", fml, "a private and a shared model that teach each other", "Shen et al., 2020",
         "a client's private model"),
  Method("fedkd", fedkd, "a private mentor and a shared mentee, whose update is sent at a low rank",
         "Wu et al., Nature Communications 2022", "a client's mentor and a map of features"),
  Method("feddf", feddf, "the average learns what all models say together of public examples",
         "Lin et al., NeurIPS 2020", prepares=PUBLIC),
  Method("fedgen", fedgen, "a generator of features learns from all heads, and teaches clients",
         "Zhu, Hong, Zhou, ICML 2021", "the generator"),
  Method("fd", fd, "classes' mean logits are shared, models are not", "Jeong et al., 2018",
         "a client's own model"),
)  # fmt: skip
