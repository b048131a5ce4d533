"""What is on disk: videos, stores of frames, the manifest. `open_store` reads any of them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vidprep.formats.stores.base import FrameStore, StoredVideo, open_store
    from vidprep.formats.training.dataset import VideoDataset
    from vidprep.formats.training.loader import PrefetchLoader

__all__ = ["FrameStore", "PrefetchLoader", "StoredVideo", "VideoDataset", "open_store"]


def __getattr__(name: str) -> Any:
    """Late, since most processes of a run read nothing back."""
    if name in __all__:
        from vidprep.formats.stores import base as store
        from vidprep.formats.training import dataset, loader

        return getattr({"VideoDataset": dataset, "PrefetchLoader": loader}.get(name, store), name)
    raise AttributeError(name)
