"""A run: plan the work, do it, and report what happened."""
