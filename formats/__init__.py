"""What is on disk: videos, stores of frames, the manifest. `open_store` reads any of them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vidprep.formats.dataset import VideoDataset
    from vidprep.formats.loader import PrefetchLoader
    from vidprep.formats.store import FrameStore, StoredVideo, open_store

__all__ = ["FrameStore", "PrefetchLoader", "StoredVideo", "VideoDataset", "open_store"]


def __getattr__(name: str) -> Any:
    """Late, since most processes of a run read nothing back."""
    if name in __all__:
        from vidprep.formats import dataset, loader, store

        return getattr({"VideoDataset": dataset, "PrefetchLoader": loader}.get(name, store), name)
    raise AttributeError(name)
