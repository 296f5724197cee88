"""Runs the missing rows of the leaderboard: `python -m fedjax_het.leaderboard [--tasks=...]`."""

if __name__ == "__main__":
  from fedjax_het.leaderboard.launcher import launch

  launch()
