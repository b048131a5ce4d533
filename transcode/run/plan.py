"""Plan a run: compare sources and settings with what the destination already holds. Opens no video."""

from __future__ import annotations

import functools
import os
import re
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from vidprep.formats.errors import DestinationError, SourceError, count_of, printable
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.storage.base import is_url
from vidprep.formats.storage.local import sampled_digest
from vidprep.formats.stores.registry import ENCODED
from vidprep.formats.stores.shards import shuffled
from vidprep.transcode.destination.destination import Destination
from vidprep.transcode.destination.run_file import KnownUnit
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.table_rows import SKIPPED
from vidprep.transcode.sources.tables import one_line
from vidprep.transcode.sources.unit import SourceList, Unit
from vidprep.transcode.unit.job import WholeJob, fail, new_row

UNKNOWN = "unknown extension"
KEPT_EXTENSIONS = 10
MUCH_LARGER = 4  # than the mean
ROW = "a row of the table: "


def counted(ignored: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return the number of ignored files by reason, most frequent first; unknown extensions are listed separately."""
    reasons: Counter[str] = Counter()
    extensions: Counter[str] = Counter()
    for path, reason in ignored:
        if reason == "a column without a name":  # a column of a table instead of a file
            continue
        if reason == UNKNOWN:
            extensions[printable(os.path.splitext(path)[1].lower()) or "none"] += 1  # noqa: PTH122
        else:
            of_row = re.match(rf"({SKIPPED})?(.* )?row \d+: ", reason)
            reasons[reason if of_row is None else ROW * bool(of_row[1]) + reason[of_row.end() :]] += 1
    kept = extensions.most_common(KEPT_EXTENSIONS)
    rest = extensions.total() - sum(count for _, count in kept)
    kept += [("others", rest)] if rest else []
    return {f"{UNKNOWN}: {extension}": count for extension, count in kept} | dict(reasons.most_common())


def in_words(ignored: Mapping[str, int]) -> str:
    """Return a line such as `3 files ignored (unknown extension: .txt 2, .nfo 1)`."""
    unknown = [
        f"{reason.removeprefix(f'{UNKNOWN}: ')} {n}" for reason, n in ignored.items() if reason.startswith(UNKNOWN)
    ]
    parts = [f"{UNKNOWN}: {', '.join(unknown)}"] if unknown else []
    parts += [f"{reason}: {count}" for reason, count in ignored.items() if not reason.startswith(UNKNOWN)]
    total = sum(ignored.values())
    noun = "row" if all(reason.startswith(ROW) for reason in ignored) else "file"
    return f"{count_of(total, noun)} ignored ({'; '.join(parts)})"


@dataclass(frozen=True)
class Plan:
    """Work of a run.

    Attributes:
        jobs: Videos to process, largest first; for shards see `_for_shards`
        done: Number of videos with a current output, including those in `moved`
        skipped: Number of videos that failed before and are not retried
        rejected: Rows of videos that cannot be started
        before: Previous file names of videos that are not done
        other_versions: Number of done videos that another encoder version made
        bytes_before: Size of the sources of done videos
        bytes_after: Size of their outputs
        ignored: Number of files that are not sources, by reason
        gone: Ids of rows whose source is not listed although all sources are, or no longer exists
        removed: Ids of rows to remove
        elsewhere: Ids of rows whose source exists outside the given folder
        moved: Done videos whose source had another path, by their previous id
        renamed: Previous id of each video whose source had another path, done or not
        kept: Done videos whose source cannot be opened now, by id, with the reason
    """

    jobs: tuple[WholeJob, ...]
    done: int
    skipped: int
    rejected: tuple[ManifestRow, ...]
    before: dict[str, str]
    other_versions: int
    bytes_before: int
    bytes_after: int
    ignored: dict[str, int] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    moved: dict[str, Unit] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)

    @cached_property
    def shares(self) -> dict[str, int]:
        """Source bytes that are counted for each cut of a shared source, by id."""
        return {job.unit.id: job.unit.share_bytes for job in self.jobs if job.unit.sharers > 1}

    def source_bytes(self, row: ManifestRow) -> int:
        """Return the source size of a row as counted in the summary."""
        return self.shares.get(row.id, row.source_size_bytes or 0)


def plan(
    sources: SourceList,
    settings: RunSettings,
    destination: Destination,
    *,
    ffmpeg: str,
    encoder_version: str,
    overwrite: bool = False,
    skip_failed: bool = False,
    takes_all: bool = False,
    prune: bool = False,
    folder: str | None = None,
) -> Plan:
    """Plan the jobs for units that are not done.

    A unit is done if its id, cut, source size and time, and settings equal those of its row, and its output exists with
    the recorded size; or if that holds for a row whose source no longer exists, and the content of both sources is the
    same. A task of an array renames nothing: it makes such a unit again. Outputs whose source cannot be opened
    now, because a disk is not mounted for example, are kept.

    Args:
        sources: The sources.
        settings: Settings of the run.
        destination: The destination.
        ffmpeg: The ffmpeg program.
        encoder_version: Version of the encoder.
        overwrite: Make everything again.
        skip_failed: Do not retry failed videos.
        takes_all: Whether these are all sources.
        prune: Remove rows whose source no longer exists.
        folder: The folder that was searched. Sources elsewhere are not considered gone.
    """
    extension = settings.output.extension
    digests = settings.digests
    known = destination.known_units()
    packed = next((row for row in known.values() if row.ok and row.source_state is None), None)
    if packed is not None and not (overwrite and takes_all):
        raise DestinationError(
            f"was made by `pack` from {packed.source}, not from sources; take another folder, or --overwrite with all sources",
            path=destination.shown,
        )
    rejected, kept = _without_source(sources, settings, {} if overwrite and takes_all else known, destination)
    listed = {unit.id for unit in sources.units} | {row.id for row in rejected} | kept.keys()
    is_part = destination.part is not None
    unlisted = {id_: known[id_] for id_ in sorted(known.keys() - listed)}
    elsewhere = () if overwrite or not takes_all else _elsewhere(unlisted, folder)
    for id_ in elsewhere:
        del unlisted[id_]
    gone = unlisted if takes_all or is_part else _missing(unlisted)
    lost = _LostRows(gone, takes_all=takes_all)
    renamed: dict[str, str] = {}
    moved: dict[str, Unit] = {}
    jobs: list[WholeJob] = []
    others: list[tuple[Unit, str | None]] = []
    foreign: list[str] = []
    skipped = other_versions = 0
    done = len(kept)
    bytes_before = sum(known[id_].source_size_bytes or 0 for id_ in kept)
    bytes_after = sum(known[id_].size_bytes or 0 for id_ in kept)
    for unit in sources.units:
        row = known.get(unit.id)
        file_name = f"{unit.id}.{extension}"
        before = None
        if not (overwrite and takes_all) and (row is None or not _is_done(row, unit, digests, file_name, destination)):
            before = lost.found_as(unit)
            if before is not None:
                renamed[unit.id] = before
            before = None if is_part else before
            row = known[before] if before else row
        if not overwrite:
            if row is not None and _is_done(row, unit, digests, row.file_name if before else file_name, destination):
                if before or row.source != unit.path:
                    moved[before or unit.id] = unit
                done += 1
                other_versions += row.encoder_version != encoder_version
                bytes_before += unit.share_bytes
                bytes_after += row.size_bytes or 0
                continue
            if skip_failed and row is not None and not row.ok and not before and _same_source(row, unit, digests):
                skipped += 1
                continue
            if row is not None and row.ok and row.source != unit.path and _is_elsewhere(row, folder):
                others.append((unit, row.source))
            elif row is None and destination.outputs.has_foreign(file_name):
                foreign.append(file_name)
        partial = str(destination.partial(unit.id, extension))
        attempt = 1 + (row.attempts if row is not None and not row.ok and _same_source(row, unit, digests) else 0)
        upload = destination.upload(file_name)
        jobs.append(WholeJob(unit, settings, file_name, partial, attempt, ffmpeg, upload))
    for unit in sources.listing:  # of all tasks of an array
        if unit.id not in known and unit.id not in renamed and (before := lost.found_as(unit)) is not None:
            renamed[unit.id] = before
    _check_no_strangers(destination, foreign, others)
    to_settle = (*(job.unit.id for job in jobs), *(row.id for row in rejected))
    file_names = {id_: known[id_].file_name for id_ in to_settle if id_ in known and known[id_].file_name}
    found_again = set() if is_part else {*renamed.values()}
    left = [] if is_part else [id_ for id_ in gone if id_ not in found_again]
    listed_paths = {unit.path for unit in sources.units}
    other_ids = {
        id_ for id_ in left if not gone[id_].ok and gone[id_].source in listed_paths
    }  # failed, and now named otherwise
    removed = [*(found_again - moved.keys()), *(left if takes_all and (prune or overwrite) else other_ids)]
    return Plan(
        tuple(jobs if settings.output.store_kind == ENCODED else _for_shards(jobs)),
        done,
        skipped,
        rejected,
        file_names,
        other_versions,
        bytes_before,
        bytes_after,
        counted(sources.ignored),
        tuple(left),
        tuple(sorted(removed)),
        elsewhere,
        moved,
        renamed,
        kept,
    )


def _for_shards(jobs: Sequence[WholeJob]) -> Iterator[WholeJob]:
    """Yield jobs in the shuffled order of their ids, in which shards are then written, and before them those that are much
    larger than others: one of these at the end would keep a single worker busy.
    """
    of = {job.unit.id: job for job in jobs}
    much = MUCH_LARGER * sum(job.unit.share_bytes for job in jobs) / max(1, len(jobs))
    yield from (job for job in jobs if job.unit.share_bytes > much)
    yield from (of[id_] for id_ in shuffled(of) if of[id_].unit.share_bytes <= much)


def _check_no_strangers(
    destination: Destination, foreign: Sequence[str], others: Sequence[tuple[Unit, str | None]]
) -> None:
    """Raise DestinationError if outputs would replace files that vidprep did not make, or those of sources elsewhere."""
    if foreign:
        raise DestinationError(
            f"holds {one_line(foreign[0])}{f' and {len(foreign) - 1} more' if foreign[1:] else ''}, which vidprep did not make and an "
            "output would replace; move it, or take another folder",
            path=destination.shown,
        )
    if others:
        unit, path = others[0]
        raise DestinationError(
            f"{one_line(unit.id)} was made from {path}, which is still there, and {unit.path} would replace it"
            f"{f', and {len(others) - 1} more likewise' if others[1:] else ''}; take another folder, or a table with ids of their own, "
            "or --overwrite to keep only what SRC gives",
            path=destination.shown,
        )


def _elsewhere(rows: Mapping[str, KnownUnit], folder: str | None) -> tuple[str, ...]:
    return tuple(id_ for id_, row in rows.items() if _is_elsewhere(row, folder))


def _missing(rows: Mapping[str, KnownUnit]) -> dict[str, KnownUnit]:
    """Return the rows whose source was a local file that no longer exists. Each folder is listed once."""
    names_in = functools.cache(_names_in)
    local = {id_: row for id_, row in rows.items() if row.source and not is_url(row.source)}
    return {
        id_: row
        for id_, row in local.items()
        if (names := names_in(os.path.dirname(row.source))) is not None and os.path.basename(row.source) not in names  # noqa: PTH119, PTH120
    }


def _names_in(folder: str) -> set[str] | None:
    """Return the names in a folder; None if they are not known."""
    try:
        return set(os.listdir(folder))  # noqa: PTH208
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError:
        return None


def _is_missing(row: KnownUnit) -> bool:
    """Return whether the source of a row was a local file that no longer exists."""
    path = str(row.source or "")
    return bool(path) and not is_url(path) and not os.path.exists(path)  # noqa: PTH110 (of any length)


def _is_elsewhere(row: KnownUnit, folder: str | None) -> bool:
    """Return whether the source of a row exists outside a folder, also if either is reached through a link."""
    path = str(row.source or "")
    if folder is None or not path or is_url(path) or Path(path).is_relative_to(folder) or not os.path.exists(path):  # noqa: PTH110 (of any length)
        return False
    return not Path(path).parent.resolve().is_relative_to(Path(folder).resolve())


class _LostRows:
    """Rows whose source no longer exists, by properties that renaming does not change: size and time, cut, and content.

    Args:
        gone: Rows whose source is not listed.
        takes_all: Whether these are all sources. Otherwise a row is lost if its source is missing on disk.
    """

    def __init__(self, gone: Mapping[str, KnownUnit], *, takes_all: bool) -> None:
        self._takes_all = takes_all
        self._rows: dict[tuple[object, ...], dict[str | None, deque[KnownUnit]]] = defaultdict(
            lambda: defaultdict(deque)
        )
        for row in gone.values():
            self._rows[row.source_state, row.cut][row.source_digest].append(row)

    def found_as(self, unit: Unit) -> str | None:
        """Return the id of the row whose source became that of this unit. Each row is found once."""
        alike = self._rows.get((unit.state, unit.cut))
        if not alike or unit.is_copied:
            return None
        try:
            rows = alike.get(sampled_digest(Path(unit.path)), deque())
        except OSError:
            return None
        while rows:
            row = rows.popleft()
            if self._takes_all or _is_missing(row):
                return row.id
        return None


def _same_source(row: KnownUnit, unit: Unit, digests: Collection[str]) -> bool:
    return row.settings_digest in digests and (row.source_state, row.cut) == (unit.state, unit.cut)


def _is_done(row: KnownUnit, unit: Unit, digests: Collection[str], file_name: str, destination: Destination) -> bool:
    return row.ok and _same_source(row, unit, digests) and destination.outputs.holds(row, file_name)


def _without_source(
    sources: SourceList, settings: RunSettings, known: Mapping[str, KnownUnit], destination: Destination
) -> tuple[tuple[ManifestRow, ...], dict[str, str]]:
    """Return the rows of sources that cannot be opened, and the reasons for those that have an output of before, by id."""
    rejected: list[ManifestRow] = []
    kept: dict[str, str] = {}
    asked = sources.problem_units or (None,) * len(sources.problems)
    for problem, unit in zip(sources.problems, asked[: len(sources.problems)], strict=True):
        row = _rejected(problem, unit, settings)
        before = known.get(row.id)
        if before is not None and before.ok and destination.outputs.holds(before, before.file_name):
            kept[row.id] = row.message or ""
        else:
            rejected.append(row)
    return tuple(rejected), kept


def unit_of_problem(problem: tuple[str, str], asked: Unit | None) -> Unit:
    """Return the unit of a source that cannot be opened.

    Args:
        problem: Path and reason.
        asked: The unit of a table's row.
    """
    path, _ = problem
    return replace(asked, path=path) if asked else Unit(id=path.lstrip("/"), path=path, size_bytes=0, mtime_ns=0)


def _rejected(problem: tuple[str, str], asked: Unit | None, settings: RunSettings) -> ManifestRow:
    _, reason = problem
    row = new_row(WholeJob(unit_of_problem(problem, asked), settings, "", ""))
    row.source_size_bytes = row.source_mtime_ns = None
    fail(row, SourceError(reason))
    return row
