"""Frames of a finished destination as an output: packets and JPEGs are copied, and what stays of a GOP that is cut is encoded again.

An output of frames [40, 100) of a video with a keyframe every 16 frames:

    40 … 47       encoded again, from decoded frames
    48 … 95       three GOPs, whose packets are copied
    96 … 99       copied as far as the first packets of their GOP show exactly the first of these frames; the rest is encoded again
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from av.error import FFmpegError as AvError
from av.packet import Packet
from av.video.stream import VideoStream

from vidprep.formats.errors import ReadError, StoreError, VerifyError, VidprepError, count_of
from vidprep.formats.manifest.remarks import Remark
from vidprep.formats.manifest.row import COLUMN_NAMES, ManifestRow, row_from_dict
from vidprep.formats.manifest.table import manifest_paths, manifest_rows, read_table
from vidprep.formats.model import WHOLE, Colour, FrameSize, OutputFormat, Selected, StoredPackets, VideoFacts
from vidprep.formats.moments import MILLISECOND, exact_seconds
from vidprep.formats.storage.base import is_url
from vidprep.formats.storage.local import digest_samples, sha256_of
from vidprep.formats.stores.registry import open_store
from vidprep.formats.video.gop_frames import DecoderConfig, GopDecoders
from vidprep.formats.video.packets import PacketIndex, PacketIndexer, spans_of
from vidprep.formats.video.pyav import reason_of, time_base_of
from vidprep.formats.video.seek import Survey, jump_to, survey_of
from vidprep.formats.video.source import Source, open_video
from vidprep.formats.video.writer import VideoWriter, payload_checksum
from vidprep.transcode.media.audio import AudioTrack
from vidprep.transcode.media.encode import encode_and_measure
from vidprep.transcode.media.metrics import QualityReport, QualitySums
from vidprep.transcode.media.stream import FilteredFrame, FrameStream, OutputTiming, timing_of
from vidprep.transcode.media.verify import Measurements, check_file, frame_checksum
from vidprep.transcode.settings.options import QualityGate
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.unit.job import Context, Job, columns_of, new_row

if TYPE_CHECKING:
    import pyarrow as pa

    from vidprep.formats.stores.base import FrameStore
    from vidprep.formats.stores.encoded import VideoStore
    from vidprep.formats.stores.gops import VideoEntry

COPY_BYTES, KEPT_BYTES = 1 << 20, 32 << 20
LEAST_HALVED = 4  # frames of a GOP, below which x264 makes another header for half of it
UNKNOWN_COLOUR = Colour(2, 2, 2)
UNMEASURED = QualityReport(0.0, 0.0, 0.0, 0.0, 0, None, 0)
SCORES = (
    *("psnr_y_db", "psnr_yuv_db", "psnr_y_p1_db", "psnr_y_min_db", "worst_frame", "ssim"),
    *("vmaf", "vmaf_harmonic_mean", "vmaf_p1", "vmaf_model", "xpsnr_db", "xpsnr_p1_db"),
)


def copy_frames(job: Job, selected: Selected, context: Context) -> ManifestRow:
    """Make the output of a job, and return its row. The output keeps its partial name.

    Raises:
        ReadError: The video changed since it was selected.
        StoreError: It is damaged, or its GOPs are not indexed.
        EncodeError, VerifyError: Frames could not be encoded again.
        OSError: The file cannot be written.
    """
    from vidprep.formats.stores.encoded import VideoStore

    if not is_url(selected.place) and not manifest_paths(Path(selected.place)):
        return _copy_of_others(job, selected, context)
    store = _open(selected.place)
    old = _row_of(store.folder, selected.id)
    if old is None or old.sha256 != selected.sha256:
        raise ReadError(f"{selected.id} changed after it was selected; run again", path=selected.place)
    count = old.num_frames or 0
    begin, end = selected.start_frame or 0, count if selected.end_frame is None else selected.end_frame
    row = _describe(job, selected, old, begin, end)
    if not isinstance(store, VideoStore):
        _copy_stored(store, selected, slice(begin, end), row, old, Path(job.partial))
    elif (begin, end) == (0, count):
        entry = store.entry(selected.id)
        _copy_whole(store, selected, Path(job.partial))
        if entry.packets is not None and entry.config is not None:
            row.packets = StoredPackets(entry.config.extradata, entry.packets.to_bytes())
    else:
        with _file_of(store, selected.id, job) as path:
            _Trim(job, old, row, store.entry(selected.id), path, begin, end).make(context)
    return row


def _copy_of_others(job: Job, selected: Selected, context: Context) -> ManifestRow:
    """Make the output of frames of a file that vidprep did not make: one of a LeRobot dataset, with frames at a constant rate."""
    path, rate = Path(selected.place, selected.id), job.settings.retime.frame_rate
    assert rate is not None and selected.start_frame is not None and selected.end_frame is not None
    if not path.is_file() or digest_samples(path) != selected.sha256:
        raise ReadError(f"{selected.id} changed after it was selected; run again", path=selected.place)
    try:
        pts, base, entry = _look_at(path, selected.sha256)
    except AvError as error:
        raise ReadError(f"cannot be read: {reason_of(error)}", path=path) from error
    count = entry.facts.num_frames
    if selected.end_frame > count or any(
        abs((at - pts[0]) * base - n / rate) > MILLISECOND for n, at in enumerate(pts)
    ):
        raise ReadError(
            f"its {count_of(count, 'frame')} are not those of the rows, {float(rate):g} a second", path=path
        )
    old = replace(
        new_row(job),
        status="ok",
        codec=entry.config.codec if entry.config is not None else None,
        width=entry.facts.width,
        height=entry.facts.height,
        num_frames=count,
        frame_rate_num=rate.numerator,
        frame_rate_den=rate.denominator,
        source_pts=[at - pts[0] for at in pts],
        source_time_base_num=base.numerator,
        source_time_base_den=base.denominator,
        source_start_seconds=0.0,
        tolerance_seconds=float(base),
        source_digest=selected.sha256,
        encoder="copy",
        crf=None,
        preset=None,
    )
    row = _describe(job, selected, old, selected.start_frame, selected.end_frame)
    _Trim(job, old, row, entry, path, selected.start_frame, selected.end_frame).make(context)
    return row


@lru_cache(maxsize=4)
def _look_at(path: Path, _digest: str) -> tuple[list[int], Fraction, VideoEntry]:
    """Return the times of the frames of a file, in order, their time base, and its packets. Raises NotIndexedError."""
    from vidprep.formats.stores.gops import VideoEntry

    with open_video(path) as container, path.open("rb") as file:
        stream = container.streams.video[0]
        codec, context = stream.codec_context.codec.canonical_name, stream.codec_context
        config, pts = DecoderConfig(codec, context.extradata or b""), list[int]()
        indexer = PacketIndexer(codec, config.extradata, file)
        for packet in container.demux(stream):
            if packet.size:
                indexer.add(packet, bytes(packet))
                pts.append(packet.pts or 0)
        index = indexer.finish()
        facts = VideoFacts(len(index), context.height, context.width, keyframes=index.keyframes)
        base = time_base_of(stream)
    entry = VideoEntry(path.name, 0, path.stat().st_size, "mp4", config, index, facts)
    return sorted(pts), base, entry


@lru_cache(maxsize=8)
def _open(place: str) -> FrameStore:
    return open_store(place)


def _row_of(folder: Path, id_: str) -> ManifestRow | None:
    """Return the row of a video, without labels. A manifest that is not large is read once."""
    import pyarrow.compute as pc

    if sum(path.stat().st_size for path in manifest_paths(folder)) > KEPT_BYTES:
        return next(iter(manifest_rows(folder, {id_})), None)
    table = _table_in(folder)
    place = pc.index(table["id"], id_).as_py()
    return None if place < 0 else row_from_dict(table.slice(place, 1).to_pylist()[0])


@lru_cache(maxsize=2)
def _table_in(folder: Path) -> pa.Table:
    table = read_table(folder, list(COLUMN_NAMES))
    if table is None:
        raise StoreError("has no manifest any more", path=folder)
    return table


def _describe(job: Job, selected: Selected, old: ManifestRow, begin: int, end: int) -> ManifestRow:
    """Return the row of the frames [begin, end) of a video: what is known of them, and what a cut changes."""
    asked = new_row(job)
    row = replace(
        old,
        id=asked.id,
        file_name=asked.file_name,
        attempts=asked.attempts,
        run=None,
        offset=None,
        stored_bytes=None,
        source_size_bytes=asked.source_size_bytes,
        source_mtime_ns=asked.source_mtime_ns,
        **columns_of(selected),
        labels={},
    )
    if (begin, end) == (0, old.num_frames):
        return row
    ticks, base = _ticks_of(old, begin, end)
    shown = (old.source_frames or range(old.num_frames or 0))[begin:end]
    row.source_frames, row.num_frames = list(shown), end - begin
    if old.source_pts is not None:
        row.source_pts = old.source_pts[begin:end]
    elif old.pts is not None:
        row.source_pts = old.pts[begin:end]
        row.source_time_base_num, row.source_time_base_den = old.time_base_num, old.time_base_den
    if old.pts is not None:
        row.pts = [tick - ticks[0] for tick in ticks[:-1]]
    if old.source_start_seconds is not None:
        row.source_start_seconds = old.source_start_seconds + float(ticks[0] * base)
    row.duration_seconds = row.source_duration_seconds = float((ticks[-1] - ticks[0]) * base)
    row.source_num_frames = max(shown) - min(shown) + 1
    row.duplicated_frames = row.num_frames - len({*shown})
    row.dropped_frames = row.source_num_frames - len({*shown})
    row.bucket = old.bucket and f"{old.width}x{old.height}x{row.num_frames}"
    for name in SCORES:
        setattr(row, name, None)
    return row


def _ticks_of(row: ManifestRow, begin: int, end: int) -> tuple[Sequence[int], Fraction]:
    """Return where frames begin and the last one ends, in ticks from the first frame of the video, and the seconds per tick."""
    if row.pts is None:
        assert row.frame_rate_num is not None and row.frame_rate_den is not None
        return range(begin, end + 1), Fraction(row.frame_rate_den, row.frame_rate_num)
    assert row.time_base_num is not None and row.time_base_den is not None
    base = Fraction(row.time_base_num, row.time_base_den)
    over = max(row.pts[-1] + 1, round(exact_seconds(row.duration_seconds or 0.0) / base))
    return [*row.pts, over][begin : end + 1], base


def _copy_stored(
    store: FrameStore, selected: Selected, inside: slice, row: ManifestRow, old: ManifestRow, partial: Path
) -> None:
    """Copy frames that are stored one by one."""
    coded = store.stored_jpegs(selected.id)
    frames = [frame.tobytes() for frame in store[selected.id].frames()] if coded is None else [bytes(e) for e in coded]
    data = frames[inside]
    row.frame_sizes, row.frame_crc32 = [len(frame) for frame in data], [zlib.crc32(frame) for frame in data]
    if row.frame_crc32 != (old.frame_crc32 or [])[inside]:
        raise StoreError(f"{selected.id}: a frame is damaged; `vidprep validate` tells which", path=selected.place)
    partial.write_bytes(b"".join(data))
    row.size_bytes, row.sha256 = sum(row.frame_sizes), sha256_of(partial)


def _copy_whole(store: VideoStore, selected: Selected, partial: Path) -> None:
    digest = hashlib.sha256()
    with store.open_file(selected.id) as video, partial.open("wb") as file:
        while data := video.read(COPY_BYTES):
            digest.update(data)
            file.write(data)
    if digest.hexdigest() != selected.sha256:
        raise StoreError(
            f"{selected.id}: its SHA-256 does not match the manifest; `vidprep validate` tells what is damaged",
            path=selected.place,
        )


@contextmanager
def _file_of(store: VideoStore, id_: str, job: Job) -> Iterator[Path]:
    """Yield the path of a video; one in a shard, or behind a URL, is copied."""
    place = store.file(id_)
    if isinstance(place, Path) and not store.entry(id_).offset:
        if not place.exists():
            raise ReadError(f"{id_}: its file is not there any more", path=place)
        yield place
        return
    copied = Path(job.copied_source)
    try:
        with store.open_file(id_) as video, copied.open("wb") as file:
            shutil.copyfileobj(video, file)
        yield copied
    finally:
        copied.unlink(missing_ok=True)


class Part(NamedTuple):
    """Frames [begin, end) of a video.

    Attributes:
        is_copied: Whether their packets are copied; else they are encoded again
    """

    begin: int
    end: int
    is_copied: bool


def parts_of(index: PacketIndex, begin: int, end: int, codec: str) -> list[Part]:
    """Return the parts of the frames [begin, end) of a video whose GOPs need no other GOP."""
    entries = [*index.keyframes, len(index)]
    first, last = entries[bisect_left(entries, begin)], entries[bisect_right(entries, end) - 1]
    if codec == "h264" and begin + 1 == first < end:  # adjacent IDR pictures must have other numbers (H.264, 7.4.3)
        after = entries[bisect_right(entries, first)]
        if first == last or after - first < LEAST_HALVED:
            return [Part(begin, end, is_copied=False)]
        first = after
    if first > last:
        return [Part(begin, end, is_copied=False)]
    # As many packets of the last GOP as show exactly its first frames: they need only each other.
    ends = (at for at in range(end, last, -1) if sorted(index.frames[last:at]) == [*range(last, at)])
    if (at := next(ends, last)) != last + 1 or at == end or codec != "h264":  # adjacent IDR pictures again
        last = at
    parts = Part(begin, first, is_copied=False), Part(first, last, is_copied=True), Part(last, end, is_copied=False)
    return [part for part in parts if part.begin < part.end]


class _Coded(NamedTuple):
    """A packet: its bytes as a container has them, and the frame that it shows."""

    data: bytes
    frame: int
    is_keyframe: bool


@dataclass(frozen=True, slots=True)
class _EncodedPart:
    """A part that was encoded again."""

    part: Part
    path: Path
    measured: Measurements


class _Retimed(FrameStream):
    """A stream whose frames get other times: `ticks`, where they begin and the last one ends."""

    ticks: Sequence[int]

    def filter(self) -> Generator[FilteredFrame, None, None]:
        for number, frame in enumerate(super().filter()):
            start = self.ticks[number] - self.ticks[0]
            yield FilteredFrame(frame.frame, start, self.ticks[number + 1] - self.ticks[number])


class _Trim:
    """Some frames of one video, as a file of their own."""

    def __init__(
        self, job: Job, old: ManifestRow, row: ManifestRow, entry: VideoEntry, path: Path, begin: int, end: int
    ) -> None:
        self._job, self._old, self._row, self._path = job, old, row, path
        self._begin, self._end = begin, end
        if entry.packets is None or entry.config is None:
            raise StoreError(f"{old.id}: its GOPs are not indexed; `vidprep index` does that", path=path)
        self._index, self._config = entry.packets, entry.config
        self._ticks, base = _ticks_of(old, self._begin, self._end)
        rate = Fraction(old.frame_rate_num or 0, old.frame_rate_den or 1) if old.pts is None else None
        size = FrameSize(old.width or 0, old.height or 0)
        self._output = OutputFormat(
            size, old.pixel_format or "", UNKNOWN_COLOUR, base, rate, rate or _rate_in(path) or Fraction(25)
        )

    def make(self, context: Context) -> None:
        """Write and verify the file, and complete the row."""
        row, partial = self._row, Path(self._job.partial)
        parts = parts_of(self._index, self._begin, self._end, self._config.codec)
        encoded = {part: self._encode(part, context) for part in parts if not part.is_copied}
        try:
            measured = self._join(parts, encoded, partial)
        finally:
            for each in encoded.values():
                each.path.unlink(missing_ok=True)
        try:
            times = check_file(partial, measured, self._config.codec, self._output.time_base, context.cores())
        except VerifyError as error:
            if not encoded:
                raise
            why = "frames that were encoded again may not fit beside those of another encoder; --on-keyframes encodes nothing"
            raise VerifyError(f"{error.message} ({why})") from error
        row.keyframes, row.keyframe_interval_max = list(measured.keyframes), measured.keyframe_interval_max
        row.time_base_num, row.time_base_den = times.time_base.numerator, times.time_base.denominator
        row.pts = None if self._old.pts is None else times.pts
        row.packets, row.size_bytes, row.sha256 = times.packets, partial.stat().st_size, sha256_of(partial)
        if encoded:
            count = sum(part.end - part.begin for part in encoded)
            worst = min(each.measured.quality.psnr_y_db for each in encoded.values())
            text = f"{count} of {count_of(len(measured.pts), 'frame')} encoded again, with a PSNR-Y of {worst:.1f} dB"
            row.warn(Remark("encoded_again", text))

    def _encode(self, part: Part, context: Context) -> _EncodedPart:
        settings, keyframes = self._settings(part), self._index.keyframes
        path = Path(f"{self._job.partial}.{part.begin}.mp4")
        keyframe = keyframes[bisect_right(keyframes, part.begin) - 1]
        timing, survey = self._survey
        if survey is None or len(survey.shown) != len(self._index):
            raise VerifyError("its packets do not tell which frames they show; --on-keyframes encodes nothing")
        shown = survey.shown
        self._check_gops(part)
        try:
            with Source(self._path, max_pixels=settings.limits.max_pixels) as source:
                entry = jump_to(source, shown[keyframe], survey.origin_pts, part.begin, shown[part.begin])
                timing = timing._replace(window=timing.window.start_at(shown[part.begin]))
                count = part.end - part.begin
                stream = _Retimed(
                    source, settings, timing, entry=entry, num_frames=count, on_progress=context.on_progress
                )
                stream.ticks = self._ticks[part.begin - self._begin : part.end + 1 - self._begin]
                given = self._output
                stream.output = replace(
                    stream.output,
                    time_base=given.time_base,
                    frame_rate=given.frame_rate,
                    nominal_rate=given.nominal_rate,
                )
                silence = AudioTrack(self._path, "drop", "mp4", origin=Fraction(0))
                measured = encode_and_measure(settings, path, stream, silence, context.cores)
                if (stream.first_tick, measured.num_frames) != (shown[part.begin], count):
                    raise VerifyError(
                        f"{count_of(measured.num_frames, 'frame')} from tick {stream.first_tick} on were found"
                    )
        except VidprepError as error:
            path.unlink(missing_ok=True)
            raise VerifyError(
                f"frames {part.begin} to {part.end - 1} cannot be encoded again ({error.message}); --on-keyframes encodes nothing"
            ) from error
        return _EncodedPart(part, path, measured)

    @cached_property
    def _survey(self) -> tuple[OutputTiming, Survey | None]:
        """Timing of all frames, and where the packets say that they begin."""
        settings = self._settings(Part(self._begin, self._end, is_copied=False))
        with Source(self._path, max_pixels=settings.limits.max_pixels) as source:
            return timing_of(source, settings, WHOLE), survey_of(source)

    def _settings(self, part: Part) -> RunSettings:
        """Return settings that encode the frames of a part as those of the video were, and change nothing else."""
        own, count = self._job.settings, part.end - part.begin
        value = self._old.crf
        own = own if value is None else own.replace_quality(value)
        gop = own.video.encoder.gop
        if count == gop + 1 and part.end < self._end:  # no keyframe alone before another one
            gop = (count + 1) // 2
        encoder = replace(own.video.encoder, gop=gop, container="mp4")
        output = replace(own.video, encoder=encoder, audio="drop", store="files", segment="off")
        return RunSettings(output, gate=QualityGate(), limits=own.limits, hdr="keep")

    def _join(self, parts: Sequence[Part], encoded: dict[Part, _EncodedPart], partial: Path) -> Measurements:
        """Write the file, and return what is to be found in it."""
        output, options, codec = self._output, self._job.settings.video.encoder, self._config.codec
        pts, is_keyframe, checksums = array("q"), bytearray(), array("L")
        box = options.container_name
        first, last = self._ticks[0] * output.time_base, self._ticks[-1] * output.time_base
        with open_video(self._path) as container:
            mode = "copy" if container.streams.audio else "drop"
            writer = VideoWriter(partial, options, output, template=container.streams.video[0])
            with closing(
                AudioTrack(self._path, mode, box, origin=first, seconds=last - first, ends_with_pictures=True)
            ) as audio:
                try:
                    audio.add_to(writer)
                    order = [self._tick(frame) for part in parts for frame in self._frames(part, encoded)]
                    writer.take_order(order)
                    for part in parts:
                        for coded in self._packets(part, encoded):
                            tick = self._tick(coded.frame)
                            pts.append(tick)
                            is_keyframe.append(coded.is_keyframe)
                            checksums.append(payload_checksum(coded.data, codec, "container"))
                            packet = cast("Packet[VideoStream]", Packet(coded.data))
                            packet.pts, packet.time_base, packet.is_keyframe = tick, output.time_base, coded.is_keyframe
                            audio.mux_until(tick * output.time_base)
                            writer.mux(packet, self._tick(coded.frame + 1) - tick)
                    audio.finish(last - first)
                finally:
                    writer.close()
            self._row.warn(*audio.warnings)
        keyframes = sorted(bisect_left(sorted(pts), tick) for tick, key in zip(pts, is_keyframe, strict=True) if key)
        ends = [*keyframes[1:], len(pts)]
        gops = [
            (each.part.begin - self._begin + number, sums)
            for each in encoded.values()
            for number, sums in each.measured.gops
        ]
        return Measurements(
            scores=QualitySums(),
            quality=UNMEASURED,
            num_frames=len(pts),
            pts=pts,
            is_keyframe=is_keyframe,
            checksums=checksums,
            gops=tuple(gops),
            samples=self._samples(parts),
            keyframes=tuple(keyframes),
            keyframe_interval_max=max(end - start for start, end in zip(keyframes, ends, strict=True)),
        )

    def _tick(self, frame: int) -> int:
        """Return where a frame begins in the output; where the last one ends, for the frame after it."""
        return self._ticks[frame - self._begin] - self._ticks[0]

    def _frames(self, part: Part, encoded: dict[Part, _EncodedPart]) -> Iterator[int]:
        """Yield the frames of the packets of a part, in their order."""
        if part.is_copied:
            yield from self._index.frames[part.begin : part.end]
            return
        shown = sorted(encoded[part].measured.pts)
        yield from (part.begin + bisect_left(shown, tick) for tick in encoded[part].measured.pts)

    def _packets(self, part: Part, encoded: dict[Part, _EncodedPart]) -> Iterator[_Coded]:
        if part.is_copied:
            yield from self._copied(part)
            return
        made = encoded[part]
        with open_video(made.path) as container:
            packets = (packet for packet in container.demux(container.streams.video[0]) if packet.size)
            for packet, frame in zip(packets, self._frames(part, encoded), strict=True):
                yield _Coded(bytes(packet), frame, packet.is_keyframe)

    def _copied(self, part: Part) -> Iterator[_Coded]:
        """Yield the packets of a part as they are stored, GOP by GOP. Raises StoreError if one is damaged."""
        index, keyframes = self._index, self._index.keyframes
        with self._path.open("rb") as file:
            for gop in range(bisect_left(keyframes, part.begin), bisect_left(keyframes, part.end)):
                span, data = index.span(gop), self._gop(file, gop)
                for place in range(keyframes[gop], min(index.gop_end(gop), part.end)):
                    start = index.offsets[place] - span.offset
                    coded = data[start : start + index.sizes[place]]
                    yield _Coded(coded, index.frames[place], place == keyframes[gop])

    def _gop(self, file: BinaryIO, gop: int) -> bytes:
        """Return the bytes of a GOP. Raises StoreError if they are damaged."""
        span = self._index.span(gop)
        data = os.pread(file.fileno(), span.size, span.offset)
        if zlib.crc32(data) != self._index.crc32[gop]:
            raise StoreError(
                f"from frame {self._index.keyframes[gop]} on, its bytes are damaged; `vidprep validate` tells more",
                path=self._path,
            )
        return data

    def _check_gops(self, part: Part) -> None:
        """Raise StoreError if a GOP of a part is damaged."""
        keyframes = self._index.keyframes
        with self._path.open("rb") as file:
            for gop in range(bisect_right(keyframes, part.begin) - 1, bisect_left(keyframes, part.end)):
                self._gop(file, gop)

    def _samples(self, parts: Sequence[Part]) -> dict[int, int]:
        """Return checksums of decoded frames: the first of what is copied, and the last if it ends within a GOP."""
        samples, decoders = dict[int, int](), GopDecoders()
        copied, entries = [part for part in parts if part.is_copied], {*self._index.keyframes, len(self._index)}
        wanted = {part.begin for part in copied} | {part.end - 1 for part in copied if part.end not in entries}
        with self._path.open("rb") as file:
            for span, inside in spans_of(self._index, sorted(wanted)):
                data = memoryview(os.pread(file.fileno(), span.size, span.offset))
                for number, frame in decoders.frames(self._config, self._index, span, data, inside):
                    samples[number - self._begin] = frame_checksum(frame)
        decoders.close()
        return samples


def _rate_in(path: Path) -> Fraction | None:
    """Return the mean rate of a file."""
    with open_video(path) as container:
        rate = container.streams.video[0].average_rate
        return None if not rate else Fraction(rate.numerator, rate.denominator)
