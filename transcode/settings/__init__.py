"""Settings of a run: what it makes, from which sources, and how."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
