"""A folder, a file, a table or a URL becomes units. Opens no video."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
