"""Check a finished destination against its manifest and its sources, and check what a machine can do."""
