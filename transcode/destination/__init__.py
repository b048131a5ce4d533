"""Who owns a destination, what stands in it, and how partitions become one."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
