"""What is tuned of each method beside the learning rate: one or two of its own strengths, and in which range.

`SPACES` maps a method's name to (field of its section -> range as `--space` takes it, where the range is
from). "grid" is a range that spans the values that a paper tried. "around" spans a factor of some ten around
the value that the paper or its code uses (docs/methods.md says whose the defaults are); such a range is not
claimed to be a published one. A method that is not here has its learning rate alone.

A package of one's own adds its methods here as it adds them to `fedjax_het.methods.METHODS`.
"""

Space = dict[str, str]

_AAGGFF = "grid of the baselines in Hahn, Kim, Lee, ICML 2024"
_FEDOPT = "grid of Reddi et al., ICLR 2021, appendix D"

SPACES: dict[str, tuple[Space, str]] = {
  "fedprox": ({"mu": "0.001:1:log"}, "grid of Li et al., MLSys 2020"),
  "apfl": ({"alpha": "0.1:0.9"}, "around"),
  "pfedme": ({"lam": "1:50:log", "outer_lr": "0.003:0.03:log"}, "around"),
  "ditto": ({"lam": "0.05:2:log"}, "grid of Li et al., ICML 2021"),
  "superfed_mm": ({"mu": "0.001:1:log", "nu": "0.5:5:log"}, "grid of Hahn, Jeong, Lee, KDD 2022"),
  "superfed_lm": ({"mu": "0.001:1:log", "nu": "0.5:5:log"}, "grid of Hahn, Jeong, Lee, KDD 2022"),
  "sosicfl_plus": ({"lam": "0.1:10:log"}, "around"),
  "feddyn": ({"alpha": "0.001:0.1:log"}, "grid of Acar et al., ICLR 2021"),
  "fedspeed": ({"lam": "0.01:1:log", "rho": "0.01:0.5:log"}, "around"),
  "moon": ({"mu": "0.1:10:log"}, "grid of Li, He, Song, CVPR 2021"),
  "per_fedavg": ({"alpha": "0.001:0.1:log"}, "around"),
  "fedproto": ({"lam": "0.1:10:log"}, "around"),
  "fedlc": ({"tau": "0.1:2:log"}, "around"),
  "fedrs": ({"alpha": "0.1:0.9"}, "around"),
  "fedntd": ({"beta": "0.1:3:log", "tau": "0.5:3:log"}, "around"),
  "fedcm": ({"alpha": "0.03:0.5:log"}, "around"),
  "mofedsam": ({"alpha": "0.03:0.5:log", "rho": "0.01:0.5:log"}, "around"),
  "feddc": ({"alpha": "0.001:0.1:log"}, "around"),
  "fedadmm": ({"rho": "0.001:0.1:log"}, "around"),
  "fedsmoo": ({"lam": "0.01:1:log", "rho": "0.01:0.5:log"}, "around"),
  "mimelite": ({"beta": "0.5:0.99"}, "grid of Karimireddy et al., NeurIPS 2021"),
  "mime": ({"beta": "0.5:0.99"}, "grid of Karimireddy et al., NeurIPS 2021"),
  "fedala": ({"rate": "0.1:10:log"}, "around"),
  "feddbe": ({"kappa": "0.5:50:log", "momentum_mean": "0.1:1"}, "around"),
  "fedphp": ({"lam": "0.005:0.5:log", "mu": "0.5:0.95"}, "around"),
  "gpfl": ({"lam": "0.001:0.1:log", "mu": "0.01:1:log"}, "around"),
  "fedcp": ({"lam": "0.05:5:log"}, "around"),
  "knn_per": ({"sigma": "0.1:10:log"}, "around"),
  "fedamp": ({"lam": "0.1:10:log", "sigma": "0.1:10:log"}, "around"),
  "heurfedamp": ({"lam": "0.1:10:log", "sigma": "1:100:log"}, "around"),
  "fedfomo": ({"epsilon": "0.05:0.9"}, "around"),
  "cfl": ({"eps1": "0.1:1:log", "eps2": "0.4:4:log"}, "around"),
  "apple": ({"weights_lr": "0.0001:0.1:log", "mu": "0.01:1:log"}, "around"),
  "fedcac": ({"tau": "0.1:0.9"}, "around"),
  "fedpac": ({"lam": "0.1:10:log", "head_lr": "0.01:1:log"}, "around"),
  "fedas": ({"align_lr": "0.001:0.1:log"}, "around"),
  "pfedhn": ({"server_lr": "0.001:0.1:log"}, "around"),
  "fml": ({"alpha": "0.1:0.9", "beta": "0.1:0.9"}, "around"),
  "fedkd": ({"lam": "0.1:10:log"}, "around"),
  "feddf": ({"server_lr": "0.0001:0.01:log"}, "around"),
  "fedgen": ({"alpha": "0.1:10:log", "server_lr": "0.00003:0.003:log"}, "around"),
  "fd": ({"lam": "0.1:10:log"}, "around"),
  "afl": ({"lr": "0.01:1:log"}, _AAGGFF),
  "qffl": ({"q": "0.001:5:log"}, "grid of Li et al., ICLR 2020"),
  "term": ({"lam": "0.01:5:log"}, _AAGGFF),
  "fedmgda": ({"epsilon": "0.05:1:log"}, _AAGGFF),
  "propfair": ({"baseline": "2:5"}, "grid of Zhang et al., TMLR 2023"),
  "fedexp": ({"eps": "0.0001:0.1:log"}, "around"),
  "feddisco": ({"a": "0.05:1:log", "b": "0.01:0.5:log"}, "around"),
  "norm_bound": ({"bound": "0.1:10:log"}, "around"),
  "avgm": ({"momentum": "0.5:0.99"}, "grid of Hsu, Qi, Brown, 2019"),
  "adam": ({"lr": "0.001:1:log", "tau": "0.00001:0.1:log"}, _FEDOPT),
  "yogi": ({"lr": "0.001:1:log", "tau": "0.00001:0.1:log"}, _FEDOPT),
  "adagrad": ({"lr": "0.001:1:log", "tau": "0.00001:0.1:log"}, _FEDOPT),
}
