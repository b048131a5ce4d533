"""Commands that change a finished destination: `label`, `merge` and `compact`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from vidprep.formats.errors import SettingsError, count_of, printable
from vidprep.formats.option import Option
from vidprep.formats.storage.untrusted import ArrowStream
from vidprep.transcode.cli._command import FolderOrUrl, LocalPath, command_of
from vidprep.transcode.settings.parse import check_types, parse_names
from vidprep.transcode.settings.run import BAD_ROWS

if TYPE_CHECKING:
    from vidprep.transcode.destination.array_merge import Merged
    from vidprep.transcode.destination.outputs import Compacted
    from vidprep.transcode.destination.relabelling import Relabelled


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
