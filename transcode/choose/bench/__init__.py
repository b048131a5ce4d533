"""Loaders timed on stores, right pixels first."""
