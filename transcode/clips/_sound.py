"""Loudness of clips: EBU R128, of the blocks of 400 ms that libavfilter's ebur128 measures every 100 ms."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av.error
import numpy as np
import numpy.typing as npt
from av.filter import Graph

from vidprep.formats.video.audio_decoder import AudioDecoder
from vidprep.formats.video.pyav import open_input, time_base_of
from vidprep.formats.video.source import READ_OPTIONS, file_url

BLOCK_SECONDS = Fraction(1, 10)
ABSOLUTE_GATE, RELATIVE_GATE = -70.0, -10.0  # ITU-R BS.1770-4
SILENT = -60.0  # LUFS
SETTLE_SECONDS = 2  # read before the first time that counts


class Loudness:
    """Momentary loudness of a file by time.

    Attributes:
        blocks: (N,) LUFS of the 400 ms that end at each tenth of a second from `start` on
        start: Time of the file at which the first block begins
    """

    def __init__(self, blocks: npt.NDArray[np.float32], start: Fraction) -> None:
        self.blocks, self.start = blocks, start

    def facts(self, begin: Fraction, end: Fraction) -> dict[str, float | None]:
        """Return loudness and share of silence between two times of the file; None for both where there is no sound."""
        first, last = (int((time - self.start) / BLOCK_SECONDS) for time in (begin, end))
        inside = self.blocks[max(0, first + 4 - 1) : max(0, last)]
        if not len(inside):
            return {"loudness": None, "silence": None}
        return {"loudness": integrated(inside), "silence": float((inside < SILENT).mean())}


def integrated(blocks: npt.NDArray[np.float32]) -> float | None:
    """Return the loudness of blocks, gated as in ITU-R BS.1770-4; None if all are below the absolute gate."""
    loud = blocks[blocks > ABSOLUTE_GATE]
    if not len(loud):
        return None
    loud = loud[loud > _mean(loud) + RELATIVE_GATE]
    return _mean(loud)


def _mean(blocks: npt.NDArray[np.float32]) -> float:
    return float(10 * np.log10(np.mean(10 ** (blocks.astype(np.float64) / 10))))


def loudness_of(path: Path | str, begin: Fraction, end: Fraction) -> Loudness | None:
    """Return the loudness of a file between two times of it; None without sound that can be decoded."""
    try:
        with open_input(file_url(path), READ_OPTIONS) as container:
            decoder = AudioDecoder(container)
            if decoder.stream is None:
                return None
            if begin > SETTLE_SECONDS:
                container.seek(int((begin - SETTLE_SECONDS) * 1_000_000))
            return _measured(decoder, end)
    except (av.error.FFmpegError, OSError, ValueError):
        return None


def _measured(decoder: AudioDecoder, end: Fraction) -> Loudness | None:
    blocks: list[float] = []
    start: Fraction | None = None
    graph = Graph()
    first = None
    for frame in decoder.frames(decoder.packets(), lambda _packet, _why: None):
        if frame.pts is not None and frame.pts * time_base_of(frame) > end:
            break
        if first is None:
            first = frame
            start = (frame.pts or 0) * time_base_of(frame)
            nodes = [
                graph.add_abuffer(
                    sample_rate=frame.sample_rate,
                    layout=frame.layout.name,
                    format=frame.format.name,
                    time_base=time_base_of(frame),
                ),
                graph.add("ebur128", "metadata=1:framelog=quiet"),
                graph.add("abuffersink"),
            ]
            graph.link_nodes(*nodes).configure()
        graph.push(frame)
        _take(graph, blocks)
    if first is None or start is None:
        return None
    graph.push(None)
    _take(graph, blocks)
    return Loudness(np.array(blocks, np.float32), start)


def _take(graph: Graph, blocks: list[float]) -> None:
    while True:
        try:
            frame = graph.pull()
        except (av.error.BlockingIOError, av.error.EOFError):
            return
        if (value := frame.metadata.get("lavfi.r128.M")) is not None:
            blocks.append(float(value))
