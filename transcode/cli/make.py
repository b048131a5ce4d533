"""Commands that make a destination: `transcode` and `burst`, and their `--dry-run`."""

from __future__ import annotations

import errno
import inspect
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar, Unpack

import click

from vidprep.formats.errors import (
    DiskFullError,
    SettingsError,
    StoppedError,
    count_of,
    for_json,
    format_bytes,
    printable,
)
from vidprep.formats.manifest.table import read_rows
from vidprep.formats.storage.base import is_url
from vidprep.formats.storage.untrusted import ArrowStream
from vidprep.transcode.cli._command import USAGE_ERROR, FolderOrUrl, LinePrinter, command_of
from vidprep.transcode.destination.destination import Destination
from vidprep.transcode.destination.run_file import disk_of, free_bytes
from vidprep.transcode.run.plan import Plan
from vidprep.transcode.settings.keyword_types import BurstKeywords, TranscodeKeywords
from vidprep.transcode.settings.output import FrameOutput, Output, VideoOutput
from vidprep.transcode.settings.parse import check_types
from vidprep.transcode.settings.run import (
    RunOptions,
    RunSettings,
    SourceOptions,
    build_options,
    build_settings,
    decides_output,
    options_of_command,
)
from vidprep.transcode.sources.listing import NUMBERED
from vidprep.transcode.sources.unit import SourceList

if TYPE_CHECKING:
    from vidprep.formats.manifest.labels import Labels
    from vidprep.formats.manifest.row import ManifestRow
    from vidprep.transcode.run.progress import Progress
    from vidprep.transcode.run.run import Summary
    from vidprep.transcode.run.session import RunRequest


SHOWN = 20


def _print_units(todo: Plan, labels: Labels, sources: SourceList) -> None:
    """Print a line for each unit of a plan, and for each file that is ignored."""
    for job in todo.jobs:
        said = ", ".join(
            f"{name}={value}" for name, value in labels.values_of(job.unit.id).items() if value is not None
        )
        click.echo(printable(f"{job.unit.path} -> {job.file_name}{f'  [{said}]' if said else ''}"))
    for id_, why in todo.kept.items():
        click.echo(f"kept: {printable(id_)}: {printable(why)}", err=True)
    for row in todo.rejected:
        click.echo(f"cannot be started: {printable(row.source)}: {printable(row.message or '')}", err=True)
    _print_ignored(sources)
    for before, unit in todo.moved.items():
        click.echo(f"moved: {printable(before)} -> {printable(unit.id if unit.id != before else unit.path)}")
    for id_ in todo.removed:
        click.echo(f"removed: {printable(id_)}")


def print_dry_run(
    place: Destination, todo: Plan, sources: SourceList, labels: Labels, jobs: int | None, *, as_json: bool = False
) -> None:
    if as_json:
        for line in _lines(place, todo, sources, labels, jobs):
            click.echo(json.dumps(line, ensure_ascii=False, default=str))
        return
    _print_units(todo, labels, sources)
    if left := set(todo.gone) - set(todo.removed):
        rows, them = ("rows have", "them") if len(left) > 1 else ("row has", "it")
        pruning = "--prune" if sources.why_partial is None else "--prune, in a run of all sources,"
        text = f"{len(left)} {rows} no source any more, such as {printable(min(left))} ({pruning} removes {them})"
        click.echo(text, err=True)
    for note in (*(f"note: {each}" for each in sources.notes), *_counts(labels)):
        click.echo(printable(note), err=True)
    total = sum(job.unit.share_bytes for job in todo.jobs)
    outputs = _format_estimate(estimate(place, total, jobs), jobs) if todo.jobs else ""
    click.echo(
        f"{len(todo.jobs)} to do, {todo.done} done, {todo.skipped} failed before and skipped, {len(todo.rejected)} cannot be "
        f"started, {len(sources.ignored)} ignored. Sources to do: {format_bytes(total)}{outputs}; "
        f"free in {printable(disk_of(place.storage))}: {format_bytes(free_bytes(place.storage))}.",
        err=True,
    )


def _print_ignored(sources: SourceList) -> None:
    """Print a line for each file that is ignored, and one for all numbered pictures of a folder."""
    folders: Counter[tuple[str, str]] = Counter()
    for path, reason in sources.ignored:
        if reason in NUMBERED:
            folders[os.path.dirname(path), reason] += 1  # noqa: PTH120 (of any length)
        else:
            click.echo(f"ignored: {printable(path)}: {printable(reason)}", err=True)
    for (folder, reason), count in folders.items():
        click.echo(f"ignored: {printable(folder)}: {count_of(count, 'time')} {reason}", err=True)


def _format_estimate(costs: dict[str, float | None] | None, jobs: int | None) -> str:
    """Return what the outputs may cost, by `estimate`."""
    if costs is None:
        return "; outputs: usually no larger, and no estimate of the time, as nothing was made here yet"
    made, count, time = costs["output_bytes"] or 0.0, int(costs["num_videos"] or 0), ""
    if (seconds := costs["seconds"]) is not None:
        time = f" in {seconds // 60:.0f} min {seconds % 60:.0f} s with {count_of(jobs or 1, 'video')} at a time"
    return f"; outputs: about {format_bytes(made)}{time}, judging by {count_of(count, 'video')} made here"


class _Cost(NamedTuple):
    """Columns of a row that tell what it cost."""

    status: str
    source: str
    source_size_bytes: int | None
    size_bytes: int | None
    encode_seconds: float | None


def estimate(place: Destination, source_bytes: int, jobs: int | None) -> dict[str, float | None] | None:
    """Return the seconds and output bytes that a run may cost, and by how many finished videos in its destination that is
    judged; None if there are none.

    Args:
        place: The destination.
        source_bytes: Bytes of the sources to do.
        jobs: Videos at a time; None if unknown.
    """
    costs = [each for each in read_rows(place.root, _Cost) if each.status == "ok" and each.encode_seconds]
    before = sum({each.source: each.source_size_bytes or 0 for each in costs}.values())  # cuts share a source
    if not before:
        return None
    share = source_bytes / before
    seconds = sum(each.encode_seconds or 0.0 for each in costs) * share
    made = sum(each.size_bytes or 0 for each in costs) * share
    return {"seconds": None if jobs is None else seconds / jobs, "output_bytes": made, "num_videos": len(costs)}


def _counts(labels: Labels) -> Iterator[str]:
    """Yield how many videos each class and each split has."""
    from vidprep.formats.manifest.labels import CLASS_LABEL, SPLIT_LABEL, values_of

    of = {
        name: list(map(str, values_of(labels.columns[name])))
        for name in (CLASS_LABEL, SPLIT_LABEL)
        if name in labels.columns
    }
    classes, splits = of.get(CLASS_LABEL, []), of.get(SPLIT_LABEL, [])
    if classes:
        yield f"label: {_format_counts(classes)}"
    for split in sorted(set(splits)):
        inside = [one for one, other in zip(classes, splits, strict=True) if other == split] if classes else []
        yield f"split {split}: {splits.count(split)}{f' ({_format_counts(inside)})' if inside else ''}"


def _format_counts(values: list[str]) -> str:
    counts = Counter(values)
    more = f", and {len(counts) - SHOWN} more" if len(counts) > SHOWN else ""
    return ", ".join(f"{value} {count}" for value, count in counts.most_common(SHOWN)) + more


def _lines(
    place: Destination, todo: Plan, sources: SourceList, labels: Labels, jobs: int | None
) -> Iterator[dict[str, Any]]:
    """Yield lines for machines, the summary last."""
    for job in todo.jobs:
        yield {
            "what": "to do",
            "id": job.unit.id,
            "source": job.unit.path,
            "file_name": job.file_name,
            "labels": for_json(labels.values_of(job.unit.id)),
        }
    for row in todo.rejected:
        yield {"what": "cannot be started", "id": row.id, "source": row.source, "message": row.message}
    for id_, why in todo.kept.items():
        yield {"what": "kept", "id": id_, "message": why}
    for path, reason in sources.ignored:
        yield {"what": "ignored", "source": path, "reason": reason}
    for before, unit in todo.moved.items():
        yield {"what": "moved", "before": before, "id": unit.id, "source": unit.path}
    for id_ in todo.removed:
        yield {"what": "removed", "id": id_}
    counts = {
        "to_do": len(todo.jobs),
        "done": todo.done,
        "skipped_failed": todo.skipped,
        "short": todo.short or 0,
        "cannot_be_started": len(todo.rejected),
        "gone": len(set(todo.gone) - set(todo.removed)),
    }
    source_bytes = sum(job.unit.share_bytes for job in todo.jobs)
    costs = estimate(place, source_bytes, jobs)
    content = {
        "ignored": len(sources.ignored),
        "source_bytes": source_bytes,
        "free_bytes": free_bytes(place.storage),
        "estimate": costs,
    }
    yield {"summary": counts | content}


P = ParamSpec("P")
R = TypeVar("R")
SRC = click.argument("source", metavar="SRC", type=FolderOrUrl())
DST = click.argument("destination", metavar="DST", type=FolderOrUrl())
DRY_RUN = click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would be done and what is ignored, without opening videos or writing files.",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Write one JSON line per row to stdout, then the summary.")


# Keywords of both functions.
ARGUMENTS = """
Args:
    source: A folder, a file, or a table of videos: a .csv, .tsv, .jsonl or .parquet file, or a table of Arrow, pandas or polars. A
        relative `path` in a table is relative to its file, or to the current folder.
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


def _document_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Add the arguments, results and errors to a function's docstring."""
    function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n{ARGUMENTS}"
    return function


@check_types(*options_of_command("transcode"))
@_document_arguments
def transcode(
    source: str | Path | ArrowStream,
    destination: str | Path,
    *,
    settings: RunSettings | None = None,
    progress: bool = False,
    on_row: Callable[[ManifestRow], object] | None = None,
    **keywords: Unpack[TranscodeKeywords],
) -> Summary:
    """Re-encode videos into `destination` and verify each output.

    Repeat the call to continue a run that was stopped; finished videos are not processed again.

    Examples:
        >>> from vidprep.transcode import transcode
        >>> summary = transcode("raw/", "ready/", fps=15, short_side=240, gop=5)
        >>> summary.ok, summary.failed
        (2, 0)
    """
    return _run(source, destination, settings, progress, on_row, keywords, VideoOutput)


FIRST = ("fps", "short_side", "size", "fit")  # needed on the first day
ON_SOURCES = ("label_from_folder", "split_by", "include", "exclude", "limit", "dry_run", "overwrite")


@command_of(transcode, SRC, DST, flags=(DRY_RUN, JSON), first=(*FIRST, "gop", "crf", "audio", *ON_SOURCES))
def transcode_command(source: Path | str, destination: Path | str, **given: Any) -> None:
    """Re-encode SRC (a folder, a file, or a table .csv/.tsv/.parquet/.jsonl whose column `path` is relative to the table) into DST, and
    verify it.

    Every output is decoded and compared with the frames it was made from before it gets its final name.
    DST/manifest.parquet has one row per video. To continue after a stop, run the same command again: finished videos
    are not processed twice.

    \b
    Exit codes: 0 all good, 1 some video failed, 2 wrong usage, 3 stopped by the destination, the workers or the cluster
    (run again), 130 or 143 interrupted.
    \b
    vidprep transcode raw/ ready/                                    H.264, a keyframe every 16 frames
    vidprep transcode raw/ ready/ --fps 15 --short-side 240 --gop 5  cheap random access to short clips
    vidprep transcode clips.csv ready/ --size 224x224 --fit crop     cuts and labels from a table
    """
    _run_command(source, destination, given, VideoOutput)


@check_types(*options_of_command("burst"))
@_document_arguments
def burst(
    source: str | Path | ArrowStream,
    destination: str | Path,
    *,
    settings: RunSettings | None = None,
    progress: bool = False,
    on_row: Callable[[ManifestRow], object] | None = None,
    **keywords: Unpack[BurstKeywords],
) -> Summary:
    """Store the frames of videos in shards in `destination`, one image per frame, and verify them.

    Repeat the call to continue a run that was stopped; finished videos are not processed again.

    Examples:
        >>> from vidprep.transcode import burst
        >>> burst("raw/", "frames/", fps=15, short_side=240, quality=90).ok
        2
    """
    return _run(source, destination, settings, progress, on_row, keywords, FrameOutput)


@command_of(burst, SRC, DST, flags=(DRY_RUN, JSON), first=(*FIRST, "format", "quality", "sample_fps", *ON_SOURCES))
def burst_command(source: Path | str, destination: Path | str, **given: Any) -> None:
    """Store the frames of SRC (a folder, a file, or a table whose column `path` is relative to the table) one by one in large shards in
    DST, and verify them.

    Each decoded frame is encoded once, then decoded and scored. Colours are BT.601 full range, as every JPEG reader
    expects. DST/manifest.parquet has one row per video. To continue after a stop, run the same command again.

    \b
    Exit codes: 0 all good, 1 some video failed, 2 wrong usage, 3 stopped by the destination, the workers or the cluster
    (run again), 130 or 143 interrupted.
    \b
    vidprep burst raw/ frames/ --fps 15 --short-side 240       JPEGs back to back, with an index
    vidprep burst raw/ frames/ --format webdataset             tar shards that webdataset reads
    vidprep burst raw/ frames/ --format tensor --size 112x112  raw uint8 frames, memory-mapped
    """
    _run_command(source, destination, given, FrameOutput)


def _run(
    source: str | Path | ArrowStream,
    destination: str | Path,
    settings: RunSettings | None,
    progress: bool,
    on_row: Callable[[ManifestRow], object] | None,
    keywords: Mapping[str, Any],
    kind: type[Output],
) -> Summary:
    from vidprep.transcode.run.progress import Progress

    if settings is not None:
        if build_settings(keywords, kind) != build_settings({}, kind):
            both = ", ".join(name for name in keywords if decides_output(name))
            raise SettingsError(f"settings was given, and so were {both}, which are part of it; give one of them")
        if not isinstance(settings.output, kind):
            raise SettingsError(f"settings.output is a {type(settings.output).__name__}; give a {kind.__name__}")
    reporter = Progress(is_shown=progress, on_row=on_row)
    request = request_of(source, destination, keywords, reporter, kind, settings)
    summary = _execute_request(request)
    if summary.interrupted_by == signal.SIGINT:
        raise KeyboardInterrupt
    if summary.disk_full:
        raise DiskFullError(summary.disk_full)
    if summary.stopped or summary.interrupted_by is not None:
        raise StoppedError(summary.stopped or "interrupted; call again to go on", exit_code=summary.exit_code)
    return summary


def _run_command(source: Path | str, destination: Path | str, given: dict[str, Any], kind: type[Output]) -> None:
    from vidprep.transcode.run.progress import Progress
    from vidprep.transcode.run.session import preview
    from vidprep.transcode.workers.local import default_jobs

    dry_run, as_json, quiet = (given.pop(name, False) for name in ("dry_run", "as_json", "quiet"))
    if given.get("events") == "-" and as_json:
        raise SettingsError("--events - and --json both write to stdout; give --events a file")
    printer = LinePrinter()
    on_row = (lambda row: printer.print(row.as_json())) if as_json else None
    progress = Progress(is_shown=True, has_bar=not quiet, on_row=on_row)
    request = request_of(source, destination, given, progress, kind, dry_run=dry_run)
    if dry_run:
        jobs = (request.options.jobs or default_jobs()) if request.options.backend == "local" else None
        print_dry_run(request.place, *preview(request), jobs, as_json=as_json)
        return
    summary = _execute_request(request)
    if as_json:
        printer.print(summary.as_json())
    if printer.fault is not None and printer.fault.errno != errno.EPIPE:
        click.echo(f"vidprep: not all rows could be printed: {printer.fault.strerror}; the manifest has them", err=True)
        sys.exit(summary.exit_code or USAGE_ERROR)
    sys.exit(summary.exit_code)


def request_of(
    source: str | Path | ArrowStream,
    destination: str | Path,
    keywords: Mapping[str, Any],
    reporter: Progress,
    kind: type[Output],
    settings: RunSettings | None = None,
    *,
    dry_run: bool = False,
) -> RunRequest:
    """Return the request for a run from the keywords of a function or command.

    Args:
        source: Folder, file, table or URL of the sources.
        destination: The destination.
        keywords: Keywords that were given.
        reporter: Receives events of the run.
        kind: VideoOutput or FrameOutput.
        settings: Settings in place of those in `keywords`.
        dry_run: Whether nothing is written, not even events.
    """
    from vidprep.transcode.run.events import Events
    from vidprep.transcode.run.session import make_request

    settings = settings or build_settings(keywords, kind)
    choice, options = build_options(SourceOptions, keywords), build_options(RunOptions, keywords)
    if (options.events or options.metrics) and not dry_run:
        files = [None if each is None else str(each) for each in (options.events, options.metrics)]
        reporter.events = Events(*files)
    if options.images_to_video:
        if dry_run or options.partition:
            raise SettingsError(
                "<images_to_video> writes videos for one run; leave out --dry-run and --partition", images_to_video=True
            )
        source = _convert_pictures(source, destination, settings)
    request = make_request(source, destination, settings, choice, options, reporter)
    if (dataset := _robot_dataset(request)) is not None:
        from vidprep.transcode.export.robot import check_robot_output

        check_robot_output(dataset, request.place.root, settings)
    elif options.actions is not None:
        raise SettingsError(
            "<actions> is for a LeRobot dataset that becomes one again: videos in mp4, on this machine",
            actions=options.actions,
        )
    return request


def _convert_pictures(source: object, destination: str | Path, settings: RunSettings) -> Path:
    """Return a LeRobot dataset whose columns of pictures are videos. Raises SettingsError."""
    from vidprep.transcode.export.robot import check_robot_output, is_robot_output
    from vidprep.transcode.export.robot_pictures import convert_pictures, pictures_folder
    from vidprep.transcode.sources.robot import is_robot_dataset

    place = Path(source) if isinstance(source, str | Path) else None
    if place is None or not is_robot_dataset(place) or not is_robot_output(settings) or is_url(str(destination)):
        raise SettingsError(
            "<images_to_video> is for a LeRobot dataset that becomes one again: videos in mp4, on this machine",
            images_to_video=True,
        )
    check_robot_output(place, Path(destination), settings)
    return convert_pictures(place, pictures_folder(Path(destination).absolute()))


def _robot_dataset(request: RunRequest) -> Path | None:
    """Return the LeRobot dataset of which a run makes another one; None if it does not."""
    from vidprep.transcode.sources.robot import is_robot_dataset

    source = request.source
    if not isinstance(source, Path) or not is_robot_dataset(source) or request.place.storage.is_remote:
        return None
    from vidprep.transcode.export.robot import is_robot_output

    return source if is_robot_output(request.settings) else None


def _execute_request(request: RunRequest) -> Summary:
    """Do a run. Where a LeRobot dataset becomes one again, write the rows beside the videos."""
    from vidprep.transcode.run.session import execute
    from vidprep.transcode.workers.local import default_jobs

    dataset = _robot_dataset(request)
    if dataset is None:
        return execute(request)
    from vidprep.transcode.export.robot import complete_robot_dataset, forget_robot_dataset, tell_left_out

    say, options = request.reporter.message, request.options

    def complete(summary: Summary) -> None:
        if not summary.is_complete or summary.stopped:
            return
        if request.place.part:
            say(
                "the rows of the LeRobot dataset are written by the same command without --partition, after `vidprep merge`"
            )
            return
        jobs, actions = options.jobs or default_jobs(), options.actions or "last"
        summary.left_out = complete_robot_dataset(dataset, request.place.root, request.settings, actions, jobs, say)
        tell_left_out(summary.left_out, say)

    summary = execute(request, lambda: forget_robot_dataset(request.place.root), complete)
    if options.images_to_video and summary.is_complete and not summary.stopped:
        shutil.rmtree(dataset, ignore_errors=True)
    return summary
