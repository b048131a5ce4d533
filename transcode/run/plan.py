"""Plan a run: compare sources and settings with what the destination already holds. Opens no video."""

from __future__ import annotations

import functools
import os
import re
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from itertools import chain
from pathlib import Path

from vidprep.formats.errors import DestinationError, ShortError, SourceError, count_of, printable
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.storage.base import is_url
from vidprep.formats.storage.local import digest_samples
from vidprep.formats.stores.registry import ENCODED
from vidprep.formats.stores.shards import shuffle_ids
from vidprep.transcode.destination.destination import Destination
from vidprep.transcode.destination.run_file import KnownUnit
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.table_rows import NOT_KEPT, SKIPPED
from vidprep.transcode.sources.tables import one_line
from vidprep.transcode.sources.unit import SourceList, Unit
from vidprep.transcode.unit.job import WholeJob, fail, new_row

UNKNOWN = "unknown extension"
KEPT_EXTENSIONS = 10
MUCH_LARGER = 4  # than the mean
ROW = "a row of the table: "


def count_ignored(ignored: Iterable[tuple[str, str]]) -> dict[str, int]:
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


def describe_ignored(ignored: Mapping[str, int]) -> str:
    """Return a line such as `3 files ignored (unknown extension: .txt 2, .nfo 1)`."""
    unknown = [
        f"{reason.removeprefix(f'{UNKNOWN}: ')} {n}" for reason, n in ignored.items() if reason.startswith(UNKNOWN)
    ]
    parts = [f"{UNKNOWN}: {', '.join(unknown)}"] if unknown else []
    parts += [f"{reason}: {count}" for reason, count in ignored.items() if not reason.startswith(UNKNOWN)]
    total = sum(ignored.values())
    noun = "row" if all(reason.startswith(ROW) or reason == NOT_KEPT for reason in ignored) else "file"
    return f"{count_of(total, noun)} ignored ({'; '.join(parts)})"


@dataclass(frozen=True)
class Plan:
    """Work of a run.

    Attributes:
        jobs: Videos to process, largest first; for shards see `_for_shards`
        done: Number of videos with a current output, including those in `moved`
        skipped: Number of videos that failed before and are not retried
        short: Number of videos that are known to be too short; None if these fail
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
    short: int | None = None

    @cached_property
    def shares(self) -> dict[str, int]:
        """Source bytes that are counted for each cut of a shared source, by id."""
        return {job.unit.id: job.unit.share_bytes for job in self.jobs if job.unit.sharers > 1}

    def leaves_out(self, row: ManifestRow) -> bool:
        """Return whether a row is of a video that is too short, which is no failure here."""
        return self.short is not None and row.error == ShortError.__name__

    def source_bytes(self, row: ManifestRow) -> int:
        """Return the source size of a row as counted in the summary."""
        return self.shares.get(row.id, row.source_size_bytes or 0)


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of a run that say what is made again.

    Attributes:
        digests: Digests of its settings, that of this version first
        overwrite: Whether everything that is listed is made again
        skip_failed: Whether failed videos are not retried
        skip_short: Whether videos that were too short are left out
    """

    digests: Collection[str]
    overwrite: bool = False
    skip_failed: bool = False
    skip_short: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """Facts about a unit in a destination.

    Attributes:
        row: The row of its id, or, if its source moved, that of the id before
        is_held: Whether the output of the row exists, with the recorded size
        replaces: What its output would replace: the source of another output, or a file of that name; None for nothing
    """

    row: KnownUnit | None = None
    before: str | None = None
    is_held: bool = False
    replaces: str | None = None

    def is_of(self, unit: Unit, digests: Collection[str]) -> bool:
        """Return whether the row is of this source in its present state, of this cut, and of these settings."""
        return self.row is not None and _same_source(self.row, unit, digests)


class Decision(Enum):
    """Treatment of a unit by a run."""

    DONE = "its output is current"
    MOVED = "its output is current, and its source had another path"
    SKIP = "it failed before"
    SHORT = "it was too short before"
    MAKE = "it is made"
    REFUSE = "its output would replace something else"


def decide(unit: Unit, known: Known, rules: Rules) -> Decision:
    """Return what a run does about a unit. It is pure: what has to be looked up is in `known`."""
    if rules.overwrite:
        return Decision.MAKE
    row = known.row
    if row is not None and known.is_of(unit, rules.digests):
        if row.ok and known.is_held:
            return Decision.MOVED if known.before is not None or row.source != unit.path else Decision.DONE
        if rules.skip_short and row.error == ShortError.__name__ and known.before is None:
            return Decision.SHORT
        if rules.skip_failed and not row.ok and known.before is None:
            return Decision.SKIP
    return Decision.REFUSE if known.replaces is not None else Decision.MAKE


@dataclass
class _Fold:
    """Decisions about all units, added up."""

    jobs: list[WholeJob] = field(default_factory=list)
    moved: dict[str, Unit] = field(default_factory=dict)
    refused: list[tuple[Unit, Known]] = field(default_factory=list)
    done: int = 0
    skipped: int = 0
    short: int = 0
    other_versions: int = 0
    bytes_before: int = 0
    bytes_after: int = 0

    def add_done(self, row: KnownUnit, source_bytes: int, *, is_other_version: bool = False) -> None:
        self.done += 1
        self.other_versions += is_other_version
        self.bytes_before += source_bytes
        self.bytes_after += row.size_bytes or 0

    @property
    def ids(self) -> Iterator[str]:
        """Units that are made."""
        return (job.unit.id for job in self.jobs)


def plan(
    sources: SourceList,
    settings: RunSettings,
    destination: Destination,
    *,
    ffmpeg: str,
    encoder_version: str,
    overwrite: bool = False,
    skip_failed: bool = False,
    skip_short: bool = False,
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
        skip_short: Leave out videos that are too short.
        takes_all: Whether these are all sources.
        prune: Remove rows whose source no longer exists.
        folder: The folder that was searched. Sources elsewhere are not considered gone.
    """
    known, starts_over = destination.read_known_units(), overwrite and takes_all
    _refuse_packed(known, destination, starts_over=starts_over)
    rejected, kept = _list_unopened(sources, settings, {} if starts_over else known, destination)
    is_part, rejected_ids = destination.part is not None, [row.id for row in rejected]
    listed = {*rejected_ids, *kept, *(unit.id for unit in sources.units)}
    unlisted = {id_: known[id_] for id_ in sorted(known.keys() - listed)}
    elsewhere = () if overwrite or not takes_all else _elsewhere(unlisted, folder)
    gone = _gone(unlisted, elsewhere, are_all_listed=takes_all or is_part)
    rules, lost = Rules(settings.digests, overwrite, skip_failed, skip_short), _LostRows(gone, takes_all=takes_all)
    look_up = _LookUp(settings, rules.digests, destination, known, lost, overwrite, starts_over, folder)
    fold = _decide_all(sources, look_up, rules, ffmpeg, encoder_version)
    for id_ in kept:
        fold.add_done(known[id_], known[id_].source_size_bytes or 0)
    look_up.find(sources.listing)
    _check_no_strangers(destination, fold.refused)
    found_again = frozenset() if is_part else frozenset(look_up.renamed.values())
    left = () if is_part else tuple(id_ for id_ in gone if id_ not in found_again)
    removed = left if takes_all and (prune or overwrite) else _find_renamed(left, gone, sources)
    return Plan(
        tuple(fold.jobs if settings.output.store_kind == ENCODED else _for_shards(fold.jobs)),
        fold.done,
        fold.skipped,
        rejected,
        _file_names(known, chain(fold.ids, rejected_ids)),
        fold.other_versions,
        fold.bytes_before,
        fold.bytes_after,
        count_ignored(sources.ignored),
        left,
        tuple(sorted({*removed, *(found_again - fold.moved.keys())})),
        elsewhere,
        fold.moved,
        look_up.renamed,
        kept,
        fold.short if skip_short else None,
    )


def _decide_all(sources: SourceList, look_up: _LookUp, rules: Rules, ffmpeg: str, encoder_version: str) -> _Fold:
    """Return the decisions about all units, added up."""
    fold = _Fold()
    for unit in sources.units:
        known = look_up(unit)
        match decide(unit, known, rules):
            case Decision.MAKE:
                fold.jobs.append(_job(unit, known, look_up, ffmpeg))
            case Decision.REFUSE:
                fold.refused.append((unit, known))
            case Decision.SKIP:
                fold.skipped += 1
            case Decision.SHORT:
                fold.short += 1
            case Decision.MOVED | Decision.DONE as decision:
                assert known.row is not None
                fold.add_done(
                    known.row, unit.share_bytes, is_other_version=known.row.encoder_version != encoder_version
                )
                if decision is Decision.MOVED:
                    fold.moved[known.before or unit.id] = unit
    return fold


def _gone(
    unlisted: Mapping[str, KnownUnit], elsewhere: Collection[str], *, are_all_listed: bool
) -> Mapping[str, KnownUnit]:
    """Return the rows whose source is not listed although all are, or no longer exists."""
    others = {*elsewhere}
    rows = {id_: row for id_, row in unlisted.items() if id_ not in others} if others else unlisted
    return rows if are_all_listed else _missing(rows)


def _refuse_packed(known: Mapping[str, KnownUnit], destination: Destination, *, starts_over: bool) -> None:
    packed = next((row for row in known.values() if row.ok and row.source_state is None), None)
    if packed is not None and not starts_over:
        raise DestinationError(
            f"was made by `pack` from {packed.source}, not from sources; take another folder, or --overwrite with all sources",
            path=destination.shown,
        )


def _file_names(known: Mapping[str, KnownUnit], ids: Iterable[str]) -> dict[str, str]:
    return {id_: known[id_].file_name for id_ in ids if id_ in known and known[id_].file_name}


def _find_renamed(left: Iterable[str], gone: Mapping[str, KnownUnit], sources: SourceList) -> list[str]:
    """Return failed rows whose source is listed under another id now."""
    paths = {unit.path for unit in sources.units}
    return [id_ for id_ in left if not gone[id_].ok and gone[id_].source in paths]


def _job(unit: Unit, known: Known, look_up: _LookUp, ffmpeg: str) -> WholeJob:
    settings, destination, row = look_up.settings, look_up.destination, known.row
    extension = settings.output.extension
    partial = str(destination.partial(unit.id, extension))
    has_failed = row is not None and not row.ok and known.is_of(unit, look_up.digests)
    attempt = 1 + (row.attempts if row is not None and has_failed else 0)
    file_name = f"{unit.id}.{extension}"
    return WholeJob(unit, settings, file_name, partial, attempt, ffmpeg, destination.upload(file_name))


@dataclass
class _LookUp:
    """Looks up what a destination knows of units, and costs no more than each needs.

    Attributes:
        renamed: Previous id of each unit whose source had another path
    """

    settings: RunSettings
    digests: Collection[str]
    destination: Destination
    known: Mapping[str, KnownUnit]
    lost: _LostRows
    overwrite: bool
    starts_over: bool
    folder: str | None
    renamed: dict[str, str] = field(default_factory=dict)

    def __call__(self, unit: Unit) -> Known:
        row, before = self.known.get(unit.id), None
        file_name = f"{unit.id}.{self.settings.output.extension}"
        if self.starts_over:
            return Known(row)
        if self._holds(row, unit, file_name):
            return Known(row, None, is_held=True)
        if (moved_from := self.lost.take_moved(unit)) is not None:
            self.renamed[unit.id] = moved_from
            before = moved_from if self.destination.part is None else None
        if before is not None:
            row = self.known[before]
            is_held = not self.overwrite and self._holds(row, unit, row.file_name)
            return Known(row, before, is_held, None if is_held else self._find_replaced(row, unit, file_name))
        return Known(row, None, replaces=self._find_replaced(row, unit, file_name))

    def _holds(self, row: KnownUnit | None, unit: Unit, file_name: str) -> bool:
        return row is not None and _is_done(row, unit, self.digests, file_name, self.destination)

    def _find_replaced(self, row: KnownUnit | None, unit: Unit, file_name: str) -> str | None:
        if self.overwrite:
            return None
        if row is None:
            return file_name if self.destination.outputs.has_foreign(file_name) else None
        is_of_another = row.ok and row.source != unit.path and _is_elsewhere(row, self.folder)
        return row.source if is_of_another else None

    def find(self, units: Iterable[Unit]) -> None:
        """Find the previous ids of units of all tasks of an array."""
        for unit in units:
            if (
                unit.id not in self.known
                and unit.id not in self.renamed
                and (before := self.lost.take_moved(unit)) is not None
            ):
                self.renamed[unit.id] = before


def _for_shards(jobs: Sequence[WholeJob]) -> Iterator[WholeJob]:
    """Yield jobs in the shuffled order of their ids, in which shards are then written, and before them those that are much
    larger than others: one of these at the end would keep a single worker busy.
    """
    of = {job.unit.id: job for job in jobs}
    much = MUCH_LARGER * sum(job.unit.share_bytes for job in jobs) / max(1, len(jobs))
    yield from (job for job in jobs if job.unit.share_bytes > much)
    yield from (of[id_] for id_ in shuffle_ids(of) if of[id_].unit.share_bytes <= much)


def _check_no_strangers(destination: Destination, refused: Sequence[tuple[Unit, Known]]) -> None:
    """Raise DestinationError if outputs would replace files that vidprep did not make, or those of sources elsewhere."""
    foreign = [known.replaces for _, known in refused if known.row is None and known.replaces is not None]
    others = [(unit, known.replaces) for unit, known in refused if known.row is not None]
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
            if row.selected_start_frame is not None:  # frames of another destination
                continue
            self._rows[row.source_state, row.cut][row.source_digest].append(row)

    def take_moved(self, unit: Unit) -> str | None:
        """Return the id of the row whose source became that of this unit. Each row is found once."""
        alike = self._rows.get((unit.state, unit.cut))
        if not alike or unit.is_copied:
            return None
        try:
            rows = alike.get(digest_samples(Path(unit.path)), deque())
        except OSError:
            return None
        while rows:
            row = rows.popleft()
            if self._takes_all or _is_missing(row):
                return row.id
        return None


def _same_source(row: KnownUnit, unit: Unit, digests: Collection[str]) -> bool:
    is_same = row.settings_digest in digests and (row.source_state, row.cut) == (unit.state, unit.cut)
    if unit.selected is None:  # the copy of a whole video is what a run would make
        return is_same and row.selected_start_frame is None
    return is_same and row.selected == unit.selected


def _is_done(row: KnownUnit, unit: Unit, digests: Collection[str], file_name: str, destination: Destination) -> bool:
    return row.ok and _same_source(row, unit, digests) and destination.outputs.holds(row, file_name)


def _list_unopened(
    sources: SourceList, settings: RunSettings, known: Mapping[str, KnownUnit], destination: Destination
) -> tuple[tuple[ManifestRow, ...], dict[str, str]]:
    """Return the rows of sources that cannot be opened, and the reasons for those that have an output of before, by id."""
    rejected: list[ManifestRow] = []
    kept: dict[str, str] = {}
    units = sources.problem_units or (None,) * len(sources.problems)
    for problem, unit in zip(sources.problems, units[: len(sources.problems)], strict=True):
        row = _reject(problem, unit, settings)
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


def _reject(problem: tuple[str, str], asked: Unit | None, settings: RunSettings) -> ManifestRow:
    _, reason = problem
    row = new_row(WholeJob(unit_of_problem(problem, asked), settings, "", ""))
    row.source_size_bytes = row.source_mtime_ns = None
    fail(row, SourceError(reason))
    return row
