"""What a run is asked to do. Knows nothing of how it is done."""
