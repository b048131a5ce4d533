"""Read one video wholly: times and keyframes of its frames, damage, and stretches that are frozen, black or repeated."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import av.error
import av.filter
import numpy as np
import numpy.typing as npt
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation
from av.video.stream import VideoStream

from vidprep.formats.errors import ReadError, VidprepError
from vidprep.formats.processes import count_progress
from vidprep.formats.stores.data_files import FilePart
from vidprep.formats.video.pyav import time_base_of, visible_bytes
from vidprep.formats.video.source import Source
from vidprep.transcode.audit.dataset import VideoFile
from vidprep.transcode.settings.options import Limits
from vidprep.transcode.sources.scratch import scratch_folder

FROZEN_SECONDS, BLACK_SECONDS = 1.0, 1.0
SIDE = 64
Span = tuple[float, float]


@dataclass(slots=True)
class VideoFacts:
    """Facts of a video that was read to its end.

    Attributes:
        size: (width, height) in pixels
        times: (N,) presentation times of the frames in seconds, in the order of display
        keyframes: (N,) which frames are keyframes
        repeats: (N,) which frames have the same luma as the one before
        sums: (N,) checksum of the luma of each frame
        levels: (N, 6) mean and mean square of red, green and blue of each frame, from 0 to 1; only where statistics are declared
        motion: (N,) how much of each frame differs from the one before; likewise
        frozen: Stretches in seconds in which the picture stays as it is for a second or longer
        black: Stretches in seconds in which it is black
        damage: A line for each kind of damage
        contradictions: A line for each contradiction of headers, although no frame is known to be lost
        error: Why it cannot be read at all; None if it can
        frame_rate: Mean frames per second, as the header has it; None if unknown
        duration_seconds: Duration of the file, likewise
    """

    codec: str = ""
    pixel_format: str = ""
    size: tuple[int, int] = (0, 0)
    times: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    keyframes: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    repeats: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    sums: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    levels: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 6)))
    motion: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    frozen: list[Span] = field(default_factory=list)
    black: list[Span] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)
    error: str | None = None
    frame_rate: Fraction | None = None
    duration_seconds: float | None = None


def read_video(video: VideoFile) -> VideoFacts:
    """Read a video to its end. What is wrong with it is in the result."""
    try:
        with local_file(video) as path:
            return _read(path, is_measured=video.clips[0].episode is not None)
    except FileNotFoundError:
        return VideoFacts(error="is not there")
    except (VidprepError, OSError) as error:
        return VideoFacts(error=error.message if isinstance(error, VidprepError) else str(error))


@contextmanager
def local_file(video: VideoFile) -> Iterator[Path]:
    """Yield the path of a video; a member of a tar is copied."""
    if video.member is None:
        if not video.path.exists():
            raise FileNotFoundError
        yield video.path
        return
    with scratch_folder() as folder:
        copy = folder / Path(video.name).name
        with FilePart(video.path, *video.member) as part, copy.open("wb") as file:
            shutil.copyfileobj(part, file)
        yield copy


def _read(path: Path, *, is_measured: bool) -> VideoFacts:
    with Source(path, max_pixels=Limits().max_pixels) as source:
        info = source.info
        facts = VideoFacts(info.codec, info.pixel_format, (info.width, info.height))
        facts.frame_rate, facts.duration_seconds = info.frame_rate, info.duration_seconds
        times, keyframes, sums = list[float](), list[bool](), list[int]()
        entries, stretches, pictures = set[int | None](), _Stretches(), _Pictures()

        def packets() -> Iterator[Packet[VideoStream]]:
            for packet in source.packets():
                if packet.is_keyframe:
                    entries.add(packet.pts)
                yield packet

        for frame in source.decode(packets()):
            times.append(float("nan") if frame.pts is None else float(frame.pts * info.time_base))
            keyframes.append(frame.pts in entries)  # some decoders mark no frame
            grey = frame.reformat(format="gray")
            sums.append(zlib.crc32(visible_bytes(grey.planes[0], grey.width)))
            stretches.see(grey, times[-1])
            if is_measured:
                pictures.see(frame, grey)
            count_progress()
        stretches.end(times[-1] if times else 0.0)
        facts.damage, facts.contradictions = source.damage(read_to_end=True), source.contradictions(read_to_end=True)
    if not times:
        raise ReadError("has no frame that can be decoded", path=path)
    facts.times, facts.keyframes = np.array(times), np.array(keyframes)
    facts.sums = np.array(sums, np.int64)
    facts.repeats = np.diff(facts.sums, prepend=-1) == 0
    facts.frozen, facts.black = stretches.frozen, stretches.black
    facts.levels, facts.motion = np.array(pictures.levels).reshape(-1, 6), np.array(pictures.motion)
    return facts


class _Pictures:
    """Measures small copies of frames.

    Attributes:
        levels: Mean and mean square of each channel of each frame
        motion: How much of each frame differs from the one before
    """

    def __init__(self) -> None:
        self.levels, self.motion = list[npt.NDArray[np.float64]](), list[float]()
        self._before: npt.NDArray[np.int16] | None = None

    def see(self, frame: VideoFrame, grey: VideoFrame) -> None:
        # Single pixels, which have the statistics of all; means of areas, which have less noise.
        some = frame.reformat(width=SIDE, height=SIDE, format="rgb24", interpolation=Interpolation.POINT)
        rgb = some.to_ndarray().reshape(-1, 3) / 255.0
        self.levels.append(np.concatenate([rgb.mean(0), (rgb**2).mean(0)]))
        area = (
            grey.reformat(width=SIDE // 2, height=SIDE // 2, interpolation=Interpolation.AREA)
            .to_ndarray()
            .astype(np.int16)
        )
        self.motion.append(0.0 if self._before is None else float(np.abs(area - self._before).mean()))
        self._before = area


class _Stretches:
    """FFmpeg's filters that find frozen and black stretches, for frames of any sizes.

    Attributes:
        frozen: Frozen stretches so far
        black: Black stretches so far
    """

    def __init__(self) -> None:
        self.frozen, self.black = list[Span](), list[Span]()
        self._size, self._graph = (0, 0), av.filter.Graph()
        self._begun: dict[str, float] = {}

    def see(self, frame: VideoFrame, seconds: float) -> None:
        if np.isnan(seconds):
            return
        if (frame.width, frame.height) != self._size:
            self.end(seconds)
            self._begin(frame)
        self._graph.push(frame)
        self._take()

    def end(self, seconds: float) -> None:
        """End the stretches that have begun."""
        if self._size != (0, 0):
            self._graph.push(None)
            self._take()
        for name, begin in self._begun.items():
            getattr(self, name).append((begin, seconds))
        self._begun.clear()
        self._size = (0, 0)

    def _begin(self, frame: VideoFrame) -> None:
        self._size, self._graph = (frame.width, frame.height), av.filter.Graph()
        self._graph.threads = 1
        nodes = [
            self._graph.add_buffer(
                width=frame.width, height=frame.height, format=frame.format, time_base=time_base_of(frame)
            ),
            self._graph.add("freezedetect", f"d={FROZEN_SECONDS}"),
            self._graph.add("blackdetect", f"d={BLACK_SECONDS}"),
            self._graph.add("buffersink"),
        ]
        self._graph.link_nodes(*nodes).configure()

    def _take(self) -> None:
        while True:
            try:
                frame = self._graph.pull()
            except (av.error.BlockingIOError, av.error.EOFError):
                return
            said = frame.metadata
            for name, key in (("frozen", "lavfi.freezedetect.freeze"), ("black", "lavfi.black")):
                if (begin := said.get(f"{key}_start")) is not None:
                    self._begun[name] = float(begin)
                if (end := said.get(f"{key}_end")) is not None:
                    getattr(self, name).append((self._begun.pop(name, float(end)), float(end)))
