"""Many videos, any frame of each: a page for every store, with its byte layout and its reader."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
