"""Commands that change a finished destination, or convert it: `label`, `merge`, `compact` and `pack`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import click

from vidprep.formats.errors import SettingsError, StoreError, count_of, printable
from vidprep.formats.option import Option
from vidprep.formats.profiles import JPEG_SUBSAMPLINGS
from vidprep.formats.spread import RULES
from vidprep.formats.storage.untrusted import ArrowStream
from vidprep.formats.stores.registry import STORES_OF_FRAMES, VIDEO_STORES
from vidprep.transcode.cli._command import FolderOrUrl, LocalPath, command_of
from vidprep.transcode.export.targets import TARGETS
from vidprep.transcode.settings.parse import check_types, parse_bytes, parse_names
from vidprep.transcode.settings.run import BAD_ROWS

if TYPE_CHECKING:
    from vidprep.formats.training.rows import RowsGap
    from vidprep.transcode.destination.array_merge import Merged
    from vidprep.transcode.destination.outputs import Compacted
    from vidprep.transcode.destination.relabelling import Relabelled
    from vidprep.transcode.export.pack import Order


@dataclass(frozen=True, slots=True)
class Packed:
    """Result of `pack`.

    Attributes:
        num_videos: Number of videos
        labels: Rows that were written to labels.csv
        labels_unseen: Rows of `labels` at whose time no output has a frame
    """

    num_videos: int
    labels: int = 0
    labels_unseen: int = 0


@check_types()
def label(
    destination: str | Path,
    table: str | Path | ArrowStream | None = None,
    *,
    labels: Annotated[
        Sequence[str] | None, Option("Take only these columns of TABLE.", "A,B", parse=parse_names)
    ] = None,
    remove: Annotated[Sequence[str], Option("Remove these labels.", "A,B", parse=parse_names)] = (),
    on_bad_row: Annotated[str, Option("What to do with rows that match no video.", choices=BAD_ROWS)] = "fail",
    dry_run: Annotated[bool, Option("Show what would change; write nothing.")] = False,
) -> Relabelled:
    """Add, change and remove labels of a finished destination, without its sources. No video is encoded again.

    Labels of videos that the table does not list stay. A later run gives its sources' labels again; columns that only this call gave stay.

    Args:
        destination: The folder or URL of a finished run.
        table: A table with a column `id`, or `path` and, for cuts, `start` and `end`. The other columns are labels.

    Returns:
        Relabelled, how many rows and columns changed.

    Raises:
        SettingsError: Neither a table nor labels to remove were given.
        SourceError: The table cannot be used.
        InUseError: A run is writing there.
        DestinationError, StorageError, StoreError, ManifestError: The destination cannot be read or written.
    """
    from vidprep.transcode.destination.destination import PLAN_NAME
    from vidprep.transcode.destination.opening import open_finished
    from vidprep.transcode.destination.relabelling import relabel
    from vidprep.transcode.settings.parse import parse_place

    if isinstance(table, Path) and table.is_dir():
        raise SettingsError(f"{table}: is a folder and no table; give DST first, then the table")
    removed = tuple(filter(None, remove))
    if table is None and not removed:
        raise SettingsError("give a table of labels with a column `id` or `path`, or <remove>", remove="NAME")
    place = open_finished(parse_place(destination))
    if place.fetch_shared(PLAN_NAME) is not None:
        raise SettingsError(f"{destination}: an array run is in progress or was not merged; run `vidprep merge` first")
    with nullcontext() if dry_run else place.lock():
        if not dry_run:
            place.outputs.recover()
            place.merge_journal()
        return relabel(
            place,
            Path(table) if isinstance(table, str) else table,
            labels=None if labels is None else tuple(labels),
            remove=removed,
            skips_bad_rows=on_bad_row == "skip",
            dry_run=dry_run,
        )


@command_of(
    label,
    click.argument("destination", metavar="DST", type=FolderOrUrl()),
    click.argument("table", metavar="[TABLE]", type=LocalPath(), required=False),
)
def label_command(destination: Path | str, table: Path | None = None, dry_run: bool = False, **given: Any) -> None:
    """Add, change and remove labels of DST, without its sources. No video is encoded again.

    TABLE (.csv, .tsv, .parquet, .jsonl) has a column `id`, or `path`, relative to the folder of TABLE, and for cuts `start` and `end`.
    Its other columns are labels. Videos and labels that are not in the table, or whose cell is empty, stay unchanged.
    A later run sets the labels of its sources again.

    \b
    vidprep label ready/ corrected.csv --dry-run
    vidprep label ready/ --remove split,notes
    """
    done = label(destination, table, dry_run=dry_run, **given)
    for id_, before, after in done.examples if dry_run else ():
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                click.echo(printable(f"{id_}: {name}: {before.get(name)!r} -> {after.get(name)!r}"))
    for why in done.skipped:
        click.echo(printable(f"skipped: {why}"), err=True)
    for note in done.notes:
        click.echo(printable(f"vidprep: note: {note}"), err=True)
    parts = [f"{count_of(len(done.videos), 'video')} {'would be ' * dry_run}relabelled"]
    for what in ("added", "changed", "removed"):
        parts += [f"{what}: {printable(', '.join(getattr(done, what)))}"] if getattr(done, what) else []
    click.echo(f"vidprep: {'; '.join(parts)}", err=True)


@check_types()
def merge(destination: str | Path) -> Merged:
    """Join the partitions of an array run into one destination when its tasks have ended.

    Args:
        destination: The folder or URL that the tasks of the array wrote.

    Returns:
        Merged, with the videos that are missing and why.

    Raises:
        InUseError: A task is still running.
        DestinationError, StorageError, StoreError, ManifestError: The destination cannot be read or written.
    """
    from vidprep.transcode.destination.array_merge import merge as join
    from vidprep.transcode.settings.parse import parse_place

    return join(parse_place(destination))


@command_of(merge, click.argument("destination", metavar="DST", type=FolderOrUrl()))
def merge_command(destination: Path | str) -> None:
    """Join the partitions of an array run (--partition) into one destination, when its tasks have ended.

    The result has one manifest and one index, without files of killed tasks. Each missing video is a line on stdout,
    with the reason: run the unfinished tasks again, then merge again. Videos that were added after the run had begun
    are processed by the next run, with or without --partition.

    \b
    Exit codes: 0 all good, 1 some video failed or is missing, 2 wrong usage, 3 a task is still running.
    """
    merged = merge(destination)
    for id_, why in merged.missing.items():
        click.echo(printable(f"{id_}: {why}"))
    joined = f"{count_of(merged.parts, 'partition')} joined" if merged.parts else "no partitions to join"
    line = f"{joined}; {merged.ok} ok, {merged.failed} failed"
    line += f", {len(merged.missing)} missing" if merged.missing else ""
    click.echo(f"vidprep: {line}", err=True)
    if merged.unended:
        parts = ", ".join(map(str, merged.unended[:10])) + " …" * (len(merged.unended) > 10)
        line = (
            f"{len(merged.unended)} of {merged.count} partitions did not finish ({parts}); run them again, then merge"
        )
        click.echo(f"vidprep: {line}", err=True)
    if merged.changed:
        named = printable(", ".join(merged.changed[:10])) + " …" * (len(merged.changed) > 10)
        line = f"{len(merged.changed)} sources changed after the array run was planned, and were made as they are now: {named}"
        click.echo(f"vidprep: {line}", err=True)
    sys.exit(0 if merged.is_whole else 1)


@check_types()
def compact(destination: str | Path) -> Compacted:
    """Free the bytes in shards that no video uses any more, and join small shards.

    Nothing is lost if the process is killed at any moment.

    Args:
        destination: The folder or URL of a finished run of `burst`.

    Returns:
        Compacted, the bytes that were freed; none of a destination with a file for each video.

    Raises:
        InUseError: A run is writing there.
        DestinationError, StorageError, StoreError, ManifestError: The destination cannot be read or written.
    """
    from vidprep.transcode.destination.opening import open_finished
    from vidprep.transcode.destination.outputs import Compacted, Shards
    from vidprep.transcode.settings.parse import parse_place

    place = open_finished(parse_place(destination))
    if not isinstance(place.outputs, Shards):
        return Compacted(0, 0)
    with place.lock():
        place.outputs.recover()
        return place.outputs.compact()


@command_of(compact, click.argument("destination", metavar="DST", type=FolderOrUrl()))
def compact_command(destination: Path | str) -> None:
    """Free the bytes in shards that no video uses any more, and join small shards."""
    done = compact(destination)
    click.echo(
        f"vidprep: {count_of(done.shards, 'shard')} rewritten or joined; {count_of(done.dead_bytes, 'dead byte')} freed",
        err=True,
    )


def _refuse_shards(to: str, **given: object) -> None:
    """Raise SettingsError for options of shards, which a target does not have."""
    for name, value in given.items():
        if value is not None:
            raise SettingsError(f"<{name}>: {to} has no shards; leave it out", **cast("dict[str, Any]", {name: value}))


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
    from vidprep.transcode.export.folders import export
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
        _refuse_shards(to, shards=shards, order=None if order == "shuffled" else order)
    sampling = None if sample_fps is None else Sampling(sample_fps, sample_max, sample_min, sample_rule)
    scale = Scale(multiple_of=multiple_of, max_area=max_area, min_area=min_area)
    usually = (("sample_max", sample_max, 768), ("sample_min", sample_min, 4), ("sample_rule", sample_rule, "qwen"))
    for name, value, usual in usually:
        if sample_fps is None and value != usual:
            raise SettingsError(
                f"<{name}> needs <sample_fps>", **cast("dict[str, Any]", {name: value, "sample_fps": 2})
            )
    if to != "frames":
        _refuse_of(to="frames", sample_fps=sample_fps, multiple_of=multiple_of, captions_as=captions_as)
    if to != "lerobot":
        _refuse_of(to="lerobot", rows_gap=None if rows_gap == "error" else rows_gap)
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
            FrameOutput("burst", quality, subsampling), scale, sampling, cast("RowsGap", rows_gap), captions_as
        )
        count = export(opened, out, to, folders, overwrite=overwrite)
    if carried is None:
        return Packed(count)
    carried.write(out)
    return Packed(count, len(carried.rows), carried.unseen)


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
    torchcodec                        custom_frame_mappings of each video
    dali, mmaction                    lists of files with numbered labels

    \b
    vidprep pack ready/ shards/ --to shards              few large files, in a shuffled order
    vidprep pack frames/ wds/ --to webdataset --shards 8
    """
    packed = pack(store, out, **given)
    click.echo(f"vidprep: {count_of(packed.num_videos, 'video')} packed into {out}", err=True)
    if "labels" in given:
        where = out / "labels.csv"
        click.echo(
            f"vidprep: {count_of(packed.labels, 'label')} in {where}; {packed.labels_unseen} lie where no output has a frame",
            err=True,
        )
