"""`validate`: check a finished destination against its manifest, and against its sources if they are given.

First the structure is checked, then child processes (one per core) read units again. Finally the results are written to
DST/validation.parquet (results.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from vidprep.formats.errors import (
    CrashedError,
    DeadlineError,
    ReadError,
    SettingsError,
    StorageError,
    StoreError,
    WorkerError,
    count_of,
)
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.manifest.table import add_columns, manifest_paths, manifest_rows, read_rows, read_table
from vidprep.formats.storage.local import refuse_links
from vidprep.formats.stores.gops import num_not_indexed
from vidprep.formats.stores.registry import ENCODED, VIDEO_SHARDS, layout_of
from vidprep.transcode.check._reading import (
    PLACES,
    differing_ids,
    faults_of_gop_index,
    faults_of_others,
    faults_of_store,
    files_without_row,
    open_ids,
)
from vidprep.transcode.check._unit import ENGINES_DIFFER, Check, Seeks, UnitResult, check_unit
from vidprep.transcode.check.other_readers import list_installed
from vidprep.transcode.check.results import write_results
from vidprep.transcode.check.robot_files import faults_of_robot_files, read_record
from vidprep.transcode.destination.array_merge import array_status
from vidprep.transcode.destination.opening import is_in_use, is_unfinished
from vidprep.transcode.destination.partition import partitions_in
from vidprep.transcode.destination.run_file import settings_of
from vidprep.transcode.media.ffmpeg_program import find_ffmpeg
from vidprep.transcode.settings.options import USUAL_VMAF_MODEL
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.parse import ALWAYS_SCORED
from vidprep.transcode.settings.run import CLOCK_RULE, RunSettings
from vidprep.transcode.sources.outputs import STATE_DIR
from vidprep.transcode.sources.scratch import local_file
from vidprep.transcode.sources.unit import Unit, choose, choose_ids
from vidprep.transcode.workers.child import FRAMES_PER_SECOND, MIN_SECONDS, SECONDS_PER_SECOND, Child
from vidprep.transcode.workers.local import LocalPool
from vidprep.transcode.workers.pool import stop_on_signals

SEEN = [*PLACES, "status", "size_bytes"]
UNFINISHED = "a run is still in progress here, or was stopped; let it finish, then validate"


@dataclass(frozen=True, slots=True)
class ValidateOptions:
    """Options of `validate`.

    Attributes:
        sample: Number of units; None for all
        cross_check: Number of units that the ffmpeg command scores too
        score: Scores against the sources
        seeks: Number of random seeks in each video, for every installed reader
        ffmpeg: The ffmpeg program; None searches for one
    """

    sample: int | None = None
    cross_check: int = 0
    score: tuple[str, ...] = ALWAYS_SCORED
    vmaf_model: str = USUAL_VMAF_MODEL
    seeks: int = 0
    ffmpeg: str | Path | None = None


@dataclass(slots=True)
class ValidationReport:
    """Result of `validate`.

    Attributes:
        checked: Number of videos that were read again
        failed_before: Number of videos that had failed in the run
        cross_checked: Number of videos that the ffmpeg command scored too
        ffmpeg_failed: Why the ffmpeg command could not score a video
        not_scored: Why a video did not get all scores that were asked for
        faults: One line for each fault
        seeks: Results of `seek_check` per reader
        unwritten: Why results could not be written to the destination
        not_indexed: Number of encoded videos that have no index of their GOPs
        trainer: What a trainer drops, repeats or crops: a line for each video
    """

    checked: int = 0
    failed_before: int = 0
    cross_checked: int = 0
    ffmpeg_failed: str | None = None
    not_scored: str | None = None
    faults: list[str] = field(default_factory=list)
    seeks: dict[str, Seeks] = field(default_factory=dict)
    unwritten: str | None = None
    not_indexed: int = 0
    trainer: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"format": "vidprep validation 1", **asdict(self)}

    def add(self, done: UnitResult) -> None:
        """Add the result of one video."""
        self.checked += 1
        self.cross_checked += done.ffmpeg_psnr_y_db is not None
        self.ffmpeg_failed = self.ffmpeg_failed or done.ffmpeg_failed
        self.not_scored = self.not_scored or done.not_scored
        for name, seeks in done.seeks.items():
            total = self.seeks.setdefault(name, Seeks())
            total.tried += seeks.tried
            total.wrong += seeks.wrong
            total.unread += seeks.unread
            total.reason = total.reason or seeks.reason


def check_destination(
    destination: Path,
    sources: dict[str, Unit] | None,
    options: ValidateOptions,
    *,
    url: str = "",
    jobs: int,
    are_all: bool = True,
    reads_all: bool = True,
    on_fault: Callable[[str], object],
    on_start: Callable[[int], None] = lambda _count: None,
    on_unit: Callable[[], object] = lambda: None,
) -> ValidationReport:
    """Check the structure, then the units.

    Args:
        destination: The destination; a folder of `local_folder`, if it is behind a URL.
        sources: Sources by id, to make their frames again; each must have a row.
        options: What to check.
        url: URL of the destination; "" for a local one.
        jobs: Number of processes.
        are_all: Whether `sources` are all sources, so that an output of none of them is a fault.
        reads_all: Whether to read all outputs; else only those of `sources`.
        on_fault: Called with every fault as it is found.
        on_start: Called with the number of units.
        on_unit: Called after each unit.

    Raises:
        KeyboardInterrupt: A signal stopped it.
        ManifestError: The manifest cannot be read.
        MissingError: A program is not installed.
        SettingsError: An option is invalid.
        StoreError: The destination is not finished.
    """
    settings, states = _settings_of_finished(destination), _states(destination)
    is_video, kind = isinstance(settings.output, VideoOutput), settings.output.store_kind
    # First, because it temporarily needs the most memory.
    ids, why_not_opened = open_ids(destination, kind)
    seen = _seen(destination)
    if sources is not None:
        _refuse_selected(destination)
    missing = _missing(destination, seen["id"], sources)
    if not len(seen) and not missing:
        raise StoreError("has no manifest with rows; give the destination of a run", path=destination)
    is_ok = pc.equal(seen["status"], "ok")
    there = seen if pc.all(is_ok).as_py() else seen.filter(is_ok)
    rows = _rows_to_read(destination, there, sources if not reads_all else None, options.sample)
    if sources is not None:
        _check_comparable(destination, rows, settings)
    report = ValidationReport(failed_before=len(seen) - len(there))

    def tell(faults: Iterable[str]) -> None:
        for fault in faults:
            report.faults.append(fault)
            on_fault(fault)

    faults = [f"{id_}: {why}" for id_, why in sorted(missing.items())]
    if not len(seen):
        tell(faults)
        return report
    faults += _faults_of_structure(destination, kind, there, rows)
    if is_video:
        report.not_indexed = num_not_indexed(destination)
    unopened, faults_of_opening = _faults_of_opening(destination, there, ids, why_not_opened)
    faults += faults_of_opening
    _settings_of_finished(destination)
    if _states(destination) != states:
        raise StoreError("was changed by a run or `label` while it was checked; validate again", path=destination)
    if faults and is_in_use(destination):
        raise StoreError(UNFINISHED, path=destination)
    tell(faults)
    checks = _checks(destination, rows, settings, sources, options, unopened, is_video=is_video, url=url)
    if sources is not None and are_all:
        tell(
            f"{check.row.id}: its source is not among those given, or not cut like this (if it is gone, a run with --prune removes it)"
            for check in checks
            if check.source is None
        )
    on_start(len(checks))
    _read_again(destination, checks, report, tell, jobs, on_unit)
    return report


class _Frames(NamedTuple):
    """Columns of a row."""

    selected_from: str | None
    selected_start_frame: int | None


def _refuse_selected(destination: Path) -> None:
    """Raise StoreError if videos are frames of other ones, which no source has alone."""
    some = next((row for row in read_rows(destination, _Frames) if row.selected_start_frame is not None), None)
    if some is not None:
        raise StoreError(
            f"has frames that `select` took of {some.selected_from}; validate that with SRC, and this one without",
            path=destination,
        )


def _check_comparable(destination: Path, rows: Sequence[ManifestRow], settings: RunSettings) -> None:
    """Raise StoreError if outputs cannot be compared with sources: of an earlier version, or of `pack`."""
    if settings.clock_rule < CLOCK_RULE or any(row.tolerance_seconds is None and row.cut for row in rows):
        raise StoreError(
            "was made by an earlier version, which chose other frames for --fps or cuts; check it without its sources, or make it again "
            "with --overwrite",
            path=destination,
        )
    if (packed := next((row for row in rows if row.source_state is None), None)) is not None:
        raise StoreError(
            f"was made by `pack` from {packed.source}, not from sources; validate it without SRC", path=destination
        )


def _faults_of_structure(destination: Path, kind: str, there: pa.Table, rows: list[ManifestRow]) -> Iterator[str]:
    """Yield what is wrong with the files of a destination, without reading videos."""
    names = set(pc.unique(there["file_name"]).to_pylist())
    if kind == ENCODED:
        of_robot = {name for name in read_record(destination).get("files", {}) if name.startswith("videos/")}
        yield from files_without_row(destination, names | of_robot)
    else:
        yield from faults_of_store(destination, layout_of(kind), there, rows)
    if kind in (ENCODED, VIDEO_SHARDS):
        yield from faults_of_gop_index(destination, kind)
    yield from faults_of_others(destination, kind, names)
    yield from faults_of_robot_files(destination)


def _faults_of_opening(
    destination: Path, there: pa.Table, found: Any, why_not_opened: str
) -> tuple[set[str] | None, list[str]]:
    """Return the videos that open_store does not find, None if it opens nothing; and the faults of it."""
    if found is None:
        return None, [why_not_opened]
    lost, strange = differing_ids(there["id"], found)
    faults = [f"{destination}: {id_}: open_store does not find it" for id_ in lost]
    return set(lost), faults + [f"{destination}: {id_}: open_store finds it, the manifest does not" for id_ in strange]


def _settings_of_finished(destination: Path) -> RunSettings:
    """Return the settings of a finished destination. Raises StoreError if no run has finished."""
    refuse_links(destination / STATE_DIR)
    settings = settings_of(destination)
    if is_unfinished(destination):
        raise StoreError(UNFINISHED, path=destination)
    if partitions_in(destination, destination / STATE_DIR):
        raise StoreError(f"holds the parts of an array run; `vidprep merge {destination}` first", path=destination)
    return settings


def _states(destination: Path) -> list[tuple[str, int, int]]:
    """Return name, inode and time of each manifest, which change with every run and `label`."""
    return [(path.name, path.stat().st_ino, path.stat().st_mtime_ns) for path in manifest_paths(destination)]


def _seen(destination: Path) -> pa.Table:
    """Return the columns to check, of rows that may be millions."""
    table = read_table(destination, SEEN)
    return pa.table({name: pa.array([], pa.string()) for name in SEEN}) if table is None else add_columns(table, SEEN)


def _rows_to_read(
    destination: Path, there: pa.Table, sources: Mapping[str, Unit] | None, sample: int | None
) -> list[ManifestRow]:
    """Return the rows to check: all outputs, or those of some sources, or a sample of these."""
    if sample is None:
        return [row for row in manifest_rows(destination) if row.ok and (sources is None or row.id in sources)]
    if sources is not None:
        there = there.filter(pc.is_in(there["id"], pa.array(sources, pa.string())))
    return list(manifest_rows(destination, set(choose_ids(there, sample))))


def _missing(destination: Path, ids: pa.ChunkedArray, sources: Mapping[str, Unit] | None) -> dict[str, str]:
    """Return why each unit without a valid row has none, by id."""
    missing, known = array_status(destination).missing, set(ids.to_pylist()) if sources else set()
    if known and sources and known.isdisjoint(sources):
        raise StoreError(
            f"has none of the {count_of(len(sources), 'source')} that were given, such as {min(sources)}: its videos are such as "
            f"{min(known)}; give the SRC that it was made from",
            path=destination,
        )
    without = {id_: unit for id_, unit in (sources or {}).items() if id_ not in known and id_ not in missing}
    return missing | {id_: f"no row: {unit.path} was not made" for id_, unit in without.items()}


def _read_again(
    destination: Path,
    checks: list[Check],
    report: ValidationReport,
    tell: Callable[[Iterable[str]], None],
    jobs: int,
    on_unit: Callable[[], object],
) -> None:
    """Check the units and store the results. Raises KeyboardInterrupt."""
    results = []
    with (
        LocalPool(max(1, min(jobs, len(checks))), check_in_child) as workers,
        stop_on_signals(workers, grace_seconds=0) as stop,
    ):
        for _, checked in workers.results(checks):
            if checked is None:
                continue
            tell(checked.faults)
            report.add(checked)
            results.append(checked)
            on_unit()
    if stop.signal is not None:
        raise KeyboardInterrupt
    try:
        write_results(destination, results)
    except OSError as error:
        report.unwritten = f"{destination} cannot be written ({error.strerror})"


def _checks(
    destination: Path,
    rows: list[ManifestRow],
    settings: RunSettings,
    sources: dict[str, Unit] | None,
    options: ValidateOptions,
    unopened: set[str] | None,
    *,
    is_video: bool,
    url: str,
) -> list[Check]:
    if options.seeks and not is_video:
        raise SettingsError(
            "<seek_check> is for encoded videos; this destination holds frames one by one", seek_check=options.seeks
        )
    settings = replace(settings, gate=replace(settings.gate, score=options.score, vmaf_model=options.vmaf_model))
    loaders = tuple(list_installed()) if options.seeks else ()
    ffmpeg, crossed = "", set[str]()
    if sources is not None and is_video and options.cross_check:
        ffmpeg = _witness(options.ffmpeg)
        alike = [row for row in rows if ENGINES_DIFFER.isdisjoint(row.warning_codes)]
        crossed = {row.id for row in choose(alike or rows, options.cross_check)}
    return [
        Check(
            destination,
            row,
            settings,
            sources.get(row.id) if sources is not None else None,
            ffmpeg=ffmpeg if row.id in crossed else "",
            seeks=options.seeks,
            loaders=loaders,
            opens=unopened is not None and row.id not in unopened,
            url=url,
        )
        for row in rows
    ]


def _witness(asked: str | Path | None) -> str:
    """Return the ffmpeg program that scores outputs: the requested one, else VIDPREP_FFMPEG, else that of imageio-ffmpeg,
    which is about as new as PyAV's libraries; older ones render some sources differently. Raises MissingError.
    """
    import imageio_ffmpeg

    return find_ffmpeg(asked or os.environ.get("VIDPREP_FFMPEG") or imageio_ffmpeg.get_ffmpeg_exe())


def check_in_child(child: Child, check: Check) -> UnitResult:
    """Check a unit in a child process. If the process crashes or takes too long, that is a fault of the unit."""
    row = check.row
    frames = max(row.num_frames or 0, row.source_num_frames or 0)
    allowed = MIN_SECONDS + SECONDS_PER_SECOND * frames / FRAMES_PER_SECOND
    try:
        if check.source is None:
            return child.call(check_unit, check, lambda _work: allowed)
        with local_file(check.source, check.settings.retime.source_rate) as local:
            done = child.call(check_unit, replace(check, source=local), lambda _work: allowed)
        done.faults = [fault.replace(local.path, check.source.path) for fault in done.faults]
        return done
    except WorkerError:
        raise  # nothing is known of the unit
    except (CrashedError, MemoryError) as error:
        why = f"cannot be read: {error}"
    except DeadlineError:
        why = f"cannot be read: it took over {allowed:.0f} s and was stopped"
    except (ReadError, StorageError) as error:
        why = f"against its source: {error}"
    return UnitResult(
        row.id,
        row.file_name,
        row.sha256,
        int(time.time()),
        faults=[f"{check.destination / row.file_name}: {row.id}: {why}"],
    )
