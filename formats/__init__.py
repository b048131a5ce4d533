"""What is on disk: videos, stores of frames, the manifest. `open_store` reads any of them back."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vidprep.formats.manifest.table import ManifestRow, read_manifest
    from vidprep.formats.stores.base import FrameStore, StoredVideo
    from vidprep.formats.stores.registry import open_store
    from vidprep.formats.training.dataset import VideoDataset
    from vidprep.formats.training.loader import PrefetchLoader
    from vidprep.formats.training.samplers import (
        ClipSampler,
        clips_at_random_indices,
        clips_at_random_timestamps,
        clips_at_regular_indices,
        clips_at_regular_timestamps,
        dense_sample_frames,
        sample_frames,
    )

__all__ = [
    "ClipSampler",
    "FrameStore",
    "ManifestRow",
    "PrefetchLoader",
    "StoredVideo",
    "VideoDataset",
    "clips_at_random_indices",
    "clips_at_random_timestamps",
    "clips_at_regular_indices",
    "clips_at_regular_timestamps",
    "dense_sample_frames",
    "open_store",
    "read_manifest",
    "sample_frames",
]

_HOMES = {
    "FrameStore": "stores.base",
    "StoredVideo": "stores.base",
    "open_store": "stores.registry",
    "VideoDataset": "training.dataset",
    "PrefetchLoader": "training.loader",
    "ManifestRow": "manifest.table",
    "read_manifest": "manifest.table",
    "clips_at_random_indices": "training.samplers",
    "clips_at_random_timestamps": "training.samplers",
    "clips_at_regular_indices": "training.samplers",
    "clips_at_regular_timestamps": "training.samplers",
    "ClipSampler": "training.samplers",
    "dense_sample_frames": "training.samplers",
    "sample_frames": "training.samplers",
}


def __getattr__(name: str) -> Any:
    """Late, since most processes of a run read nothing back."""
    if name in _HOMES:
        return getattr(import_module(f"vidprep.formats.{_HOMES[name]}"), name)
    raise AttributeError(name)


def __dir__() -> list[str]:
    return __all__
