"""Tables of papers: their cells, the runs that reproduce them, and comparison with the printed figures."""
