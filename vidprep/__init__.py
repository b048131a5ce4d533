"""Turn raw videos into a verified dataset for training: `vidprep.transcode` writes it, `vidprep.formats` reads it back."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Import on first use: `import vidprep` takes a millisecond."""
    if name == "__version__":
        from importlib.metadata import version

        return version("vidprep")
    if name in ("formats", "transcode"):
        return import_module(f"vidprep.{name}")
    raise AttributeError(f"module 'vidprep' has no attribute {name!r}")


def __dir__() -> list[str]:
    return ["__version__", "formats", "transcode"]
