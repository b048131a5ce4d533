"""Pools that process jobs: child processes of this machine, Dask or Ray."""
