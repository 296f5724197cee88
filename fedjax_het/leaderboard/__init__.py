"""A leaderboard: every method on several tasks, each tuned with the same budget, over fresh seeds."""
