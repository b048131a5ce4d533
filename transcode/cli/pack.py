"""The command `pack`, which converts a dataset for another tool."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import click

from vidprep.formats.errors import SettingsError, StoreError, count_of
from vidprep.formats.option import Option
from vidprep.formats.profiles import JPEG_SUBSAMPLINGS
from vidprep.formats.spread import RULES
from vidprep.formats.storage.untrusted import ArrowStream
from vidprep.formats.stores.registry import STORES_OF_FRAMES, VIDEO_STORES
from vidprep.transcode.cli._command import FolderOrUrl, LocalPath, command_of
from vidprep.transcode.export.targets import TARGETS
from vidprep.transcode.settings.parse import check_types, parse_bytes

if TYPE_CHECKING:
    from vidprep.formats.training.rows import RowsGap
    from vidprep.transcode.export.pack import Order


@dataclass(frozen=True, slots=True)
class Packed:
    """Result of `pack`.

    Attributes:
        num_videos: Number of videos
        labels: Rows that were written to labels.csv
        labels_unseen: Rows of `labels` at whose time no output has a frame
        without_caption: Clips without a caption, which have no text file
    """

    num_videos: int
    labels: int = 0
    labels_unseen: int = 0
    without_caption: int = 0


def _refuse_shards(to: str, **given: object) -> None:
    """Raise SettingsError for options of shards, which a target does not have."""
    for name, value in given.items():
        if value is not None:
            raise SettingsError(f"<{name}>: {to} has no shards; leave it out", **cast("dict[str, Any]", {name: value}))


def _unless(value: object, usual: object) -> object:
    """Return a value; None for the usual one."""
    return None if value == usual else value


def _refuse_of(*, to: str, **given: object) -> None:
    """Raise SettingsError for options of another target."""
    for name, value in given.items():
        if value is not None:
            raise SettingsError(f"<{name}> needs <to>", **cast("dict[str, Any]", {name: value, "to": to}))


@check_types()
def pack(
    store: str | Path,
    out: str | Path,
    *,
    to: Annotated[str, Option("What to make.", choices=(*STORES_OF_FRAMES, *VIDEO_STORES, *TARGETS))],
    quality: Annotated[int, Option("JPEG quality, if STORE has no JPEGs to copy.", "Q", least=1, most=100)] = 90,
    subsampling: Annotated[
        str, Option("Chroma subsampling, if STORE has no JPEGs to copy.", choices=JPEG_SUBSAMPLINGS)
    ] = "420",
    shard_size: Annotated[
        str | int, Option("Start a new shard beyond this size.", "BYTES", parse=parse_bytes)
    ] = "1GiB",
    shards: Annotated[
        int | None,
        Option(
            "Write this many shards of equally many videos, besides the bound of --shard-size: every worker of a webdataset loader "
            "needs one.",
            "N",
            least=1,
        ),
    ] = None,
    order: Annotated[
        str,
        Option(
            "Order of the videos in shards: by a hash of their ids, so that neighbours are of many classes, or by id. Reading shuffled by "
            "runs, or one shard after another, needs the first.",
            choices=("shuffled", "id"),
        ),
    ] = "shuffled",
    sample_fps: Annotated[
        float | None,
        Option(
            "--to frames: only frames sampled at RATE a second, or fewer ones spread over the whole video: those of --sample-rule.",
            "RATE",
            above=0,
            most=1000,
        ),
    ] = None,
    sample_max: Annotated[int, Option("Largest number of sampled frames of a video.", "N", least=2)] = 768,
    sample_min: Annotated[int, Option("Least number of sampled frames of a video that has so many.", "N", least=1)] = 4,
    sample_rule: Annotated[
        str, Option("Whose processor chooses the frames; see `burst`.", choices=tuple(RULES))
    ] = "qwen",
    captions_as: Annotated[
        str | None,
        Option(
            "--to frames: write the label caption as the answer of a dialogue, after the label prompt: as conversations (LLaVA, "
            "LLaMA-Factory) or messages (ms-swift, transformers).",
            choices=("conversations", "messages"),
        ),
    ] = None,
    by_bucket: Annotated[bool, Option("--to clips: a folder for each bucket, such as 848x480x81.")] = False,
    separator: Annotated[
        str, Option("--to list: what separates path and label.", choices=("space", "comma", "tab"))
    ] = "space",
    suffix: Annotated[
        str, Option("--to list: suffix of the list. V-JEPA 2 reads .csv only.", choices=(".txt", ".csv"))
    ] = ".txt",
    multiple_of: Annotated[
        int | None,
        Option(
            "--to frames: scale both sides to multiples of N (even), as Qwen's smart_resize does.",
            "N",
            least=2,
            most=1024,
        ),
    ] = None,
    max_area: Annotated[
        int | None,
        Option("Largest area for --multiple-of N, in pixels. Default: 768 N².", "PIXELS", least=4, most=2**31 - 1),
    ] = None,
    min_area: Annotated[
        int | None,
        Option("Smallest area for --multiple-of N, in pixels. Default: 128 N².", "PIXELS", least=4, most=2**31 - 1),
    ] = None,
    labels: Annotated[
        str | Path | ArrowStream | None,
        Option(
            "Labels of source frames or seconds, converted to output frames in OUT/labels.csv: columns id or path, and start and end "
            "(seconds) or start_frame and end_frame.",
            "TABLE",
            path="any",
        ),
    ] = None,
    rows_gap: Annotated[
        str,
        Option(
            "--to lerobot: what happens to a frame in a hole of the times of rows, or past their end: an error, or hold, which gives it "
            "the row before.",
            choices=("error", "hold"),
        ),
    ] = "error",
    overwrite: Annotated[bool, Option("Replace what an earlier pack wrote to OUT.")] = False,
) -> Packed:
    """Convert a store into a format that another tool reads.

    Args:
        store: A destination of `transcode` or `burst`, or its URL, or a folder of GulpIO or WebDataset.
        out: The folder to write.

    Returns:
        Packed, how many videos and labels were written.

    Raises:
        StoreError: `store` cannot be read.
        DestinationError: `out` cannot be written.
        SettingsError: A value is not allowed.
    """
    from vidprep.formats.stores.encoded import VideoStore
    from vidprep.formats.stores.registry import VIDEO_SHARDS, open_store
    from vidprep.transcode.export.folders import captions_in, export
    from vidprep.transcode.export.labels import carry_over
    from vidprep.transcode.export.pack import pack_store, pack_videos
    from vidprep.transcode.export.targets import PackOptions
    from vidprep.transcode.settings.options import Sampling, Scale
    from vidprep.transcode.settings.output import FrameOutput
    from vidprep.transcode.settings.parse import parse_place

    out = Path(out)
    opened = open_store(parse_place(store))
    carried = None if labels is None else carry_over(opened.folder, Path(labels) if isinstance(labels, str) else labels)
    if to in ("files", *TARGETS):
        _refuse_shards(to, shards=shards, order=_unless(order, "shuffled"))
    sampling = None if sample_fps is None else Sampling(sample_fps, sample_max, sample_min, sample_rule)
    scale = Scale(multiple_of=multiple_of, max_area=max_area, min_area=min_area)
    usually = (("sample_max", sample_max, 768), ("sample_min", sample_min, 4), ("sample_rule", sample_rule, "qwen"))
    for name, value, usual in usually:
        if sample_fps is None and value != usual:
            raise SettingsError(
                f"<{name}> needs <sample_fps>", **cast("dict[str, Any]", {name: value, "sample_fps": 2})
            )
    own: dict[str, dict[str, object]] = {
        "frames": {"sample_fps": sample_fps, "multiple_of": multiple_of, "captions_as": captions_as},
        "clips": {"by_bucket": _unless(by_bucket, False)},
        "list": {"separator": _unless(separator, "space"), "suffix": _unless(suffix, ".txt")},
        "lerobot": {"rows_gap": _unless(rows_gap, "error")},
    }
    for target, given in own.items():
        if target != to:
            _refuse_of(to=target, **given)
    shard_bytes = parse_bytes(str(shard_size))
    if isinstance(opened, VideoStore) and to in (*VIDEO_STORES, "webdataset"):
        kind = "files" if to == "files" else VIDEO_SHARDS
        count = pack_videos(
            opened, out, kind, shard_bytes, num_shards=shards or 1, order=cast("Order", order), overwrite=overwrite
        )
    elif to in VIDEO_STORES:
        raise StoreError(f"--to {to} takes a store of encoded videos", path=opened.path)
    elif to in STORES_OF_FRAMES:
        output = FrameOutput(to, quality, subsampling, shard_bytes)
        count = pack_store(opened, out, output, num_shards=shards or 1, order=cast("Order", order), overwrite=overwrite)
    else:
        folders = PackOptions(
            FrameOutput("burst", quality, subsampling),
            scale,
            sampling,
            cast("RowsGap", rows_gap),
            captions_as,
            by_bucket,
            separator,
            suffix,
        )
        count = export(opened, out, to, folders, overwrite=overwrite)
    packed = Packed(count)
    if to == "clips":
        packed = replace(packed, without_caption=sum(not captions_in(opened.labels(id_)) for id_ in opened.ids))
    if carried is None:
        return packed
    carried.write(out)
    return replace(packed, labels=len(carried.rows), labels_unseen=carried.unseen)


@command_of(
    pack,
    click.argument("store", metavar="STORE", type=FolderOrUrl()),
    click.argument("out", metavar="OUT", type=LocalPath()),
    first=("to", "shards", "shard_size", "order", "quality", "sample_fps", "multiple_of", "labels", "overwrite"),
)
def pack_command(store: Path | str, out: Path, **given: Any) -> None:
    """Convert STORE (an output of transcode or burst, or a GulpIO or WebDataset folder) for another tool.

    \b
    files, shards                     the videos unchanged, in files of their own or in tar shards with an index
    burst, gulp, webdataset, tensor   another store; JPEGs are copied unchanged (webdataset of videos: as shards)
    frames                            a folder of img_00001.jpg … for each video
    hf                                a folder for load_dataset("videofolder"), labels included
    lerobot                           a LeRobot 3.0 dataset; labels episode_index, camera, task, rows (a file of values)
    clips                             x.mp4 and x.txt (its caption), and a table, for trainers of video generators
    torchcodec                        custom_frame_mappings of each video
    list                              a list of files with numbered labels (VideoMAE, mmaction2, V-JEPA 2, DALI)
    dali, mmaction                    the same under the name that these take

    \b
    vidprep pack ready/ shards/ --to shards              few large files, in a shuffled order
    vidprep pack frames/ wds/ --to webdataset --shards 8
    """
    packed = pack(store, out, **given)
    click.echo(f"vidprep: {count_of(packed.num_videos, 'video')} packed into {out}", err=True)
    if packed.without_caption:
        click.echo(
            f"vidprep: without a caption, and so without a text file: {count_of(packed.without_caption, 'clip')}",
            err=True,
        )
    if "labels" in given:
        where = out / "labels.csv"
        click.echo(
            f"vidprep: {count_of(packed.labels, 'label')} in {where}; {packed.labels_unseen} lie where no output has a frame",
            err=True,
        )
