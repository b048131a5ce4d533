"""A finished destination against its manifest and its sources, whoever made it."""
