"""A destination: its lease, settings, rows and outputs; array runs and how their partitions are merged."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
