"""`--events`: write what happens in a run as lines of JSON, and summarise such lines. `--metrics`: write what they come to.

Every line has `time` (seconds since 1970) and `event`:
begun     run, destination, total, total_bytes, done_before, backend
started   id, bytes: a worker took the video, or a cluster queued it
segment   id, made, count: segments of a long video; `made` is 0 in the first such line
finished  id, seconds, cpu_seconds, num_frames, bytes (of the source), size_bytes, psnr_y_db
failed    id, seconds, bytes, stage, message
progress  done, failed, total, in_flight, queued, memory_bytes (this process and its children), every few seconds
ended     ok, failed, not_started, seconds, exit_code

`run` names the run in every line, so several runs may write to one file. On a network file system, whose appends are
not atomic, give each its own file.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vidprep.formats.errors import DestinationError, VidprepError, printable
from vidprep.formats.storage.local import memory_bytes, replacing

if TYPE_CHECKING:
    from vidprep.formats.manifest.row import ManifestRow
    from vidprep.transcode.run.plan import Plan
    from vidprep.transcode.run.run import Summary
    from vidprep.transcode.unit.job import Job

PROGRESS_SECONDS = 2.0
RECENT_SECONDS = 60.0
READER_SECONDS = 5.0
NOT_READ = "is a named pipe without a reader; start `vidprep monitor` on it first"


def _open(target: str) -> int:
    """Open a file for appending, waiting a moment for the reader of a named pipe. Raises OSError."""
    deadline = time.monotonic() + READER_SECONDS
    while True:
        try:
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o644)
        except OSError as error:
            if error.errno != errno.ENXIO or time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            os.set_blocking(fd, True)
            return fd


class Events:
    """Writes lines to a file, or "-" for stdout. Each line is one write, so several processes may append. Thread-safe.

    Args:
        target: The file of the lines; None for none.
        metrics: A file that is replaced every few seconds; see `metrics_of`.
    """

    def __init__(self, target: str | None, metrics: str | None = None) -> None:
        self._run = f"{socket.gethostname()}-{os.getpid()}-{time.time_ns() // 1_000_000}"
        self._guard = threading.Lock()
        self._counts = {"done": 0, "failed": 0, "total": 0}
        self._flying: set[str] = set()
        self._over = threading.Event()
        self._target, self._metrics, self._view, self._muted = target, metrics, RunView(self._run), set[str]()
        if metrics is not None and not os.access(Path(metrics).absolute().parent, os.W_OK):
            raise DestinationError("cannot be written: no such folder, or not allowed", path=metrics)
        try:
            self._fd = None if target is None else sys.stdout.fileno() if target == "-" else _open(target)
        except OSError as error:
            why = NOT_READ if error.errno == errno.ENXIO else f"cannot be written: {error.strerror}"
            raise DestinationError(why, path=target) from error

    def write_begun(self, plan: Plan, destination: str, backend: str) -> None:
        """Write `begun`, and `progress` every few seconds until `ended`."""
        total = len(plan.jobs) + len(plan.rejected)
        self._counts["total"] = total
        self._plan = plan
        size = sum(job.unit.share_bytes for job in plan.jobs)
        self._write(
            "begun", destination=destination, total=total, total_bytes=size, done_before=plan.done, backend=backend
        )
        threading.Thread(target=self._tell_progress, daemon=True).start()

    def write_started(self, job: Job) -> None:
        """Write `started`, once per video even if it is made in segments or retried."""
        with self._guard:
            if job.unit.id in self._flying:
                return
            self._flying.add(job.unit.id)
        self._write("started", id=job.unit.id, bytes=job.unit.share_bytes)

    def segment(self, job: Job, made: int, count: int) -> None:
        self._write("segment", id=job.unit.id, made=made, count=count)

    def row(self, row: ManifestRow) -> None:
        with self._guard:
            self._flying.discard(row.id)
            self._counts["done"] += 1
            self._counts["failed"] += not row.ok and not self._plan.leaves_out(row)
        fields: dict[str, Any] = {"id": row.id, "seconds": row.encode_seconds, "bytes": self._plan.source_bytes(row)}
        if row.ok:
            fields |= {name: getattr(row, name) for name in ("cpu_seconds", "num_frames", "size_bytes")}
            fields["psnr_y_db"] = row.psnr_y_db if row.psnr_y_db != float("inf") else "inf"
            self._write("finished", **fields)
        elif self._plan.leaves_out(row):
            self._write("short", **fields, message=row.message)
        else:
            self._write("failed", **fields, stage=row.stage, message=row.message)

    def write_ended(self, summary: Summary) -> None:
        self._over.set()
        fields = {name: getattr(summary, name) for name in ("ok", "failed", "not_started", "seconds", "exit_code")}
        self._write("progress", **self._progress())
        self._write("ended", **fields)

    def _tell_progress(self) -> None:
        while not self._over.wait(PROGRESS_SECONDS):
            self._write("progress", **self._progress())

    def _progress(self) -> dict[str, int]:
        with self._guard:
            flying = len(self._flying)
            queued = self._counts["total"] - self._counts["done"] - flying
            return self._counts | {"in_flight": flying, "queued": queued, "memory_bytes": memory_bytes()}

    def _write(self, event: str, **fields: Any) -> None:
        all_fields = {"time": round(time.time(), 3), "event": event, "run": self._run, **fields}
        with self._guard:
            self._view.take(all_fields)
            if (fd := self._fd) is not None:
                line = json.dumps(all_fields, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"
                self._try(f"{self._target}: events", lambda: os.write(fd, line))
            if event in ("begun", "progress", "ended"):
                self._try(f"{self._metrics}: metrics", self._write_metrics)

    def _try(self, what: str, write: Callable[[], object]) -> None:
        """Write something. A run goes on if that fails, and says so once."""
        try:
            write()
        except OSError as error:
            if what not in self._muted:
                self._muted.add(what)
                click.echo(f"vidprep: {printable(what)} cannot be written: {error.strerror}", err=True)

    def _write_metrics(self) -> None:
        if self._metrics is not None:
            with replacing(Path(self._metrics)) as file:
                file.write(metrics_of(self._view).encode("utf-8", "surrogateescape"))

    def broken(self, error: BaseException) -> None:
        """Record that an exception has ended the run."""
        self._over.set()
        self._view.exit_code = error.exit_code if isinstance(error, VidprepError) else 1
        if self._view.began:
            self._try(f"{self._metrics}: metrics", self._write_metrics)


# ------------------------------------------------------------------------------------------------ what the lines come to


@dataclass(slots=True)
class VideoState:
    """State of one video.

    Attributes:
        seconds: Time that processing took; None while it is being processed
    """

    id: str
    began: float
    seconds: float | None = None
    message: str | None = None


@dataclass(slots=True)
class RunView:
    """State of one run, from its events.

    Attributes:
        last: Time of the latest event
    """

    run: str
    destination: str = ""
    total: int = 0
    total_bytes: int = 0
    done: int = 0
    failed: int = 0
    frames: int = 0
    bytes_done: int = 0
    bytes_made: int = 0
    memory_bytes: int = 0
    began: float = 0.0
    last: float = 0.0
    exit_code: int | None = None
    seconds: float = 0.0
    failed_by_stage: Counter[str] = field(default_factory=Counter)
    flying: dict[str, VideoState] = field(default_factory=dict)
    slowest: list[VideoState] = field(default_factory=list)
    failures: list[VideoState] = field(default_factory=list)
    recent: list[tuple[float, int, int]] = field(default_factory=list)

    def take(self, fields: dict[str, Any]) -> None:
        self.last = when = float(fields["time"])
        event = fields["event"]
        if event == "begun":
            self.began, self.destination = when, str(fields["destination"])
            self.total, self.total_bytes = int(fields["total"]), int(fields["total_bytes"])
        elif event == "started":
            self.flying[str(fields["id"])] = VideoState(str(fields["id"]), when)
        elif event == "segment":
            video = self.flying.setdefault(str(fields["id"]), VideoState(str(fields["id"]), when))
            video.message = f"{int(fields['made'])} of {int(fields['count'])} segments made"
        elif event in ("finished", "failed"):
            seconds, message = float(fields["seconds"] or 0.0), str(fields.get("message") or "")
            frames, size, made = (int(fields.get(name) or 0) for name in ("num_frames", "bytes", "size_bytes"))
            video = self.flying.pop(str(fields["id"]), VideoState(str(fields["id"]), when))
            video.seconds, video.message = seconds, message
            self.done += 1
            self.seconds += seconds
            self.frames += frames
            self.bytes_done += size
            self.bytes_made += made
            self.recent = [each for each in self.recent if each[0] > when - RECENT_SECONDS] + [(when, frames, size)]
            self.slowest = sorted([*self.slowest, video], key=lambda video: -(video.seconds or 0.0))[:5]
            if event == "failed":
                self.failed += 1
                self.failed_by_stage[str(fields.get("stage") or "")] += 1
                self.failures = [*self.failures, video][-5:]
        elif event == "progress":
            self.memory_bytes = int(fields["memory_bytes"])
        elif event == "ended":
            self.exit_code = int(fields["exit_code"])

    def rates(self) -> tuple[float, float, float]:
        """Return videos, frames and source bytes per second, over the last minute."""
        if not self.recent:
            return 0.0, 0.0, 0.0
        seconds = max(1.0, min(RECENT_SECONDS, self.last - self.began))
        return (
            len(self.recent) / seconds,
            sum(r[1] for r in self.recent) / seconds,
            sum(r[2] for r in self.recent) / seconds,
        )

    def seconds_left(self) -> float | None:
        """Return the estimated remaining seconds, by the size of the remaining sources; None if unknown."""
        rate = self.rates()[2]
        return (self.total_bytes - self.bytes_done) / rate if rate and self.exit_code is None else None


def metrics_of(view: RunView) -> str:
    """Return the state of a run in the text format of Prometheus, for the textfile collector of its node_exporter."""
    flying = len(view.flying)
    states = {
        "ok": view.done - view.failed,
        "failed": view.failed,
        "running": flying,
        "waiting": view.total - view.done - flying,
    }
    metrics: dict[str, tuple[str, dict[str, float]]] = {
        "videos": ("Videos of this run, by state.", {f'state="{name}"': count for name, count in states.items()}),
        "failed_videos": (
            "Videos that failed, by stage.",
            {f'stage="{stage}"': count for stage, count in sorted(view.failed_by_stage.items())},
        ),
        "video_seconds": ("Time that finished videos took, summed over videos.", {"": view.seconds}),
        "frames": ("Frames of finished videos.", {"": view.frames}),
        "source_bytes": ("Bytes of the sources of finished videos.", {"": view.bytes_done}),
        "output_bytes": ("Bytes of outputs.", {"": view.bytes_made}),
        "source_bytes_total": ("Bytes of all sources of this run.", {"": view.total_bytes}),
        "started_timestamp_seconds": ("When the run began.", {"": view.began}),
        "updated_timestamp_seconds": ("When this file was written.", {"": view.last}),
    }
    if view.exit_code is not None:
        metrics["exit_code"] = "Exit code of the run, once it has ended.", {"": view.exit_code}
    place = "".join(f"\\{c}" if c in '"\\' else c for c in printable(view.destination))
    lines = []
    for name, (text, values) in metrics.items():
        lines += [f"# HELP vidprep_{name} {text}", f"# TYPE vidprep_{name} gauge"]
        lines += [
            f'vidprep_{name}{{destination="{place}"{label and f",{label}"}}} {value}' for label, value in values.items()
        ]
    return "\n".join(lines) + "\n"
