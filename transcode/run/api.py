"""`transcode`, `burst` and `merge` for Python: what the commands of these names do."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from vidprep.formats.errors import DiskFullError, SettingsError, StoppedError
from vidprep.formats.option import Option
from vidprep.formats.storage.arrow import ArrowStream
from vidprep.transcode.settings.keyword_types import BurstKeywords, TranscodeKeywords
from vidprep.transcode.settings.keywords import build_options, build_settings, decides_output, options_of_command
from vidprep.transcode.settings.output import FrameOutput, Output, VideoOutput
from vidprep.transcode.settings.parse import parse_names
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.settings.run_options import BAD_ROWS, RunOptions, SourceOptions
from vidprep.transcode.settings.typed import typed

if TYPE_CHECKING:
    from vidprep.formats.manifest.table import ManifestRow
    from vidprep.transcode.destination.merge import Merged
    from vidprep.transcode.destination.opening import Compacted
    from vidprep.transcode.destination.relabel import Relabelled
    from vidprep.transcode.run.progress import Progress
    from vidprep.transcode.run.run import Summary
    from vidprep.transcode.run.session import RunRequest


@typed(*options_of_command("transcode"))
def transcode(
    source: str | Path | ArrowStream, destination: str | Path, *, settings: RunSettings | None = None, progress: bool = False,
    on_row: Callable[[ManifestRow], object] | None = None, **keywords: Unpack[TranscodeKeywords],
) -> Summary:  # fmt: skip
    """Re-encode videos into `destination` and verify each output.

    Repeat the call to continue a run that was stopped; finished videos are not processed again.

    Args:
        source: A folder, a file, or a table of videos: a .csv, .tsv, .jsonl or .parquet file, or a table of Arrow, pandas or polars.
        destination: The folder or URL to write.
        settings: Settings in place of the keywords that decide what is written.
        progress: Show a progress bar and messages on stderr.
        on_row: Called with each row of the manifest when it is safe on disk.

    Returns:
        Summary. Videos that failed are counted in `failed`, and the reason stands in their rows of the manifest.

    Raises:
        SettingsError: A value is not allowed, or does not fit the others.
        SourceError: `source` cannot be used.
        DestinationError, StorageError: `destination` cannot be written, or is another run's.
        DiskFullError, StoppedError: The run was stopped; the same call continues it.
        BackendError, MissingError: The cluster or a library is not available.
        KeyboardInterrupt: The run was interrupted; the same call continues it.
    """
    return _run(source, destination, settings, progress, on_row, keywords, VideoOutput)


@typed(*options_of_command("burst"))
def burst(
    source: str | Path | ArrowStream, destination: str | Path, *, settings: RunSettings | None = None, progress: bool = False,
    on_row: Callable[[ManifestRow], object] | None = None, **keywords: Unpack[BurstKeywords],
) -> Summary:  # fmt: skip
    """Store the frames of videos in shards in `destination`, one image per frame, and verify them.

    Repeat the call to continue a run that was stopped; finished videos are not processed again.

    Args:
        source: A folder, a file, or a table of videos: a .csv, .tsv, .jsonl or .parquet file, or a table of Arrow, pandas or polars.
        destination: The folder or URL to write.
        settings: Settings in place of the keywords that decide what is written.
        progress: Show a progress bar and messages on stderr.
        on_row: Called with each row of the manifest when it is safe on disk.

    Returns:
        Summary. Videos that failed are counted in `failed`, and the reason stands in their rows of the manifest.

    Raises:
        SettingsError: A value is not allowed, or does not fit the others.
        SourceError: `source` cannot be used.
        DestinationError, StorageError: `destination` cannot be written, or is another run's.
        DiskFullError, StoppedError: The run was stopped; the same call continues it.
        BackendError, MissingError: The cluster or a library is not available.
        KeyboardInterrupt: The run was interrupted; the same call continues it.
    """
    return _run(source, destination, settings, progress, on_row, keywords, FrameOutput)


def _run(
    source: str | Path | ArrowStream, destination: str | Path, settings: RunSettings | None, progress: bool,
    on_row: Callable[[ManifestRow], object] | None, keywords: Mapping[str, Any], kind: type[Output],
) -> Summary:  # fmt: skip
    from vidprep.transcode.run.progress import Progress
    from vidprep.transcode.run.session import execute

    if settings is not None:
        if build_settings(keywords, kind) != build_settings({}, kind):
            both = ", ".join(name for name in keywords if decides_output(name))
            raise SettingsError(f"settings was given, and so were {both}, which are part of it; give one of them")
        if not isinstance(settings.output, kind):
            raise SettingsError(f"settings.output is a {type(settings.output).__name__}; give a {kind.__name__}")
    reporter = Progress(is_shown=progress, on_row=on_row)
    summary = execute(request_of(source, destination, keywords, reporter, kind, settings))
    if summary.interrupted_by == signal.SIGINT:
        raise KeyboardInterrupt
    if summary.disk_full:
        raise DiskFullError(summary.disk_full)
    if summary.stopped or summary.interrupted_by is not None:
        raise StoppedError(summary.stopped or "interrupted; call again to go on", exit_code=summary.exit_code)
    return summary


def request_of(
    source: str | Path | ArrowStream, destination: str | Path, keywords: Mapping[str, Any], reporter: Progress, kind: type[Output],
    settings: RunSettings | None = None, *, dry_run: bool = False,
) -> RunRequest:  # fmt: skip
    """What the functions and the commands ask for. settings: in the place of those that keywords say. dry_run: no events are written."""
    from vidprep.transcode.run.events import Events
    from vidprep.transcode.run.session import make_request

    settings = settings or build_settings(keywords, kind)
    choice, options = build_options(SourceOptions, keywords), build_options(RunOptions, keywords)
    if options.events and not dry_run:
        reporter.events = Events(str(options.events))
    return make_request(source, destination, settings, choice, options, reporter)


@typed()
def compact(destination: str | Path) -> Compacted:
    """Free the bytes in shards that no video uses any more, and join small shards.

    Nothing is lost if the process is killed at any moment.

    Args:
        destination: The folder or URL of a finished run of `burst`.

    Returns:
        Compacted, the bytes that were freed.

    Raises:
        SettingsError: The destination has no shards.
        InUseError: A run is writing there.
        DestinationError, StorageError, StoreError, ManifestError: The destination cannot be read or written.
    """
    from vidprep.transcode.destination.opening import Shards, open_finished
    from vidprep.transcode.settings.parse import as_place

    place = open_finished(as_place(destination))
    if not isinstance(place.outputs, Shards):
        raise SettingsError(f"{destination}: has one file per video, so there are no shards to rewrite")
    with place.lock():
        place.outputs.recover()
        return place.outputs.compact()


@typed()
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
) -> Relabelled:  # fmt: skip
    """Add, change and remove labels of a finished destination, without its sources. No output is touched.

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
    from vidprep.transcode.destination.array_plan import PLAN_NAME
    from vidprep.transcode.destination.opening import open_finished
    from vidprep.transcode.destination.relabel import relabel
    from vidprep.transcode.settings.parse import as_place

    removed = tuple(filter(None, remove))
    if table is None and not removed:
        raise SettingsError("give a table of labels with a column `id` or `path`, or <remove>", remove="NAME")
    place = open_finished(as_place(destination))
    if place.shared_file(PLAN_NAME) is not None:
        raise SettingsError(f"{destination}: an array run is at work or was not joined; `vidprep merge` first")
    with nullcontext() if dry_run else place.lock():
        if not dry_run:
            place.outputs.recover()
            place.merge_journal()
        return relabel(
            place, Path(table) if isinstance(table, str) else table, labels=None if labels is None else tuple(labels), remove=removed,
            skips_bad_rows=on_bad_row == "skip", dry_run=dry_run,
        )  # fmt: skip


@typed()
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
    from vidprep.transcode.destination.merge import merge as join
    from vidprep.transcode.settings.parse import as_place

    return join(as_place(destination))
