"""The videos and frames of finished destinations that `select` takes: by a condition on their rows, and by a table of frames."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vidprep.formats.errors import DestinationError, SourceError, StoreError, count_of
from vidprep.formats.manifest.row import COLUMN_NAMES
from vidprep.formats.manifest.table import read_table, rows_of
from vidprep.formats.model import Cut, Selected
from vidprep.transcode.destination.opening import is_in_use, is_unfinished
from vidprep.transcode.destination.run_file import differences, settings_of
from vidprep.transcode.selection.robot import Clip
from vidprep.transcode.settings.keep import names_in, rows_kept
from vidprep.transcode.sources.outputs import STATE_DIR
from vidprep.transcode.sources.robot import episode_video
from vidprep.transcode.sources.scratch import local_folder
from vidprep.transcode.sources.table_rows import cut_columns, id_of_cut
from vidprep.transcode.sources.tables import one_line, read_source_table
from vidprep.transcode.sources.unit import SourceList, Unit

if TYPE_CHECKING:
    import pyarrow as pa

    from vidprep.formats.manifest.labels import Labels
    from vidprep.transcode.settings.run import RunSettings

DIFFERENCES_SHOWN, EPISODE_LABEL = 3, "episode_index"


class _Video(NamedTuple):
    """Columns of a row."""

    id: str
    status: str
    source: str
    source_size_bytes: int | None
    source_mtime_ns: int | None
    start_seconds: float | None
    end_seconds: float | None
    start_frame: int | None
    end_frame: int | None
    video_stream: int | None
    num_frames: int | None
    keyframes: list[int] | None
    sha256: str | None


@dataclass(frozen=True)
class Given:
    """A finished destination, and those of its videos that a condition leaves.

    Attributes:
        place: Absolute path or URL
        labels: Labels of the videos
        left_out: Number of videos that failed, or for which the condition does not hold
    """

    place: str
    settings: RunSettings
    videos: list[_Video]
    labels: Labels
    left_out: int


@dataclass(frozen=True)
class Trims:
    """Frames of videos, by a table.

    Attributes:
        of_episodes: Whether they are of episodes of a LeRobot dataset
        cuts: (row, video or episode, frames) in the order of the table
        columns: Further columns, which are labels
    """

    path: str
    of_episodes: bool
    cuts: list[tuple[int, str, Cut]]
    columns: dict[str, pa.Array]


def list_videos(
    places: Sequence[Path | str],
    keep: str | None,
    trims: Trims | None,
    clips: Sequence[Clip] | None = None,
    *,
    on_keyframes: bool = False,
) -> tuple[SourceList, RunSettings]:
    """Return the outputs to make, and the settings that all destinations share.

    Args:
        places: The destinations.
        keep: Condition on the columns and labels of a row; see keep.py. None takes all.
        trims: Frames to take; None takes whole videos.
        clips: Frames of episodes to take of a LeRobot dataset, in place of `trims`.
        on_keyframes: Whether frames are widened to keyframes.

    Raises:
        StoreError: A place is no finished destination.
        DestinationError: A run works there, or its settings are others than those of the first.
        SourceError: Two destinations have a video of the same id, or frames of the table do not exist.
        SettingsError: The condition names a column that is not there.
    """
    given = [_read(place, keep) for place in places]
    _check_alike(given)
    owners = {video.id: (each.place, video) for each in given for video in each.videos}
    if clips is not None:
        chosen = [*_of_episodes(owners, clips)]
    else:
        chosen = [*_whole(owners)] if trims is None else [*_trimmed(owners, trims, on_keyframes=on_keyframes)]
    if not chosen:
        raise SourceError("nothing is selected: no video is left by --keep, or no row in the table")
    sharers = Counter(unit.path for unit, _ in chosen)
    units = [replace(unit, sharers=sharers[unit.path]) for unit, _ in chosen]
    labels = _labels_of(given, units, [number for _, number in chosen], columns_of(trims, clips))
    left_out = sum(each.left_out for each in given)
    notes = (f"{count_of(left_out, 'video')} not selected: failed, or left out by --keep",) if left_out else ()
    units.sort(key=lambda unit: (-unit.size_bytes, unit.id))
    return SourceList(tuple(units), (), labels=labels if labels.columns else None, notes=notes), given[0].settings


def columns_of(trims: Trims | None, clips: Sequence[Clip] | None) -> dict[str, pa.Array]:
    """Return labels that a table gives, and new numbers of episodes: for each row, or for each clip."""
    import pyarrow as pa

    columns = {} if trims is None else trims.columns
    if clips is None:
        return columns
    rows = pa.array([clip.row for clip in clips], pa.int64())
    taken = {name: column.take(rows) for name, column in columns.items()}
    return {EPISODE_LABEL: pa.array(range(len(clips)), pa.int64()), **taken}


def _labels_of(
    given: Sequence[Given], units: Sequence[Unit], numbers: Sequence[int], columns: dict[str, pa.Array]
) -> Labels:
    """Return the labels of outputs: those of their videos, and those in the rows `numbers` of the columns."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from vidprep.formats.manifest.labels import concatenate

    labels = concatenate([each.labels for each in given])
    labels = labels.select([unit.selected.id for unit in units if unit.selected is not None])
    rows = pa.array(numbers, pa.int64())
    more = {name: column.take(rows) for name, column in columns.items()}
    for name in more.keys() & labels.columns.keys():  # an empty cell changes nothing
        if more[name].type == labels.columns[name].type:
            more[name] = pc.coalesce(more[name], labels.columns[name])
    return replace(labels, ids=[unit.id for unit in units], columns={**labels.columns, **more}, split_rule="")


def _read(place: Path | str, keep: str | None) -> Given:
    import pyarrow as pa

    from vidprep.formats.manifest.labels import LABELS, labels_in

    shown = str(place.absolute()) if isinstance(place, Path) else place
    with ExitStack() as held:
        folder = held.enter_context(local_folder(place))
        settings = settings_of(folder, shown)
        if is_in_use(folder) or is_unfinished(folder):
            raise DestinationError("a run works there, or was stopped; let it finish first", path=shown)
        asked = () if keep is None else sorted(names_in(keep) & {*COLUMN_NAMES})
        table = read_table(folder, [*dict.fromkeys((*_Video._fields, *asked)), LABELS])
        if table is None:
            raise StoreError("has no manifest yet", path=shown)
        labels = labels_in(table)
        ok = [status == "ok" for status in table["status"].to_pylist()]
        if keep is not None:
            columns = {**labels.columns, **{name: table[name].combine_chunks() for name in asked}}
            ok = [one and bool(other) for one, other in zip(ok, rows_kept(keep, columns, len(ok), shown), strict=True)]
        kept = [number for number, is_ok in enumerate(ok) if is_ok]
        videos = [*rows_of(table.take(pa.array(kept, pa.int64())), _Video)]
    labels = labels.select([video.id for video in videos])
    return Given(shown, settings, videos, labels, len(ok) - len(kept))


def _check_alike(given: Sequence[Given]) -> None:
    """Raise DestinationError for a destination of other settings than the first, SourceError for an id of two."""
    first = given[0]
    for other in given[1:]:
        if lines := differences(first.settings.as_dict(), other.settings):
            shown = "; ".join(lines[:DIFFERENCES_SHOWN])
            raise DestinationError(f"was made with other settings than {first.place}: {shown}", path=other.place)
    counts = Counter(video.id for each in given for video in each.videos)
    if twice := [id_ for id_, count in counts.items() if count > 1]:
        raise SourceError(
            f"{count_of(len(twice), 'id')} in more than one destination, such as {one_line(twice[0])}; select from one of them"
        )


def _unit(id_: str, place: str, video: _Video, begin: int | None, end: int | None) -> Unit:
    cut = Cut(video.start_seconds, video.end_seconds, video.start_frame, video.end_frame, video.video_stream)
    selected = Selected(place, video.id, begin, end, video.sha256 or "")
    state = video.source_size_bytes or 0, video.source_mtime_ns or 0
    return Unit(id_, video.source, *state, cut, selected=selected)


def _whole(owners: dict[str, tuple[str, _Video]]) -> Iterator[tuple[Unit, int]]:
    for id_, (place, video) in owners.items():
        yield _unit(id_, place, video, None, None), -1


def _of_episodes(owners: dict[str, tuple[str, _Video]], clips: Sequence[Clip]) -> Iterator[tuple[Unit, int]]:
    """Yield the videos of clips of episodes, with the numbers that these get. Of an episode that is not selected there are none."""
    for number, clip in enumerate(clips):
        for camera in clip.episode.videos:
            if (id_ := episode_video(camera, clip.episode.number)) in owners:
                yield _unit(episode_video(camera, number), *owners[id_], clip.begin, clip.end), number


def _trimmed(owners: dict[str, tuple[str, _Video]], trims: Trims, *, on_keyframes: bool) -> Iterator[tuple[Unit, int]]:
    """Yield the outputs of a table, with its rows. Raises SourceError for frames that do not exist."""
    seen: dict[str, int] = {}
    for number, id_, cut in trims.cuts:
        if id_ not in owners:
            raise SourceError(
                f"row {number + 1}: there is no video {one_line(id_)} among those selected", path=trims.path
            )
        place, video = owners[id_]
        count = video.num_frames or 0
        begin, end = cut.start_frame or 0, count if cut.end_frame is None else cut.end_frame
        if not begin < end <= count:
            raise SourceError(
                f"row {number + 1}: {one_line(id_)} has {count_of(count, 'frame')}, not [{begin}, {end})",
                path=trims.path,
            )
        if on_keyframes and video.keyframes is not None:
            entries = [*video.keyframes, count]
            begin, end = entries[bisect_right(entries, begin) - 1], entries[bisect_left(entries, end)]
        name = id_of_cut(id_, cut)
        if (before := seen.setdefault(name, number)) != number:
            raise SourceError(
                f"rows {before + 1} and {number + 1} are the same frames of {one_line(id_)}", path=trims.path
            )
        yield _unit(name, place, video, begin, end), number


def read_trims(table: Any) -> Trims:
    """Read a table of frames: columns `id`, `start_frame`, `end_frame`, and labels. Raises SourceError."""
    source = read_source_table(str(table) if isinstance(table, Path) else table)
    path = str(table) if isinstance(table, str | Path) else "the table"
    key = next((name for name in ("id", EPISODE_LABEL) if name in source.columns), None)
    places = cut_columns([name for name in source.columns if name != key], path)
    if key is None or not (places.start_frame or places.end_frame) or places.start or places.end:
        raise SourceError(
            "give columns id, start_frame and end_frame: frames of the videos that are selected; of a LeRobot dataset episode_index in "
            "place of id",
            path=path,
        )
    cuts: list[tuple[int, str, Cut]] = []
    for number, (id_, cells) in enumerate(zip(source.values(key), places.cuts(source), strict=True)):
        try:
            cuts.append((number, str(id_), places.cut(cells)))
        except ValueError as error:
            raise SourceError(f"row {number + 1}: {error}", path=path) from error
    others = [name for name in source.columns if name != key and name not in places.names]
    return Trims(path, key == EPISODE_LABEL, cuts, {name: source.array(name) for name in others})


def refuse_overlap(out: Path | str, places: Sequence[Path | str]) -> None:
    """Raise DestinationError if OUT is a destination to select from, or one is inside the other."""
    for place in places:
        if isinstance(out, Path) and isinstance(place, Path):
            there, given = out.resolve(), place.resolve()
            if there.is_relative_to(given) or given.is_relative_to(there):
                raise DestinationError(f"overlaps with {place}; give a folder outside of it", path=str(out))
        elif str(out).rstrip("/") == str(place).rstrip("/"):
            raise DestinationError("is a destination to select from; give another one", path=str(out))


def refuse_others(out: Path | str, known: Any, listed: SourceList, *, overwrite: bool) -> None:
    """Raise DestinationError if OUT holds anything but outputs of this selection."""
    due = {unit.id: unit.selected[:4] for unit in listed.units if unit.selected is not None}
    others = sorted(id_ for id_, row in known.items() if row.selected is None or due.get(id_) != row.selected[:4])
    if others and not overwrite:
        raise DestinationError(
            f"holds {count_of(len(others), 'video')} that this selection does not give, such as {one_line(others[0])}; take a new "
            "folder, or --overwrite",
            path=str(out),
        )
    is_ours = not isinstance(out, Path) or not out.exists() or (out / STATE_DIR).exists()
    if not is_ours and isinstance(out, Path) and any(out.iterdir()):
        raise DestinationError("exists, and was not made by `select`; take a new folder", path=str(out))
