"""One command, from its sources to its summary: `transcode` and `burst` differ in their settings alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vidprep.formats.errors import DestinationError, SettingsError, count_of
from vidprep.formats.manifest.row import Recorded, removal_row
from vidprep.formats.manifest.table import manifest_paths, manifest_rows
from vidprep.formats.processes import Process
from vidprep.formats.storage.base import OBJECT_STORES
from vidprep.formats.storage.untrusted import ArrowStream
from vidprep.formats.stores.registry import ENCODED
from vidprep.transcode.destination.array_plan import (
    Selection,
    TaskShare,
    begin_part,
    end_part,
    forget_plan,
    preview_part,
)
from vidprep.transcode.destination.destination import Destination, splits_name
from vidprep.transcode.destination.labels import PlannedLabels, plan_labels
from vidprep.transcode.destination.opening import clear_other_stores, open_destination
from vidprep.transcode.destination.partition import Partition, parse_partition
from vidprep.transcode.destination.run_file import value_found_for
from vidprep.transcode.media.ffmpeg_program import encoder_version, find_ffmpeg, has_encoder, list_versions
from vidprep.transcode.run.plan import Plan, plan
from vidprep.transcode.run.progress import Progress
from vidprep.transcode.run.run import Summary, run
from vidprep.transcode.run.target import search_shared
from vidprep.transcode.settings.parse import parse_place, parse_source
from vidprep.transcode.settings.run import RunOptions, RunSettings, SourceOptions
from vidprep.transcode.sources.listing import find_sources
from vidprep.transcode.sources.table_rows import IN_MEMORY
from vidprep.transcode.sources.tables import VIDEO_EXTENSIONS, is_table, one_line
from vidprep.transcode.sources.unit import SourceList
from vidprep.transcode.unit.job import Job, JobResult
from vidprep.transcode.workers.child import start_process
from vidprep.transcode.workers.host import list_requirements, sample_of
from vidprep.transcode.workers.local import default_jobs, workers_of
from vidprep.transcode.workers.pool import Pool

if TYPE_CHECKING:
    from vidprep.formats.manifest.labels import Labels

NAMED = 5


@dataclass(frozen=True, slots=True)
class RunRequest:
    """Request for a run.

    Attributes:
        source: Folder, file, table (a file, or in memory) or URL of the sources; or the list of them
        choice: Which sources to take
        ffmpeg: Checked ffmpeg program of the second engine; otherwise ""
        reporter: Receives events
    """

    source: Path | str | ArrowStream | SourceList
    place: Destination
    settings: RunSettings
    choice: SourceOptions
    options: RunOptions
    ffmpeg: str
    reporter: Progress

    def why_partial(self, sources: SourceList) -> str | None:
        """Return why unlisted sources may exist; None if the list is complete."""
        if self.place.part is not None:
            return "this is a task of an array"
        return sources.why_partial

    @property
    def selection(self) -> Selection:
        return Selection(
            IN_MEMORY if isinstance(self.source, SourceList) or is_table(self.source) else str(self.source),
            self.choice.include,
            self.choice.exclude,
            self.choice.limit,
        )

    @property
    def where(self) -> Path | str:
        """The destination in messages: an absolute path, or a URL."""
        return self.place.shown if self.place.storage.is_remote else self.place.root.absolute()

    def plan(self, sources: SourceList, settings: RunSettings) -> Plan:
        return plan(
            sources,
            settings,
            self.place,
            ffmpeg=self.ffmpeg,
            encoder_version=encoder_version(settings, self.ffmpeg),
            overwrite=self.options.overwrite,
            skip_failed=self.options.skip_failed,
            skip_short=self.options.on_short == "skip",
            prune=self.options.prune,
            takes_all=self.why_partial(sources) is None,
            folder=str(self.source.absolute()) if isinstance(self.source, Path) and self.source.is_dir() else None,
        )


def make_request(
    source: Path | str | ArrowStream | SourceList,
    destination: Path | str,
    settings: RunSettings,
    choice: SourceOptions,
    options: RunOptions,
    reporter: Progress,
) -> RunRequest:
    """Return a request, checked before anything is done.

    Raises:
        SettingsError: An option is invalid.
        MissingError: A program or package is not installed.
        DestinationError: The destination cannot be used.
        StorageError: A URL cannot be reached.
    """
    try:
        Path.cwd()
    except OSError:
        raise SettingsError("the current folder was deleted; change to one that exists, and run again") from None
    destination = parse_place(destination)
    source = source if isinstance(source, SourceList) else parse_source(source)
    if options.prune and (narrowed := [name for name in ("include", "exclude", "limit") if getattr(choice, name)]):
        value = getattr(choice, narrowed[0])
        named: dict[str, Any] = {narrowed[0]: value if isinstance(value, int) else " ".join(value)}
        raise SettingsError(f"<prune> needs all sources; leave out <{narrowed[0]}>", prune=True, **named)
    if options.on_short == "skip" and settings.count is None:
        raise SettingsError("<on_short> needs <frames>", on_short=options.on_short, frames="4n+1")
    if isinstance(destination, Path) and destination.exists() and not destination.is_dir():
        raise SettingsError(f"{destination}: is a file; DST is a folder")
    if (
        isinstance(destination, Path)
        and destination.suffix.lower()[1:] in VIDEO_EXTENSIONS
        and not destination.is_dir()
    ):
        raise SettingsError(
            f"{destination}: DST is a folder, into which outputs are written under the names of their sources"
        )
    part = _part(settings, options)
    place = _destination(destination, settings, options, part)
    place.say = reporter.message
    return RunRequest(source, place, settings, choice, options, _ffmpeg(settings, options), reporter)


def preview(request: RunRequest) -> tuple[Plan, SourceList, Labels]:
    """Return the plan, the sources, and the labels that they would have. Opens no video and writes nothing."""
    sources = _find(request)
    settings, _ = _add_known_value(request)
    overwrite = request.options.overwrite
    if request.place.part:
        sources = preview_part(request.place, sources, settings, overwrite=overwrite)
    else:
        request.place.check_settings(settings, overwrite=overwrite)
    todo = request.plan(sources, settings)
    return todo, sources, _plan_labels(request, sources, todo).given


@dataclass(slots=True)
class Session:
    """A run while it holds the lease.

    Attributes:
        sources: All sources; for a task of an array, its share of them
        settings: Settings, including a value that was searched for the whole dataset
        is_to_be_searched: Whether that value has yet to be searched
        share: Share of an array task; None for a whole run
    """

    request: RunRequest
    sources: SourceList
    settings: RunSettings
    is_to_be_searched: bool
    share: TaskShare | None
    workers: Pool[Job, JobResult]


def execute(
    request: RunRequest,
    on_work: Callable[[], object] = lambda: None,
    on_made: Callable[[Summary], object] = lambda _summary: None,
) -> Summary:
    """Do a run.

    Args:
        request: The run.
        on_work: Called before the first output is written or removed; not if there is nothing to do.
        on_made: Called with its result after the manifest is written, while no other run can write to the destination.

    Raises:
        VidprepError, OSError: Something stops all of it.
    """
    with ExitStack() as held:
        held.push(request.reporter.broken)
        session = _begin(request, held)
        num_recovered = _take_over(session)
        _search_value(session)
        todo = _plan(session)
        _say_what_was_found(session, num_recovered, todo)
        if todo.jobs or todo.moved or todo.removed:
            on_work()
        num_relabelled = _relabel(session, todo)
        _move_and_remove(request, todo)
        summary = _work(session, todo)
        summary.relabelled = num_relabelled
        on_made(summary)
        _end(session, summary)
    request.reporter.finish(summary)
    return summary


def _begin(request: RunRequest, held: ExitStack) -> Session:
    """Find the sources, take the lease, compare the settings with earlier ones, and start the workers."""
    place, options = request.place, request.options
    # By the time that there is a job, it can take it.
    started = _start_a_child(held) if options.backend == "local" else None
    sources = _find(request)
    settings, is_to_be_searched = _add_known_value(request)
    held.enter_context(place.lock(overwrite=options.overwrite and request.why_partial(sources) is None))
    share = None
    if place.part is None:
        place.check_settings(settings, overwrite=options.overwrite)
    else:
        share = begin_part(place, sources, settings, request.selection, overwrite=options.overwrite)
        request.reporter.share(place.part, share)
        sources = share.sources
    workers = _start_workers(request, sources, held, started)
    return Session(request, sources, settings, is_to_be_searched, share, workers)


def _take_over(session: Session) -> int:
    """Complete what a stopped run left, and remove other stores with --overwrite. Return how many outputs were renamed."""
    request = session.request
    if request.options.overwrite:
        clear_other_stores(request.place, session.settings)
        if session.share is None:
            forget_plan(request.place, request.selection)
    return request.place.outputs.recover()


def _plan(session: Session) -> Plan:
    """Plan the work, and store its settings."""
    request, place = session.request, session.request.place
    place.merge_journal()  # rows of a stopped run, with its labels
    todo = request.plan(session.sources, session.settings)
    if request.options.overwrite:
        _refuse_mixture(request, session.sources, session.settings, todo)
    place.write_settings(session.settings, list_versions(session.settings, request.ffmpeg))
    return todo


def _work(session: Session, todo: Plan) -> Summary:
    """Do the jobs. If there are none, check that the destination opens."""
    place, reporter = session.request.place, session.request.reporter
    reporter.start(todo, str(session.request.where), session.request.options.backend)
    summary = run(
        todo,
        place,
        session.workers,
        on_row=lambda row: reporter.row(row.record(Recorded(labels=place.labels.values_of(row.id)))),
        on_job=reporter.job,
        on_segment=reporter.segment,
        on_made=session.workers.release_idle,
        on_stop=reporter.stopping,
        sources=sample_of(session.sources.units),
    )
    if not todo.jobs:
        _check_opens(place)
    return summary


def _part(settings: RunSettings, options: RunOptions) -> Partition | None:
    if options.partition is None:
        return None
    if settings.target is not None and not settings.target.per_video:
        raise SettingsError(
            "<partition>: tasks cannot search one value together; take <target_mode>, or what `vidprep tune` finds",
            partition=options.partition,
            target_mode="per-video",
        )
    return parse_partition(options.partition, os.environ)


def _destination(where: Path | str, settings: RunSettings, options: RunOptions, part: Partition | None) -> Destination:
    if isinstance(where, Path):
        if (
            where.parts
            and (protocol := where.parts[0].removesuffix(":")) in OBJECT_STORES
            and where.parts[0] != protocol
        ):
            url = f"{protocol}://{'/'.join(where.parts[1:])}"
            raise SettingsError(
                f"{where}: would be a folder named {protocol}: here; give {url}, or the full path of such a folder"
            )
    elif options.backend != "local" and settings.output.store_kind != ENCODED:
        raise SettingsError("shards on a cluster need a destination that all workers see as a folder, and no URL")
    return open_destination(where, settings.output, part)


def _ffmpeg(settings: RunSettings, options: RunOptions) -> str:
    if settings.output.engine != "ffmpeg":
        if options.ffmpeg:
            raise SettingsError("<ffmpeg> needs <engine>", ffmpeg=options.ffmpeg, engine="ffmpeg")
        return ""
    binary, encoder = find_ffmpeg(options.ffmpeg), settings.video.encoder.profile.name
    if not has_encoder(binary, encoder):
        raise SettingsError(f"<encoder>: {binary} was built without it", encoder=encoder)
    return binary


def _find(request: RunRequest) -> SourceList:
    if isinstance(request.source, SourceList):
        return request.source
    return find_sources(
        request.source,
        request.where,
        request.choice,
        extension=request.settings.output.extension,
        progress=request.reporter.show_found,
        takes_pictures=request.settings.retime.source_rate is not None,
    )


def _add_known_value(request: RunRequest) -> tuple[RunSettings, bool]:
    """Return the settings with the value that an earlier run found for the whole dataset, and whether it has yet to be
    searched.
    """
    settings, target = request.settings, request.settings.target
    if target is None or target.per_video or isinstance(request.source, SourceList):  # which has it from a destination
        return settings, False
    value = None if request.options.overwrite else value_found_for(target, request.place.shared)
    return (settings, True) if value is None else (settings.replace_quality(value), False)


def _start_a_child(held: ExitStack) -> Process | None:
    """Start a child process early; None if that fails: the error is reported when a child is needed."""
    try:
        process = start_process()
    except OSError:
        return None
    held.callback(process.close)
    return process


def _start_workers(
    request: RunRequest, sources: SourceList, held: ExitStack, started: Process | None
) -> Pool[Job, JobResult]:
    options, settings, place = request.options, request.settings, request.place
    expected = None
    if options.backend != "local":
        state = f"{request.where}/{place.own}"
        expected = held.enter_context(list_requirements(sources.units, settings, request.ffmpeg, state))
    address, message = options.cluster_address, request.reporter.message
    jobs = options.jobs or default_jobs()
    return held.enter_context(workers_of(options.backend, address, jobs, message, expected, started=started))


def _search_value(session: Session) -> None:
    """Search the value for the whole dataset if it is unknown. Raises StoppedError, and SettingsError if it cannot be found."""
    if not session.is_to_be_searched:
        return
    request, settings = session.request, session.settings
    if not session.sources.units and settings.target is not None:
        path, why = session.sources.problems[0]
        option = settings.target.option
        raise SettingsError(f"<{min(option)}>: there is no video to try it on: {why}", path=path, **option)
    probes = request.place.state_dir / "probes"
    result = search_shared(
        settings,
        session.sources.units,
        probes,
        workers=session.workers,
        ffmpeg=request.ffmpeg,
        say=request.reporter.message,
    )
    shutil.rmtree(probes, ignore_errors=True)
    request.reporter.message(
        f"{settings.output.quality_scale.option} {result.value} for all, after {result.probes} encodes of {result.sampled} sampled videos "
        f"({result.cpu_seconds:.1f} s of CPU time); videos below the target are encoded again, finer"
    )
    session.settings = settings.replace_quality(result.value)


def _plan_labels(request: RunRequest, sources: SourceList, todo: Plan) -> PlannedLabels:
    from vidprep.formats.manifest.labels import Labels, read_labels

    are_all = sources.why_partial is None
    labels = sources.labels or Labels([unit.id for unit in sources.units])
    place, is_part = request.place, request.place.part is not None
    path = place.fetch_shared(splits_name(sources.drawing.rule)) if is_part and sources.drawing is not None else None
    return plan_labels(
        place.root,
        labels,
        todo.renamed,
        todo.removed,
        sources.drawing,
        None if path is None else read_labels(path),
        are_all=are_all,
        is_part=is_part,
        starts_over=request.options.overwrite and are_all,
    )


def _relabel(session: Session, todo: Plan) -> int:
    """Give all listed units the labels of their sources. Return how many finished ones got other labels."""
    request, sources, place = session.request, session.sources, session.request.place
    if sources.labels is None and not manifest_paths(place.root):
        return 0
    taken = _plan_labels(request, sources, todo)
    if place.part is not None and sources.drawing is not None:  # all tasks give what the first one drew
        place.create_shared(splits_name(sources.drawing.rule), taken.given.select_columns(["split"]).as_bytes())
        taken = _plan_labels(request, sources, todo)
    if taken.is_new:
        place.labels.give(taken.given)
    place.labels.plan(taken.given)
    if taken.stay:
        names = ",".join(map(one_line, taken.stay))
        without = f"; {count_of(taken.num_without, 'new video')} without them" if taken.num_without else ""
        request.reporter.message(
            f"labels kept that these sources do not give: {names}{without}; `vidprep label --remove` removes them"
        )
    if taken.splits:
        examples = [f"{one_line(id_)} {old} -> {new}" for id_, (old, new) in islice(taken.splits.items(), NAMED)]
        more = ", …" if len(taken.splits) > NAMED else ""
        request.reporter.message(f"{count_of(len(taken.splits), 'video')} changed split: {', '.join(examples)}{more}")
    return len(set(taken.changed) - {job.unit.id for job in todo.jobs} - {row.id for row in todo.rejected})


def _move_and_remove(request: RunRequest, todo: Plan) -> None:
    """Rename outputs whose sources moved, and remove rows and outputs of deleted sources with the next manifest."""
    place = request.place
    if not todo.moved and not todo.removed:
        return
    removed_ids = set(todo.removed)
    place.check_held()
    for row in manifest_rows(place.root):
        if row.id in removed_ids:
            place.journal.append(removal_row(row, place.run))
        elif (unit := todo.moved.get(row.id)) is not None:
            if row.id == unit.id:
                place.journal.append(replace(row, source=unit.path, run=place.run))
                continue
            name = request.settings.output.name_after_move(unit.id, row.file_name)
            place.outputs.move(replace(row, id=unit.id, file_name=name, source=unit.path, run=place.run), row)


def _check_opens(place: Destination) -> None:
    """Check that the destination opens, when there was nothing to do. Raises StoreError."""
    from vidprep.formats.stores.registry import open_store

    if not place.part and not place.storage.is_remote and place.manifest.exists():
        open_store(place.root)


def _refuse_mixture(request: RunRequest, sources: SourceList, settings: RunSettings, todo: Plan) -> None:
    """Raise DestinationError if outputs with other settings would remain beside new ones."""
    place, why = request.place, request.why_partial(sources)
    if why is None or place.part is not None:
        return
    listed, known = {unit.id for unit in sources.units} | {*todo.renamed.values()}, settings.digests
    others = [
        id_
        for id_, row in place.read_known_units().items()
        if row.ok and id_ not in listed and row.settings_digest not in known
    ]
    if others:
        raise DestinationError(
            f"holds {len(others)} outputs made with different settings whose sources are not listed here ({why}), such as "
            f"{one_line(min(others))}; give all sources, or another folder",
            path=place.shown,
        )


def _say_what_was_found(session: Session, recovered: int, todo: Plan) -> None:
    request, sources, settings = session.request, session.sources, session.settings
    message, journal = request.reporter.message, request.place.journal
    for note in sources.notes:
        message(f"note: {note}")
    if recovered:
        message(f"{recovered} finished outputs of a stopped run were published")
    if journal.unreadable:
        lines = ", ".join(map(str, journal.unreadable[:NAMED]))
        message(
            f"{len(journal.unreadable)} lines of {journal.path} are not rows (line {lines}); their videos are made again"
        )
    if todo.other_versions:
        message(
            f"{count_of(todo.other_versions, 'output')} made by a version other than {encoder_version(settings, request.ffmpeg)}; "
            "kept (--overwrite makes them again)"
        )
    if left := sorted(set(todo.gone) - set(todo.removed)):
        them = "them" if len(left) > 1 else "it"
        or_kept = ", or which --keep leaves out" if request.choice.keep is not None else ""
        pruning = (
            "--prune removes" if request.why_partial(sources) is None else "--prune, in a run of all sources, removes"
        )
        message(
            f"{count_of(len(left), 'video')} whose source or cut is gone{or_kept}, such as {one_line(left[0])} ({pruning} {them})"
        )
    if todo.kept:
        first, fault = min(todo.kept.items())
        message(
            f"{count_of(len(todo.kept), 'output')} kept whose source or caption cannot be read now, such as {one_line(first)}: {fault}"
        )
    if todo.elsewhere:
        message(
            f"{count_of(len(todo.elsewhere), 'video')} kept whose source is outside of {request.source}, such as "
            f"{one_line(todo.elsewhere[0])}"
        )
    if request.options.prune and (why := request.why_partial(sources)) is not None:
        message(f"nothing is pruned: {why}")


def _end(session: Session, summary: Summary) -> None:
    """Record the end of an array task, or that no array run is open any more."""
    place, share = session.request.place, session.share
    if share is not None:
        summary.absent = len(share.absent)
    if summary.is_complete and share is not None:
        end_part(place, share)
    elif summary.is_complete:
        forget_plan(place, session.request.selection)
