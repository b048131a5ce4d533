"""Convert a store to another one. JPEGs are copied, and decoded only if the target holds no JPEGs.

The label `split` selects a part of the output, and the label `label` becomes a class number.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import shutil
import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import pyarrow as pa
import simplejpeg

from vidprep.formats.errors import DestinationError, StoreError
from vidprep.formats.manifest.labels import CLASS_LABEL, SPLIT_LABEL, values_of
from vidprep.formats.manifest.row import ManifestRow, unfit_value
from vidprep.formats.manifest.table import CLASSES_NAME, MANIFEST_NAME, manifest_rows, write_rows
from vidprep.formats.storage.local import check_writable, first_link, replacing
from vidprep.formats.stores.base import FrameStore
from vidprep.formats.stores.encoded import VideoStore
from vidprep.formats.stores.gops import GOPS_NAME, facts_in, list_known, read_known, write_gops
from vidprep.formats.stores.registry import VIDEO_SHARDS, layout_of
from vidprep.formats.stores.shards import ShardWriter, shuffle_ids
from vidprep.transcode.destination.run_file import settings_of
from vidprep.transcode.media.ffmpeg_program import list_versions
from vidprep.transcode.settings.output import FrameOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.outputs import STATE_DIR
from vidprep.transcode.sources.tables import storable


def ids_of_splits(store: FrameStore) -> Mapping[str, Sequence[str]]:
    """Return the ids of each split; all under "" if the store has no splits. Raises StoreError if a video has none."""
    column = store.label_columns().columns.get(SPLIT_LABEL)
    if column is None or not pa.types.is_string(column.type):
        return {"": store.ids}
    splits: dict[str, list[str]] = defaultdict(list)
    for id_, split in zip(store.ids, values_of(column), strict=True):
        if not split or Path(split).name != split:
            raise StoreError(
                f"{id_} has the split {split!r}; give every video one, a plain name, by `vidprep label`",
                path=store.path,
            )
        splits[split].append(id_)
    return dict(sorted(splits.items()))


def number_classes(store: FrameStore, out: Path) -> dict[str, int]:
    """Return the class number of each video, and write the names of text classes to labels.txt, one per line. Raises
    StoreError.
    """
    column = store.label_columns().columns.get(CLASS_LABEL)
    if column is None or column.null_count:
        raise StoreError("has videos without a `label`; give them one with `vidprep label`", path=store.path)
    if not store.class_to_idx:
        raise StoreError(f"its labels are {column.type}; this format wants text or whole numbers", path=store.path)
    if store.classes is not None:
        (out / "labels.txt").write_text("".join(f"{name}\n" for name in store.classes))
    return {id_: store.class_to_idx[value] for id_, value in zip(store.ids, values_of(column), strict=True)}


def write_class_numbers(store: FrameStore, out: Path) -> None:
    """Write class_to_idx.json if the store has text classes."""
    if store.classes:
        (out / CLASSES_NAME).write_text(json.dumps(dict(store.class_to_idx), ensure_ascii=False, indent=1))


Order = Literal["shuffled", "id"]
PACK_NAME = ".vidprep-pack"  # no .json: people list those
PARTIAL_NAME = f"{PACK_NAME}-partial"


def pack_store(
    store: FrameStore,
    out: Path,
    options: FrameOutput,
    *,
    num_shards: int = 1,
    order: Order = "shuffled",
    overwrite: bool = False,
) -> int:
    """Write `out` as a store of frames with manifest and index; webdataset writes shards for each split. Return the number
    of videos.

    Args:
        store: The store to convert.
        out: The output folder.
        options: Store, quality and shard size.
        num_shards: Least number of shards (of each split), as far as there are so many videos.
        order: Order of the videos in the shards.
        overwrite: Replace an existing output.

    Raises:
        DestinationError: The output folder is not empty, overlaps with the store, or cannot be written.
        StoreError: The store cannot be read.
        OSError: The output cannot be written.
    """
    refuse_odd_ids(store)
    refuse_linked_files(store)
    splits = ids_of_splits(store) if layout_of(options.store).holds_labels else {"": store.ids}
    with building(out, store, overwrite=overwrite) as partial:
        for split, ids in splits.items():
            (partial / split).mkdir(exist_ok=True)
            _pack(store, ids, partial / split, options, num_shards, order)
    return len(store)


def _pack(
    store: FrameStore, ids: Sequence[str], out: Path, options: FrameOutput, num_shards: int, order: Order
) -> None:
    layout = layout_of(options.store)
    if layout.holds_labels:
        write_class_numbers(store, out)
    shards = ShardWriter(out, layout, options.shard_bytes, run=0)
    rows: dict[str, ManifestRow] = {}
    for id_ in _assign_shards(ids, order, num_shards, shards):
        frames = encode_frames(store, id_, options)
        row = _row(store, id_, frames, options)
        rows[id_] = row.record(shards.append(row, io.BytesIO(b"".join(frames))))
    shards.close()
    write_rows(
        out / MANIFEST_NAME,
        None,
        [rows[id_] for id_ in ids],
        labels=store.label_columns().select(ids),
        classes=store.classes,
    )
    header = _write_settings(out, RunSettings(options))
    for _ in layout.write_index(out, manifest_rows(out), header):
        pass


def _assign_shards(ids: Sequence[str], order: Order, num_shards: int, shards: ShardWriter) -> Iterator[str]:
    """Yield ids in an order, and begin a new shard where one of `num_shards` is due."""
    for number, id_ in enumerate(shuffle_ids(ids) if order == "shuffled" else ids):
        if number * num_shards // len(ids) > (number - 1) * num_shards // len(ids):
            shards.close()
        yield id_


def _write_settings(out: Path, settings: RunSettings) -> dict[str, Any]:
    """Write .vidprep/run.json as a run does, and return its settings and versions."""
    content = {"settings": settings.as_dict(), "versions": list_versions(settings, "")}
    (out / STATE_DIR / "partial").mkdir(parents=True)
    with replacing(out / STATE_DIR / "run.json") as file:
        file.write(json.dumps(content | {"digest": settings.digest}, indent=1).encode())
    return content


def pack_videos(
    store: VideoStore,
    out: Path,
    to: str,
    shard_bytes: int,
    *,
    num_shards: int = 1,
    order: Order = "shuffled",
    overwrite: bool = False,
) -> int:
    """Write `out` as a store of the same videos, with manifest and index: in shards (of each split), or in files. Return
    the number of videos.

    Args:
        store: The store to convert.
        out: The output folder.
        to: "shards" or "files".
        shard_bytes: Size beyond which a new shard begins.
        num_shards: Least number of shards (of each split), as far as there are so many videos.
        order: Order of the videos in the shards.
        overwrite: Replace an existing output.

    Raises:
        DestinationError: The output folder is not empty, overlaps with the store, or cannot be written.
        StoreError: The store cannot be read.
        OSError: The output cannot be written.
    """
    refuse_odd_ids(store)
    refuse_linked_files(store)
    splits = ids_of_splits(store) if to == VIDEO_SHARDS else {"": store.ids}
    with building(out, store, overwrite=overwrite) as partial:
        for split, ids in splits.items():
            (partial / split).mkdir(exist_ok=True)
            _pack_videos(store, ids, partial / split, to, shard_bytes, num_shards, order)
    return len(store)


def _pack_videos(
    store: VideoStore, ids: Sequence[str], out: Path, to: str, shard_bytes: int, num_shards: int, order: Order
) -> None:
    write_class_numbers(store, out)
    shards = ShardWriter(out, layout_of(VIDEO_SHARDS), shard_bytes, run=0)
    known = {row.id: row for row in manifest_rows(store.folder, set(ids))}
    rows: dict[str, ManifestRow] = {}
    for id_ in _assign_shards(ids, order, num_shards, shards):
        row = replace(known[id_], run=None, offset=None, stored_bytes=None, labels=store.labels(id_))
        with open_intact(store, id_, row.sha256) as video:
            if to == VIDEO_SHARDS:
                row = row.record(shards.append(row, video))
            else:
                row.file_name = f"{id_}.{row.container}"
                (out / row.file_name).parent.mkdir(parents=True, exist_ok=True)
                with (out / row.file_name).open("xb") as made:
                    shutil.copyfileobj(video, made)
        rows[id_] = row
    shards.close()
    write_rows(
        out / MANIFEST_NAME,
        None,
        [rows[id_] for id_ in ids],
        labels=store.label_columns().select(ids),
        classes=store.classes,
    )
    index, facts = store.folder / GOPS_NAME, facts_in(out)
    assert facts is not None
    write_gops(out / GOPS_NAME, facts, read_known(index) if index.is_file() else list_known(()))
    if (store.folder / STATE_DIR / "run.json").is_file():
        settings = settings_of(store.folder)
        output = replace(settings.video, store=to, shard_bytes=shard_bytes)
        _write_settings(out, replace(settings, output=output))


def refuse_odd_ids(store: FrameStore) -> None:
    """Raise StoreError with the ids that lead out of the output folder; other tools' stores may contain any id."""
    odd = [id_ for id_ in store.ids if not {"", ".", ".."}.isdisjoint(id_.split("/"))]
    if odd:
        raise StoreError(f"has ids that cannot be names in a folder: {', '.join(map(repr, odd[:5]))}", path=store.path)


def refuse_linked_files(store: FrameStore) -> None:
    """Raise StoreError if files of a store are links, which may lead to unrelated files."""
    if store.files.is_remote:
        return
    names = (
        [store.entry(id_).file_name for id_ in store.ids]
        if isinstance(store, VideoStore)
        else [path.name for path in store.folder.iterdir() if path.is_symlink()]
    )
    for name in names:
        if link := first_link(store.folder, name):
            raise StoreError(
                "is a symbolic link, which is not followed into a store that came from elsewhere; copy the store with `cp -RL`, "
                "and pack the copy",
                path=link,
            )


class HashedFile:
    """A file that is read once, from its beginning to its end, and hashed meanwhile."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._sha256 = file, hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._sha256.update(data)
        return data

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()


@contextmanager
def open_intact(store: VideoStore, id_: str, sha256: str | None) -> Iterator[BinaryIO]:
    """Open the file of a video to be read to its end, and compare its SHA-256, if that is known, afterwards.

    Raises:
        StoreError: It differs, or cannot be read.
    """
    with store.open_file(id_) as video:
        file = HashedFile(video)
        yield cast(BinaryIO, file)
    if sha256 is not None and file.sha256 != sha256:
        raise StoreError(
            f"{id_}: its SHA-256 does not match the manifest; `vidprep validate` tells what is damaged", path=store.path
        )


@contextmanager
def building(out: Path, store: FrameStore, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty folder inside `out` in which to build an output, whose content becomes that of `out` when it is
    complete. If it cannot be built, `out` stays as it was.

    Args:
        out: The output folder.
        overwrite: Replace an earlier output of `pack`.
        store: The store to convert.

    Raises:
        DestinationError: The folder contains something else, or the store, or is in the store, or cannot be written.
    """
    there, source = out.resolve(), store.folder.resolve()
    if there.is_relative_to(source) or source.is_relative_to(there):
        raise DestinationError(f"overlaps with {store.path}; give a folder outside of it", path=out)
    marker, partial, is_new = out / PACK_NAME, out / PARTIAL_NAME, not out.exists()
    with ExitStack() as held:
        try:
            out.mkdir(parents=True, exist_ok=True)
            was_marked = marker.is_file()
            if {path.name for path in out.iterdir()} - {PACK_NAME, PARTIAL_NAME} and not (overwrite and was_marked):
                more = ", or --overwrite" if was_marked else ""
                raise DestinationError(f"is not empty; give a new folder{more}", path=out)
            if (other := _find_later(out, marker)) is not None:
                raise DestinationError(
                    f"{other} was added or changed after `pack`; move it, or give a new folder", path=out
                )
            check_writable(out, "give another folder")
            lock = held.enter_context(marker.open("a"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DestinationError("another `pack` is writing here; wait for it, or stop it", path=out) from None
            except OSError:  # files cannot be locked here
                pass
            if partial.is_dir() and not partial.is_symlink():  # of a `pack` that was killed
                shutil.rmtree(partial)
            partial.mkdir()
        except OSError as error:
            if isinstance(error, DestinationError):
                raise
            raise DestinationError(f"cannot be written: {error.strerror}", path=out) from error
        try:
            yield partial
        except BaseException:
            shutil.rmtree(out if is_new else partial, ignore_errors=True)
            if not was_marked:
                marker.unlink(missing_ok=True)
            raise
        try:
            _replace_with(partial, out, json.dumps({"store": str(store.path)}))
        except OSError as error:
            raise DestinationError(
                f"could not be replaced, and holds parts: {error.strerror}: {error.filename}; pack again with --overwrite",
                path=out,
            ) from error


def _find_later(out: Path, marker: Path) -> Path | None:
    """Return a file in `out` that is newer than what an earlier `pack` wrote; None if there is none."""
    packed_at = marker.stat().st_mtime_ns if marker.is_file() else 0
    own = {PARTIAL_NAME, STATE_DIR, "validation.parquet"}
    others = (path for path in out.rglob("*") if own.isdisjoint(path.parts) and path.is_file())
    return next((path for path in others if packed_at and path.stat().st_mtime_ns > packed_at), None)


def _replace_with(partial: Path, out: Path, about: str) -> None:
    """Move what is in `partial` into `out` in place of what is there. Manifest and index go first and come last."""
    marker = out / PACK_NAME
    for old in sorted(out.iterdir(), key=Path.is_dir):
        if old.is_dir() and not old.is_symlink():
            if old != partial:
                shutil.rmtree(old)
        elif old != marker:
            old.unlink()
    for new in sorted(partial.iterdir(), key=Path.is_dir, reverse=True):
        new.rename(out / new.name)
    partial.rmdir()
    marker.write_text(about)


def encode_frames(store: FrameStore, id_: str, options: FrameOutput) -> list[Any]:
    """Return the frames of a video as `options` stores them: the stored JPEGs if possible, else encoded from RGB."""
    video = store[id_]
    if not options.is_coded:
        return [frame.tobytes() for frame in video.frames()]
    stored = store.stored_jpegs(id_)
    if stored is not None:
        return list(stored)
    return [jpeg_of(frame, options) for frame in video.frames()]


def jpeg_of(frame: Any, options: FrameOutput) -> bytes:
    """Encode (H, W, 3) uint8 RGB as a JPEG."""
    subsampling = "Gray" if options.subsampling == "gray" else options.resolved_subsampling
    return bytes(simplejpeg.encode_jpeg(frame, options.quality_value, "RGB", subsampling))


def _row(store: FrameStore, id_: str, frames: list[Any], options: FrameOutput) -> ManifestRow:
    data = b"".join(frames)
    source = store.path if store.files.is_remote else Path(store.path).absolute()
    row = ManifestRow(id=id_, file_name="", source=storable(str(source)), status="ok", container=options.store)
    row.settings_digest = RunSettings(options).digest
    row.pixel_format = options.pixel_format
    row.codec = "jpeg" if options.is_coded else "rawvideo"
    row.describe(replace(store.facts(id_), keyframes=None))
    if (shown := store.source_map(id_)) is not None:
        row.source_frames = None if shown.frames is None else [int(number) for number in shown.frames]
        row.source_pts = None if shown.pts is None else [int(pts) for pts in shown.pts]
        row.source_time_base_num, row.source_time_base_den = shown.time_base.numerator, shown.time_base.denominator
    row.frame_sizes = [len(frame) for frame in frames]
    row.frame_crc32 = [zlib.crc32(frame) for frame in frames]
    row.size_bytes, row.sha256 = len(data), hashlib.sha256(data).hexdigest()
    row.labels = store.labels(id_)
    if (fault := unfit_value(row)) is not None:
        raise StoreError(f"{id_}: {fault}", path=store.path)
    return row
