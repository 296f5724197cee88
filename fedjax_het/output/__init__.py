"""Text for terminals, tables and pages."""
