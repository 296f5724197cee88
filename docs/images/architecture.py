"""Draws architecture.svg: the house, of whose rooms each imports only from the floors below its own.

python docs/images/architecture.py
"""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

# From the roof down: a room and what is in it. tests/docs/test_house.py holds the imports to this.
FLOORS = (
  {"leaderboard": "every method on several tasks, tuned alike, over fresh seeds"},
  {"run": "the command line of a run", "reproduce": "of a paper's table",
   "tune": "trials by validation", "compare": "runs side by side", "command": "one for all"},
  {"launcher": "flags of a run or a sweep",
   "tables": "papers' tables, ours beside them",
   "flower": "an algorithm as Flower's apps"},
  {"experiment": "a run's life: what it builds, trains, records and reports"},
  {"workdir": "a run's folder: its files, claim, checkpoints",
   "program": "devices, signals, mistakes in one line"},
  {"config": "from files and flags to the typed plan of a run"},
  {"methods": "their names, one table", "studies": "what is studied of a run, and its pictures"},
  {"conditions": "participation, uploads, attacks, aggregation, system by name",
   "baselines": "the field's client parts by name"},
  {"federated": "the parts make an algorithm", "testing": "what every algorithm promises",
   "entries": "what a table knows of a method"},
  {"clients": "what a client does"},
  {"mixing": "how much each counts", "server": "how it moves", "engine": "rounds, devices, evaluation"},
  {"participation": "who is there", "uploads": "on their way", "attacks": "by liars",
   "aggregation": "many to one", "system": "how fast", "asynchronous": "how late"},
  {"models": "Flax modules behind pure functions", "privacy": "ε of what is sent"},
  {"parts": "what a part is", "local": "a client's walk through its data", "langevin": "one noisy step",
   "vectors": "norms, distances"},
  {"data": "sources, partitions, the clients' rows in flat arrays"},
  {"tasks": "loss, metrics, valid labels", "output": "text made safe to show, progress"},
  {"metrics": "formulas, and names with units", "settings": "declared once: type, range, meaning"},
  {"errors": "name, value, remedy", "modes": "JAX's options"},
)  # fmt: skip
WAY = {  # the stops of a run, as the page tells them
  "run": "1", "config": "2", "experiment": "8", "workdir": "2", "data": "3", "models": "4", "methods": "5",
  "federated": "5",
  "engine": "6", "studies": "7",
}  # fmt: skip
METHODS, KNOWS_NO_METHOD, OTHERS = "#F6D9C9", "#CFE3F3", "#EEF1F4"
OF_METHODS = (
  "clients",
  "mixing",
  "uploads",
  "attacks",
  "aggregation",
  "participation",
  "system",
  "asynchronous",
  "server",
  "langevin",
  "vectors",
)
COLOURS = dict.fromkeys(OF_METHODS, METHODS) | {
  "engine": KNOWS_NO_METHOD, "local": KNOWS_NO_METHOD, "parts": KNOWS_NO_METHOD,
}  # fmt: skip
WIDTH, HEIGHT, GAP = 12.0, 0.9, 0.12


def draw() -> Figure:
  """The picture."""
  figure = Figure(figsize=(10.0, 7.6), layout="constrained", facecolor="white")
  axes = figure.subplots()
  axes.set(xlim=(-1.1, WIDTH + 0.1), ylim=(-0.1, len(FLOORS)), aspect="auto")
  axes.axis("off")
  for floor, rooms in enumerate(reversed(FLOORS)):
    width = (WIDTH - GAP * (len(rooms) - 1)) / len(rooms)
    for i, (room, words) in enumerate(rooms.items()):
      x = i * (width + GAP)
      shape = FancyBboxPatch(
        (x, floor), width, HEIGHT - 0.04, boxstyle="round,pad=0,rounding_size=0.08",
        facecolor=COLOURS.get(room, OTHERS), edgecolor="#5A6570", linewidth=0.8,
      )  # fmt: skip
      axes.add_patch(shape)
      axes.text(x + width / 2, floor + 0.62, room, ha="center", va="center", weight="bold", size=11)
      axes.text(x + width / 2, floor + 0.25, words, ha="center", va="center", size=8.5)
      if room in WAY:
        axes.text(
          x + width - 0.1,
          floor + 0.64,
          WAY[room],
          ha="right",
          va="center",
          size=9,
          color="#B03A2E",
          weight="bold",
        )
  axes.annotate(
    "", (-0.35, 0.0), (-0.35, len(FLOORS) - 0.1), arrowprops={"arrowstyle": "->", "color": "#5A6570"}
  )
  axes.text(-0.55, len(FLOORS) / 2, "imports only from below", rotation=90, ha="center", va="center", size=9)
  return figure


if __name__ == "__main__":
  with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "house", "font.family": "sans-serif"}):
    draw().savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
