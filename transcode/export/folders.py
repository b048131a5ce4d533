"""Formats of other tools: folders of pictures, Hugging Face, trainers of video generators, lists of files.

frames      OUT/<id>/img_00001.jpg …, and OUT/videos.jsonl: a line for each video as qwen_vl_utils, LLaMA-Factory and NeMo take it:
            `video` (paths relative to the file; `videos` has them in one more list), `fps` and `sample_fps` (frames over duration),
            `raw_fps` (by which qwen_vl_utils tells when each frame is shown), `frame_numbers` and `timestamps` (of the source), and the
            labels
hf          OUT/metadata.csv and the videos, in a folder for each split: load_dataset("videofolder", data_dir=OUT). It does not
            accept .webm: VP9 is remuxed to mp4.
torchcodec  OUT/<id>.json: VideoDecoder(path, custom_frame_mappings=…) opens without scanning
clips       OUT/<id>.mp4 and OUT/<id>.txt with its caption, in a folder for each split, and for each bucket in it if that is asked for.
            Trainers read no folders below it: an id a/b becomes a_b. And metadata.jsonl and metadata.csv, a row for each: `id`,
            `file_name` and `video` (the same), `caption` and `text` (the same), `frames`, `fps`, `width`, `height`, and the labels
            (`captions` in the first, if there are several). VP9 in .webm is remuxed to mp4.
list        OUT/videos.txt: "path label", as VideoMAE, mmaction2, V-JEPA 2 (which reads it as .csv only) and DALI read it; labels that
            are not numbers are numbered as in OUT/labels.txt, and 0 without any; videos_train.txt … if the store has splits. For
            stores of pictures the folders of `frames`, and rawframes.txt: "dir total_frames label"
dali        the same as file_list.txt, which wants labels
mmaction    the same as videos.txt, which wants labels
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from vidprep.formats.errors import StoreError, for_json
from vidprep.formats.manifest.labels import CLASS_LABEL
from vidprep.formats.manifest.row import escape_label
from vidprep.formats.manifest.table import read_rows
from vidprep.formats.profiles import CONTAINERS
from vidprep.formats.spread import smart_resize
from vidprep.formats.stores.base import FrameStore, StoredVideo
from vidprep.formats.stores.encoded import VideoStore
from vidprep.formats.video.pyav import open_input, open_output
from vidprep.formats.video.source import READ_OPTIONS, file_url
from vidprep.transcode.export.pack import (
    building,
    ids_of_splits,
    jpeg_of,
    number_classes,
    open_intact,
    refuse_linked_files,
    refuse_odd_ids,
    write_class_numbers,
)
from vidprep.transcode.export.targets import TARGETS, PackOptions
from vidprep.transcode.settings.options import Scale
from vidprep.transcode.sources.tables import csv_cell

VIDEOS_NAME = "videos.jsonl"
LINE_KEYS = ("id", "type", "video", "videos", "fps", "sample_fps", "raw_fps", "frame_numbers", "timestamps")
DIALOGUES = {
    "conversations": ("from", "value", "human", "gpt"),  # of LLaVA and ShareGPT
    "messages": ("role", "content", "user", "assistant"),  # of OpenAI
}
PROMPT = "Describe the video."
RATE_DIGITS, TIME_DIGITS = 9, 6
FRAMES_AT_ONCE = 64


def export(store: FrameStore, out: Path, kind: str, options: PackOptions, *, overwrite: bool = False) -> int:
    """Write `out` in a format of `TARGETS`; return the number of videos. Raises DestinationError, StoreError, OSError."""
    target = TARGETS[kind]
    if target.needs_videos and not isinstance(store, VideoStore):
        raise StoreError(f"--to {kind} takes a folder of encoded videos", path=store.path)
    refuse_odd_ids(store)
    refuse_linked_files(store)
    module, _, name = target.writer.partition(":")
    with building(out, store, overwrite=overwrite) as partial:
        getattr(import_module(f"vidprep.transcode.export.{module}"), name)(store, partial, options)
    return len(store)


class _Checksum(NamedTuple):
    """Columns of a row."""

    id: str
    sha256: str | None


class _Times(NamedTuple):
    """Columns of a row."""

    id: str
    duration_seconds: float | None
    pts: list[int] | None
    time_base_num: int | None
    time_base_den: int | None


def write_frames(store: FrameStore, out: Path, options: PackOptions) -> None:
    rows = {row.id: row for row in read_rows(store.folder, _Times)}
    with (out / VIDEOS_NAME).open("w", encoding="utf-8") as file:
        for id_ in store.ids:
            video = store[id_]
            seconds = _seconds(video, rows.get(id_))
            if seconds is None and options.sampling is not None:
                raise StoreError(
                    f"{id_}: no times are known of it, by which --sample-fps could choose", path=store.path
                )
            numbers = (
                range(len(video)) if options.sampling is None else options.sampling.numbers(len(video), seconds or 0.0)
            )
            folder = out / id_
            folder.mkdir(parents=True)
            names = [f"{id_}/img_{number:05d}.jpg" for number in range(1, len(numbers) + 1)]
            for name, data in zip(names, _pictures(video, numbers, options), strict=True):
                (out / name).write_bytes(data)
            line = _describe(video, numbers, names, seconds, _starts(video, rows.get(id_)), options.captions_as)
            file.write(json.dumps(line, default=str) + "\n")


def _seconds(video: StoredVideo, row: _Times | None) -> float | None:
    """Return the duration; None if neither manifest nor store knows it."""
    if row is not None and row.duration_seconds:
        return row.duration_seconds
    try:
        return video.end_seconds
    except StoreError:
        return None


def _starts(video: StoredVideo, row: _Times | None) -> list[float] | None:
    """Return when the source frames begin, in seconds; None if neither store nor manifest knows it."""
    with suppress(StoreError):
        return [float(each) for each in video.source_timestamps]
    if row is None or not row.pts or not row.time_base_num or not row.time_base_den:
        return None
    return [tick * row.time_base_num / row.time_base_den for tick in row.pts]


def _pictures(video: StoredVideo, numbers: Sequence[int], options: PackOptions) -> Iterator[bytes]:
    """Yield JPEGs: those of the store where it has them in that size."""
    size = _size(video, options.scale)
    own = video.store.stored_jpegs(video.id) if size is None else None
    if own is not None:
        yield from (bytes(own[number]) for number in numbers)
        return
    for first in range(0, len(numbers), FRAMES_AT_ONCE):
        for frame in video.frames(numbers[first : first + FRAMES_AT_ONCE], size=size):
            yield jpeg_of(frame, options.jpeg)


def _size(video: StoredVideo, scale: Scale) -> tuple[int, int] | None:
    """Return the (height, width) to scale to; None for as it is."""
    if scale.multiple_of is None:
        return None
    least, most = scale.areas
    try:
        width, height = smart_resize(video.width, video.height, scale.multiple_of, min_area=least, max_area=most)
    except ValueError as error:
        raise StoreError(f"{video.id}: {error}, which --multiple-of does not take", path=video.store.path) from error
    return None if (height, width) == (video.height, video.width) else (height, width)


def _describe(
    video: StoredVideo,
    numbers: Sequence[int],
    names: list[str],
    seconds: float | None,
    starts: list[float] | None,
    captions_as: str | None,
) -> dict[str, Any]:
    """Return the line of a video in VIDEOS_NAME."""
    line: dict[str, Any] = {"id": video.id, "type": "video", "video": names, "videos": [names]}
    if seconds:
        rate = round(len(numbers) / seconds, RATE_DIGITS)
        line |= {"fps": rate, "sample_fps": rate}
    if video.store.source_map(video.id) is not None:
        line["frame_numbers"] = video.source_frames[numbers].tolist()
        if starts is not None:
            times = line["timestamps"] = [round(starts[number], TIME_DIGITS) for number in numbers]
            if len(times) > 1 and times[-1] > times[0]:
                line["raw_fps"] = round((len(times) - 1) / (times[-1] - times[0]), RATE_DIGITS)
    labels = video.store.labels(video.id)
    if captions_as is not None:
        line[captions_as] = _dialogue(video, labels, captions_as)
        labels = {name: value for name, value in labels.items() if name != captions_as}
    return line | {escape_label(name, LINE_KEYS): for_json(value) for name, value in labels.items()}


def _dialogue(video: StoredVideo, labels: Mapping[str, Any], form: str) -> list[dict[str, str]]:
    """Return a caption as the answer to a prompt. Raises StoreError."""
    role, text, human, model = DIALOGUES[form]
    caption, prompt = labels.get("caption"), labels.get("prompt") or PROMPT
    if not caption or not isinstance(caption, str) or not isinstance(prompt, str):
        raise StoreError(
            f"{video.id}: has no label caption, which --captions-as writes as a dialogue", path=video.store.path
        )
    return [{role: human, text: f"<video>{prompt}"}, {role: model, text: caption}]


def write_hf(store: FrameStore, out: Path, _options: PackOptions) -> None:
    splits = ids_of_splits(store)
    write_class_numbers(store, out)
    for split, ids in splits.items():
        (out / split).mkdir(exist_ok=True)
        _videofolder(cast(VideoStore, store), ids, out / split)


def _videofolder(store: VideoStore, ids: Sequence[str], out: Path) -> None:
    names = list(store.label_columns().columns)
    checksums = {row.id: row.sha256 for row in read_rows(store.folder, _Checksum)}
    with (out / "metadata.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file_name", *(csv_cell(escape_label(name, ("file_name",))) for name in names)])
        for id_ in ids:
            name = _copy(store, id_, checksums.get(id_), out, id_)
            labels = store.labels(id_)
            table.writerow(
                [f"./{name}" if csv_cell(name) != name else name, *(csv_cell(labels.get(name)) for name in names)]
            )


def _copy(store: VideoStore, id_: str, checksum: str | None, out: Path, stem: str) -> str:
    """Copy a video, WebM as mp4. Return its path in `out`, which begins with `stem`. Raises StoreError if it is taken."""
    is_webm = store.entry(id_).container == "webm"
    name = f"{stem}.{'mp4' if is_webm else store.entry(id_).container}"
    target = out / name
    if target.exists():
        raise StoreError(f"{id_}: another video is {name} already; rename one of them", path=store.path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_intact(store, id_, checksum) as source:
        data = source.read()
    if is_webm:
        _into_mp4(io.BytesIO(data), target)
    else:
        target.write_bytes(data)
    return name


class _Clip(NamedTuple):
    """Columns of a row."""

    id: str
    sha256: str | None
    frame_rate_num: int | None
    frame_rate_den: int | None
    duration_seconds: float | None


CLIP_KEYS = ("id", "file_name", "video", "caption", "text", "frames", "fps", "width", "height")


def write_clips(store: FrameStore, out: Path, options: PackOptions) -> None:
    rows = {row.id: row for row in read_rows(store.folder, _Clip)}
    for split, ids in ids_of_splits(store).items():
        (out / split).mkdir(exist_ok=True)
        clips = [_write_clip(cast(VideoStore, store), id_, rows.get(id_), out / split, options) for id_ in ids]
        with (out / split / "metadata.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(clip, ensure_ascii=False, default=str) + "\n" for clip in clips)
        with (out / split / "metadata.csv").open("w", encoding="utf-8", newline="") as file:
            names = list(dict.fromkeys(name for clip in clips for name in clip if name != "captions"))
            table = csv.writer(file)
            table.writerows([names, *([csv_cell(clip.get(name)) for name in names] for clip in clips)])


def _write_clip(store: VideoStore, id_: str, row: _Clip | None, out: Path, options: PackOptions) -> dict[str, Any]:
    """Write a clip and its caption. Return its metadata."""
    video, labels = store[id_], store.labels(id_)
    folder = f"{video.width}x{video.height}x{len(video)}/" if options.by_bucket else ""
    name = _copy(store, id_, None if row is None else row.sha256, out, folder + id_.replace("/", "_"))
    captions = captions_in(labels)
    caption = captions[0] if captions else None
    if caption is not None:
        (out / name).with_suffix(".txt").write_text(f"{caption}\n", encoding="utf-8")
    fps = None
    if row is not None and row.frame_rate_num and row.frame_rate_den:
        fps = row.frame_rate_num / row.frame_rate_den
    elif seconds := _seconds(video, None):
        fps = round(len(video) / seconds, RATE_DIGITS)
    clip: dict[str, Any] = {"id": id_, "file_name": name, "video": name, "caption": caption, "text": caption}
    clip |= {"frames": len(video), "fps": fps, "width": video.width, "height": video.height}
    clip |= {"captions": captions} if len(captions) > 1 else {}
    return clip | {
        escape_label(key, CLIP_KEYS): for_json(value)
        for key, value in labels.items()
        if key not in ("caption", "captions")
    }


def captions_in(labels: Mapping[str, Any]) -> list[str]:
    """Return the captions of a video: its label `captions`, else `caption`; either may be a list."""
    given = labels.get("captions") or labels.get("caption")
    return [str(each) for each in (given if isinstance(given, list) else [given]) if each not in (None, "")]


def _into_mp4(source: BinaryIO, target: Path) -> None:
    """Remux pictures and sound to mp4."""
    box = CONTAINERS["mp4"]
    with (
        open_input(source, READ_OPTIONS) as given,
        open_output(file_url(target), format=box.muxer, options=dict(box.options)) as made,
    ):
        copies = {
            stream: made.add_stream_from_template(stream, opaque=True)
            for stream in (*given.streams.video[:1], *given.streams.audio[:1])
        }
        for packet in given.demux(*copies):
            if packet.size:
                packet.stream = copies[packet.stream]
                made.mux_one(packet)


def write_torchcodec(store: FrameStore, out: Path, _options: PackOptions) -> None:
    store = cast(VideoStore, store)
    for id_ in store.ids:
        target = out / f"{id_}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(store.frame_mappings(id_))


SEPARATORS = {"space": " ", "comma": ",", "tab": "\t"}


def _listed(text: str, separator: str) -> str:
    if SEPARATORS[separator] in text or "\n" in text:
        raise StoreError(f"{text}: fields of the list are separated by a {separator}, and the path has one; rename it")
    return text


def _own_file(store: VideoStore, id_: str) -> str:
    """Return the path of a video, or its URL. Raises StoreError for one in a shard."""
    if store.entry(id_).offset:
        raise StoreError(
            "its videos are in shards, and this format lists files: `vidprep pack --to files` first", path=store.path
        )
    place = store.file(id_)
    return place if isinstance(place, str) else str(place.absolute())


def write_list(store: FrameStore, out: Path, options: PackOptions) -> None:
    has_labels = CLASS_LABEL in store.label_columns().columns
    classes = number_classes(store, out) if has_labels else dict.fromkeys(store.ids, 0)
    if isinstance(store, VideoStore):
        _write_lists(store, out, "videos", store, classes, options)
    else:
        _write_lists(store, out, "rawframes", None, classes, options)
        write_frames(store, out, options)


def write_dali(store: FrameStore, out: Path, options: PackOptions) -> None:
    _write_lists(store, out, "file_list", cast(VideoStore, store), number_classes(store, out), options)


def write_mmaction(store: FrameStore, out: Path, options: PackOptions) -> None:
    number_classes(store, out)  # which it wants
    write_list(store, out, options)


def _write_lists(
    store: FrameStore, out: Path, name: str, videos: VideoStore | None, classes: Mapping[str, int], options: PackOptions
) -> None:
    """Write a list for each split, with a line for each video.

    Args:
        store: The store.
        out: The output folder.
        name: Name of the list.
        videos: The encoded videos; None if frames are in folders.
        classes: Class number of each video.
        options: Separator and suffix.
    """
    separator = SEPARATORS[options.separator]
    for split, ids in ids_of_splits(store).items():
        places = (
            f"{_listed(id_, options.separator)}{separator}{len(store[id_])}"
            if videos is None
            else _listed(_own_file(videos, id_), options.separator)
            for id_ in ids
        )
        lines = [f"{place}{separator}{classes[id_]}\n" for place, id_ in zip(places, ids, strict=True)]
        (out / f"{name}{split and f'_{split}'}{options.suffix}").write_text("".join(lines))
