"""Settings of a run: what it makes, from which sources, and how."""
