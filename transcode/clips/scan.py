"""`scan`: a folder, a file, a table or a URL of videos becomes a table of clips."""

from __future__ import annotations

import hashlib
import json
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from vidprep.formats.errors import SettingsError, SourceError, VidprepError
from vidprep.transcode.clips import _table
from vidprep.transcode.clips._video import Row, Scanned, ScanTask, scan_unit
from vidprep.transcode.clips.windows import Windows
from vidprep.transcode.settings.run import RunSettings, SourceOptions
from vidprep.transcode.sources.listing import find_sources
from vidprep.transcode.sources.scratch import local_file
from vidprep.transcode.sources.table_rows import NOT_KEPT, SCANNED
from vidprep.transcode.sources.unit import SourceList, Unit
from vidprep.transcode.workers.child import FRAMES_PER_SECOND, MIN_SECONDS, SECONDS_PER_SECOND, Child
from vidprep.transcode.workers.local import LocalPool
from vidprep.transcode.workers.pool import stop_on_signals

RULE = 2  # of shots, clips and facts: another number scans all again
NO_CLIP = "no clip of the length that was asked for fits into it, or into one of its shots"


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """Options of a scan.

    Attributes:
        settings: How sources are read, and the rate of the outputs
        windows: How shots are cut into clips
        detector: What finds shots; None if each video is one shot
        keeps_transitions: Whether frames of transitions belong to the shot before
        has_duplicates: Whether clips that show the same are looked for
        mirrored: Whether a mirrored copy shows the same
        against: Finished datasets and tables of clips that may show the same, too
    """

    settings: RunSettings
    windows: Windows
    detector: str | None = None
    keeps_transitions: bool = False
    has_duplicates: bool = False
    mirrored: bool = False
    against: Sequence[Path | str] = ()

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits that change with anything that changes what is measured of a source."""
        retime = self.settings.retime
        what = [RULE, asdict(self.windows), self.detector, self.keeps_transitions, self.has_duplicates]
        what += [str(retime.frame_rate), str(retime.source_rate), retime.video_stream, retime.cut_origin]
        return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]

    def task(self, unit: Unit) -> ScanTask:
        return ScanTask(
            unit, self.settings, self.windows, self.detector, self.keeps_transitions, with_hashes=self.has_duplicates
        )


@dataclass(slots=True)
class ScanSummary:
    """Result of `scan`.

    Attributes:
        table: The table
        clips: Number of clips
        sources: Number of sources
        scanned: How many of them were read now
        failed: Why sources could not be scanned, by id
        damaged: What is damaged in sources that have clips, by id
        without_clips: Number of sources in which no clip fits
        left_out: Number of rows of the source table for which `keep` does not hold
        rest: Numbers of frames, of sources that were read now, that are in no clip, by reason: `transition`, `left_over`, `too_short`
        duplicates: Number of clips that show the same as another clip
    """

    table: Path
    clips: int = 0
    sources: int = 0
    scanned: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    without_clips: int = 0
    left_out: int = 0
    rest: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0


def scan_sources(
    source: Path | str | object,
    table: Path,
    options: ScanOptions,
    choice: SourceOptions,
    *,
    jobs: int,
    overwrite: bool,
    on_start: Callable[[int], None] = lambda _count: None,
    on_unit: Callable[[], object] = lambda: None,
    say: Callable[[str], object] = lambda _text: None,
) -> ScanSummary:
    """Scan all sources that were not scanned before, and write the table.

    Raises:
        KeyboardInterrupt: A signal stopped it; the same call continues it.
        DestinationError: There is another table, or another scan writes it.
        SettingsError: A column of the sources has the name of a fact.
        SourceError: The sources cannot be listed.
        StoreError, ManifestError: A dataset to compare with cannot be read.
    """
    _table.check_place(table)
    find_duplicates = None
    if options.has_duplicates:
        from vidprep.transcode.clips._compare import mark_duplicates, read_clips

        others = [clip for place in options.against for clip in read_clips(place)]
        find_duplicates = partial(mark_duplicates, others=others, mirrored=options.mirrored)
    sources = _list(source, choice, options)
    with _table.Known(table, options.digest, overwrite=overwrite) as known:
        known.check_listed({unit.path for unit in sources.units} | {path for path, _ in sources.problems})
        done = {unit.id: before for unit in sources.units if (before := known.of(unit.id, unit.state)) is not None}
        tasks = [options.task(unit) for unit in sources.units if unit.id not in done]
        summary = ScanSummary(table, sources=len(sources.units) + len(sources.problems), scanned=len(tasks))
        on_start(len(tasks))
        with LocalPool(max(1, min(jobs, len(tasks))), _scan_in_child) as workers, stop_on_signals(workers, 0) as stop:
            for _, scanned in workers.results(tasks):
                if scanned is not None:
                    done[scanned.id] = scanned
                    known.add(scanned)
                    summary.rest.update(scanned.rest)
                    if scanned.message is not None:
                        say(f"{scanned.id}: {scanned.message}")
                    on_unit()
        if stop.signal is not None:
            raise KeyboardInterrupt
        rows, owners = _clips_of(table, sources, done, options)
        if find_duplicates is not None:
            summary.duplicates = find_duplicates(rows)
        _table.write(table, rows, {} if sources.labels is None else sources.labels.select(owners).columns)
        _table.write_failed(table, _without_clips(table, sources, done, options, summary))
    summary.clips = len(rows)
    return summary


def _list(source: Path | str | object, choice: SourceOptions, options: ScanOptions) -> SourceList:
    """Return the sources. Raises SourceError, SettingsError."""
    unused = Path(tempfile.gettempdir(), f"vidprep-{uuid.uuid4().hex}")  # nothing is written there
    sources = find_sources(source, unused, choice, takes_pictures=options.settings.retime.source_rate is not None)
    names = set() if sources.labels is None else set(sources.labels.columns)
    if clash := sorted(names & _table.FACTS):
        raise SettingsError(f"the sources have a column {clash[0]}, which a scan writes; rename it, or choose --labels")
    return sources


def _scan_in_child(child: Child, task: ScanTask) -> Scanned:
    def failed(error: Exception) -> Scanned:
        return Scanned(task.unit.id, task.unit.state, stage="isolate", error=type(error).__name__, message=str(error))

    def allowed(frames: int) -> float:
        return MIN_SECONDS + SECONDS_PER_SECOND * max(0, frames) / FRAMES_PER_SECOND

    try:
        with local_file(task.unit, task.settings.retime.source_rate) as local:
            return child.call_or(failed, scan_unit, replace(task, unit=replace(local, id=task.unit.id)), allowed)
    except VidprepError as error:  # it cannot be fetched
        return failed(error)


def _about(table: Path, unit: Unit, options: ScanOptions) -> dict[str, Any]:
    """Return what the table and the list of failures say of a source. Its path is relative, if it lies in the folder of the table."""
    path = unit.path.removeprefix(f"{table.absolute().parent}/")
    return {"path": path, SCANNED: _table.state_text(options.digest, unit.state)}


def _clips_of(
    table: Path, sources: SourceList, done: dict[str, Scanned], options: ScanOptions
) -> tuple[list[Row], list[str]]:
    """Return the rows of the table, and for each the id of its source."""
    rows, owners = list[Row](), list[str]()
    for unit in sorted(sources.units, key=lambda unit: unit.id):
        stream = options.settings.retime.video_stream if unit.cut.video_stream is None else unit.cut.video_stream
        about = _about(table, unit, options) | {"video_stream": stream}
        for row in done[unit.id].rows:
            rows.append(row | about | {"id": f"{unit.id}_f{row['start_frame']:08d}_f{row['end_frame']:08d}"})
            owners.append(unit.id)
    return rows, owners


def _without_clips(
    table: Path, sources: SourceList, done: dict[str, Scanned], options: ScanOptions, summary: ScanSummary
) -> list[dict[str, Any]]:
    """Return the rows of the list of sources that failed, have no clips or are damaged, and count them."""
    listed = list[dict[str, Any]]()
    for unit in sorted(sources.units, key=lambda unit: unit.id):
        scanned = done[unit.id]
        why = scanned.message or (NO_CLIP if not scanned.rows else None)
        if why is None:
            continue
        about = _about(table, unit, options) | {"id": unit.id, "stage": scanned.stage, "error": scanned.error}
        listed.append(about | {"message": why})
        if not scanned.message:
            summary.without_clips += 1
        else:
            (summary.damaged if scanned.rows else summary.failed)[unit.id] = why
    for path, why in sources.problems:
        listed.append({"path": path, "stage": "open", "error": SourceError.__name__, "message": why})
        summary.failed[path] = why
    summary.left_out = sum(why == NOT_KEPT for _, why in sources.ignored)
    return listed
