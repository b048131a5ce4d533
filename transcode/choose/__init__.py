"""Settings found by measuring."""
