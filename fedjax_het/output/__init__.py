"""Text for terminals, tables and pages, escaped for the place that shows it, and the progress of a run."""
