"""One row per unit, in Parquet: its columns, what each can hold, and the journal of a run."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
