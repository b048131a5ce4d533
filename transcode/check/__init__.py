"""Check a finished destination against its manifest and its sources, and check what a machine can do."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
