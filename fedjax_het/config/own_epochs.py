"""Settings that follow others unless set: the passes of a method's second training, and a schedule's rounds.

The passes, such as Ditto's `local_epochs`, equal `local.epochs`; with `local.steps`, each training takes so
many steps and no passes are filled in. The rounds T of a schedule of the learning rate are the run's.

The configuration that a run writes to config.json always has these settings. A config.json without them was
written by an earlier version of the library, which trained a fixed number of passes.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedjax_het.config.typed import Plan
from fedjax_het.config.values import with_values
from fedjax_het.methods import CLIENTS

SCHEDULE_ROUNDS = "local.schedule_rounds"
PARTS = ("algorithm", "local")  # sections with settings of the client part


def resolved(config: Mapping[str, Any], swept: Collection[str] = ()) -> dict[str, Any]:
  """Returns a nested configuration with explicit numbers of additional passes and of a schedule's rounds.

  Args:
    config: a configuration whose fields are checked.
    swept: dotted fields whose values a sweep gives; they are left as they are.
  """
  given = {**config["local"], **config["algorithm"]}
  found: dict[str, Any] = {}
  if missing := followers(config, swept):
    epochs = given.get("epochs", CLIENTS[given["name"]].settings["epochs"].default)
    found |= dict.fromkeys(missing, epochs)
  scheduled = given.get("schedule", "constant") != "constant" and given.get("schedule_rounds") is None
  if scheduled and not {SCHEDULE_ROUNDS, "rounds"} & {*swept}:
    found[SCHEDULE_ROUNDS] = config["rounds"]
  return with_values(config, found) if found else dict(config)


def of_earlier(stored: Any) -> Any:
  """Returns a config.json's content, adding the passes that an earlier version trained if it has none.

  Args:
    stored: the content of a run's or a sweep's file; other values are returned unchanged.
  """
  try:
    if isinstance(stored.get("sweep"), Mapping):
      before = followers(stored["config"], stored["sweep"])
      return {**stored, "config": with_values(stored["config"], before)}
    return with_values(stored, followers(stored))
  except (AttributeError, KeyError, TypeError):  # written by another program, or damaged
    return stored


def to_compare(configs: Sequence[Any]) -> list[Any]:
  """Returns config.json contents of several runs, with additional passes where they differ from `epochs`.

  If no run states its additional passes, nothing is changed.
  """
  own = [_own_epochs(config) for config in configs]
  if not any(name in config[part] for config, names in zip(configs, own) for name in names for part in PARTS):
    return [*configs]
  found = []
  for config, names in zip(map(of_earlier, configs), own):
    given = {**config["local"], **config["algorithm"]} if names else {}
    as_epochs = {name for name in names if given.get(name) == given.get("epochs")}
    kept = {part: {k: v for k, v in config[part].items() if k not in as_epochs} for part in PARTS if names}
    found.append({**config, **kept})
  return found


def _own_epochs(config: Any) -> Collection[str]:
  """Returns the additional passes of a configuration's client part; () if it has no known one."""
  parts: list[Any] = [config.get(part) if isinstance(config, Mapping) else None for part in PARTS]
  known = all(isinstance(part, Mapping) for part in parts) and str(parts[0].get("name")) in CLIENTS
  return CLIENTS[parts[0]["name"]].own_epochs if known else ()


def passes(plan: Plan) -> str:
  """Describes a client's passes in a round: "epochs 10, local_epochs 10 (as epochs)", or "steps 7"."""
  known = plan.client.settings
  first = f"epochs {known['epochs']}"
  if known.get("min_epochs"):
    first = f"epochs {known['min_epochs']} to {known['epochs']}"
  if known.get("steps") is not None:
    first = f"steps {known['steps']}"
  own = [name for name in CLIENTS[plan.client.name].own_epochs if known.get(name) is not None]
  return ", ".join(
    [first, *(f"{name} {known[name]}{' (as epochs)' * (name in plan.as_epochs)}" for name in own)]
  )


def followers(config: Mapping[str, Any], swept: Collection[str] = ()) -> dict[str, int]:
  """Returns dotted field -> the passes of earlier versions, for each number that a configuration lacks."""
  algorithm, local = config["algorithm"], config["local"]
  given = {**local, **algorithm}
  found = {}
  for name, own in CLIENTS[algorithm["name"]].own_epochs.items():
    path = f"{'local' if name in local else 'algorithm'}.{name}"
    unused = own.unless_none in given and given[own.unless_none] is None
    by_steps = given.get("steps") is not None
    if given.get(name) is None and path not in swept and not (unused or by_steps):
      found[path] = own.before
  return found
