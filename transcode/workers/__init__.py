"""Where units run: children that may die, threads that own them, Dask, Ray."""
