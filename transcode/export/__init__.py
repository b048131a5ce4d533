"""`pack`: convert a store for other tools, and carry labels over."""
