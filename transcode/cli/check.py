"""Commands that inspect destinations and machines: `show`, `validate`, `index` and `doctor`."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Unpack

import click

from vidprep.formats.errors import MissingError, SettingsError, ShortError, StoreError, count_of, for_json, printable
from vidprep.formats.manifest.remarks import NOTES
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.manifest.table import manifest_paths, manifest_rows
from vidprep.formats.option import Option, options_of
from vidprep.formats.storage.local import check_writable
from vidprep.formats.storage.untrusted import ArrowStream
from vidprep.transcode.check.trainers import READERS
from vidprep.transcode.cli._command import BriefCommand, Command, FolderOrUrl, LocalPath, command_of, missing_for_pages
from vidprep.transcode.destination.run_file import made_by_run
from vidprep.transcode.settings.keyword_types import ValidateKeywords
from vidprep.transcode.settings.parse import check_types
from vidprep.transcode.settings.run import SCORING, SourceOptions
from vidprep.transcode.sources.outputs import STATE_DIR

if TYPE_CHECKING:
    from vidprep.transcode.audit.audit import AuditReport
    from vidprep.transcode.check.doctor import Finding
    from vidprep.transcode.check.indexing import Indexed
    from vidprep.transcode.check.validate import ValidationReport
    from vidprep.transcode.settings.run import RunSettings
    from vidprep.transcode.sources.unit import Unit


HEAD = f"{'size':>10}{'frames':>8}{'keyframes':>10}{'kB':>9}{'of source':>10}{'PSNR-Y':>8}{'worst':>7}{'SSIM':>8}  id"
PIPED_WIDTH = 160


@click.command("show", cls=Command)
@click.argument("destination", metavar="DST", type=FolderOrUrl(file_okay=False))
@click.argument("id_", metavar="[ID]", required=False)
@click.option("--failed", is_flag=True, help="Show only failed videos.")
@click.option("--warnings", is_flag=True, help="Show only videos with warnings or notes, and each of them.")
def show_command(destination: Path | str, id_: str | None = None, failed: bool = False, warnings: bool = False) -> None:
    """Print the manifest of DST: one line per video, or every column of the video ID.

    \b
    vidprep show ready/                one line per video, and the reason of each failure
    vidprep show ready/ --warnings     every warning, with its code
    vidprep show ready/ sub/clip       all columns of one video
    """
    from vidprep.transcode.sources.scratch import local_folder

    with local_folder(destination) as folder:
        if not manifest_paths(folder):
            if made_by_run(folder):
                raise SettingsError(f"{destination}: has no manifest yet; its first run is in progress, or was stopped")
            why = "has no manifest" if folder.exists() else "does not exist"
            raise SettingsError(f"{destination}: {why}; give the destination of a run")
        rows = manifest_rows(folder)
        if id_ is not None:
            _show_one(_find(rows, id_, destination))
        else:
            _show_all(rows, failed=failed, warnings=warnings)


def _show_all(rows: Iterable[ManifestRow], *, failed: bool, warnings: bool) -> None:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPED_WIDTH
    count, num_failed, num_short, is_headed = 0, 0, 0, False
    splits, classes = Counter[str](), set[str]()
    for row in rows:
        count, num_failed = count + 1, num_failed + (not row.ok)
        num_short += row.error == ShortError.__name__
        if row.ok:  # as they are read
            splits.update([str(row.labels["split"])] if row.labels.get("split") is not None else [])
            classes |= {str(row.labels["label"])} if row.labels.get("label") is not None else set()
        if (failed and row.ok) or (warnings and not row.warnings):
            continue
        if not is_headed and not failed:
            click.echo(HEAD)
            is_headed = True
        click.echo(_line(row)[:width])
        for line in _warnings(row) if warnings else ():
            click.echo(f"    {line}")
    parts = [
        f"{count_of(count, 'video')}, {num_failed} failed{f', {num_short} of them too short' if num_short else ''}"
    ]
    parts += [f"{len(classes):,} class{'es' * (len(classes) != 1)}"] if classes else []
    parts += [", ".join(f"{name} {number:,}" for name, number in splits.items())] if splits else []
    click.echo(printable(f"vidprep: {'; '.join(parts)}"), err=True)


def _find(rows: Iterable[ManifestRow], name: str, destination: Path | str) -> ManifestRow:
    """Return the row of an id, or of an output by file name. Raises SettingsError."""
    names: list[str] = []
    for row in rows:
        if name in (row.id, row.file_name):
            return row
        names += [row.id, *([row.file_name] if row.file_name else [])]
    near = get_close_matches(name, names, 1)
    meant = f"did you mean {near[0]!r}? " if near else ""
    raise SettingsError(f"{destination}: has no video {name!r}; {meant}`vidprep show {destination}` lists them")


def _show_one(row: ManifestRow) -> None:
    for each in fields(row):
        value = getattr(row, each.name)
        if each.name in ("warnings", "warning_codes"):
            continue
        if each.name == "labels":
            for name, label in value.items():
                click.echo(printable(f"label {name}: {label}"))
        elif value not in (None, [], {}):
            click.echo(f"{each.name}: {_shorten(value)}")
    for line in _warnings(row):
        click.echo(line)


def _warnings(row: ManifestRow) -> list[str]:
    codes = row.warning_codes or ["-"] * len(row.warnings)  # version 0.1.0 wrote no codes
    return [
        printable(f"{'note' if code in NOTES else 'warning'}: {code}: {text.removeprefix(f'{code}: ')}")
        for code, text in zip(codes, row.warnings, strict=False)
    ]


def _line(row: ManifestRow) -> str:
    if not row.ok:
        return printable(f"failed: {row.id}: {row.stage}: {row.message}")
    size = f"{row.width}x{row.height}"
    share = f"{(row.size_bytes or 0) / row.source_size_bytes:.0%}" if row.source_size_bytes else "-"
    scores = f"{row.psnr_y_db:>8.2f}{row.psnr_y_min_db:>7.1f}" if row.psnr_y_db is not None else f"{'-':>8}{'-':>7}"
    ssim = f"{row.ssim:>8.4f}" if row.ssim is not None else f"{'-':>8}"
    keyframes = len(row.keyframes) if row.keyframes else "-"
    kilobytes = (row.size_bytes or 0) / 1e3
    labels = "".join(f"  {name}={row.labels[name]}" for name in ("label", "split") if row.labels.get(name) is not None)
    return printable(
        f"{size:>10}{row.num_frames:>8}{keyframes:>10}{kilobytes:>9,.0f}{share:>10}{scores}{ssim}  {row.id}{labels}"
    )


def _shorten(value: object) -> str:
    text = printable(str(value))
    return text if len(text) <= PIPED_WIDTH else f"{text[:PIPED_WIDTH]}… ({len(text):,} characters)"


@check_types(*options_of(SourceOptions), *SCORING)
def validate(
    destination: str | Path,
    *,
    source: str | Path | ArrowStream | None = None,
    sample: Annotated[int | None, Option("Read only N videos again, the same ones each time.", "N", least=1)] = None,
    cross_check: Annotated[
        int, Option("With SRC: score K videos with the ffmpeg command as well; both must agree.", "K", least=0)
    ] = 3,
    seek_check: Annotated[
        int | None,
        Option(
            "Make K random seeks in each video, with PyAV and every installed one of torchcodec, decord and OpenCV.",
            "K",
            least=1,
        ),
    ] = None,
    trainer: Annotated[
        str | None,
        Option(
            "Also tell what this trainer would drop, repeat or crop of each video, by its own arithmetic.",
            choices=READERS,
        ),
    ] = None,
    ffmpeg: Annotated[
        str | Path | None,
        Option("The ffmpeg for --cross-check. Default: VIDPREP_FFMPEG, imageio-ffmpeg.", "PATH", path="file"),
    ] = None,
    jobs: Annotated[int | None, Option("Videos at a time. Default: one per core.", "N", least=1)] = None,
    out: Annotated[
        str | Path | None,
        Option(
            "Also write validation.parquet to FOLDER; of a dataset that vidprep did not make: findings.parquet and report.html.",
            "FOLDER",
            path="folder",
        ),
    ] = None,
    progress: bool = False,
    on_fault: Callable[[str], object] | None = None,
    **which: Unpack[ValidateKeywords],
) -> ValidationReport | AuditReport:
    """Check a finished destination from its bytes and, with `source`, against the videos that it was made from; or a dataset that
    vidprep did not make: of LeRobot, webdataset's tars, a videofolder, a table of videos, or a folder of videos.

    Every video of such a dataset is read to its end, and compared with what the dataset declares: frames, times and rows of each episode.
    Nothing is written to it.

    Give the keywords that chose the sources of the run (`include`, `limit`, ...) here too; with those that leave some
    sources out, only the outputs of the others are checked. `score` adds VMAF and XPSNR to the scores that are computed again; those that
    the run took, too, must agree with the manifest.

    Args:
        destination: An output folder of `transcode` or `burst`, or its URL, of which one video at a time is fetched to TMPDIR and to
            which nothing is written; or the folder of a dataset that vidprep did not make.
        source: The folder, file or table that the run took. Must be given by its name.
        progress: Show a progress bar on stderr.
        on_fault: Called with the text of each fault, or warning, when it is found.

    Returns:
        ValidationReport, whose `faults` lists every fault; of a dataset that vidprep did not make an AuditReport, which has warnings, too.

    Raises:
        StoreError, ManifestError: `destination` is no destination of a run, or cannot be read.
        SettingsError: A value is not allowed.
        SourceError: `source` cannot be used.
        MissingError: A program or library is not installed.
        KeyboardInterrupt: The check was interrupted; nothing was written.
    """
    from vidprep.transcode.check.results import VALIDATION_NAME
    from vidprep.transcode.check.validate import ValidateOptions, check_destination
    from vidprep.transcode.destination.run_file import made_by_run, settings_of
    from vidprep.transcode.run.progress import bar
    from vidprep.transcode.settings.parse import parse_place
    from vidprep.transcode.settings.run import build_gate, build_options
    from vidprep.transcode.sources.scratch import local_folder
    from vidprep.transcode.workers.local import default_jobs

    place, given = parse_place(destination), _GivenSources()
    choice = build_options(SourceOptions, which)
    is_of_others = source is None and isinstance(place, Path) and _is_of_others(place)
    if is_of_others and isinstance(place, Path):
        _refuse_of_ours(place, {"seek_check": seek_check, "ffmpeg": ffmpeg}, which)
    if source is None:
        _refuse_of_sources(which)
    if is_of_others and isinstance(place, Path):
        return _audit(place, sample, trainer, jobs or default_jobs(), out, progress=progress, on_fault=on_fault)
    gate = build_gate(which)
    options = ValidateOptions(sample, cross_check, gate.score, gate.vmaf_model, seek_check or 0, ffmpeg)
    with local_folder(place) as folder, bar(is_shown=progress) as shown:
        if isinstance(source, str | Path) and made_by_run(Path(source)) and not made_by_run(folder):
            raise StoreError(f"was not made by vidprep, and {source} was; did you swap SRC and DST?", path=str(place))
        if source is not None:
            given = _find_given_sources(source, place, settings_of(folder, str(place)), choice)
        report = check_destination(
            folder,
            given.units,
            options,
            url="" if isinstance(place, Path) else place,
            are_all=given.are_all,
            reads_all=given.reads_all,
            jobs=jobs or default_jobs(),
            on_start=shown.reset,
            on_unit=shown.update,
            on_fault=lambda text: on_fault(text.replace(str(folder), str(place))) if on_fault is not None else None,
        )
        report.faults = [text.replace(str(folder), str(place)) for text in report.faults]
        report.trainer = _read_by(trainer, folder)
        if out is not None:
            _copy_results(folder / VALIDATION_NAME, Path(out))
        return report


def _read_by(trainer: str | None, folder: Path) -> list[str]:
    """Return what a trainer drops, repeats or crops, if there is one."""
    if trainer is None:
        return []
    from vidprep.formats.stores.registry import open_store
    from vidprep.transcode.check.trainers import differences

    return [*differences(open_store(folder), trainer)]


def _copy_results(path: Path, out: Path) -> None:
    if path.exists():
        out.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, out)


def _refuse_of_ours(place: Path, given: Mapping[str, Any], which: Mapping[str, Any]) -> None:
    """Raise SettingsError for an option of what vidprep made, which a place is not."""
    for name, value in (*given.items(), *((name, which.get(name)) for name in ("score", "vmaf_model"))):
        if value is not None:
            keywords: dict[str, Any] = {name: value}
            raise SettingsError(f"<{name}> is for what vidprep made, which {place} is not", **keywords)


def _refuse_of_sources(given: Mapping[str, Any]) -> None:
    """Raise SettingsError for an option of sources, which were not given."""
    for name, value in given.items():
        keywords: dict[str, Any] = {name: value}
        raise SettingsError(f"<{name}> is about sources; give them too", **keywords)


class _GivenSources(NamedTuple):
    """The sources that outputs are compared with.

    Attributes:
        units: Units by id; None without sources
        are_all: Whether they are all sources of the destination
        reads_all: Whether outputs without one of them are read, too
    """

    units: dict[str, Unit] | None = None
    are_all: bool = True
    reads_all: bool = True


def _find_given_sources(
    source: str | Path | ArrowStream, place: Path | str, settings: RunSettings, choice: SourceOptions
) -> _GivenSources:
    from vidprep.transcode.run.plan import unit_of_problem
    from vidprep.transcode.settings.parse import parse_source
    from vidprep.transcode.sources.listing import find_sources

    listing = find_sources(
        parse_source(source),
        place,
        choice,
        extension=settings.output.extension,
        takes_pictures=settings.retime.source_rate is not None,
    )
    listed = (*listing.units, *map(unit_of_problem, listing.problems, listing.problem_units))
    are_all = listing.why_partial is None
    is_whole_folder = isinstance(source, str | Path) and Path(source).is_dir()
    is_whole_folder &= not any((choice.include, choice.exclude, choice.limit))
    reads_all = are_all or (is_whole_folder and bool(listing.problems))
    return _GivenSources({unit.id: unit for unit in listed}, are_all, reads_all)


def _is_of_others(place: Path) -> bool:
    """Return whether a place exists that no run and no `pack` has made."""
    return place.exists() and not (place / STATE_DIR).exists() and not (place.is_dir() and manifest_paths(place))


def _audit(
    place: Path,
    sample: int | None,
    trainer: str | None,
    jobs: int,
    out: str | Path | None,
    *,
    progress: bool,
    on_fault: Callable[[str], object] | None,
) -> AuditReport:
    """Check a dataset that vidprep did not make. Raises as `validate` does."""
    from datetime import datetime

    from vidprep.transcode.audit.audit import audit_dataset
    from vidprep.transcode.run.progress import bar

    if out is not None:
        if (absent := missing_for_pages()) is not None:
            raise MissingError(f"a page needs {absent}: pip install 'vidprep[report]'")
        check_writable(Path(out), "give --out another folder")
    with bar(is_shown=progress) as shown:
        report = audit_dataset(
            place,
            sample=sample,
            trainer=trainer,
            jobs=jobs,
            on_finding=lambda finding: on_fault(finding.line) if on_fault is not None else None,
            on_start=shown.reset,
            on_video=shown.update,
        )
    if out is not None:
        from vidprep.transcode.pages.audit_page import write_audit

        write_audit(report, str(place), f"{datetime.now():%Y-%m-%d %H:%M}", Path(out))
    return report


def _tell_trainer(trainer: str | None, report: ValidationReport | AuditReport, *, as_json: bool) -> None:
    if trainer is None:
        return
    for line in () if as_json else report.trainer:
        click.echo(printable(f"{trainer}: {line}"))
    videos = count_of(len(report.trainer), "video")
    click.echo(f"vidprep: {trainer} drops, repeats or crops something of {videos}", err=True)


@command_of(
    validate,
    click.argument("paths", metavar="[SRC] DST", type=FolderOrUrl(), nargs=-1, required=True),
    flags=[click.option("--json", "as_json", is_flag=True, help="Write one JSON object to stdout instead of lines.")],
    first=(
        "sample",
        "cross_check",
        "seek_check",
        "score",
        "trainer",
        "include",
        "exclude",
        "limit",
        "jobs",
        "out",
        "as_json",
    ),
    cls=BriefCommand,
)
def validate_command(paths: tuple[Path | str, ...], quiet: bool = False, as_json: bool = False, **given: Any) -> None:
    """Check a finished destination again, from its bytes: checksums, layout, keyframes, times, every frame decoded.
    Or check a dataset that vidprep did not make: does it hold what it declares?

    With SRC (and the same --include, --limit and so on as the run), every source must have a row, and the frames are
    made again from the sources, compared and scored. Each fault is a line on stdout, with file and offset;
    measurements go to DST/validation.parquet. Of a DST
    behind a URL, one video at a time is fetched to TMPDIR, and nothing is written to the URL.

    A dataset that vidprep did not make is recognised by its files: LeRobot 2.0 to 3.0, tars of webdataset, a videofolder of Hugging
    Face, a table, or a folder of videos. Every video is read to its end. Lines that begin with `warning: ` are no
    faults. Nothing is written to the dataset; --out gets findings.parquet and a page.

    \b
    Exit codes: 0 no fault, 1 faults, 2 wrong usage, 130 interrupted.
    \b
    vidprep validate ready/                   read every output again
    vidprep validate raw/ ready/              and compare it with its source
    vidprep validate other/ --out findings/   a dataset that vidprep did not make
    """
    from vidprep.transcode.audit.audit import AuditReport, summary_lines

    if len(paths) > 2:
        raise SettingsError("give a destination, or its sources and the destination")
    *sources, destination = paths
    source = sources[0] if sources else None
    tell = None if as_json else lambda text: click.echo(printable(text))
    report = validate(destination, source=source, progress=not quiet, on_fault=tell, **given)
    say = partial(click.echo, err=True)
    if as_json:
        click.echo(json.dumps(for_json(report.as_json()), ensure_ascii=False))
    _tell_trainer(given.get("trainer"), report, as_json=as_json)
    if isinstance(report, AuditReport):
        for line in summary_lines(report):
            say(f"vidprep: {printable(line)}")
        counts = count_of(len(report.faults), "fault"), count_of(report.num_warnings, "warning")
        say(f"vidprep: {count_of(report.checked, 'video')} read, {', '.join(counts)}")
        sys.exit(1 if report.faults else 0)
    for name, seeks in report.seeks.items():
        unread = f"; {seeks.unread} videos it does not read ({printable(seeks.reason or '')})" if seeks.unread else ""
        say(f"vidprep: {name}: {count_of(seeks.tried, 'seek')}, {seeks.wrong} to a wrong picture{unread}")
    parts = [f"{count_of(report.checked, 'video')} read again", count_of(len(report.faults), "fault")]
    parts += [f"{report.cross_checked} scored by ffmpeg too"] if report.cross_checked else []
    parts += [f"{report.failed_before} had failed in the run"] if report.failed_before else []
    say(f"vidprep: {', '.join(parts)}")
    if report.not_indexed:
        say(
            f"vidprep: {count_of(report.not_indexed, 'video')} read by their containers, without checksums of GOPs; `vidprep index "
            f"{destination}` indexes them"
        )
    if report.ffmpeg_failed:
        say(f"vidprep: the ffmpeg command did not score every video; the first: {printable(report.ffmpeg_failed)}")
    if report.not_scored:
        say(f"vidprep: not every video got the scores asked for; the first: {printable(report.not_scored)}")
    if report.unwritten:
        say(f"vidprep: nothing was recorded: {report.unwritten}")
    sys.exit(1 if report.faults else 0)


@check_types()
def index(
    folder: str | Path,
    *,
    jobs: Annotated[int | None, Option("Videos at a time. Default: one per core.", "N", least=1)] = None,
    progress: bool = False,
) -> Indexed:
    """Write `gops.parquet` for a destination of an earlier version.

    Each GOP is decoded alone and compared with the frames of the video in order. `open_store` then reads any sequence with
    one read. Videos that are indexed already are not read again.

    Args:
        folder: A destination of `transcode`.
        progress: Show a progress bar.

    Returns:
        Indexed, which videos are read by their containers, and why.

    Raises:
        SettingsError: The folder holds a store of frames.
        InUseError: A run is writing there.
        DestinationError, StoreError, ManifestError: The destination cannot be read or written.
    """
    from vidprep.transcode.check.indexing import index_videos
    from vidprep.transcode.run.progress import bar
    from vidprep.transcode.workers.local import default_jobs

    with bar(is_shown=progress) as shown:
        return index_videos(Path(folder), jobs=jobs or default_jobs(), on_start=shown.reset, on_unit=shown.update)


@command_of(index, click.argument("folder", metavar="DST", type=LocalPath(file_okay=False)))
def index_command(folder: Path, quiet: bool = False, **given: Any) -> None:
    """Index every GOP of DST, a destination of an earlier version, so that any sequence is one read.

    Each GOP is decoded alone and compared with decoding in order. A video of which one differs, or whose packets do not
    tell enough (open GOPs, no keyframe flags), is a line on stdout, with the reason, and is read by its container.

    \b
    Exit codes: 0 all good, 1 some video cannot be read at all, 2 wrong usage, 130 interrupted.
    """
    done = index(folder, progress=not quiet, **given)
    for id_, why in sorted(done.by_container.items()):
        click.echo(printable(f"{id_}: is read by its container: {why}"))
    for id_, why in sorted(done.unreadable.items()):
        click.echo(printable(f"{id_}: cannot be read: {why}"))
    parts = [f"{count_of(done.num_videos, 'video')} in {folder / 'gops.parquet'}"]
    parts += [f"{len(done.by_container)} of them read by their containers"] if done.by_container else []
    parts += [f"{len(done.unreadable)} cannot be read"] if done.unreadable else []
    click.echo(f"vidprep: {', '.join(parts)}", err=True)
    sys.exit(1 if done.unreadable else 0)


@check_types()
def doctor(
    *,
    ffmpeg: Annotated[
        str | Path | None,
        Option("The ffmpeg to examine. Default: VIDPREP_FFMPEG, PATH, imageio-ffmpeg.", "PATH", path="file"),
    ] = None,
    on_finding: Callable[[Finding], object] | None = None,
) -> list[Finding]:
    """Try every codec, engine and library that a run needs on this machine.

    Args:
        on_finding: Called with each finding when it is made.

    Returns:
        One Finding per test. A run will work if `finding.ok` for every one with `finding.needed`.
    """
    from vidprep.transcode.check.doctor import examine

    findings = []
    for finding in examine(ffmpeg):
        findings.append(finding)
        if on_finding is not None:
            on_finding(finding)
    return findings


@command_of(doctor)
def doctor_command(**given: Any) -> None:
    """Test everything that a run needs on this machine, and say how to fix what does not work.

    A rotated clip with audio is encoded with every codec, by both engines and by burst, validated, and read back.
    Exit code 1 if a default is broken.
    """
    findings = doctor(on_finding=_print, **given)
    sys.exit(0 if all(finding.ok or not finding.needed for finding in findings) else 1)


def _print(finding: Finding) -> None:
    click.echo(f"{'ok  ' if finding.ok else 'no  ' if finding.needed else '-   '} {finding.what}: {finding.detail}")
    if not finding.ok:
        click.echo(f"     {finding.advice}")
