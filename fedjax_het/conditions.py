"""Tables of the parts by name that stand for the conditions of a federation."""

from collections.abc import Mapping
from typing import Any

from fedjax_het import aggregation, asynchronous, attacks, participation, system, uploads
from fedjax_het.entries import Method, Target, by_name

_FEDAVG = "McMahan et al., AISTATS 2017"
_KRUM, _YIN = "Blanchard et al., NeurIPS 2017", "Yin et al., ICML 2018"
_STICH = "Stich, Cordonnier, Jaggi, NeurIPS 2018"

AGGREGATIONS = by_name(
  Method("mean", aggregation.mean, "the mean weighted by the mixing", _FEDAVG),
  Method("median", aggregation.median, "the median of each coordinate", _YIN),
  Method("trimmed_mean", aggregation.trimmed_mean, "the mean of each coordinate without both ends", _YIN),
  Method("geometric_median", aggregation.geometric_median, "the point nearest to all uploads (RFA)",
         "Pillutla, Kakade, Harchaoui, IEEE TSP 2022"),
  Method("centered_clipping", aggregation.centered_clipping, "clipped steps from the last aggregate update",
         "Karimireddy, He, Jaggi, ICML 2021", "the aggregate update"),
  Method("bulyan", aggregation.bulyan, "Krum's choice, then means near the median of each coordinate",
         "El Mhamdi, Guerraoui, Rouault, ICML 2018"),
  Method("gaussian", aggregation.gaussian, "clipped updates with noise, for user-level privacy",
         "McMahan et al., ICLR 2018", "its bound, and past noise where it is correlated",
         target=Target("noise_multiplier", "epsilon", aggregation.multiplier_of),
         rounds_for=("epsilon", "correlation")),
)  # fmt: skip
PARTICIPATIONS = by_name(
  Method("uniform", participation.uniform, "S of K clients, uniformly", _FEDAVG),
  Method("available", participation.available, "S of those that are available, by chance", "-"),
  Method("cyclic", participation.cyclic, "blocks of clients in turns, as day and night",
         "Eichner et al., ICML 2019"),
  Method("trace", participation.trace, "S of those that a file says are there", "-"),
  Method("poisson", participation.poisson, "each client independently, by chance",
         "McMahan et al., ICLR 2018"),
  Method("importance", participation.importance, "by weights, with unbiased aggregates",
         "Chen, Horváth, Richtárik, TMLR 2022"),
)  # fmt: skip
UPLOADS = by_name(
  Method("clip", uploads.clip, "a difference of a length at most, fixed or by a quantile",
         "Andrew et al., NeurIPS 2021"),
  Method("gaussian", uploads.gaussian, "noise on every number", "Dwork et al., 2006"),
  Method("top_k", uploads.top_k, "the largest numbers of each tensor", _STICH, "a client's error"),
  Method("random_k", uploads.random_k, "random numbers of each tensor", _STICH, "a client's error"),
  Method("quantize", uploads.quantize, "stochastic rounding to b bits", "Alistarh et al., NeurIPS 2017"),
  Method("sign", uploads.sign, "signs and the mean magnitude of each tensor", "Karimireddy et al., ICML 2019",
         "a client's error"),
)  # fmt: skip
ATTACKS = by_name(
  Method("sign_flip", attacks.sign_flip, "dishonest clients reverse their update", "Li et al., AAAI 2019"),
  Method("gaussian", attacks.gaussian, "dishonest clients send noise", _KRUM),
  Method("alie", attacks.alie, "they send a mean shifted within the spread", "Baruch et al., NeurIPS 2019"),
  Method("ipm", attacks.ipm, "they send the negative honest mean", "Xie, Koyejo, Gupta, UAI 2020"),
  Method("mimic", attacks.mimic, "they send what one honest client sends", "Karimireddy et al., ICLR 2022"),
  Method("label_flip", attacks.label_flip, "they train on the labels C - 1 - y", "Fang et al., 2020"),
  Method("backdoor", attacks.backdoor, "they train on a patch with a target class", "Gu et al., 2017"),
)  # fmt: skip
SYSTEMS = by_name(
  Method("constant", system.constant, "all clients equally fast", "-"),
  Method("lognormal", system.lognormal, "log-normal speeds, also correlated with the clients' data", "-"),
  Method("trace", system.trace, "each client's speeds by a file", "-"),
)  # fmt: skip
ASYNCHRONOUS = by_name(
  Method("fedbuff", asynchronous.fedbuff, "the server moves by every B updates that arrive",
         "Nguyen et al., AISTATS 2022", "uploads on their way"),
  Method("fedasync", asynchronous.fedasync, "the server mixes each model that arrives into its own",
         "Xie, Koyejo, Gupta, OPT 2020", "uploads on their way"),
)  # fmt: skip
# Sections that a configuration may leave out -> methods. Each section is an argument of `federated` too.
CONDITIONS: dict[str, dict[str, Method]] = {
  "participation": PARTICIPATIONS, "uploads": UPLOADS, "attack": ATTACKS, "aggregation": AGGREGATIONS,
  "system": SYSTEMS, "asynchronous": ASYNCHRONOUS,
}  # fmt: skip
SEVERAL: tuple[str, ...] = ("uploads",)  # sections of `CONDITIONS` that choose a tuple of parts, in order
# Section of `CONDITIONS` -> the method that leaving it out chooses.
UNLESS_CHOSEN = {"aggregation": "mean", "participation": "uniform"}
# Section of `CONDITIONS` -> the method that one with settings and without a name chooses.
IF_UNNAMED = {"asynchronous": "fedbuff"}


def conditions_of(sections: Mapping[str, Any]) -> dict[str, str | list[str]]:
  """Returns the conditions that a configuration chooses: section -> name, or names where there are several.

  Methods that stand for no condition, such as the mean of uploads, are left out.

  Args:
    sections: a configuration, or the sections of it, by name. What is no section is skipped.
  """
  found: dict[str, str | list[str]] = {}
  for section in CONDITIONS:
    given = sections.get(section)
    several = given if isinstance(given, list | tuple) else [given]
    parts = [own for own in several if isinstance(own, Mapping) and own]
    names = [str(own.get("name") or IF_UNNAMED.get(section, "")) for own in parts]
    names = [name for name in names if name and name != UNLESS_CHOSEN.get(section)]
    if names:
      found[section] = names if section in SEVERAL else names[0]
  return found


def in_words(conditions: Mapping[str, Any]) -> str:
  """Returns conditions as text, such as "attack alie, uploads clip and sign"."""
  texts = ((name, [own] if isinstance(own, str) else own) for name, own in conditions.items())
  return ", ".join(f"{name} {' and '.join(map(str, own))}" for name, own in texts)
