"""A finished destination against what its manifest says of it, and against its sources when they are given.

Nothing of the run that made it is trusted: bytes, checksums, layouts, keyframes and times are read again, every frame is
decoded, and with the sources the frames are made anew and scored. One line for each fault: file, offset or frame, why.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pebble
import simplejpeg
from av.error import FFmpegError as AvError

from vidprep.formats.errors import CrashedError, StoreError, VidprepError
from vidprep.formats.files import sha256_of
from vidprep.formats.frame_index import FrameIndex, IndexedVideo
from vidprep.formats.jpeg import jpeg_coder
from vidprep.formats.layouts import LAYOUTS, indexed_video
from vidprep.formats.manifest import ManifestRow, read_rows
from vidprep.formats.model import rescale
from vidprep.formats.shards import Layout
from vidprep.formats.video import READ_OPTIONS, Source, file_url
from vidprep.transcode.ffmpeg_run import measure_file
from vidprep.transcode.frames import SourceFacts
from vidprep.transcode.job import output_frames
from vidprep.transcode.metrics import FrameScorer, QualitySums
from vidprep.transcode.settings import RunSettings
from vidprep.transcode.sources import Unit

SAME_DB = 0.01
SEED = 0


@dataclass(slots=True)
class Report:
    """checked: units that were read again. faults: a line each."""

    checked: int = 0
    failed_before: int = 0
    faults: list[str] = field(default_factory=list)


def validate(
    destination: Path,
    sources: dict[str, Unit] | None,
    *,
    sample: int | None,
    jobs: int,
    on_fault: Callable[[str], None],
) -> Report:
    """Check the structure, and every unit or `sample` of them. sources: units by id, to make the frames anew.

    on_fault: called with every fault as it is found. Raises ManifestError, SettingsError, StoreError.
    """
    settings = _settings_of(destination)
    rows = {row.id: row for row in read_rows(destination)}
    if not rows:
        raise StoreError("has no manifest with rows; give the destination of a run", path=destination)
    good = [row for row in rows.values() if row.ok]
    report = Report(failed_before=len(rows) - len(good))

    def tell(faults: Iterable[str]) -> None:
        for fault in faults:
            report.faults.append(fault)
            on_fault(fault)

    layout = LAYOUTS[settings.frames.store] if settings.frames else None
    tell(_faults_of_store(destination, layout, good) if layout else _files_without_row(destination, good))
    chosen = good if sample is None or sample >= len(good) else random.Random(SEED).sample(good, sample)
    with pebble.ProcessPool(max_workers=jobs) as pool:
        waiting = []
        for row in chosen:
            unit = sources.get(row.id) if sources is not None else None
            if sources is not None and unit is None:
                tell([f"{row.id}: its source is not among those given"])
            waiting.append((row, pool.schedule(faults_of_unit, args=(destination, row, settings, unit))))
        for row, future in waiting:
            try:
                tell(future.result())
            except pebble.ProcessExpired as error:
                tell(
                    [
                        f"{row.file_name}: {row.id}: {CrashedError.__name__}: reading it killed its process ({error.exitcode})"
                    ]
                )
            report.checked += 1
    return report


def _settings_of(destination: Path) -> RunSettings:
    path = destination / ".vidprep" / "run.json"
    try:
        return RunSettings.from_dict(json.loads(path.read_bytes())["settings"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"cannot be read ({error}); give the destination of a run", path=path) from error


# ------------------------------------------------------------------------------------------------ one unit


def faults_of_unit(destination: Path, row: ManifestRow, settings: RunSettings, unit: Unit | None) -> list[str]:
    """Everything that is wrong with one unit. unit: its source, when it is to be compared with it."""
    path = destination / row.file_name
    try:
        faults = list(_faults_of_frames(path, row, settings) if settings.frames else _faults_of_video(path, row))
        if unit is not None and not faults:
            faults += _faults_against_source(path, row, settings, unit)
    except (VidprepError, AvError, OSError, ValueError) as error:
        faults = [f"does not read: {error}"]
    return [f"{path}: {row.id}: {fault}" for fault in faults]


def _faults_of_video(path: Path, row: ManifestRow) -> Iterator[str]:
    size = path.stat().st_size
    if size != row.size_bytes:
        yield f"is {size} bytes long, {row.size_bytes} were written"
    elif sha256_of(path) != row.sha256:
        yield "its SHA-256 is another than was written"
    with av.open(file_url(path), "r", options=READ_OPTIONS) as container:
        stream = container.streams.video[0]
        stream.thread_count = 1
        shown = sorted((p.pts or 0, p.is_keyframe) for p in container.demux(stream) if p.size)
        keyframes = [number for number, (_, is_keyframe) in enumerate(shown) if is_keyframe]
        if keyframes != row.keyframes:
            wrong = min(set(keyframes) ^ set(row.keyframes or ()))
            yield f"frame {wrong} {'is' if wrong in keyframes else 'is not'} a keyframe, the manifest says otherwise"
        if row.pts is not None and row.time_base_num and row.time_base_den and stream.time_base:
            base = Fraction(row.time_base_num, row.time_base_den)
            if [pts for pts, _ in shown] != [rescale(pts, base, stream.time_base) for pts in row.pts]:
                yield "its frames have other times than the manifest says"
        container.seek(0)
        sizes = [(frame.width, frame.height) for frame in container.decode(stream)]
        if len(sizes) != row.num_frames:
            yield f"{len(sizes)} frames decode, {row.num_frames} were written"
        for number, (width, height) in enumerate(sizes):
            if (width, height) != (row.width, row.height):
                yield f"frame {number} is {width}x{height}, {row.width}x{row.height} was written"
                break


def _faults_of_frames(path: Path, row: ManifestRow, settings: RunSettings) -> Iterator[str]:
    assert settings.frames is not None
    layout = LAYOUTS[settings.frames.store]
    frames, complete = _stored(path, row, layout)
    for number, (data, crc32, offset) in enumerate(
        zip(frames, row.frame_crc32 or (), layout.offsets(row), strict=True)
    ):
        if zlib.crc32(data) != crc32:
            yield f"frame {number} at offset {offset} is damaged: its checksum does not hold"
        elif settings.frames.is_coded:
            try:
                height, width, *_ = simplejpeg.decode_jpeg_header(data)
                simplejpeg.decode_jpeg(data)
                if (width, height) != (row.width, row.height):
                    yield f"frame {number} at offset {offset} is {width}x{height}, {row.width}x{row.height} was written"
            except ValueError as error:
                yield f"frame {number} at offset {offset} does not decode: {error}"
    if hashlib.sha256(b"".join(frames)).hexdigest() != row.sha256:
        yield f"the SHA-256 of its frames from offset {row.offset} is another than was written"
    elif complete != b"".join(layout.pieces(row, io.BytesIO(b"".join(frames)))):
        yield f"between its frames, from offset {row.offset}, stands something else than was written"


def _stored(path: Path, row: ManifestRow, layout: Layout) -> tuple[list[bytes], bytes]:
    """The frames of a unit, and all its bytes in the shard."""
    assert row.offset is not None and row.stored_bytes is not None
    with path.open("rb") as shard:
        shard.seek(row.offset)
        complete = shard.read(row.stored_bytes)
    if len(complete) != row.stored_bytes:
        raise StoreError(
            f"the shard ends at byte {row.offset + len(complete)}; it goes on to {row.offset + row.stored_bytes}"
        )
    begins = [offset - row.offset for offset in layout.offsets(row)]
    return [complete[at : at + size] for at, size in zip(begins, row.frame_sizes or (), strict=True)], complete


def _faults_against_source(path: Path, row: ManifestRow, settings: RunSettings, unit: Unit) -> list[str]:
    """The frames made anew from the source, against those that are stored."""
    facts = SourceFacts()
    with Source(unit.path, max_pixels=settings.limits.max_pixels) as source:
        painter, output, timed = output_frames(source, unit, settings, facts)
        if settings.frames is None:
            quality = measure_file(settings, path, output, painter, timed, []).quality
        else:
            frames, _ = _stored(path, row, LAYOUTS[settings.frames.store])
            sums = QualitySums()
            scorer = FrameScorer(output.size, output.pixel_format, output.colour)
            coder = jpeg_coder(settings.frames.quality)
            count = 0
            for number, item in enumerate(timed):
                painted = painter.paint(item.frame)
                if number >= len(frames):
                    return [f"holds {len(frames)} frames, its source makes more"]
                if settings.frames.is_coded and number % settings.gate.verify_every == 0:
                    sums.add(number, scorer.score(painted, coder.decode(frames[number], painted)))
                elif not settings.frames.is_coded and painted.to_ndarray().tobytes() != frames[number]:
                    return [f"frame {number} is another than its source makes"]
                count = number + 1
            if count != len(frames):
                return [f"holds {len(frames)} frames, its source makes {count}"]
            if not settings.frames.is_coded:
                return []
            quality = sums.report(255)
    found, due = quality.psnr_y_db, row.psnr_y_db
    if due is None or not (found == due or abs(found - due) <= SAME_DB):
        return [f"PSNR-Y against its source is {found:.3f} dB, the manifest says {due}"]
    return []


# ------------------------------------------------------------------------------------------------ the structure


def _files_without_row(destination: Path, rows: list[ManifestRow]) -> Iterator[str]:
    known = {row.file_name for row in rows}
    suffixes = {Path(name).suffix for name in known}
    for path in sorted(destination.rglob("*")):
        name = path.relative_to(destination).as_posix()
        if path.is_file() and path.suffix in suffixes and not name.startswith(".vidprep/") and name not in known:
            yield f"{path}: no row of the manifest speaks of it"


def _faults_of_store(destination: Path, layout: Layout, rows: list[ManifestRow]) -> Iterator[str]:
    spans: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
    for row in rows:
        spans[row.file_name].append((row.offset or 0, row.stored_bytes or 0, row.id))
    for path in sorted(destination.iterdir()):
        if layout.shard_number(path.name) is not None and path.name not in spans:
            yield f"{path}: no row of the manifest speaks of it"
    for name, units in sorted(spans.items()):
        end = 0
        for offset, size, id_ in sorted(units):
            if offset != end:
                yield f"{destination / name}: {id_}: begins at offset {offset}, the unit before it ends at {end}"
            end = offset + size
        data = (destination / name).open("rb") if (destination / name).is_file() else None
        if data is None:
            yield f"{destination / name}: is not there"
            continue
        with data:
            data.seek(end)
            if data.read() != layout.tail:
                yield f"{destination / name}: from offset {end} stands something else than the end of a shard"
    yield from _faults_of_index(destination, layout, rows)


def _faults_of_index(destination: Path, layout: Layout, rows: list[ManifestRow]) -> Iterator[str]:
    """The files that say where frames lie, against the manifest."""
    if layout.name == "gulp":
        found: dict[str, Any] = {}
        for path in sorted(destination.glob("*.gmeta")):
            try:
                found |= {id_: entry["frame_info"] for id_, entry in json.loads(path.read_bytes()).items()}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                yield f"{path}: is damaged: {error}"
        for row in rows:
            sizes = row.frame_sizes or ()
            due = [[at, -size % 4, size + -size % 4] for at, size in zip(layout.offsets(row), sizes, strict=True)]
            if found.pop(row.id, None) != due:
                yield f"{destination}/*.gmeta: {row.id}: its frames are said to lie elsewhere than the manifest says"
        yield from (f"{destination}/*.gmeta: {id_}: is not in the manifest" for id_ in found)
    elif layout.name in ("burst", "tensor"):
        try:
            index = FrameIndex(destination, layout.name)
            indexed = {video.id: video for video in index.videos()}
        except StoreError as error:
            yield str(error)
            return
        for row in rows:
            video, due_video = indexed.pop(row.id, None), indexed_video(row, layout.offsets(row))
            if video is None or not _same(video, due_video):
                yield f"{index.path}: {row.id}: its row says something else than the manifest"
        yield from (f"{index.path}: {id_}: is not in the manifest" for id_ in indexed)


def _same(one: IndexedVideo, other: IndexedVideo) -> bool:
    pairs = ((getattr(one, part.name), getattr(other, part.name)) for part in fields(IndexedVideo))
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)
