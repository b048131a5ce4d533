"""Raw videos in, a verified training set out: the functions are the commands of `vidprep`, under the same names."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vidprep.formats.video.options import EncoderOptions
    from vidprep.transcode.check.api import doctor, validate
    from vidprep.transcode.check.finding import Finding
    from vidprep.transcode.check.validate import ValidationReport
    from vidprep.transcode.choose.api import bench, sweep, tune
    from vidprep.transcode.choose.tune import Tuned
    from vidprep.transcode.destination.merge import Merged
    from vidprep.transcode.destination.opening import Compacted
    from vidprep.transcode.destination.relabel import Relabelled
    from vidprep.transcode.export.api import Packed, pack
    from vidprep.transcode.pages.api import report
    from vidprep.transcode.pages.report import ReportFiles
    from vidprep.transcode.run.api import burst, compact, label, merge, transcode
    from vidprep.transcode.run.run import Summary
    from vidprep.transcode.settings.options import Limits, QualityGate, Retime, Scale, Target
    from vidprep.transcode.settings.output import FrameOutput, VideoOutput
    from vidprep.transcode.settings.run import RunSettings

_HOMES = {
    "bench": "transcode.choose.api", "burst": "transcode.run.api", "compact": "transcode.run.api",
    "doctor": "transcode.check.api", "label": "transcode.run.api", "merge": "transcode.run.api",
    "pack": "transcode.export.api", "report": "transcode.pages.api", "sweep": "transcode.choose.api",
    "transcode": "transcode.run.api", "tune": "transcode.choose.api", "validate": "transcode.check.api",
    "Summary": "transcode.run.run", "ValidationReport": "transcode.check.validate", "Finding": "transcode.check.finding",
    "ReportFiles": "transcode.pages.report", "Packed": "transcode.export.api", "Tuned": "transcode.choose.tune",
    "Merged": "transcode.destination.merge", "Relabelled": "transcode.destination.relabel",
    "Compacted": "transcode.destination.opening", "RunSettings": "transcode.settings.run", "EncoderOptions": "formats.video.options",
    **dict.fromkeys(("Limits", "QualityGate", "Retime", "Scale", "Target"), "transcode.settings.options"),
    "FrameOutput": "transcode.settings.output", "VideoOutput": "transcode.settings.output",
}  # fmt: skip
__all__ = [
    "Compacted", "EncoderOptions", "Finding", "FrameOutput", "Limits", "Merged", "Packed", "QualityGate", "Relabelled", "ReportFiles",
    "Retime", "RunSettings", "Scale", "Summary", "Target", "Tuned", "ValidationReport", "VideoOutput", "bench", "burst", "compact",
    "doctor", "label", "merge", "pack", "report", "sweep", "transcode", "tune", "validate",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Late: child processes import this package too, and need none of it."""
    if name in _HOMES:
        return getattr(import_module(f"vidprep.{_HOMES[name]}"), name)
    raise AttributeError(name)


def __dir__() -> list[str]:
    return __all__
