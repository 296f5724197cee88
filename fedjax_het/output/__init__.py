"""Text for terminals, tables and pages, and the progress of a run."""
