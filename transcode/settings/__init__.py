"""What a run is asked to do. Knows nothing of how it is done."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
