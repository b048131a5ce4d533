"""Read the audio of one file by time, exact to the sample.

If the container counts time in samples (as MP4 does), decoding begins shortly before. Elsewhere (Matroska counts
milliseconds) the number of a sample is known only by counting from the first one, so everything before is decoded too:
a second per hour of audio.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
from av.audio.frame import AudioFrame
from av.audio.layout import AudioLayout
from av.error import FFmpegError as AvError
from av.filter import Graph

from vidprep.formats.errors import StoreError
from vidprep.formats.model import round_half_away
from vidprep.formats.video.audio_decoder import AudioDecoder
from vidprep.formats.video.pyav import open_input, reason_of, time_base_of
from vidprep.formats.video.source import READ_OPTIONS, file_url

Samples = npt.NDArray[np.float32]
PREROLL_SECONDS = Fraction(1, 4)  # decoders depend on previous audio: Opus on 80 ms
FILTER_SECONDS = Fraction(1, 20)  # a resampled sample depends only on samples closer than this
HOLE_SECONDS = Fraction(1, 10)


class Sound:
    """Audio of a file. Close it. Not thread-safe.

    Args:
        origin: Time of the file in seconds at which its video starts.
        data: File object of a video inside a shard.

    Raises:
        StoreError: The file cannot be read.
    """

    def __init__(self, path: Path | str, id_: str, origin: Fraction, data: BinaryIO | None = None) -> None:
        self._path, self._id, self._origin, self._data = path, id_, origin, data
        self._open()

    def _open(self) -> None:
        if self._data is not None:
            self._data.seek(0)
        try:
            self._container = open_input(self._data or file_url(self._path), READ_OPTIONS)
        except (AvError, OSError, ValueError) as error:
            raise StoreError(f"cannot be read: {reason_of(error)}", path=self._path) from error
        self._is_at_start = True
        self._decoder = AudioDecoder(self._container)
        self._stream = self._decoder.stream

    def close(self) -> None:
        container = getattr(self, "_container", None)
        if container is not None:
            container.close()

    __del__ = close

    @property
    def rate(self) -> int | None:
        """Sample rate in Hz; None if there is no audio."""
        return None if self._stream is None else self._stream.codec_context.sample_rate

    def read(self, start: Fraction, end: Fraction, *, rate: int | None, num_channels: int | None) -> Samples:
        """Return (C, N), -1 to 1, N = round(end * rate) - round(start * rate); zeros where the file has no audio. Raises
        StoreError.
        """
        own = self.rate
        if self._stream is None or not own:
            raise StoreError(
                f"{self._id}: has no audio: its source has none, or the run dropped it (`vidprep transcode --audio copy` keeps it)",
                path=self._path,
            )
        layout = AudioLayout(
            self._stream.layout.name if num_channels is None else {1: "mono", 2: "stereo"}[num_channels]
        )
        rate = rate or own
        first, last = round_half_away(start * rate), round_half_away(end * rate)
        try:
            if rate == own and layout.name == self._stream.layout.name:
                return self._own(first, last)
            # Every `step` samples, an output sample coincides with an input sample: resampling starts at one of these.
            step, margin = own // math.gcd(own, rate), FILTER_SECONDS * own
            low = math.floor((Fraction(first * own, rate) - margin) / step) * step
            high = math.ceil(Fraction(last * own, rate) + margin)
            made = _resample(self._own(low, high), self._stream.layout.name, own, layout.name, rate)
            return made[:, first - low * rate // own :][:, : last - first]
        except (AvError, OSError, ValueError) as error:
            raise StoreError(f"{self._id}: its audio does not decode: {reason_of(error)}", path=self._path) from error

    def _own(self, low: int, high: int) -> Samples:
        """Return samples of the file, counted from the start of the video."""
        assert self._stream is not None
        try:
            samples: Samples = np.zeros((self._stream.codec_context.layout.nb_channels, high - low), np.float32)
        except (MemoryError, ValueError) as error:
            raise StoreError(
                f"{self._id}: {high - low} samples do not fit into memory; ask for fewer", path=self._path
            ) from error
        for at, block in self._blocks(low):
            if at >= high:
                break
            begin, end = max(at, low), min(at + block.shape[1], high)
            if begin < end:
                samples[:, begin - low : end - low] = block[:, begin - at : end - at]
        return samples

    def _blocks(self, low: int) -> Iterator[tuple[int, Samples]]:
        """Yield decoded blocks from before a sample on, each with the number of its first sample."""
        assert self._stream is not None
        base, rate = time_base_of(self._stream), cast(int, self.rate)
        counts_samples = (1 / (base * rate)).denominator == 1
        begin = self._origin + Fraction(low, rate) - PREROLL_SECONDS
        if not (counts_samples and begin > 0 and self._seek(math.floor(begin / base))) and not self._is_at_start:
            self.close()  # a seek to 0 omits the packets before it, on which the first samples depend
            self._open()
        self._is_at_start = False
        due: int | None = None
        for frame in self._decoder.frames(self._decoder.packets()):
            at = None if frame.pts is None else round_half_away((frame.pts * time_base_of(frame) - self._origin) * rate)
            if due is not None and (at is None or (not counts_samples and abs(at - due) < HOLE_SECONDS * rate)):
                at = due
            block = _convert_to_floats(frame)
            yield at or 0, block
            due = (at or 0) + block.shape[1]

    def _seek(self, ticks: int) -> bool:
        """Seek. Return False if the container cannot, like an AVI without an index."""
        try:
            self._container.seek(ticks, stream=self._stream)
        except AvError:
            return False
        return True


def _convert_to_floats(frame: AudioFrame) -> Samples:
    """Convert to floats in -1 to 1, (C, N)."""
    values: npt.NDArray[Any] = frame.to_ndarray()
    if not frame.format.is_planar:
        values = values.reshape(-1, frame.layout.nb_channels).T
    floats: Samples = values.astype(np.float32)
    if values.dtype.kind == "u":
        return (floats - np.float32(128)) / np.float32(128)
    return floats if values.dtype.kind == "f" else floats / np.float32(1 << 8 * values.itemsize - 1)


def _resample(samples: Samples, layout: str, rate: int, to_layout: str, to_rate: int) -> Samples:
    """Resample (C, N) samples.

    The graph runs in the caller's thread. PyAV's own resampler starts threads and is freed by the garbage collector: in
    a forked child, where those threads do not exist, that blocks for ever.
    """
    frame = AudioFrame.from_ndarray(np.ascontiguousarray(samples), format="fltp", layout=layout)
    frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
    graph = Graph()
    graph.threads = 1
    source = graph.add_abuffer(sample_rate=rate, format="fltp", layout=layout, time_base=frame.time_base)
    shaper = graph.add("aformat", f"sample_rates={to_rate}:sample_fmts=fltp:channel_layouts={to_layout}")
    sink = graph.add("abuffersink")
    source.link_to(shaper)
    shaper.link_to(sink)
    graph.configure()
    made: list[npt.NDArray[Any]] = []
    for pushed in (frame, None):
        source.push(pushed)
        with suppress(BlockingIOError, EOFError):
            while True:
                made.append(cast(AudioFrame, sink.pull()).to_ndarray())
    return np.concatenate(made, 1).astype(np.float32, copy=False)
