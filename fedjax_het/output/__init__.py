"""Text for terminals, tables and pages, escaped for the place that shows it."""
