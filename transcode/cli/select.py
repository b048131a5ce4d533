"""The command `select`: some videos, or some frames, of finished destinations as another one."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import click

from vidprep.formats.errors import SettingsError, StoppedError
from vidprep.formats.option import Option
from vidprep.formats.storage.untrusted import ArrowStream
from vidprep.transcode.cli._command import FolderOrUrl, command_of
from vidprep.transcode.settings.keep import check_condition
from vidprep.transcode.settings.parse import check_types

if TYPE_CHECKING:
    from vidprep.formats.lerobot import LeRobotDataset
    from vidprep.formats.manifest.row import ManifestRow
    from vidprep.transcode.run.progress import Progress
    from vidprep.transcode.run.run import Summary
    from vidprep.transcode.selection.listing import Trims
    from vidprep.transcode.selection.robot import Clip


class _Idle(NamedTuple):
    """Stretches of episodes to leave out, in which nothing moves for so many seconds (None: none), and whether within episodes, too."""

    seconds: float | None
    drops: bool


@check_types()
def select(
    destinations: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    keep: Annotated[
        str | None,
        Option(
            "Take only videos for which this holds, by columns of the manifest and labels: \"split == 'train' and psnr_y_db > 35\".",
            "CONDITION",
            parse=check_condition,
        ),
    ] = None,
    table: Annotated[
        str | Path | ArrowStream | None,
        Option(
            "Take only these frames: columns id, start_frame and end_frame; several rows of one id are several videos. Other columns "
            "are labels.",
            "TABLE",
            path="any",
        ),
    ] = None,
    on_keyframes: Annotated[
        bool, Option("Of --table: begin and end at keyframes, with more frames, so that none is encoded again.")
    ] = False,
    trim_idle: Annotated[
        float | None,
        Option(
            "Of a LeRobot dataset: leave out the start and the end of each episode where no state or action moves by more than 1 % of its "
            "range for SECONDS or longer.",
            "SECONDS",
            above=0,
        ),
    ] = None,
    drop_idle: Annotated[
        bool, Option("With --trim-idle: such stretches within an episode, too, which becomes several.")
    ] = False,
    jobs: Annotated[int | None, Option("Videos at a time. Default: one per core.", "N", least=1)] = None,
    overwrite: Annotated[bool, Option("Make all of OUT again, and keep nothing else there.")] = False,
    progress: bool = False,
    on_row: Callable[[ManifestRow], object] | None = None,
) -> Summary:
    """Make a destination of some videos, or some frames, of finished ones, without encoding what stays.

    Packets and JPEGs are copied. Where frames begin or end between two keyframes, what stays of that GOP is encoded again, with the
    settings of the destination, and verified. Repeat the call to continue after a stop. The destinations are only read.

    Args:
        destinations: One destination of `transcode` or `burst`, or several of equal settings: folders or URLs.
        out: The folder or URL to write.
        progress: Show a progress bar and messages on stderr.
        on_row: Called with each row of the manifest when it is safe on disk.

    Returns:
        Summary. Videos that failed are counted in `failed`, and the reason stands in their rows of the manifest.

    Raises:
        SettingsError: A value is not allowed.
        SourceError: The table cannot be used, or names frames that do not exist.
        StoreError: A destination cannot be read.
        DestinationError, StorageError: `out` holds something else; settings differ; or a run works in a destination.
        DiskFullError, StoppedError: The run was stopped; the same call continues it.
        KeyboardInterrupt: The run was interrupted; the same call continues it.
    """
    from vidprep.transcode.run.progress import Progress

    several = [destinations] if isinstance(destinations, str | Path) else [*destinations]
    reporter = Progress(is_shown=progress, on_row=on_row)
    idle = _Idle(trim_idle, drop_idle)
    summary = _run(several, out, reporter, keep, table, idle, jobs, on_keyframes=on_keyframes, overwrite=overwrite)
    if summary.interrupted_by == signal.SIGINT:
        raise KeyboardInterrupt
    if summary.stopped or summary.disk_full or summary.interrupted_by is not None:
        why = summary.stopped or summary.disk_full or "interrupted; call again to go on"
        raise StoppedError(why, exit_code=summary.exit_code)
    return summary


def _run(
    destinations: Sequence[str | Path],
    out: str | Path,
    reporter: Progress,
    keep: str | None,
    table: str | Path | ArrowStream | None,
    idle: _Idle,
    jobs: int | None,
    *,
    on_keyframes: bool,
    overwrite: bool,
) -> Summary:
    from vidprep.transcode.destination.run_file import made_by_run
    from vidprep.transcode.export.robot import forget_robot_dataset, tell_left_out, write_robot_dataset
    from vidprep.transcode.run.session import execute, make_request
    from vidprep.transcode.selection.listing import columns_of, list_videos, read_trims, refuse_others, refuse_overlap
    from vidprep.transcode.selection.robot import list_episodes, with_videos
    from vidprep.transcode.settings.parse import parse_place
    from vidprep.transcode.settings.run import RunOptions, SourceOptions
    from vidprep.transcode.workers.local import default_jobs

    if not destinations:
        raise SettingsError("give one destination or more, and OUT")
    if on_keyframes and table is None:
        raise SettingsError("<on_keyframes> needs <table>", on_keyframes=True, table="TABLE")
    if idle.drops and idle.seconds is None:
        raise SettingsError("<drop_idle> needs <trim_idle>", drop_idle=True, trim_idle=1)
    if idle.seconds is not None and table is not None:
        raise SettingsError("<trim_idle> and <table> exclude each other", trim_idle=idle.seconds, table="TABLE")
    place, places = parse_place(out), [parse_place(each) for each in destinations]
    refuse_overlap(place, places)
    trims = None if table is None else read_trims(table)
    dataset, clips = _clips(places, trims, idle, on_keyframes=on_keyframes)
    if dataset is not None and not made_by_run(dataset.root):
        if keep is not None:
            raise SettingsError("<keep> is for what vidprep made; <table> takes episodes", keep=keep, table="TABLE")
        listed, settings = list_episodes(dataset, clips or (), columns_of(trims, clips))
    else:
        listed, settings = list_videos(places, keep, trims, clips, on_keyframes=on_keyframes)
    options = RunOptions(jobs=jobs, overwrite=overwrite)
    request = make_request(listed, place, settings, SourceOptions(), options, reporter)
    refuse_others(place, request.place.read_known_units(), listed, overwrite=overwrite)
    root = request.place.root
    if dataset is None or request.place.storage.is_remote:
        return execute(request)

    kept = with_videos(dataset, {unit.id for unit in listed.units})

    def complete(summary: Summary) -> None:
        if summary.is_complete and not summary.stopped:
            threads = jobs or default_jobs()
            summary.left_out = write_robot_dataset(kept, root, settings, "last", threads, reporter.message)
            tell_left_out(summary.left_out, reporter.message)

    return execute(request, lambda: forget_robot_dataset(root), complete)


def _clips(
    places: Sequence[Path | str], trims: Trims | None, idle: _Idle, *, on_keyframes: bool
) -> tuple[LeRobotDataset | None, list[Clip] | None]:
    """Return the LeRobot dataset that a destination also is, with the episodes to make, and these. Raises SettingsError, SourceError."""
    from vidprep.formats.lerobot import LeRobotDataset
    from vidprep.transcode.destination.run_file import made_by_run
    from vidprep.transcode.selection.robot import Clip, clips_by_table, clips_that_move, keyframes_in, widen, with_clips
    from vidprep.transcode.sources.robot import is_robot_dataset

    robots = [place for place in places if isinstance(place, Path) and is_robot_dataset(place)]
    if not robots:
        if idle.seconds is not None:
            raise SettingsError("<trim_idle> is for a LeRobot dataset", trim_idle=idle.seconds)
        if trims is not None and trims.of_episodes:
            raise SettingsError(f"{trims.path}: has episode_index in place of id, which is for a LeRobot dataset")
        return None, None
    if len(places) > 1:
        raise SettingsError(f"{robots[0]}: is a LeRobot dataset; select from one at a time, and merge them by LeRobot")
    dataset = LeRobotDataset.read(robots[0].absolute())
    if idle.seconds is not None:
        clips = clips_that_move(dataset, idle.seconds, drops=idle.drops)
    elif trims is None:
        if made_by_run(dataset.root):
            return dataset, None
        clips = [Clip(episode, 0, episode.length) for episode in dataset.episodes]
    elif trims.of_episodes:
        clips = clips_by_table(dataset, trims.cuts, trims.path)
    else:
        raise SettingsError(f"{robots[0]}: is a LeRobot dataset; give the column episode_index in place of id")
    if on_keyframes or not made_by_run(dataset.root):  # whose encoder is not known
        clips = widen(clips, partial(keyframes_in, dataset))
    return with_clips(dataset, clips), clips


@command_of(select, click.argument("destinations", metavar="DST… OUT", type=FolderOrUrl(), nargs=-1, required=True))
def select_command(destinations: tuple[Path | str, ...], quiet: bool = False, **given: Any) -> None:
    """Make OUT of some videos, or some frames, of DST (or of several destinations of equal settings), without encoding what stays.

    Packets and JPEGs are copied. Where frames begin or end between two keyframes, what stays of that GOP is encoded again and
    verified. OUT is a destination like DST: its rows say from which video and frames they came. To continue after a stop, run the
    same command again. DST stays as it is.

    \b
    vidprep select ready/ train/ --keep "split == 'train' and psnr_y_db > 35"
    vidprep select ready/ clips/ --table trims.csv      columns id, start_frame, end_frame
    vidprep select ready1/ ready2/ all/                 several become one
    """
    from vidprep.transcode.run.progress import Progress

    if len(destinations) < 2:
        raise SettingsError("give one destination or more, and OUT")
    reporter = Progress(is_shown=True, has_bar=not quiet)
    idle = _Idle(given.pop("trim_idle", None), given.pop("drop_idle", False))
    usual: dict[str, Any] = {"keep": None, "table": None, "jobs": None, "on_keyframes": False, "overwrite": False}
    summary = _run(destinations[:-1], destinations[-1], reporter, idle=idle, **usual | given)
    sys.exit(summary.exit_code)
