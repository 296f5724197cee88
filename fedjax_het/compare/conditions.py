"""What tells that compared runs had different conditions, such as attacks, lossy uploads and privacy."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedjax_het.compare.groups import Group
from fedjax_het.compare.runs import Run
from fedjax_het.conditions import conditions_of, in_words
from fedjax_het.studies.record_privacy import FIELD_BESIDE

PRIVACY = ("privacy", FIELD_BESIDE)  # sections that have an ε


def unequal_conditions(groups: Sequence[Group]) -> list[str]:
  """Returns a note with the conditions and the ε of each group; [] where all are alike.

  Settings of a condition are told if groups differ in them.
  """
  told = {group.label: _told(group) for group in groups}
  if len(set(told.values())) < 2:
    return []
  each = "; ".join(f"{label}: {text or 'none'}" for label, text in told.items())
  return [f"Conditions differ: {each}."]


def _told(group: Group) -> str:
  found = conditions_of(group.runs[0].config)
  for section, name in found.items():
    own = (field.partition(".")[::2] for field in group.fields)
    settings = [f"{end}={group.fields[f'{start}.{end}']}" for start, end in own if start == section and end]
    settings = [text for text in settings if not text.startswith("name=")]
    if isinstance(name, str) and settings:
      found[section] = f"{name} ({', '.join(settings)})"
  counted = list(group.counted or group.runs)
  return ", ".join(filter(None, (in_words(found), *(_epsilon(counted, name) for name in PRIVACY))))


def _epsilon(runs: Iterable[Run], name: str) -> str:
  """Returns the largest ε of some runs after their last round or evaluation, as text; "" without one."""
  sections = [own for run in runs if isinstance(own := _last(run).get(name), Mapping) and "epsilon" in own]
  if not sections:
    return ""
  known = [own["epsilon"] for own in sections if isinstance(own["epsilon"], int | float)]
  text = "no bound of ε" if len(known) < len(sections) else f"ε = {max(known):.4g}"
  delta = sections[0].get("delta")
  return f"{text} at δ = {delta:.2g}" if isinstance(delta, int | float) else text


def _last(run: Run) -> Mapping[str, Any]:
  return run.summary or (run.lines[-1] if run.lines else {})
