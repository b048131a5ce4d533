"""Check one unit of a finished destination: compare its bytes with its row, its source, and other readers.

Nothing from the run that made it is trusted. Frames are made again from the source and paired by number with the stored
ones, and the manifest's map of source frames is compared with the new one.
"""

from __future__ import annotations

import hashlib
import io
import random
import time
import zlib
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
from av.container.input import InputContainer
from av.error import FFmpegError as AvError
from av.video.stream import VideoStream

from vidprep.formats.errors import FfmpegError, StoreError, VerifyError, VidprepError
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.model import FrameSize, OutputFormat, rescale
from vidprep.formats.storage.local import sha256_of
from vidprep.formats.storage.untrusted import open_regular
from vidprep.formats.stores.registry import VIDEO_SHARDS, layout_of
from vidprep.formats.stores.shards import StoreLayout
from vidprep.formats.video.jpeg import jpeg_coder
from vidprep.formats.video.picture_facts import Turn, turn_of
from vidprep.formats.video.pyav import time_base_of, visible_bytes
from vidprep.formats.video.rgb import ToRgb
from vidprep.formats.video.seek import SeekPoint
from vidprep.formats.video.source import open_video
from vidprep.transcode.check._reading import faults_of_gops, faults_of_reading, sample_of
from vidprep.transcode.check.other_readers import LOADERS
from vidprep.transcode.media.bounds import ANY_FRAMES
from vidprep.transcode.media.ffmpeg import measure_file, score_with_ffmpeg
from vidprep.transcode.media.ffmpeg_program import is_of_this_pyav
from vidprep.transcode.media.frames import SourceFacts
from vidprep.transcode.media.jpeg_frames import LOSSLESS, CodedFrame, keep_or_encode, own_jpegs
from vidprep.transcode.media.metrics import FrameScorer, QualityReport, QualitySums, not_scored
from vidprep.transcode.media.picture_filter import PictureFilter
from vidprep.transcode.media.stream import FrameStream, choose_sampled, open_source, timing_of
from vidprep.transcode.media.verify import frame_checksum
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.scratch import present, scratch_folder
from vidprep.transcode.sources.unit import Unit

SAME_DB, SAME_SSIM, SAME_VMAF, SAME_LEVELS = 0.01, 0.0001, 0.02, 0
# Another version's decoders and scaler may round otherwise.
NEARLY_DB, NEARLY_SSIM, NEARLY_VMAF, NEARLY_LEVELS = 0.1, 0.001, 0.2, 1


@dataclass(frozen=True, slots=True)
class Check:
    """Request to check one unit.

    Attributes:
        destination: The destination; a folder of `local_folder`, if it is behind a URL
        source: The source; None checks the output alone
        ffmpeg: ffmpeg program that scores it as well; "" for none
        seeks: Number of random seeks in each of `loaders`
        loaders: Names of other readers
        opens: Whether it can be read through `open_store`
        url: URL of the destination; "" for a local one
    """

    destination: Path
    row: ManifestRow
    settings: RunSettings
    source: Unit | None = None
    ffmpeg: str = ""
    seeks: int = 0
    loaders: tuple[str, ...] = ()
    opens: bool = True
    url: str = ""

    @property
    def is_video(self) -> bool:
        """Whether the unit is a video instead of frames in a store."""
        return isinstance(self.settings.output, VideoOutput)


@dataclass(slots=True)
class Seeks:
    """Random seeks of one reader, in one file or in all.

    Attributes:
        wrong: Seeks that failed or returned another picture
        unread: Number of files that the reader could not read in order
        reason: Why it could not read the first of them
    """

    tried: int = 0
    wrong: int = 0
    unread: int = 0
    reason: str | None = None


@dataclass(slots=True)
class UnitResult:
    """Result of checking one unit. Scores are None if they were not requested or could not be computed.

    Attributes:
        sha256: SHA-256 of the output in its row
        checked_at: Seconds since 1970
        psnr_y_p1_db: 1st percentile of PSNR-Y
        ffmpeg_psnr_y_db: Mean PSNR-Y by the ffmpeg command
        ffmpeg_failed: Why the ffmpeg command could not score it
        not_scored: Why it did not get all scores that were asked for
        vmaf_p1: 1st percentile of VMAF
        vmaf_model: Model and version of libvmaf
        xpsnr_p1_db: 1st percentile of XPSNR
        scored_at: Seconds since 1970
        seeks: Results of random seeks per reader
        seconds: Duration of the check
    """

    id: str
    file_name: str
    sha256: str | None = None
    checked_at: int = 0
    faults: list[str] = field(default_factory=list)
    psnr_y_db: float | None = None
    psnr_yuv_db: float | None = None
    psnr_y_p1_db: float | None = None
    ssim: float | None = None
    ffmpeg_psnr_y_db: float | None = None
    ffmpeg_failed: str | None = None
    not_scored: str | None = None
    vmaf: float | None = None
    vmaf_harmonic_mean: float | None = None
    vmaf_p1: float | None = None
    vmaf_model: str | None = None
    xpsnr_db: float | None = None
    xpsnr_p1_db: float | None = None
    scored_at: int | None = None
    seeks: dict[str, Seeks] = field(default_factory=dict)
    seconds: float = 0.0


def check_unit(check: Check) -> UnitResult:
    """Check one unit. Faults of the unit are returned, never raised."""
    row, started = check.row, time.perf_counter()
    path = check.destination / row.file_name
    done = UnitResult(row.id, row.file_name, row.sha256, int(time.time()))
    with ExitStack() as stack:
        try:
            offset, size = (0, row.size_bytes) if row.offset is None else (row.offset, row.stored_bytes)
            stack.enter_context(present(check.url, check.destination, row.file_name, offset, size or 0))
            file = path
            if check.is_video and row.offset is not None:
                file = stack.enter_context(scratch_folder()) / f"video.{row.container}"
                done.faults += _faults_of_member(path, row, file)
            done.faults += (_faults_of_video if check.is_video else _faults_of_frames)(file, check)
            if check.source is not None and not done.faults:
                done.faults += _against_source(file, check, check.source, done)
        except (VidprepError, AvError, OSError, ValueError) as error:
            done.faults.append(f"cannot be read: {error}")
        if check.seeks and not done.faults:
            done.faults += _faults_of_seeks(file, check, done)
    done.faults = [f"{path}: {row.id}: {fault}" for fault in done.faults]
    done.seconds = time.perf_counter() - started
    return done


def _against_source(path: Path, check: Check, source: Unit, done: UnitResult) -> list[str]:
    try:
        faults = list(_faults_against_source(path, check, source, done))
    except VerifyError as error:
        faults = [f"against its source: {error.message}"]
    if source.state == check.row.source_state or not faults:
        return faults
    changed = f"{source.path} changed after it was read; if it was replaced, run again to process this video"
    return [f"{changed} ({'; '.join(faults)})"]


def _faults_of_member(shard: Path, row: ManifestRow, file: Path) -> Iterator[str]:
    """Write the video of a shard to a file of its own, and yield a line if what surrounds it is damaged."""
    layout = layout_of(VIDEO_SHARDS)
    (video,), complete = _read_stored(shard, row, layout)
    file.write_bytes(video)
    if complete != b"".join(layout.serialize(row, io.BytesIO(video))):
        yield f"around the video, from offset {row.offset}, the shard differs from what was written"


def _faults_of_video(path: Path, check: Check) -> Iterator[str]:
    row = check.row
    size = path.stat().st_size
    if size != row.size_bytes:
        yield f"is {size} bytes long, {row.size_bytes} were written"
    elif sha256_of(path) != row.sha256:
        again = "" if row.offset is not None else "; delete the file, and the run that made it makes it again"
        yield f"its SHA-256 does not match the manifest{again}"
    with open_video(path) as container:
        if not container.streams.video:
            yield "holds no video stream any more"
            return
        stream = container.streams.video[0]
        stream.thread_count = 1
        yield from _faults_of_packets(container, stream, row)
        container.seek(0)
        sizes, checksums = [], []
        sampled, expected, to_rgb = set(sample_of(row)), dict[int, int](), ToRgb()
        for number, frame in enumerate(container.decode(stream)):
            sizes.append((frame.width, frame.height))
            checksums.append(frame_checksum(frame))
            if not number and turn_of(frame) != Turn():
                yield "it has a display matrix, by which players turn its upright pictures"
            if number in sampled:
                expected[number] = zlib.crc32(visible_bytes(to_rgb.plane(frame), frame.width * 3))
        if len(sizes) != row.num_frames:
            yield f"{len(sizes)} frames decode, {row.num_frames} were written"
        for number, (width, height) in enumerate(sizes):
            if (width, height) != (row.width, row.height):
                yield f"frame {number} is {width}x{height}, {row.width}x{row.height} was written"
                break
    if check.opens and list(expected) == sorted(sampled):
        yield from faults_of_gops(check.destination, row, checksums)
        yield from faults_of_reading(check.destination, row, expected)


def _faults_of_packets(container: InputContainer, stream: VideoStream, row: ManifestRow) -> Iterator[str]:
    """Yield how the packets of a file differ from its row: their number, keyframes and times."""
    shown = sorted((p.pts or 0, p.is_keyframe) for p in container.demux(stream) if p.size)
    keyframes = [number for number, (_, is_keyframe) in enumerate(shown) if is_keyframe]
    if len(shown) != row.num_frames:
        yield f"holds {len(shown)} frames, {row.num_frames} were written"
    if keyframes != row.keyframes:
        wrong = min(set(keyframes) ^ set(row.keyframes or ()))
        yield f"frame {wrong} {'is' if wrong in keyframes else 'is not'} a keyframe, unlike in the manifest"
    if row.pts is not None and row.time_base_num and row.time_base_den:
        base = Fraction(row.time_base_num, row.time_base_den)
        if [pts for pts, _ in shown] != [rescale(pts, base, time_base_of(stream)) for pts in row.pts]:
            yield "its frame times differ from the manifest"


def _faults_of_frames(path: Path, check: Check) -> Iterator[str]:
    row, settings = check.row, check.settings
    decoded_later = check.source is not None and settings.gate.verify_every == 1
    layout = layout_of(settings.stored_frames.store)
    frames, complete = _read_stored(path, row, layout)
    sampled, expected = set(sample_of(row)), dict[int, int]()
    for number, (data, crc32, offset) in enumerate(
        zip(frames, row.frame_crc32 or (), layout.offsets(row), strict=True)
    ):
        if zlib.crc32(data) != crc32:
            yield f"frame {number} at offset {offset} is damaged: its checksum does not hold"
        elif settings.stored_frames.is_coded:
            try:
                height, width, *_ = simplejpeg.decode_jpeg_header(data)
                if number in sampled:
                    expected[number] = zlib.crc32(simplejpeg.decode_jpeg(data, "RGB"))
                elif not decoded_later:
                    simplejpeg.decode_jpeg(data)
                if (width, height) != (row.width, row.height):
                    yield f"frame {number} at offset {offset} is {width}x{height}, {row.width}x{row.height} was written"
            except ValueError as error:
                yield f"frame {number} at offset {offset} does not decode: {error}"
        elif number in sampled:
            expected[number] = crc32
    if hashlib.sha256(b"".join(frames)).hexdigest() != row.sha256:
        yield f"the SHA-256 of its frames from offset {row.offset} does not match the manifest"
    elif complete != b"".join(layout.serialize(row, io.BytesIO(b"".join(frames)))):
        yield f"between its frames, from offset {row.offset}, differs from what was written"
    if check.opens and list(expected) == sorted(sampled):
        yield from faults_of_reading(check.destination, row, expected)


def _read_stored(path: Path, row: ManifestRow, layout: StoreLayout) -> tuple[list[bytes], bytes]:
    """Return the frames of a unit, or its video, and all its bytes in the shard."""
    assert row.offset is not None and row.stored_bytes is not None
    with open_regular(path) as shard:
        shard.seek(row.offset)
        complete = shard.read(row.stored_bytes)
    if len(complete) != row.stored_bytes:
        raise StoreError(
            f"the shard ends at byte {row.offset + len(complete)}; it goes on to {row.offset + row.stored_bytes}"
        )
    places = [(offset - row.offset, size) for offset, size in layout.payload(row)]
    return [complete[at : at + size] for at, size in places], complete


# ------------------------------------------------------------------------------------------------ against the source


def _faults_against_source(path: Path, check: Check, unit: Unit, done: UnitResult) -> Iterator[str]:
    row, settings = check.row, check.settings
    value = row.crf if row.crf is not None else row.jpeg_quality
    if value is not None and settings.target is not None:  # it chose another value for this video
        settings = settings.replace_quality(value)
    settings = replace(settings, limits=replace(settings.limits, max_frames=ANY_FRAMES))
    size, pixel_format = FrameSize(row.width or 0, row.height or 0), row.pixel_format or settings.output.pixel_format
    if left_out := not_scored(size, pixel_format, settings.gate):
        done.not_scored = f"{row.id}: {'; '.join(left_out.values())}"
    with open_source(unit.path, settings, unit.cut) as source:
        whole = SeekPoint(source.packets())  # so that frames are counted by decoding
        only = choose_sampled(source, settings, unit.cut)
        stream = FrameStream(source, settings, timing_of(source, settings, unit.cut), entry=whole, only=only)
        if check.is_video:
            yield from _faults_of_tags(path, stream.output)
            quality: QualityReport | None = measure_file(settings, path, stream).quality
        else:
            own = own_jpegs(settings, stream, unit.path, is_series=unit.is_series)
            quality = yield from _compare_stored(path, row, settings, stream, own)
    yield from _faults_of_source_frames(row, stream)
    if quality is None:
        return
    done.scored_at = done.checked_at
    done.psnr_y_db, done.psnr_yuv_db = quality.psnr_y_db, quality.psnr_yuv_db
    done.psnr_y_p1_db, done.ssim = quality.psnr_y_p1_db, quality.ssim
    done.vmaf, done.vmaf_harmonic_mean, done.vmaf_p1 = quality.vmaf, quality.vmaf_harmonic_mean, quality.vmaf_p1
    done.vmaf_model, done.xpsnr_db, done.xpsnr_p1_db = quality.vmaf_model, quality.xpsnr_db, quality.xpsnr_p1_db
    yield from _faults_of_scores(row, quality)
    if not check.ffmpeg:
        return
    if why := _why_engines_differ(row, stream.facts, stream.picture_filter):
        done.ffmpeg_failed = f"{row.id}: it makes other frames of a source {why}"
        return
    yield from _faults_by_ffmpeg(path, check, stream, settings, done)


def _faults_of_source_frames(row: ManifestRow, stream: FrameStream) -> Iterator[str]:
    """Yield from which frame on the source frames of a video, or their times, are not those of its row."""
    indexes = stream.source_indexes
    due = list(range(len(indexes))) if row.source_frames is None else row.source_frames
    if indexes != due:
        yield f"from frame {_first_other(indexes, due)} on, its source frames are not those that the manifest lists"
    elif row.source_pts is not None and row.source_pts != stream.source_pts:
        number = _first_other(stream.source_pts, row.source_pts)
        yield f"from frame {number} on, its frames begin at other times in their source than the manifest lists"


def _faults_of_scores(row: ManifestRow, quality: QualityReport) -> Iterator[str]:
    """Yield the scores that differ from those of the row by more than versions of the libraries explain."""
    is_same = is_of_this_pyav(row.encoder_version)
    same_db, same_ssim, same_vmaf = (
        (SAME_DB, SAME_SSIM, SAME_VMAF) if is_same else (NEARLY_DB, NEARLY_SSIM, NEARLY_VMAF)
    )
    for name, measured, recorded, same in (
        ("PSNR-Y", quality.psnr_y_db, row.psnr_y_db, same_db),
        ("PSNR-YUV", quality.psnr_yuv_db, row.psnr_yuv_db, same_db),
        ("SSIM", quality.ssim, row.ssim, same_ssim),
        *((("XPSNR", quality.xpsnr_db, row.xpsnr_db, same_db),) if row.xpsnr_db is not None else ()),
        *((("VMAF", quality.vmaf, row.vmaf, same_vmaf),) if row.vmaf_model == quality.vmaf_model else ()),
    ):
        if measured is None:  # not asked for
            continue
        if recorded is None or not (measured == recorded or abs(measured - recorded) <= same):
            yield f"{name} against its source is {measured:.4f}, the manifest says {recorded}"


def _first_other(found: Sequence[int], due: Sequence[int]) -> int:
    """Return the first position at which two lists differ."""
    return next((n for n, (one, other) in enumerate(zip(found, due, strict=False)) if one != other), len(due))


def _faults_by_ffmpeg(
    path: Path, check: Check, stream: FrameStream, settings: RunSettings, done: UnitResult
) -> Iterator[str]:
    unit = check.source
    assert unit is not None
    try:
        score = score_with_ffmpeg(check.ffmpeg, unit.path, path, stream, settings)
    except FfmpegError as error:  # an old ffmpeg lacks options that a source needs: no fault of the output
        done.ffmpeg_failed = f"{check.row.id}: {error.message}"
        return
    done.ffmpeg_psnr_y_db, here = score, done.psnr_y_db
    if settings.gate.verify_every == 1 and here is not None and not (score == here or abs(score - here) <= SAME_DB):
        yield f"PSNR-Y by the ffmpeg command is {score:.4f} dB, in process {here:.4f}"


ENGINES_DIFFER = frozenset(
    (
        "damaged",
        "picture_changed",
        "deinterlaced",
        "timestamps_sorted",
        "timestamps_joined",
        "timestamps_guessed",
        "timestamps_moved",
        "frames_left_out",
    )
)


def _why_engines_differ(row: ManifestRow, facts: SourceFacts, picture_filter: PictureFilter) -> str:
    """Return why ffmpeg's command would produce other frames; "" if it produces the same.

    It neither sorts timestamps nor keeps the clock when sizes change or a source is damaged, and its bwdif makes
    another first frame.
    """
    if any(text.startswith("damaged") for text in row.warnings):
        return "that is damaged"
    if picture_filter.num_changes:
        return "whose pictures change size or format"
    if facts.num_deinterlaced:
        return "that is interlaced"
    moved = facts.stamps_nudged or facts.stamps_crowded
    mended = facts.stamps_sorted or facts.stamps_joined or facts.stamps_guessed or moved
    return "whose timestamps had to be mended" if mended else ""


def _faults_of_tags(path: Path, output: OutputFormat) -> Iterator[str]:
    with open_video(path) as container:
        context = container.streams.video[0].codec_context
        tags = (context.colorspace, context.color_primaries, context.color_trc, context.color_range)
    colour = output.colour
    due = (colour.matrix, colour.primaries, colour.transfer, 2 if colour.full_range else 1)
    if tuple(map(int, tags)) != due:
        yield f"its colour tags (matrix, primaries, transfer, range) are {tuple(map(int, tags))}, its frames are {due}"


def _compare_stored(
    path: Path, row: ManifestRow, settings: RunSettings, stream: FrameStream, own: str | None
) -> Generator[str, None, QualityReport | None]:
    """Compare the stored frames with those made from the source, and yield a line for each fault. Return the scores; None
    for frames without loss, or after a fault.
    """
    frames, _ = _read_stored(path, row, layout_of(settings.stored_frames.store))
    sums = QualitySums()
    scorer = FrameScorer(stream.output, settings.gate)
    coder = jpeg_coder(settings.stored_frames.quality_value)
    levels = SAME_LEVELS if is_of_this_pyav(row.encoder_version) else NEARLY_LEVELS
    made = (CodedFrame(each.frame, each.pts, b"") for each in stream.filter())
    for number, (filtered, _, data, is_kept) in enumerate(made if own is None else keep_or_encode(stream, own, coder)):
        if number >= len(frames):
            yield f"holds {len(frames)} frames, its source yields more"
            return None
        if is_kept:
            if data != frames[number]:
                yield f"frame {number} is not the picture of its source as it is"
                return None
            sums.add(number, scorer.score(filtered, filtered) if scorer.has_memory else LOSSLESS)
            continue
        if settings.stored_frames.is_coded and number % settings.gate.verify_every == 0:
            sums.add(number, scorer.score(filtered, coder.decode(frames[number], filtered)))
        elif not settings.stored_frames.is_coded and _levels_apart(filtered.to_ndarray(), frames[number]) > levels:
            yield f"frame {number} differs from what its source makes"
            return None
    if (count := len(stream.source_indexes)) != len(frames):
        yield f"holds {len(frames)} frames, its source yields {count}"
        return None
    if not settings.stored_frames.is_coded:
        return None
    sums.vmaf = scorer.finish()
    return sums.report(255)


def _levels_apart(made: npt.NDArray[Any], stored: bytes) -> int:
    """Return the largest difference between two samples; 256 if the sizes differ."""
    if made.size != len(stored):
        return 256
    return int(np.abs(made.reshape(-1).astype(np.int16) - np.frombuffer(stored, np.uint8)).max(initial=0))


# ------------------------------------------------------------------------------------------------ in other readers


def _faults_of_seeks(path: Path, check: Check, done: UnitResult) -> Iterator[str]:
    """Yield a line for each seek that fails or returns another picture than reading in order, and for each loader that
    lacks a frame.
    """
    count = check.row.num_frames or 0
    rng = random.Random(check.row.id)
    wanted = rng.sample(range(count), min(check.seeks, count))
    hint = (
        "" if check.row.frame_rate_num else " (its frame rate varies; with --fps, loaders that seek by time are right)"
    )
    for name in check.loaders:
        seeks = done.seeks[name] = Seeks()
        try:
            loader = LOADERS[name](path)
            due: dict[int, int] = {}
            for number, picture in enumerate(loader.iterate()):
                if number in wanted:
                    due[number] = zlib.crc32(picture.tobytes())
        except Exception as error:  # noqa: BLE001 (whatever a library of others raises is its answer)
            seeks.unread = 1
            seeks.reason = f"{path.name}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:200]
            continue
        if missing := [number for number in wanted if number not in due]:
            yield f"{name}: frame {missing[0]} is not among those that it reads in order; the manifest says {count}"
            continue
        for number in wanted:
            seeks.tried += 1
            try:
                same = zlib.crc32(loader.seek(number).tobytes()) == due[number]
            except Exception as error:  # noqa: BLE001 (the same)
                seeks.wrong += 1
                yield f"{name}: a seek to frame {number} fails: {error}"
                continue
            if not same:
                seeks.wrong += 1
                yield f"{name}: a seek to frame {number} gives a different picture than reading in order{hint}"
