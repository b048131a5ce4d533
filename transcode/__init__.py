"""Turn raw videos into a verified training set. Each function is a command of `vidprep` under the same name."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
