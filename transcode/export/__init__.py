"""`pack`: convert a store for other tools, and carry labels over."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
