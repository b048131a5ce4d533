"""Turn raw videos into a verified dataset for training: `vidprep.transcode` writes it, `vidprep.formats` reads it back."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vidprep.formats import PrefetchLoader, VideoDataset, clips_at_random_indices, open_store, read_manifest
    from vidprep.transcode import burst, pack, validate

__all__ = [
    "PrefetchLoader",
    "VideoDataset",
    "burst",
    "clips_at_random_indices",
    "open_store",
    "pack",
    "read_manifest",
    "validate",
]
_MADE = {
    "burst",
    "pack",
    "validate",
}  # by vidprep.transcode; which is called itself as well, `vidprep.transcode("raw/", "ready/")`


def __getattr__(name: str) -> Any:
    """Import on first use: `import vidprep` takes a millisecond."""
    if name == "__version__":
        from importlib.metadata import version

        return version("vidprep")
    if name in ("formats", "transcode"):
        return import_module(f"vidprep.{name}")
    if name in __all__:
        return getattr(import_module("vidprep.transcode" if name in _MADE else "vidprep.formats"), name)
    raise AttributeError(f"module 'vidprep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["__version__", "formats", "transcode", *__all__]
