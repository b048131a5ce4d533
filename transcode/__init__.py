"""Raw videos in, a verified training set out: the functions are the commands of `vidprep`, under the same names."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vidprep.transcode.cli.commands import COMMANDS, FUNCTIONS

if TYPE_CHECKING:
    from vidprep.formats.video.options import EncoderOptions
    from vidprep.transcode.check.storage_trial import Finding
    from vidprep.transcode.check.validate import ValidationReport
    from vidprep.transcode.choose.tune import Tuned
    from vidprep.transcode.cli.bench import bench
    from vidprep.transcode.cli.check import doctor, report, validate
    from vidprep.transcode.cli.choose import sweep, tune
    from vidprep.transcode.cli.make import burst, transcode
    from vidprep.transcode.cli.manage import Packed, compact, label, merge, pack
    from vidprep.transcode.destination.merge import Merged
    from vidprep.transcode.destination.opening import Compacted
    from vidprep.transcode.destination.relabel import Relabelled
    from vidprep.transcode.pages.report import ReportFiles
    from vidprep.transcode.run.run import Summary
    from vidprep.transcode.settings.options import Limits, QualityGate, Retime, Scale, Target
    from vidprep.transcode.settings.output import FrameOutput, VideoOutput
    from vidprep.transcode.settings.run import RunSettings

_HOMES = {
    **{name: f"transcode.cli.{COMMANDS[name][0]}" for name in FUNCTIONS},
    "Compacted": "transcode.destination.opening",
    "EncoderOptions": "formats.video.options",
    "Finding": "transcode.check.storage_trial",
    "FrameOutput": "transcode.settings.output",
    "Limits": "transcode.settings.options",
    "Merged": "transcode.destination.merge",
    "Packed": "transcode.cli.manage",
    "QualityGate": "transcode.settings.options",
    "Relabelled": "transcode.destination.relabel",
    "ReportFiles": "transcode.pages.report",
    "Retime": "transcode.settings.options",
    "RunSettings": "transcode.settings.run",
    "Scale": "transcode.settings.options",
    "Summary": "transcode.run.run",
    "Target": "transcode.settings.options",
    "Tuned": "transcode.choose.tune",
    "ValidationReport": "transcode.check.validate",
    "VideoOutput": "transcode.settings.output",
}
__all__ = [
    "Compacted",
    "EncoderOptions",
    "Finding",
    "FrameOutput",
    "Limits",
    "Merged",
    "Packed",
    "QualityGate",
    "Relabelled",
    "ReportFiles",
    "Retime",
    "RunSettings",
    "Scale",
    "Summary",
    "Target",
    "Tuned",
    "ValidationReport",
    "VideoOutput",
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
    if name in _HOMES:
        return getattr(import_module(f"vidprep.{_HOMES[name]}"), name)
    raise AttributeError(name)


def __dir__() -> list[str]:
    return __all__
