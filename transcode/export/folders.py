"""Formats of other tools: folders of pictures, Hugging Face, torchcodec, DALI, mmaction2.

frames      OUT/<id>/img_00001.jpg …
hf          OUT/metadata.csv and the videos, in a folder for each split: load_dataset("videofolder", data_dir=OUT). It does not
            accept .webm: VP9 is remuxed to mp4.
torchcodec  OUT/<id>.json: VideoDecoder(path, custom_frame_mappings=…) opens without scanning
dali        OUT/file_list.txt: "path label", for fn.readers.video(file_list=…); labels that are not numbers are numbered as in
            OUT/labels.txt; file_list_train.txt … if the store has splits
mmaction    videos.txt "path label" of an encoded folder; for stores of pictures the folders of `frames`, and rawframes.txt
            "dir total_frames label"; labels and splits as for dali
"""

from __future__ import annotations

import csv
import shutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import BinaryIO, cast

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest import escaped_label
from vidprep.formats.profiles import CONTAINERS
from vidprep.formats.stores import FrameStore, VideoStore
from vidprep.formats.video import READ_OPTIONS, file_url, open_input, open_output
from vidprep.transcode.export.pack import (
    PACK_NAME,
    coded,
    ids_of_splits,
    make_empty,
    numbered_classes,
    refuse_linked_files,
    refuse_odd_ids,
    write_class_numbers,
)
from vidprep.transcode.export.targets import TARGETS
from vidprep.transcode.settings import FrameOutput
from vidprep.transcode.sources import csv_cell


def export(store: FrameStore, out: Path, kind: str, options: FrameOutput, *, overwrite: bool = False) -> int:
    """Write `out` in a format of `TARGETS`; return the number of videos. Raises DestinationError, StoreError, OSError."""
    target = TARGETS[kind]
    if target.needs_videos and not isinstance(store, VideoStore):
        raise StoreError(f"--to {kind} takes a folder of encoded videos", path=store.path)
    refuse_odd_ids(store)
    refuse_linked_files(store)
    is_new = not out.exists()
    make_empty(out, store, overwrite=overwrite)
    module, _, name = target.writer.partition(":")
    try:
        getattr(import_module(f"vidprep.transcode.export.{module}"), name)(store, out, options)
    except StoreError:
        if is_new and [each.name for each in out.iterdir()] == [PACK_NAME]:  # nothing was written yet
            shutil.rmtree(out)
        raise
    return len(store)


def write_frames(store: FrameStore, out: Path, options: FrameOutput) -> None:
    for id_ in store.ids:
        folder = out / id_
        folder.mkdir(parents=True)
        for number, data in enumerate(coded(store, id_, options), 1):
            (folder / f"img_{number:05d}.jpg").write_bytes(data)


def write_hf(store: FrameStore, out: Path, _options: FrameOutput) -> None:
    splits = ids_of_splits(store)
    write_class_numbers(store, out)
    for split, ids in splits.items():
        (out / split).mkdir(exist_ok=True)
        _videofolder(cast(VideoStore, store), ids, out / split)


def _videofolder(store: VideoStore, ids: Sequence[str], out: Path) -> None:
    names = list(store.label_columns().columns)
    with (out / "metadata.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file_name", *(csv_cell(escaped_label(name, ("file_name",))) for name in names)])
        for id_ in ids:
            is_webm = store.entry(id_).container == "webm"
            suffix = ".mp4" if is_webm else f".{store.entry(id_).container}"
            target = out / f"{id_}{suffix}"
            target.parent.mkdir(parents=True, exist_ok=True)
            with store.open_file(id_) as source:
                if is_webm:
                    _into_mp4(source, target)
                else:
                    target.write_bytes(source.read())
            labels = store.labels(id_)
            name = f"{id_}{suffix}"
            table.writerow(
                [f"./{name}" if csv_cell(name) != name else name, *(csv_cell(labels.get(name)) for name in names)]
            )


def _into_mp4(source: BinaryIO, target: Path) -> None:
    """Remux the packets to mp4."""
    box = CONTAINERS["mp4"]
    with (
        open_input(source, READ_OPTIONS) as given,
        open_output(file_url(target), format=box.muxer, options=dict(box.options)) as made,
    ):
        stream = given.streams.video[0]
        copy = made.add_stream_from_template(stream, opaque=True)
        for packet in given.demux(stream):
            if packet.size:
                packet.stream = copy
                made.mux_one(packet)


def write_torchcodec(store: FrameStore, out: Path, _options: FrameOutput) -> None:
    store = cast(VideoStore, store)
    for id_ in store.ids:
        target = out / f"{id_}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(store.frame_mappings(id_))


def _listed(text: str, out: Path) -> str:
    if any(letter.isspace() for letter in text):
        raise StoreError(f"{text}: this format separates fields by spaces, and the path has some; rename it", path=out)
    return text


def _own_file(store: VideoStore, id_: str) -> str:
    """Return the path of a video, or its URL. Raises StoreError for one in a shard."""
    if store.entry(id_).offset:
        raise StoreError(
            "its videos are in shards, and this format lists files: `vidprep pack --to files` first", path=store.path
        )
    place = store.file(id_)
    return place if isinstance(place, str) else str(place.absolute())


def write_dali(store: FrameStore, out: Path, _options: FrameOutput) -> None:
    _write_lists(store, out, "file_list", cast(VideoStore, store))


def write_mmaction(store: FrameStore, out: Path, options: FrameOutput) -> None:
    if isinstance(store, VideoStore):
        _write_lists(store, out, "videos", store)
    else:
        _write_lists(store, out, "rawframes", None)
        write_frames(store, out, options)


def _write_lists(store: FrameStore, out: Path, name: str, videos: VideoStore | None) -> None:
    """Write a list for each split, with a line for each video.

    Args:
        store: The store.
        out: The output folder.
        name: Name of the list.
        videos: The encoded videos; None if frames are in folders.
    """
    classes = numbered_classes(store, out)
    for split, ids in ids_of_splits(store).items():
        places = (
            (f"{_listed(id_, out)} {len(store[id_])}" if videos is None else _listed(_own_file(videos, id_), out))
            for id_ in ids
        )
        lines = [f"{place} {classes[id_]}\n" for place, id_ in zip(places, ids, strict=True)]
        (out / f"{name}{split and f'_{split}'}.txt").write_text("".join(lines))
