"""The folder of a run: its files, who may write them, its checkpoints, and where its figures come from."""
