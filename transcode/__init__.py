"""Raw videos in, a verified training set out: the functions are the commands of `vidprep`, under the same names."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vidprep.formats.video.options import EncoderOptions
    from vidprep.transcode.check.api import doctor, validate
    from vidprep.transcode.choose.api import bench, sweep, tune
    from vidprep.transcode.export.api import pack
    from vidprep.transcode.pages.api import report
    from vidprep.transcode.run.api import burst, compact, label, merge, transcode
    from vidprep.transcode.settings.options import FrameOptions, Limits, QualityGate, Retime, Scale, Target
    from vidprep.transcode.settings.run import RunSettings

_HOMES = {
    "bench": "transcode.choose.api", "burst": "transcode.run.api", "compact": "transcode.run.api",
    "doctor": "transcode.check.api", "label": "transcode.run.api", "merge": "transcode.run.api",
    "pack": "transcode.export.api", "report": "transcode.pages.api", "sweep": "transcode.choose.api",
    "transcode": "transcode.run.api", "tune": "transcode.choose.api", "validate": "transcode.check.api",
    "RunSettings": "transcode.settings.run", "EncoderOptions": "formats.video.options",
    **dict.fromkeys(("FrameOptions", "Limits", "QualityGate", "Retime", "Scale", "Target"), "transcode.settings.options"),
}  # fmt: skip
__all__ = [
    "EncoderOptions",
    "FrameOptions",
    "Limits",
    "QualityGate",
    "Retime",
    "RunSettings",
    "Scale",
    "Target",
    "bench",
    "burst",
    "compact",
    "doctor",
    "label",
    "merge",
    "pack",
    "report",
    "sweep",
    "transcode",
    "tune",
    "validate",
]


def __getattr__(name: str) -> Any:
    """Late: child processes import this package too, and need none of it."""
    if name == "__version__":
        from importlib.metadata import version

        return version("vidprep")
    if name in _HOMES:
        return getattr(import_module(f"vidprep.{_HOMES[name]}"), name)
    raise AttributeError(name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
