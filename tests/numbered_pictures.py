"""Videos whose every picture shows its number, and the numbers read from pictures: nobody has to believe a timestamp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from vidprep.formats import open_store

SIZE = 64
GRID = 4
QUICK = {
    "libx264": {"preset": "ultrafast", "qp": "20"},
    "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8", "b:v": "2M"},
    "mjpeg": {},
}
CODECS = {
    ".mp4": "libx264",
    ".mov": "libx264",
    ".mkv": "libx264",
    ".webm": "libvpx-vp9",
    ".avi": "mjpeg",
    ".ts": "libx264",
}
PIXELS = {"mjpeg": "yuvj420p"}


def picture(number: int, size: int = SIZE) -> np.ndarray:
    """A grid of 16 blocks: 12 bits of the number, 4 to check it by."""
    bits = (number & 0xFFF) | (((number * 7 + 3) % 16) << 12)
    blocks = np.array([(bits >> place) & 1 for place in range(GRID * GRID)]).reshape(GRID, GRID)
    side = size // GRID
    return np.where(blocks, 200, 50).astype(np.uint8).repeat(side, 0).repeat(side, 1)


def number_on(pixels: np.ndarray) -> int | None:
    """The number on a picture (H, W) or (H, W, 3); None where its check fails."""
    grey = pixels.astype(float).mean(-1) if pixels.ndim == 3 else pixels.astype(float)
    height, width = grey.shape
    bits = 0
    for place in range(GRID * GRID):
        row, column = divmod(place, GRID)
        inside = grey[
            int((row + 0.3) * height / GRID) : int((row + 0.7) * height / GRID),
            int((column + 0.3) * width / GRID) : int((column + 0.7) * width / GRID),
        ]
        bits |= int(inside.mean() > 125) << place
    number = bits & 0xFFF
    return number if bits >> 12 == (number * 7 + 3) % 16 else None


def write(
    path: Path,
    times: Sequence[Fraction],
    *,
    last: Fraction | None = None,
    rate: Fraction = Fraction(30),
    tick: Fraction | None = None,
    numbers: Sequence[int] | None = None,
    codec: str = "",
    **options: str,
) -> Path:
    """A video with one picture at each of these times in seconds.

    last: how long the last picture is shown. rate: what the header says. tick: time base; None is fine enough for all but AVI, which
    counts frames.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    codec = codec or CODECS[path.suffix]
    base = tick or (1 / rate if path.suffix == ".avi" else Fraction(1, 90_000))
    last = last or 1 / rate
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=rate)
        stream.width = stream.height = SIZE
        stream.pix_fmt = PIXELS.get(codec, "yuv420p")
        stream.codec_context.options = {**QUICK.get(codec, {}), **options}
        stream.codec_context.thread_count = 1
        stream.time_base = stream.codec_context.time_base = base
        ticks = [round(time / base) for time in times]
        durations = {
            at: after - at for at, after in zip(ticks, [*ticks[1:], ticks[-1] + round(last / base)], strict=True)
        }
        packets = []
        for number, at in enumerate(ticks):
            drawn = np.repeat(picture(number if numbers is None else numbers[number])[..., None], 3, 2)
            frame = av.VideoFrame.from_ndarray(drawn, format="rgb24").reformat(format=stream.pix_fmt)
            frame.pts, frame.time_base = at, base
            packets += stream.encode(frame)
        for packet in [*packets, *stream.encode(None)]:
            packet.duration = durations.get(packet.pts, 0)
            container.mux(packet)
    return path


def constant(count: int, rate: Fraction | int, jitter: Callable[[], Fraction] = lambda: Fraction(0)) -> list[Fraction]:
    return [Fraction(n) / rate + jitter() for n in range(count)]


def numbers_in(destination: Path) -> dict[str, list[int | None]]:
    """The numbers on the pictures of each video of a store, by our reader."""
    store = open_store(destination)
    return {id_: [number_on(frame) for frame in store[id_].frames()] for id_ in store.ids}
