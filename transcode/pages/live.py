"""`monitor`: show the events of runs and loaders live in a terminal, on any machine that sees their files.

The events of a PrefetchLoader are described in formats/training/_events.py.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vidprep.formats.errors import SourceError, count_of, format_bytes, printable
from vidprep.formats.storage.untrusted import check_regular, open_regular, parse_json
from vidprep.transcode.run.events import RunView, VideoState

HISTORY = 60
BARS = " ▁▂▃▄▅▆▇█"
SILENT_SECONDS = 30.0
COUNTS = ("epoch", "batch", "hits", "frames", "ready", "places", "cache_bytes", "memory_bytes")


@dataclass(slots=True)
class LoaderState:
    """State of one loader.

    Attributes:
        history: Its latest batches, oldest first
    """

    loader: str
    epoch: int = 0
    batch: int = 0
    batches: int = 0
    hits: int = 0
    frames: int = 0
    cache_bytes: int = 0
    memory_bytes: int = 0
    last: float = 0.0
    closed: bool = False
    history: deque[dict[str, float]] = field(default_factory=lambda: deque(maxlen=HISTORY))

    def take(self, fields: dict[str, Any]) -> None:
        self.last = float(fields["time"])
        if fields["event"] == "closed":
            self.closed = True
        elif fields["event"] == "batch":
            counts = {name: int(fields[name]) for name in COUNTS}
            self.epoch, self.batch = counts["epoch"], counts["batch"]
            self.history.append(counts | {name: float(fields[name]) for name in ("time", "wait_ms", "decode_ms")})
            self.batches += 1
            self.hits += counts["hits"]
            self.frames += counts["frames"]
            self.cache_bytes, self.memory_bytes = counts["cache_bytes"], counts["memory_bytes"]

    def rate(self) -> float:
        """Return batches per second, over the latest ones."""
        if len(self.history) < 2:
            return 0.0
        seconds = self.history[-1]["time"] - self.history[0]["time"]
        return (len(self.history) - 1) / seconds if seconds > 0 else 0.0


def loader_panel(state: LoaderState) -> Group:
    newest = state.history[-1] if state.history else {"ready": 0, "places": 0}
    parts = [
        f"epoch {state.epoch}, batch {state.batch}",
        f"{state.rate():.1f} batches/s",
        f"{state.hits / max(1, state.frames):.0%} of frames from the cache",
        f"{format_bytes(state.cache_bytes)} of frames kept",
        f"{format_bytes(state.memory_bytes)} of memory",
    ]
    silent = time.time() - state.last
    if state.closed:
        parts.append("closed")
    elif silent > SILENT_SECONDS:
        parts.append(f"nothing heard for {silent:.0f} s")
    waits = [each["wait_ms"] for each in state.history]
    lines = [
        Text.assemble((printable(state.loader), "bold"), "  ", ", ".join(parts)),
        _row("wait per batch", waits, f"{_mean(waits):.1f} ms, at most {max(waits, default=0.0):.1f}"),
        _row("ready", [each["ready"] for each in state.history], f"{newest['ready']} of {newest['places']} batches"),
    ]
    decode = [each["decode_ms"] for each in state.history]
    return Group(*lines, _row("decoding per batch", decode, f"{_mean(decode):.0f} ms of all workers"))


def _row(title: str, values: Sequence[float], text: str) -> Text:
    return Text.assemble((f"  {title:20}", "dim"), bars(values), "  ", text)


def bars(values: Sequence[float]) -> str:
    """Return a bar for each value; the highest is full."""
    top = max(values, default=0.0) or 1.0
    return "".join(BARS[max(0, round(value / top * (len(BARS) - 1)))] for value in values)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


WAIT_SECONDS = 60.0  # for a file that does not exist yet
EVERY_SECONDS = 0.5
READ_BYTES = 1 << 20
SHOWN_RUNS, SHOWN_VIDEOS = 20, 8
LARGEST = 1e18
LINE_BYTES_MAX = 1 << 24


class Tail:
    """Reads complete lines that were appended to a file, or written to a named pipe, since the last request."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset, self._begun = 0, b""
        self.is_behind = False
        self._pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK) if path.is_fifo() else None
        if self._pipe is None:
            check_regular(path)

    def lines(self) -> list[bytes]:
        """Return new lines; none while the file does not exist. Lines longer than any event are dropped."""
        self._begun += self._file_text() if self._pipe is None else self._pipe_text(self._pipe)
        *whole, self._begun = self._begun.split(b"\n")
        if len(self._begun) > LINE_BYTES_MAX:
            self._begun = b"-"
        return whole

    def _file_text(self) -> bytes:
        """Return new text. The file is opened each time, since network file systems show new data only to new opens."""
        self.is_behind = False
        try:
            with open_regular(self._path) as file:
                file.seek(self._offset)
                text = file.read(READ_BYTES)
        except FileNotFoundError:
            return b""
        self._offset += len(text)
        self.is_behind = len(text) == READ_BYTES
        return text

    def _pipe_text(self, pipe: int) -> bytes:
        text = b""
        with suppress(BlockingIOError):
            while data := os.read(pipe, READ_BYTES):
                text += data
        return text

    def close(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)


@dataclass(slots=True)
class MonitorState:
    """State of all runs and loaders, by name."""

    runs: dict[str, RunView] = field(default_factory=dict)
    loaders: dict[str, LoaderState] = field(default_factory=dict)

    def take(self, lines: Iterable[bytes]) -> None:
        """Take new lines. Invalid lines, such as the torn last line of a killed run, are ignored."""
        for line in lines:
            try:
                fields = _scalars(parse_json(line))
                if "loader" in fields:
                    name = str(fields["loader"])
                    self.loaders.setdefault(name, LoaderState(name)).take(fields)
                else:
                    name = str(fields["run"])
                    self.runs.setdefault(name, RunView(name)).take(fields)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue

    @property
    def is_over(self) -> bool:
        runs = all(run.exit_code is not None for run in self.runs.values())
        return bool(self.runs or self.loaders) and runs and all(loader.closed for loader in self.loaders.values())


def _scalars(fields: dict[str, Any]) -> dict[str, Any]:
    """Return an event, whose values are texts and numbers. Raises ValueError for others, and for unrealistic numbers."""
    for value in fields.values():
        if not isinstance(value, str | int | float | None) or (
            isinstance(value, int | float) and not abs(value) < LARGEST
        ):
            raise ValueError(f"{value!r} is not a value of an event")
    return fields


def monitor(paths: Sequence[Path], console: Console, *, once: bool) -> None:
    """Show events until every run has ended and every loader is closed. With `once`, show the current state and return."""
    seen = MonitorState()
    with ExitStack() as stack:
        tails = [stack.enter_context(closing(Tail(path))) for path in paths]

        def look() -> Group:
            for tail in tails:
                seen.take(tail.lines())
                while tail.is_behind:
                    seen.take(tail.lines())
            if not seen.runs and not seen.loaders:
                return Group(*(Text(f"{printable(str(path))}: {_state(path)}") for path in paths))
            return _view(list(seen.runs.values()), list(seen.loaders.values()))

        if once:
            if not any(path.exists() for path in paths):
                raise SourceError("is not there; give what a run writes with --events", path=paths[0])
            console.print(look())
            return
        begun = time.monotonic()
        with Live(look(), console=console, auto_refresh=False, transient=False) as live:
            while not seen.is_over:
                time.sleep(EVERY_SECONDS)
                if time.monotonic() - begun > WAIT_SECONDS and not any(path.exists() for path in paths):
                    live.stop()
                    console.print()
                    raise SourceError(
                        f"did not appear within {WAIT_SECONDS:g} s; give what a run writes with --events", path=paths[0]
                    )
                live.update(look(), refresh=True)


def _state(path: Path) -> str:
    return "no events yet" if path.exists() else "is not there yet"


def _view(runs: list[RunView], loaders: list[LoaderState]) -> Group:
    parts: list[Text | Group | ProgressBar] = [loader_panel(loader) for loader in loaders[-SHOWN_RUNS:]]
    return Group(*parts, *_view_of_runs(runs))


def _view_of_runs(runs: list[RunView]) -> list[Text | Group | ProgressBar]:
    parts: list[Text | Group | ProgressBar] = []
    shown = sorted(runs, key=lambda run: (run.exit_code is not None, -run.last))[:SHOWN_RUNS]
    for run in shown:
        parts += [_headline(run), ProgressBar(total=max(1, run.total), completed=run.done, width=60)]
    if len(runs) > len(shown):
        parts.append(Text(f"and {len(runs) - len(shown)} runs more"))
    now = max((run.last for run in runs), default=0.0)
    flying = sorted(
        (video for run in runs if run.exit_code is None for video in run.flying.values()), key=lambda video: video.began
    )
    slowest = sorted((video for run in runs for video in run.slowest), key=lambda video: -(video.seconds or 0.0))
    if flying:
        parts.append(_videos(f"running ({len(flying)}), longest first", flying, now))
    if slowest:
        parts.append(_videos("slowest so far", slowest, now))
    if failures := [video for run in runs for video in run.failures]:
        parts.append(_videos("failed last", failures[-SHOWN_VIDEOS:], now))
    return parts


def _headline(run: RunView) -> Text:
    videos, frames, _ = run.rates()
    left = run.seconds_left()
    parts = [f"{run.done:,} of {count_of(run.total, 'video')}", f"{run.failed:,} failed"]
    parts += [f"{max(0, run.total - run.done - len(run.flying)):,} queued"] if run.exit_code is None else []
    parts += [f"{videos:.1f} videos/s, {frames:,.0f} frames/s"] if run.exit_code is None else []
    parts += [f"{_clock(left)} left"] if left is not None else []
    parts += [
        f"{format_bytes(run.bytes_done)} -> {format_bytes(run.bytes_made)}",
        f"{format_bytes(run.memory_bytes)} of memory",
    ]
    silent = time.time() - run.last
    if run.exit_code is not None:
        parts.append(f"ended with {run.exit_code} after {_clock(run.last - run.began)}")
    elif silent > SILENT_SECONDS:
        parts.append(f"nothing heard for {_clock(silent)}")
    colour = "red" if run.exit_code or run.failed else "green"
    return Text.assemble((printable(run.destination), f"bold {colour}"), "  ", ", ".join(parts))


def _videos(title: str, videos: Sequence[VideoState], now: float) -> Group:
    table = Table(show_header=False, box=None)
    for video in videos[:SHOWN_VIDEOS]:
        seconds = video.seconds if video.seconds is not None else now - video.began
        table.add_row(Text(_clock(seconds)), Text(printable(video.id)), Text(printable(video.message or "")))
    return Group(Text(f"\n{title}", "bold"), table)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(max(0.0, seconds), 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02d}:{int(rest):02d}" if hours or minutes else f"{rest:.1f} s"
