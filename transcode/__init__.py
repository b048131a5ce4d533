"""Raw videos in, a verified training set out: the functions are the commands of `vidprep`, under the same names."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vidprep.transcode.check.api import doctor, validate
    from vidprep.transcode.choose.api import bench, sweep, tune
    from vidprep.transcode.export.api import pack
    from vidprep.transcode.pages.api import report
    from vidprep.transcode.run.api import burst, merge, transcode
    from vidprep.transcode.settings.run import RunSettings

_HOMES = {
    "bench": "choose.api", "burst": "run.api", "doctor": "check.api", "merge": "run.api", "pack": "export.api",
    "report": "pages.api", "sweep": "choose.api", "transcode": "run.api", "tune": "choose.api", "validate": "check.api",
    "RunSettings": "settings.run",
}  # fmt: skip
__all__ = [
    "RunSettings",
    "bench",
    "burst",
    "doctor",
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
        return getattr(import_module(f"vidprep.transcode.{_HOMES[name]}"), name)
    raise AttributeError(name)
