"""A destination: its lease, settings, rows and outputs; array runs and how their partitions are merged."""
