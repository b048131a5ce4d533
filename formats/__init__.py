"""Read datasets of videos: stores, clips for training, and the manifest. `open_store` opens any of them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
