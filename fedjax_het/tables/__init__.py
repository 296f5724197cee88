"""Tables of papers: what their cells are, running them, and ours beside what was printed."""
