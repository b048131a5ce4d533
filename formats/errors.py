"""All errors that vidprep raises on purpose, and helpers that format values for messages and JSON.

VidprepError                    path, stage, message; what failed, on which file, why, what to do
├── SettingsError (ValueError)      invalid setting; raised before the first file is opened
├── SourceError (ValueError)        invalid list of sources: missing, colliding or malformed entries
├── DestinationError (OSError)      destination in use, made with different settings, or not writable
│   ├── InUseError                  another run holds the destination
│   └── TakenOverError              another run took the destination over while this one was paused
├── ReadError (ValueError)          source that cannot be opened or decoded
│   ├── NoVideoError                it opens, but contains no video
│   ├── RefusedError                it is not what its name says: playlist, script, foreign protocol
│   ├── LimitError                  it exceeds --max-pixels or --max-frames
│   ├── DamagedError                it is damaged, and --on-damage fail was given
│   └── NotIndexedError             its GOPs cannot be read alone
├── PictureError (ValueError)       geometry or colours that the settings cannot produce
├── EncodeError (RuntimeError)      the encoder or the muxer failed
│   └── FfmpegError                 an ffmpeg process failed; has its command and the end of its stderr
├── DiskFullError (OSError)         no space left where the output is written
├── VerifyError (ValueError)        the output differs from what was encoded: count, PTS, keyframes, bytes
│   └── GateError                   the output is complete but below the requested quality
├── CrashedError (RuntimeError)     the child process that held the video crashed
│   └── WorkerError                 no child process can be started, or it lacks something; no video caused it
├── DeadlineError (TimeoutError)    the child process that held the video took too long
├── ManifestError (ValueError)      manifest or journal that cannot be read
├── StoreError (ValueError)         damaged or missing store
├── TransformError (RuntimeError)   a function that the user gave for frames failed
├── StorageError (OSError)          a file behind a URL cannot be read, written or listed
├── StoppedError (RuntimeError)     destination, workers or cluster ended a run; no video caused it
├── BackendError (RuntimeError)     cluster that cannot be reached, or has other versions
│   └── ClusterError                the cluster was lost during the run
└── MissingError (ImportError)      backend, encoder, extra or program that is not installed
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any


def format_bytes(count: float) -> str:
    if abs(count) >= 1e9:
        return f"{count / 1e9:.2f} GB"
    return f"{count / 1e6:.1f} MB" if abs(count) >= 1e6 else f"{count / 1e3:.1f} kB"


def count_of(count: int, noun: str) -> str:
    """Return a number with its noun: `1 video`, `2 videos`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def printable(text: str) -> str:
    """Return text on one line, with control characters and terminal escapes made visible."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def for_json(value: Any) -> Any:
    """Return a value with infinity as "inf": JSON has no number for it."""
    if isinstance(value, dict):
        return {name: for_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [for_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


STOPPED_CODE = 3  # exit code of a command that was stopped by its destination, workers or cluster


class VidprepError(Exception):
    """Base of all errors.

    Attributes:
        message: Description of the failure, and the remedy
        path: The file or folder
        stage: The step that failed
        exit_code: Exit code of a command that it ends
    """

    stage = "run"
    exit_code = 2
    _with_flags = ""

    def __init__(self, message: str, *, path: str | Path | None = None, stage: str | None = None) -> None:
        self.message = message
        self.path = None if path is None else str(path)
        if stage is not None:
            self.stage = stage
        super().__init__(message if self.path is None else f"{self.path}: {message}")

    @property
    def on_command_line(self) -> str:
        """Return the message with flags instead of keywords, for users of the command line."""
        return self._with_flags or str(self)

    def use_keywords(self, translate: Callable[[str], str]) -> None:
        """Replace flags in the message by keywords, for users of Python."""
        self._with_flags = self.on_command_line
        self.message = translate(self.message)
        self.args = (self.message if self.path is None else f"{self.path}: {self.message}",)

    def rename_files(self, before: str, now: str) -> VidprepError:
        """Return the error with the names under which the user knows the files."""
        path = None if self.path is None else self.path.replace(before, now)
        error = _rebuild(type(self), self.__dict__ | {"path": path, "message": self.message.replace(before, now)}, ())
        error.args = (error.message if path is None else f"{path}: {error.message}",)
        return error

    def __reduce__(self) -> tuple[object, ...]:
        """Support pickling: the default would call the class with one argument."""
        return _rebuild, (type(self), self.__dict__.copy(), self.args)


def _rebuild(kind: type[VidprepError], state: dict[str, object], args: tuple[object, ...]) -> VidprepError:
    error = kind.__new__(kind)
    error.__dict__.update(state)
    error.args = args
    return error


class SettingsError(VidprepError, ValueError):
    """A setting is invalid. In messages, a placeholder such as `<gop>` becomes `gop=0` for Python, and `--gop 0` in
    `on_command_line`.

    In messages, `<keyword>` becomes `gop=0` for Python and `--gop 0` in `on_command_line`.

    Attributes:
        options: Values of the options in the message, by keyword
    """

    stage = "settings"

    def __init__(self, message: str, *, path: str | Path | None = None, **options: object) -> None:
        self.template, self.options = message, options
        super().__init__(_fill(message, options, lambda name, value: f"{name}={_exact(value)}"), path=path)

    @property
    def on_command_line(self) -> str:
        text = _fill(self.template, self.options, _flag_name)
        return text if self.path is None else f"{self.path}: {text}"


def _fill(message: str, options: dict[str, object], shown: Callable[[str, object], str]) -> str:
    for name, value in options.items():
        message = message.replace(f"<{name}>", shown(name, value))
    return message


def _exact(value: object) -> str:
    return repr(value) if isinstance(value, str | int) else _number(value)


def _flag_name(name: str, value: object) -> str:
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True else f"{flag} {_number(value)}"


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


class SourceError(VidprepError, ValueError):
    stage = "plan"


class DestinationError(VidprepError, OSError):
    stage = "plan"


class InUseError(DestinationError):
    """Another run holds the destination. For partitions and merges the exit code is STOPPED_CODE, since the same command
    may succeed later.
    """

    def __init__(self, holder: str, path: str) -> None:
        super().__init__(f"in use by {holder}; wait for it, or stop it", path=path)


class TakenOverError(DestinationError):
    exit_code = STOPPED_CODE


class ReadError(VidprepError, ValueError):
    stage = "read"


class NoVideoError(ReadError):
    pass


class RefusedError(ReadError):
    pass


class NotIndexedError(ReadError):
    pass


class LimitError(ReadError):
    pass


class ShortError(ReadError):
    pass


class DamagedError(ReadError):
    pass


class PictureError(VidprepError, ValueError):
    stage = "picture"


class EncodeError(VidprepError, RuntimeError):
    stage = "encode"


class FfmpegError(EncodeError):
    """An ffmpeg process failed.

    Attributes:
        stderr_tail: The last lines that it printed to stderr
    """

    def __init__(self, message: str, *, command: list[str], stderr_tail: str, path: str | Path | None = None) -> None:
        self.command = command
        self.stderr_tail = stderr_tail
        super().__init__(message, path=path)


class DiskFullError(VidprepError, OSError):
    stage = "encode"
    exit_code = STOPPED_CODE


class VerifyError(VidprepError, ValueError):
    stage = "verify"


class GateError(VerifyError):
    stage = "gate"


class CrashedError(VidprepError, RuntimeError):
    stage = "isolate"


class WorkerError(CrashedError):
    stage = "worker"


class DeadlineError(VidprepError, TimeoutError):
    stage = "isolate"


class ManifestError(VidprepError, ValueError):
    stage = "manifest"


class StoreError(VidprepError, ValueError):
    stage = "store"


class TransformError(VidprepError, RuntimeError):
    stage = "transform"


class StorageError(VidprepError, OSError):
    stage = "storage"


class StoppedError(VidprepError, RuntimeError):
    """A run, or a trial of a search, was interrupted, found the disk full, or lost a host. Finished work is kept."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class BackendError(VidprepError, RuntimeError):
    """A cluster cannot be reached, or its workers differ from this process."""


class ClusterError(BackendError):
    """A cluster was lost during a run."""


class MissingError(VidprepError, ImportError):
    stage = "settings"
