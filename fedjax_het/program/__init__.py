"""What every program of the command line shares: devices, signals, and how mistakes are told."""
