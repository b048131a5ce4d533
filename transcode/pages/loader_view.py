"""The lines of a PrefetchLoader (formats/training/events.py), and how `vidprep monitor` shows them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group
from rich.text import Text

from vidprep.formats.text import megabytes, printable

HISTORY = 60
BARS = " ▁▂▃▄▅▆▇█"
SILENT_SECONDS = 30.0
COUNTS = ("epoch", "batch", "hits", "frames", "ready", "places", "cache_bytes", "memory_bytes")


@dataclass(slots=True)
class LoaderState:
    """One loader, by its lines so far. history: of the newest batches, the oldest first."""

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
        """Batches a second, of the newest ones."""
        if len(self.history) < 2:
            return 0.0
        seconds = self.history[-1]["time"] - self.history[0]["time"]
        return (len(self.history) - 1) / seconds if seconds > 0 else 0.0


def view(state: LoaderState) -> Group:
    newest = state.history[-1] if state.history else {"ready": 0, "places": 0}
    parts = [
        f"epoch {state.epoch}, batch {state.batch}",
        f"{state.rate():.1f} batches/s",
        f"{state.hits / max(1, state.frames):.0%} of frames from the cache",
        f"{megabytes(state.cache_bytes)} of frames kept",
        f"{megabytes(state.memory_bytes)} of memory",
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
    """A bar for each value, the highest full."""
    top = max(values, default=0.0) or 1.0
    return "".join(BARS[max(0, round(value / top * (len(BARS) - 1)))] for value in values)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
