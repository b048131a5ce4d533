"""What other people's tools read: folders of pictures, Hugging Face, torchcodec, DALI, mmaction2.

frames      OUT/<id>/img_00001.jpg …
hf          OUT/metadata.csv and the videos: load_dataset("videofolder", data_dir=OUT). It takes no .webm: VP9 goes into mp4.
torchcodec  OUT/<id>.json: VideoDecoder(path, custom_frame_mappings=…) opens without its scan
dali        OUT/file_list.txt: "path label", for fn.readers.video(file_list=…); labels are numbered in OUT/labels.txt
mmaction    videos.txt "path label" of an encoded folder; of stores of pictures the folders of `frames`, and rawframes.txt
            "dir total_frames label"; labels as for dali
"""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any, cast

from av.video.stream import VideoStream

from vidprep.formats.errors import StoreError
from vidprep.formats.manifest.row import escaped_label
from vidprep.formats.stores.base import FrameStore
from vidprep.formats.stores.encoded import VideoStore
from vidprep.formats.video.pyav import open_output
from vidprep.formats.video.source import file_url, open_video
from vidprep.transcode.export.pack import coded, make_empty, refuse_linked_files, refuse_odd_ids
from vidprep.transcode.settings.options import FrameOptions
from vidprep.transcode.sources.tables import csv_cell

MP4_OPTIONS = {"movflags": "+faststart+negative_cts_offsets", "use_editlist": "0"}


def export(store: FrameStore, out: Path, kind: str, options: FrameOptions) -> int:
    """Write `out` as `kind` says. Returns how many videos are in it. Raises DestinationError, StoreError, OSError."""
    if kind in ("hf", "torchcodec", "dali") and not isinstance(store, VideoStore):
        raise StoreError(f"--to {kind} takes a folder of encoded videos", path=store.path)
    refuse_odd_ids(store)
    refuse_linked_files(store)
    make_empty(out)
    {"frames": _frames, "hf": _hf, "torchcodec": _torchcodec, "dali": _dali, "mmaction": _mmaction}[kind](
        store, out, options
    )
    return len(store)


def _frames(store: FrameStore, out: Path, options: FrameOptions) -> None:
    for id_ in store.ids:
        folder = out / id_
        folder.mkdir(parents=True)
        for number, data in enumerate(coded(store, id_, options), 1):
            (folder / f"img_{number:05d}.jpg").write_bytes(data)


def _hf(store: FrameStore, out: Path, _options: FrameOptions) -> None:
    store = cast(VideoStore, store)
    names = sorted({name for id_ in store.ids for name in store.labels(id_)})
    with (out / "metadata.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file_name", *(csv_cell(escaped_label(name, ("file_name",))) for name in names)])
        for id_ in store.ids:
            source = store.file(id_)
            suffix = ".mp4" if source.suffix == ".webm" else source.suffix
            target = out / f"{id_}{suffix}"
            target.parent.mkdir(parents=True, exist_ok=True)
            if suffix == source.suffix:
                shutil.copyfile(source, target)
            else:
                _into_mp4(source, target)
            labels = store.labels(id_)
            name = f"{id_}{suffix}"
            table.writerow(
                [f"./{name}" if csv_cell(name) != name else name, *(csv_cell(labels.get(name)) for name in names)]
            )


def _into_mp4(source: Path, target: Path) -> None:
    """The same packets in another container."""
    with (
        open_video(source) as given,
        open_output(file_url(target), format="mp4", options=MP4_OPTIONS) as made,
    ):
        stream = given.streams.video[0]
        copy = made.add_stream_from_template(stream, opaque=True)
        for packet in given.demux(stream):
            if packet.size:
                packet.stream = copy
                made.mux_one(packet)


def _torchcodec(store: FrameStore, out: Path, _options: FrameOptions) -> None:
    store = cast(VideoStore, store)
    for id_ in store.ids:
        with open_video(store.file(id_)) as container:
            stream: VideoStream = container.streams.video[0]
            packets = sorted((p.pts or 0, p.duration or 0, p.is_keyframe) for p in container.demux(stream) if p.size)
        target = out / f"{id_}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        frames = [{"pts": pts, "duration": duration, "key_frame": int(key)} for pts, duration, key in packets]
        target.write_text(json.dumps({"frames": frames}))


def _numbered_labels(store: FrameStore, out: Path) -> dict[Any, int]:
    """The column `label` as numbers, which are written to labels.txt, a label a line."""
    labels = [store.labels(id_).get("label") for id_ in store.ids]
    if None in labels:
        raise StoreError(
            "has videos without a `label`; make it with --label-from-folder, or from a table", path=store.path
        )
    numbers = {label: number for number, label in enumerate(sorted(set(labels), key=str))}
    (out / "labels.txt").write_text("".join(f"{label}\n" for label in numbers))
    return numbers


def _listed(text: str, out: Path) -> str:
    if any(letter.isspace() for letter in text):
        raise StoreError(f"{text}: this format separates by spaces, and the path has some; take other names", path=out)
    return text


def _dali(store: FrameStore, out: Path, _options: FrameOptions) -> None:
    numbers = _numbered_labels(store, out)
    videos = cast(VideoStore, store)
    lines = [
        f"{_listed(str(videos.file(id_).absolute()), out)} {numbers[store.labels(id_).get('label')]}\n"
        for id_ in store.ids
    ]
    (out / "file_list.txt").write_text("".join(lines))


def _mmaction(store: FrameStore, out: Path, options: FrameOptions) -> None:
    numbers = _numbered_labels(store, out)
    lines = []
    if not isinstance(store, VideoStore):
        _frames(store, out, options)
    for id_ in store.ids:
        label = numbers[store.labels(id_).get("label")]
        if isinstance(store, VideoStore):
            lines.append(f"{_listed(str(store.file(id_).absolute()), out)} {label}\n")
        else:
            lines.append(f"{_listed(id_, out)} {len(store[id_])} {label}\n")
    (out / ("videos.txt" if isinstance(store, VideoStore) else "rawframes.txt")).write_text("".join(lines))
