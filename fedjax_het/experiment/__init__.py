"""A run's life: what it builds, trains, records and reports, alone or as a member of a sweep."""
