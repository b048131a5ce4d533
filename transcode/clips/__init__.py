"""`scan`: long, dirty, repeated videos become a table of clips worth encoding."""
