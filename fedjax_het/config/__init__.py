"""From a configuration, as a file or the command line gives it, to the typed plan of a run."""
