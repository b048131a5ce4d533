"""A folder of encoded videos and its manifest: any frame by decoding from the keyframe before it.

The manifest knows where keyframes are and when each frame is shown, so opening scans nothing, and a frame is known by its
PTS. Only packets up to the last wanted frame are decoded.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
from av.codec.hwaccel import HWAccel
from av.error import FFmpegError as AvError
from av.packet import Packet
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest import label_column, label_fields, read_table
from vidprep.formats.model import Orientation, rescale
from vidprep.formats.pyav import fraction, open_input
from vidprep.formats.store import Frames, FrameStore, Handles, VideoFacts
from vidprep.formats.untrusted import PICTURE_SIDE_MAX
from vidprep.formats.video import READ_OPTIONS, file_url

NEEDED = [
    "id", "file_name", "status", "width", "height", "num_frames", "frame_rate_num", "frame_rate_den", "keyframes", "pts",
    "time_base_num", "time_base_den", "container",
]  # fmt: skip
FRAMES_UNASKED = 1_000_000  # of a video that claims more, its size is looked at: a frame takes a byte or more


class VideoStore(FrameStore):
    """Reads what `vidprep transcode` made. hardware: what decodes in the place of the processor, as libavutil names it: "cuda"
    is NVDEC. Raises StoreError, also when that is not there.
    """

    def __init__(self, path: str | os.PathLike[str], *, hardware: str | None = None) -> None:
        super().__init__(path)
        self._hardware = hardware
        self._prepare()
        if hardware is not None and self._rows:
            self._open(self.ids[0]).close()

    def _prepare(self) -> None:
        labels = label_fields(self.path).names
        table = read_table(self.path, [*NEEDED, *map(label_column, labels)])
        if table is None:
            raise StoreError("has no manifest.parquet", path=self.path)
        if missing := [name for name in NEEDED if name not in table.column_names]:
            raise StoreError(f"its manifest has no {', '.join(missing)}; make it again", path=self.path)
        if in_shards := {*pc.unique(table["container"]).to_pylist()}.intersection(
            ("burst", "tensor", "gulp", "webdataset")
        ):
            raise StoreError(
                f"the index of its {' and '.join(in_shards)} store is not there; restore it, or run the same command again",
                path=self.path,
            )
        good = np.asarray([status == "ok" for status in table["status"].to_pylist()], bool)
        self._table = table.filter(good).combine_chunks()
        self._label_names = labels
        self._rows = {id_: number for number, id_ in enumerate(self._table["id"].to_pylist())}
        self._check_values()
        self._readers = Handles(self._open, VideoReader.close)

    def _check_values(self) -> None:
        """Raises StoreError for rows that no run has written."""
        for name in ("id", "file_name", "width", "height", "num_frames", "keyframes", "time_base_num", "time_base_den"):
            if self._table[name].null_count:
                raise StoreError(f"its manifest has a video without {name}; make it again", path=self.path)
        for name in ("width", "height", "num_frames", "time_base_num", "time_base_den"):
            if len(self._table) and (least := pc.min(self._table[name]).as_py()) < 1:
                raise StoreError(f"its manifest has a video whose {name} is {least}; make it again", path=self.path)
        for name in ("width", "height"):
            if len(self._table) and (most := pc.max(self._table[name]).as_py()) > PICTURE_SIDE_MAX:
                raise StoreError(f"its manifest has a video whose {name} is {most}; make it again", path=self.path)
        self._check_lists()
        rates = (pc.fill_null(self._table[name], 0) for name in ("frame_rate_num", "frame_rate_den"))
        has_rate = pc.and_(*(pc.greater(part, 0) for part in rates))
        if pc.any(pc.and_not(pc.is_null(self._table["pts"]), has_rate)).as_py():
            raise StoreError(
                "its manifest has a video with neither a frame rate nor times; make it again", path=self.path
            )
        if len(self._rows) < len(self._table):
            raise StoreError("its manifest has several videos of one id; make it again", path=self.path)

    def _check_lists(self) -> None:
        """Raises StoreError for times of other frames than there are, and for keyframes that are none."""
        counts = self._table["num_frames"]
        times = pc.coalesce(pc.cast(pc.list_value_length(self._table["pts"]), counts.type), counts)
        first = pc.list_element(
            self._table.filter(pc.greater(pc.list_value_length(self._table["keyframes"]), 0))["keyframes"], 0
        )
        if not pc.all(pc.equal(times, counts)).as_py():
            raise StoreError("its manifest has a video with times for other frames; make it again", path=self.path)
        if len(first) < len(self._table) or not pc.all(pc.equal(first, 0)).as_py():
            raise StoreError(
                "its manifest has a video that does not begin with a keyframe; make it again", path=self.path
            )

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_hardware": self._hardware}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    def _ids(self) -> Sequence[str]:
        return sorted(self._rows)

    def sizes(self) -> npt.NDArray[np.int64]:
        columns = [self._table[name].to_numpy() for name in ("num_frames", "height", "width")]
        return np.stack(columns, 1).astype(np.int64)[[self._rows[id_] for id_ in self.ids]]

    def _value(self, id_: str, column: str) -> Any:
        if id_ not in self._rows:
            raise KeyError(f"{id_!r} is not in {self.path}")
        return self._table[column][self._rows[id_]].as_py()

    def labels(self, id_: str) -> dict[str, Any]:
        return {name: self._value(id_, label_column(name)) for name in self._label_names}

    def facts(self, id_: str) -> VideoFacts:
        count, height, width, rate_num, rate_den, pts, base_num, base_den, keyframes = (
            self._value(id_, name)
            for name in (
                "num_frames", "height", "width", "frame_rate_num", "frame_rate_den", "pts", "time_base_num",
                "time_base_den", "keyframes",
            )
        )  # fmt: skip
        rate = Fraction(rate_num, rate_den) if rate_num and rate_den else None
        if count > FRAMES_UNASKED and count > (size := self._size_of(id_)):
            raise StoreError(f"{id_}: {count} frames are claimed of {size} bytes; make it again", path=self.file(id_))
        return VideoFacts(count, height, width, rate, pts, Fraction(base_num, base_den), keyframes)

    def _size_of(self, id_: str) -> int:
        try:
            return self.file(id_).stat().st_size
        except OSError as error:
            raise StoreError(f"cannot be read: {error.strerror}", path=self.file(id_)) from error

    def file(self, id_: str) -> Path:
        """The video itself. Raises KeyError."""
        return self.path / str(self._value(id_, "file_name"))

    def _open(self, id_: str) -> VideoReader:
        return VideoReader(None, self.file(id_), id_, self.facts(id_), hardware=self._hardware)

    def fill(self, id_: str, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
        fill_from(self._readers, id_, numbers, rows)


class VideoReader:
    """One opened video. data: its bytes where they are no file of their own. Raises StoreError. Close it.

    origin_pts: PTS of frame 0 in the file. stream_index: of the video; None means the first. orientation: how its pictures are
    turned before they are given. hardware: as of `VideoStore`.
    """

    def __init__(
        self, data: BinaryIO | None, path: Path, id_: str, facts: VideoFacts, *,
        origin_pts: int = 0, stream_index: int | None = None, orientation: Orientation | None = None,
        hardware: str | None = None,
    ) -> None:  # fmt: skip
        self._path, self._id, self._facts = path, id_, facts
        self._origin_pts, self._orientation = origin_pts, orientation or Orientation()
        self._keyframes = list(facts.keyframes or ())
        self._source, self._stream_index, self._hardware = data or file_url(path), stream_index, hardware
        self._reformatter = VideoReformatter()
        self._open()

    def _open(self) -> None:
        on = None if self._hardware is None else HWAccel(self._hardware, allow_software_fallback=False)
        try:
            self._container = open_input(self._source, READ_OPTIONS, hwaccel=on)
        except (AvError, OSError, ValueError) as error:
            if on is not None:
                raise StoreError(
                    f"cannot be decoded by {self._hardware} here ({error}): no such device or driver, or not for this codec; "
                    "leave hardware out",
                    path=self._path,
                ) from error
            raise StoreError(f"cannot be read: {error}", path=self._path) from error
        streams = [s for s in self._container.streams.video if self._stream_index in (None, s.index)]
        base = fraction(streams[0].time_base) if streams else None
        if base is None or streams[0].codec_context is None:
            self.close()
            raise StoreError("has no video that can be decoded; it is damaged, restore it", path=self._path)
        self._stream, self._base = streams[0], base
        self._stream.thread_count = 1

    def close(self) -> None:
        container = getattr(self, "_container", None)
        if container is not None:
            container.close()

    __del__ = close

    def fill(self, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
        """Frames into arrays; numbers ascend."""
        wanted = dict(zip(numbers, rows, strict=True))
        try:
            while wanted:
                self._fill_from_keyframe(wanted)
        except (AvError, OSError, ValueError) as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"{self._id}: does not decode: {error}", path=self._path) from error

    def _fill_from_keyframe(self, wanted: dict[int, Frames]) -> None:
        """Those wanted frames that follow one another without leaving a GOP out."""
        first = next(iter(wanted))
        start = self._keyframes[bisect_right(self._keyframes, first) - 1]
        last, gop_of_last = first, bisect_right(self._keyframes, first)
        for number in wanted:
            gop = bisect_right(self._keyframes, number)
            if gop > gop_of_last + 1:
                break
            last, gop_of_last = number, gop
        begin, end = self._ticks(start), self._ticks(last)
        due = {self._ticks(number): number for number in wanted if number <= last}
        self._container.seek(begin, stream=self._stream)
        needed = last - start + 1
        packets = self._container.demux(self._stream)
        while needed:
            packet = next(packets, None)
            if packet is None or packet.pts is None:
                break
            if packet.pts < begin:
                continue  # a seek by DTS may land one GOP early
            needed -= packet.pts <= end and not packet.is_discard
            self._take(packet, due, wanted)
        self._take(None, due, wanted)
        if due:
            raise StoreError(
                f"{self._id}: frames {sorted(due.values())} are not there: no picture at their times after keyframe {start}",
                path=self._path,
            )

    def _take(self, packet: Packet[VideoStream] | None, due: dict[int, int], wanted: dict[int, Frames]) -> None:
        """Decode, and keep what is due, by its PTS."""
        for frame in self._stream.codec_context.decode(packet):
            number = None if frame.pts is None else due.pop(frame.pts, None)
            if number is not None:
                self._write(frame, wanted.pop(number))

    def _ticks(self, number: int) -> int:
        """The PTS of a frame in the file."""
        facts = self._facts
        if facts.pts is not None and facts.time_base is not None:
            return self._origin_pts + rescale(int(facts.pts[number]), facts.time_base, self._base)
        assert facts.frame_rate is not None
        return self._origin_pts + rescale(number, 1 / facts.frame_rate, self._base)

    def _write(self, frame: VideoFrame, row: Frames) -> None:
        plane = self._reformatter.reformat(frame, format="rgb24", threads=1).planes[0]
        lines = np.frombuffer(memoryview(plane), np.uint8).reshape(frame.height, plane.line_size)
        picture = lines[:, : frame.width * 3].reshape(frame.height, frame.width, 3)
        turn = self._orientation
        if turn.transpose:
            picture = picture.swapaxes(0, 1)
        picture = picture[:: -1 if turn.flip_vertical else 1, :: -1 if turn.flip_horizontal else 1]
        if row.shape != picture.shape:
            raise StoreError(
                f"{self._id}: a frame is {picture.shape[1]}x{picture.shape[0]}, {row.shape[1]}x{row.shape[0]} was expected",
                path=self._path,
            )
        row[:] = picture


def fill_from(readers: Handles[VideoReader], id_: str, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
    """By the reader of a video, which is not used again when it failed. Raises StoreError."""
    try:
        readers[id_].fill(numbers, rows)
    except StoreError:
        readers.drop(id_)
        raise
