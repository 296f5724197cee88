"""Names of the compiled programs of a run, for messages."""

PROGRAMS = {  # a program's key -> its name in messages
  "init": "the first state",
  "init of examples": "the clients' first states",
  "advance": "the rounds",
  "diverged": "the look at what diverged",
  "evaluate": "the evaluation",
  "dishonest": "who attacks",
  "sample": "who is evaluated",
}
