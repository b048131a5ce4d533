"""WebDataset's convention: samples in tar files. Files of one sample are adjacent; its key is their name up to the first
dot.

    DST/data-RRRRR-NNNNN.tar   key.000000.jpg …, one for each frame, or key.mp4 (.webm, .mkv): the encoded video; and key.json:
                               {"id", "frame_rate": [num, den], "num_frames", "width", "height", labels …; "gop" of a video}.
                               RRRRR is the number of the run, NNNNN that of the shard

The format has no checksums. A folder made by vidprep has a manifest with the positions and checksums of frames; others are
scanned once.
Nothing is unpacked by name; a tar whose names lead outside its folder is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import simplejpeg

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.labels import Labels
from vidprep.formats.manifest.row import ManifestRow, check_of, is_text
from vidprep.formats.manifest.table import label_columns, manifest_paths, manifest_rows
from vidprep.formats.storage.ranges import Piece, Run
from vidprep.formats.storage.untrusted import (
    INT64_MAX,
    MAX_JSON_BYTES,
    PICTURE_SIDE_MAX,
    exact_ratio,
    open_regular,
    parse_json,
    whole_between,
)
from vidprep.formats.stores._indexed import decode_rows, scale_size
from vidprep.formats.stores.base import (
    Frames,
    FrameStore,
    ManifestSources,
    SourceMap,
    StorageOrder,
    VideoFacts,
    describe_unit,
    facts_of,
    labels_in,
)
from vidprep.formats.stores.data_files import DataFiles, Handles, ReadOptions, adjacent_runs, end_of, read_checked
from vidprep.formats.stores.encoded import VideoReader, fill_from
from vidprep.formats.stores.shards import TAR_BLOCK, StoreLayout, copy

VIDEO_SUFFIXES = ("mp4", "webm", "mkv")
IMAGE_SUFFIXES = ("jpg", "jpeg")
KEPT_REFUSALS = 5
DIGITS_MAX = 18
USTAR_BYTES_MAX, GNU_KEY_LETTERS = 8 << 30, 90  # GNU's headers of larger files are one block if their names are short


class TarLayout(StoreLayout):
    name, suffix, tail = "webdataset", ".tar", bytes(2 * TAR_BLOCK)
    shows_dead_bytes = holds_labels = True

    def serialize(self, row: ManifestRow, frames: BinaryIO) -> Iterator[bytes]:
        key = sample_key(row.id)
        for number, size in enumerate(row.frame_sizes or ()):
            yield from tar_member(f"{key}.{number:06d}.jpg", frames.read(size))
        yield from tar_member(f"{key}.json", json.dumps(describe_unit(row), ensure_ascii=False, default=str).encode())

    def offsets(self, row: ManifestRow) -> list[int]:
        steps = (TAR_BLOCK + size + -size % TAR_BLOCK for size in row.frame_sizes or ())
        return list(accumulate(steps, initial=(row.offset or 0) + TAR_BLOCK))[:-1]

    def write_index(self, _root: Path, _rows: Iterable[ManifestRow], _about: Mapping[str, Any]) -> Iterator[Path]:
        """Write nothing: the shards contain everything."""
        yield from ()

    def faults_of_index(self, _root: Path, _rows: Sequence[ManifestRow], *, are_all: bool) -> Iterator[str]:  # noqa: ARG002
        yield from ()


def sample_key(unit_id: str) -> str:
    """Return an id as a WebDataset key: without dots, and short enough for ustar; else a hash of it."""
    key = unit_id.replace("%", "%25").replace(".", "%2E")
    head, _, base = key.rpartition("/")
    fits = key.isascii() and len(head) <= 155 and len(base) <= 100 - len(".000000.jpg")
    return key if fits else hashlib.sha256(unit_id.encode()).hexdigest()


def tar_member(name: str, data: bytes) -> Iterator[bytes]:
    """Yield a file of a tar archive: header, bytes, and padding to the next block."""
    yield tar_header(name, len(data))
    yield data + bytes(-len(data) % TAR_BLOCK)


def tar_header(name: str, size: int) -> bytes:
    """Return the header of a file of a tar archive: one block, which depends on nothing else."""
    header = tarfile.TarInfo(name)
    header.size, header.mtime, header.mode = size, 0, 0o644
    return header.tobuf(tarfile.USTAR_FORMAT if size < USTAR_BYTES_MAX else tarfile.GNU_FORMAT)


class VideoTarLayout(TarLayout):
    """Tar shards whose samples are an encoded video and its `.json`."""

    name = "shards"

    def serialize(self, row: ManifestRow, frames: BinaryIO) -> Iterator[bytes]:
        key, size = sample_key(row.id), row.size_bytes or 0
        if size >= USTAR_BYTES_MAX and len(key) > GNU_KEY_LETTERS:
            key = hashlib.sha256(row.id.encode()).hexdigest()
        gop = (row.keyframes or [0])[1] if len(row.keyframes or ()) > 1 else row.num_frames
        times = {"pts": row.pts, "time_base": [row.time_base_num, row.time_base_den]} if row.pts is not None else {}
        content = {"id": row.id, "gop": gop} | describe_unit(row) | times
        yield tar_header(f"{key}.{row.container}", size)
        yield from copy(frames)
        yield bytes(-size % TAR_BLOCK)
        yield from tar_member(f"{key}.json", json.dumps(content, ensure_ascii=False, default=str).encode())

    def payload(self, row: ManifestRow) -> list[tuple[int, int]]:
        return [((row.offset or 0) + TAR_BLOCK, row.size_bytes or 0)]

    def offsets(self, row: ManifestRow) -> list[int]:
        return [offset for offset, _ in self.payload(row)]


LAYOUT, VIDEO_LAYOUT = TarLayout(), VideoTarLayout()


def open_here(files: DataFiles, options: ReadOptions) -> TarStore:
    return TarStore(files, short_side=options.short_side, fast=options.fast)


@dataclass(slots=True)
class _Sample:
    """Files of one sample.

    Attributes:
        frames: (offset, size) of each frame
        crc32: CRC-32 of each frame; None without a manifest
        video: (offset, size) of the encoded video, or None
        about: Content of its JSON file
    """

    tar: str
    frames: list[tuple[int, int]] = field(default_factory=list)
    crc32: list[int] | None = None
    video: tuple[int, int] | None = None
    about: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)


class TarStore(FrameStore):
    """Reads tar shards with numbered JPEGs, or with videos encoded by vidprep."""

    kind = LAYOUT.name

    def __init__(
        self, place: str | os.PathLike[str] | DataFiles, *, short_side: int | None = None, fast: bool = False
    ) -> None:
        super().__init__(place)
        self._short_side, self._fast = short_side, fast
        self._prepare()

    def _prepare(self) -> None:
        self._samples = dict(self._read_manifest() if manifest_paths(self.folder) else self._scan())
        self._sources = ManifestSources(self.folder)
        self._videos = Handles(self._open_video, VideoReader.close)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name not in ("_samples", "_sources")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    def _read_manifest(self) -> Iterator[tuple[str, _Sample]]:
        for row in manifest_rows(self.folder):
            if not row.ok or not row.file_name.endswith(".tar"):
                continue
            places = list(zip(LAYOUT.offsets(row), row.frame_sizes or (), strict=True))
            yield row.id, _Sample(row.file_name, places, row.frame_crc32, None, facts_of(row), row.labels)

    def _scan(self) -> Iterator[tuple[str, _Sample]]:
        seen: set[str] = set()
        for path in sorted(path for path in self.folder.glob("*.tar") if path.is_file()):
            try:
                with open_regular(path) as file, tarfile.open(fileobj=file) as tar:
                    members = _plain_files(tar, os.fstat(file.fileno()).st_size)
                    for key, files in groupby(members, key=lambda member: _split(member[0])[0]):
                        sample = _Sample(path.name)
                        numbered: list[tuple[int, tuple[int, int]]] = []
                        for name, offset, size in files:
                            number, _, suffix = _split(name)[1].lower().rpartition(".")
                            if suffix in IMAGE_SUFFIXES:
                                is_number = number.isdecimal() and len(number) <= DIGITS_MAX
                                numbered.append((int(number) if is_number else len(numbered), (offset, size)))
                            elif suffix in VIDEO_SUFFIXES:
                                sample.video = offset, size
                            elif suffix == "json":
                                sample.about = _object(os.pread(file.fileno(), min(size, MAX_JSON_BYTES), offset))
                                sample.labels = labels_in(sample.about)
                        sample.frames = [place for _, place in sorted(numbered)]
                        id_ = str(sample.about.get("id", key))
                        if not is_text(id_):
                            raise ValueError(f"{id_!r} is not valid Unicode")
                        if id_ in seen:
                            raise ValueError(f"{id_} appears twice")
                        seen.add(id_)
                        if sample.frames or sample.video:
                            yield id_, sample
            except (tarfile.TarError, OSError, ValueError, AttributeError, EOFError, MemoryError) as error:
                raise StoreError(f"is damaged: {error}", path=path) from error

    def _ids(self) -> Sequence[str]:
        return sorted(self._samples)

    def _sample(self, id_: str) -> _Sample:
        if id_ not in self._samples:
            raise KeyError(f"{id_!r} is not in {self.path}")
        return self._samples[id_]

    def place(self, id_: str) -> tuple[str, int]:
        """Return shard and offset of the first file of a sample; a stream of shards is read in this order. Raises
        KeyError.
        """
        sample = self._sample(id_)
        return sample.tar, min([*sample.frames, *([sample.video] if sample.video else [])], default=(0, 0))[0]

    def labels(self, id_: str) -> dict[str, Any]:
        return dict(self._sample(id_).labels)

    def label_columns(self) -> Labels:
        if manifest_paths(self.folder):
            return label_columns(self.folder).select(self.ids)
        return super().label_columns()

    def storage(self) -> StorageOrder:
        places = [self.place(id_) for id_ in self.ids]
        samples = [self._samples[id_] for id_ in self.ids]
        sizes = [each.video[1] if each.video else sum(size for _, size in each.frames) for each in samples]
        return StorageOrder.build(
            pa.array([tar for tar, _ in places]), pa.array([at for _, at in places]), pa.array(sizes)
        )

    def source_map(self, id_: str) -> SourceMap | None:
        self._sample(id_)
        return self._sources.source_map(id_)

    def facts(self, id_: str) -> VideoFacts:
        sample = self._sample(id_)
        content = sample.about
        if sample.video is not None and not content.get("gop"):
            raise StoreError(
                f"{id_}: a video that vidprep did not encode; its .json has no gop", path=self.files.place(sample.tar)
            )
        try:
            rate = exact_ratio("frame_rate", content["frame_rate"]) if content.get("frame_rate") else None
            if sample.video is not None:
                return _facts_of_video(content, rate, sample.video[1])
        except (KeyError, ValueError) as error:
            raise StoreError(f"{id_}: its .json is not valid: {error}", path=self.files.place(sample.tar)) from error
        full = self._full_size(id_, sample)
        height, width = scale_size(*full, self._short_side)
        return VideoFacts(len(sample.frames), height, width, rate)

    def _full_size(self, id_: str, sample: _Sample) -> tuple[int, int]:
        content = sample.about
        if not all(type(content.get(side)) is int for side in ("height", "width")):
            if not sample.frames:
                raise StoreError(f"{id_} has no frames", path=self.files.place(sample.tar))
            (data,) = self._bytes(id_, sample, [0])
            try:
                content["height"], content["width"], *_ = simplejpeg.decode_jpeg_header(data)
            except ValueError as error:
                raise StoreError(f"frame 0 of {id_}: {error}", path=self.files.place(sample.tar)) from error
        return content["height"], content["width"]

    def runs(self, id_: str, numbers: Sequence[int]) -> tuple[str, list[Run]]:
        sample = self._sample(id_)
        return sample.tar, [] if sample.video else adjacent_runs(self._pieces(sample, numbers))

    def _pieces(self, sample: _Sample, numbers: Sequence[int]) -> list[Piece]:
        """Return the positions of frames. Raises StoreError if they are not in the shard."""
        end, pieces = end_of(self.files, sample.tar), list[Piece]()
        for number in numbers:
            offset, size = sample.frames[number]
            if not (offset >= 0 and 0 <= size <= end - offset):
                raise StoreError(
                    f"frame {number}: {size} bytes at offset {offset} are not in the {end} there",
                    path=self.files.place(sample.tar),
                )
            pieces.append(Piece(offset, size, None if sample.crc32 is None else sample.crc32[number]))
        return pieces

    def _bytes(self, id_: str, sample: _Sample, numbers: Sequence[int]) -> list[memoryview]:
        pieces = self._pieces(sample, numbers)
        return read_checked(self.files, sample.tar, pieces, partial(self._describe, id_, numbers))

    def _describe(self, id_: str, numbers: Sequence[int], place: int) -> str:
        number = numbers[place]
        return f"frame {number} of {id_} at offset {self._sample(id_).frames[number][0]}"

    def _open_video(self, id_: str) -> VideoReader:
        sample = self._sample(id_)
        assert sample.video is not None
        path = self.files.place(sample.tar)
        return VideoReader(self.files.open(sample.tar, *sample.video), path, id_, self.facts(id_), fast=self._fast)

    def stored_jpegs(self, id_: str) -> list[memoryview] | None:
        sample = self._sample(id_)
        return None if sample.video is not None else self._bytes(id_, sample, range(len(sample.frames)))

    def fill(self, id_: str, numbers: Sequence[int], rows: Sequence[Frames]) -> None:
        sample = self._sample(id_)
        if sample.video is not None:
            fill_from(self._videos, id_, numbers, rows)
            return
        full = self._full_size(id_, sample)
        decode_rows(
            self._bytes(id_, sample, numbers),
            rows,
            full=full,
            size=scale_size(*full, self._short_side),
            fast=self._fast,
            place=partial(self._describe, id_, numbers),
            path=self.files.place(sample.tar),
        )


def _facts_of_video(about: dict[str, Any], rate: Fraction | None, size: int) -> VideoFacts:
    """Return the properties of a video. Raises KeyError, ValueError.

    Args:
        about: Its JSON object.
        rate: Its frame rate.
        size: Size of the video in bytes; each frame takes at least one.
    """
    count = whole_between("num_frames", about["num_frames"], 1, size)
    gop = whole_between("gop", about["gop"], 1, INT64_MAX)
    height, width = (whole_between(side, about[side], 1, PICTURE_SIDE_MAX) for side in ("height", "width"))
    base = exact_ratio("time_base", about["time_base"]) if about.get("time_base") else None
    pts = about.get("pts")
    if pts is not None and not (isinstance(pts, list) and len(pts) == count and check_of("list<int64>")(pts)):
        raise ValueError(f"pts is not a list of {count} whole numbers")
    if rate is None and (pts is None or base is None):
        raise ValueError("it has neither a frame rate nor times")
    return VideoFacts(count, height, width, rate, pts, base, range(0, count, gop))


def _object(data: bytes) -> dict[str, Any]:
    value = parse_json(data)
    if not isinstance(value, dict):
        raise ValueError(f"a .json holds no object, but {type(value).__name__}")
    return value


def _plain_files(tar: tarfile.TarFile, end: int) -> Iterator[tuple[str, int, int]]:
    """Yield name, position and size of each regular file.

    Args:
        tar: The archive.
        end: End of the tar in bytes.

    Raises:
        ValueError: A file extends past the end of the tar; or, after the last file, some are not regular, have a name
            outside the folder, or occur twice. The message lists them.
    """
    odd: list[str] = []
    seen: set[str] = set()
    for member in tar:
        name = member.name
        if member.isdir():
            continue
        if not member.isreg() or member.issparse():
            odd.append(f"{name} (no plain file)")
        elif name.startswith("/") or ".." in name.split("/"):
            odd.append(f"{name} (leads out of the folder)")
        elif name in seen:
            odd.append(f"{name} (there twice)")
        elif member.offset_data + member.size > end:
            raise ValueError(f"the header of {name} says {member.size} bytes, and the tar ends before")
        else:
            seen.add(name)
            yield name, member.offset_data, member.size
    if odd:
        more = f" and {len(odd) - KEPT_REFUSALS} more" if len(odd) > KEPT_REFUSALS else ""
        raise ValueError(f"it holds {', '.join(odd[:KEPT_REFUSALS])}{more}")


def _split(name: str) -> tuple[str, str]:
    """Return key and extension: the base name is split at its first dot."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return folder + slash + stem, extension
