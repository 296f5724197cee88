"""Pictures and studies of runs and partitions."""
