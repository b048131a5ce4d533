"""`vidprep monitor`: the events of runs, live in a terminal, from any machine that sees their files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from vidprep.transcode.events import RunState, Video, follow
from vidprep.transcode.text import megabytes, printable

EVERY_SECONDS = 0.5
SILENT_SECONDS = 30.0
SHOWN_RUNS, SHOWN_VIDEOS = 20, 8


class Tail:
    """The whole lines that were appended to a file since it was last asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def lines(self) -> list[bytes]:
        """None yet while the file is not there."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.splitlines()


def monitor(paths: Sequence[Path], console: Console, *, once: bool) -> None:
    """Show until every run has ended; once: what there is now, and no more."""
    tails, runs = [Tail(path) for path in paths], dict[str, RunState]()

    def look() -> Group:
        for tail in tails:
            follow(tail.lines(), runs)
        return _view(list(runs.values()))

    if once:
        console.print(look())
        return
    with Live(look(), console=console, auto_refresh=False, transient=False) as live:
        while not runs or any(run.exit_code is None for run in runs.values()):
            time.sleep(EVERY_SECONDS)
            live.update(look(), refresh=True)


def _view(runs: list[RunState]) -> Group:
    if not runs:
        return Group(Text("no events yet"))
    parts: list[Text | Group | ProgressBar] = []
    shown = sorted(runs, key=lambda run: (run.exit_code is not None, -run.last))[:SHOWN_RUNS]
    for run in shown:
        parts += [_headline(run), ProgressBar(total=max(1, run.total), completed=run.done, width=60)]
    if len(runs) > len(shown):
        parts.append(Text(f"and {len(runs) - len(shown)} runs more"))
    now = max(run.last for run in runs)
    flying = sorted(
        (video for run in runs if run.exit_code is None for video in run.flying.values()), key=lambda video: video.began
    )
    slowest = sorted((video for run in runs for video in run.slowest), key=lambda video: -(video.seconds or 0.0))
    if flying:
        parts.append(_videos(f"at work ({len(flying)}), longest first", flying, now))
    if slowest:
        parts.append(_videos("slowest so far", slowest, now))
    if failures := [video for run in runs for video in run.failures]:
        parts.append(_videos("failed last", failures[-SHOWN_VIDEOS:], now))
    return Group(*parts)


def _headline(run: RunState) -> Text:
    videos, frames, _ = run.rates()
    left = run.seconds_left()
    parts = [f"{run.done:,} of {run.total:,} videos", f"{run.failed:,} failed"]
    parts += [f"{videos:.1f} videos/s, {frames:,.0f} frames/s"] if run.exit_code is None else []
    parts += [f"{_clock(left)} left"] if left is not None else []
    parts += [f"{megabytes(run.bytes_done)} -> {megabytes(run.bytes_made)}", f"{megabytes(run.memory_bytes)} of memory"]
    silent = time.time() - run.last
    if run.exit_code is not None:
        parts.append(f"ended with {run.exit_code} after {_clock(run.last - run.began)}")
    elif silent > SILENT_SECONDS:
        parts.append(f"nothing heard for {_clock(silent)}")
    colour = "red" if run.exit_code or run.failed else "green"
    return Text.assemble((printable(run.destination), f"bold {colour}"), "  ", ", ".join(parts))


def _videos(title: str, videos: Sequence[Video], now: float) -> Group:
    table = Table(show_header=False, box=None)
    for video in videos[:SHOWN_VIDEOS]:
        seconds = video.seconds if video.seconds is not None else now - video.began
        table.add_row(Text(_clock(seconds)), Text(printable(video.id)), Text(printable(video.message or "")))
    return Group(Text(title, "bold"), table)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(max(0.0, seconds), 60)
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}:{minutes:02d}:{int(rest):02d}" if hours or minutes else f"{rest:.1f} s"
