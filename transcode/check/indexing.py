"""`index`: write `gops.parquet` for a destination of an earlier version.

A GOP is indexed only after it was decoded alone and gave the frames that decoding in order gives. A video of which a
GOP does not is named with the reason, and is read by its container.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from av.error import FFmpegError as AvError
from av.video.frame import VideoFrame

from vidprep.formats.errors import NotIndexedError, SettingsError, StoreError, VidprepError
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.manifest.table import manifest_paths
from vidprep.formats.model import StoredPackets
from vidprep.formats.profiles import CODECS
from vidprep.formats.storage.local import check_writable
from vidprep.formats.stores.data_files import FilePart
from vidprep.formats.stores.gops import GOPS_NAME, facts_in, list_known, read_known, write_gops
from vidprep.formats.stores.registry import kind_of_folder
from vidprep.formats.video.gop_frames import DecoderConfig, GopDecoders
from vidprep.formats.video.numbered import set_store_options
from vidprep.formats.video.packets import PacketIndex, PacketIndexer
from vidprep.formats.video.pyav import demux, open_input, reason_of
from vidprep.formats.video.source import READ_OPTIONS
from vidprep.transcode.destination.opening import open_finished
from vidprep.transcode.destination.partition import partitions_in
from vidprep.transcode.destination.run_file import made_by_run
from vidprep.transcode.media.verify import frame_checksum
from vidprep.transcode.sources.outputs import STATE_DIR
from vidprep.transcode.sources.tables import storable
from vidprep.transcode.workers.child import FRAMES_PER_SECOND, MIN_SECONDS, SECONDS_PER_SECOND, Child
from vidprep.transcode.workers.local import LocalPool


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Request to index one video.

    Attributes:
        path: File that contains it
        offset: Position of its first byte
        num_frames: Number of frames that its manifest says
        sha256: SHA-256 that its manifest says
    """

    id: str
    path: Path
    offset: int
    size_bytes: int
    num_frames: int
    sha256: str


@dataclass(frozen=True, slots=True)
class IndexedVideo:
    """Result of indexing one video.

    Attributes:
        row: What gops.parquet says of it
        error: Why it cannot be read at all; None if it can
    """

    row: ManifestRow
    error: str | None = None


@dataclass(slots=True)
class Indexed:
    """Result of `index`.

    Attributes:
        num_videos: Number of videos in the index
        by_container: Why videos are read by their containers, by id
        unreadable: Why videos or folders cannot be read, by id or name
    """

    num_videos: int = 0
    by_container: dict[str, str] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)


def index_videos(folder: Path, *, jobs: int, on_start: Callable[[int], None], on_unit: Callable[[], object]) -> Indexed:
    """Index every video of a folder that is not indexed yet.

    Args:
        folder: A destination of `transcode`.
        jobs: Number of processes.
        on_start: Called with the number of videos.
        on_unit: Called after each video.

    Raises:
        SettingsError: The folder holds a store of frames.
        StoreError, ManifestError, DestinationError: It cannot be read, or a run is writing there.
        OSError: The index cannot be written.
    """
    if (folder / GOPS_NAME).is_dir():
        raise StoreError("is a folder, and the index is a file of that name; rename it", path=folder / GOPS_NAME)
    check_writable(folder, "copy the videos into another folder")
    kind = kind_of_folder(folder)
    if kind not in (None, "encoded"):
        raise SettingsError(f"{folder}: holds a {kind} store, whose frames need no index of GOPs")
    if not manifest_paths(folder):
        raise StoreError(
            "has no manifest.parquet; give a destination of `vidprep transcode` that has ended", path=folder
        )
    if partitions_in(folder, folder / STATE_DIR):
        raise StoreError(f"holds the parts of an array run; `vidprep merge {folder}` first", path=folder)
    with LocalPool(jobs, _index_in_child) as workers:

        def run(tasks: list[IndexTask]) -> Iterator[IndexedVideo]:
            on_start(len(tasks))
            for _, made in workers.results(tasks):
                if made is not None:
                    on_unit()
                    yield made

        return _index_destination(folder, run)


Run = Callable[[list[IndexTask]], Iterator[IndexedVideo]]


def _index_destination(folder: Path, run: Run) -> Indexed:
    place = open_finished(folder) if made_by_run(folder) else None
    with place.lock() if place is not None else nullcontext():
        if place is not None:
            place.outputs.recover()
            place.merge_journal()
        facts, path = facts_in(folder), folder / GOPS_NAME
        assert facts is not None
        try:
            known = read_known(path) if path.exists() else list_known(())
        except StoreError:  # damaged: all is indexed again
            known = list_known(())
        known = known.filter(pc.is_valid(known["packets"]))
        todo = facts.filter(pc.invert(pc.is_in(facts["sha256"], known["sha256"].combine_chunks())))
        names = ("id", "file_name", "offset", "size_bytes", "num_frames", "sha256")
        rows = zip(*(todo[name].to_pylist() for name in names), strict=True)
        tasks = [
            IndexTask(id_, folder / name, offset, size or 0, count or 0, sha256)
            for id_, name, offset, size, count, sha256 in rows
            if sha256 is not None
        ]
        without = todo.filter(pc.is_null(todo["sha256"]))["id"].to_pylist()
        done, made = (
            Indexed(len(facts), dict.fromkeys(without, "its row has no SHA-256, by which packets are found")),
            [],
        )
        try:
            for one in run(tasks):
                made.append(one.row)
                _record(done, one)
        finally:
            if place is not None:
                place.check_held()
            write_gops(path, facts, pa.concat_tables([list_known(made), known]))
    return done


def _record(done: Indexed, one: IndexedVideo) -> None:
    if one.error is not None:
        done.unreadable[one.row.id] = one.error
    elif one.row.packets is not None and one.row.packets.not_indexed is not None:
        done.by_container[one.row.id] = one.row.packets.not_indexed


def _index_in_child(child: Child, task: IndexTask) -> IndexedVideo:
    """Index a video in a child process. If the process crashes or takes too long, the video cannot be read."""
    allowed = MIN_SECONDS + SECONDS_PER_SECOND * task.num_frames / FRAMES_PER_SECOND
    return child.call_or(lambda error: IndexedVideo(_row(task), str(error)), index_video, task, lambda _work: allowed)


def _row(task: IndexTask) -> ManifestRow:
    container = task.path.suffix.removeprefix(".").lower()
    return ManifestRow(task.id, task.path.name, storable(str(task.path.absolute())), status="ok", container=container)


def index_video(task: IndexTask) -> IndexedVideo:
    """Index one video. Never raises VidprepError: a video that cannot be read has an error."""
    row = _row(task)
    try:
        with FilePart(task.path, task.offset, task.size_bytes).open_buffered() as data:
            row.sha256, row.size_bytes = hashlib.file_digest(data, "sha256").hexdigest(), task.size_bytes
        if task.sha256 != row.sha256:
            return IndexedVideo(
                row, "is not the file that its manifest names, by its SHA-256; run the same command again"
            )
        try:
            config, index = _index(task)
            row.codec, row.packets = config.codec, StoredPackets(config.extradata, index.to_bytes())
        except (NotIndexedError, AvError, ValueError, OSError) as error:
            why = error.message if isinstance(error, VidprepError) else reason_of(error)
            row.packets = StoredPackets(not_indexed=why)
    except (VidprepError, AvError, OSError) as error:
        return IndexedVideo(row, error.message if isinstance(error, VidprepError) else reason_of(error))
    return IndexedVideo(row)


def _index(task: IndexTask) -> tuple[DecoderConfig, PacketIndex]:
    """Return the index of a video, whose GOPs were decoded alone. Raises NotIndexedError, PyAV's errors."""
    with FilePart(task.path, task.offset, task.size_bytes).open_buffered() as data:
        with open_input(data, READ_OPTIONS) as container:
            stream = container.streams.video[0]
            codec = stream.codec_context.codec.canonical_name
            if codec not in CODECS:
                raise NotIndexedError(f"it is coded as {codec}, and only {', '.join(CODECS)} are indexed")
            config = DecoderConfig(codec, stream.codec_context.extradata or b"")
            set_store_options(stream.codec_context)
            with FilePart(task.path, task.offset, task.size_bytes).open_buffered() as file:
                indexer = PacketIndexer(codec, config.extradata, file)
                for packet in demux(container, stream):
                    indexer.add(packet, bytes(packet))
                index = indexer.finish()
            if len(index) != task.num_frames:
                raise NotIndexedError(f"it has {len(index)} packets and {task.num_frames} frames")
            container.seek(0)
            due = [_identity(frame) for frame in container.decode(stream)]
        if len(due) != task.num_frames:
            raise NotIndexedError(f"{len(due)} of its {task.num_frames} frames decode in order")
        decoders = GopDecoders()
        for gop, first in enumerate(index.keyframes):
            span, end = index.span(gop), index.gop_end(gop)
            data.seek(span.offset)
            frames = decoders.frames(config, index, span, memoryview(data.read(span.size)), range(first, end))
            if [_identity(frame) for _, frame in frames] != due[first:end]:
                raise NotIndexedError(f"its GOP from frame {first} on gives other frames when it is decoded alone")
            needed = sorted(index.frames[place] for place in range(first, end) if index.is_reference[place])
            if len(needed) < end - first:  # without the others, as when they are skipped
                data.seek(span.offset)
                frames = decoders.frames(config, index, span, memoryview(data.read(span.size)), needed)
                if [_identity(frame) for _, frame in frames] != [due[number] for number in needed]:
                    raise NotIndexedError(f"its GOP from frame {first} on needs frames that are marked as not needed")
    return config, index


def _identity(frame: VideoFrame) -> tuple[int, int, int]:
    """Return a checksum of the samples, and the tags by which they become RGB."""
    return frame_checksum(frame), int(frame.colorspace), int(frame.color_range)
