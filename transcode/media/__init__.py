"""Frames and audio samples of one video, from source to output. Knows no job and no row."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
