"""`validate` and `doctor` for Python."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from vidprep.formats.errors import SettingsError, StoreError
from vidprep.formats.option import Option, options_of
from vidprep.formats.storage.arrow import ArrowStream
from vidprep.transcode.settings.keyword_types import SourceKeywords
from vidprep.transcode.settings.run_options import SourceOptions
from vidprep.transcode.settings.typed import typed

if TYPE_CHECKING:
    from vidprep.transcode.check.finding import Finding
    from vidprep.transcode.check.validate import ValidationReport


@typed(*options_of(SourceOptions))
def validate(
    destination: str | Path,
    *,
    source: str | Path | ArrowStream | None = None,
    sample: Annotated[int | None, Option("Read only N videos again, the same ones each time.", "N", least=1)] = None,
    cross_check: Annotated[
        int, Option("With SRC: score K videos with the ffmpeg command as well; both must agree.", "K", least=0)
    ] = 3,
    vmaf: Annotated[bool, Option("With SRC: score every video by libvmaf too, in the ffmpeg command.")] = False,
    seek_check: Annotated[
        int | None,
        Option(
            "K random seeks in each video, in PyAV and each of torchcodec, decord and OpenCV that is installed.", "K", least=1
        ),
    ] = None,
    ffmpeg: Annotated[
        str | Path | None,
        Option("The ffmpeg for --cross-check and --vmaf. Default: VIDPREP_FFMPEG, imageio-ffmpeg.", "PATH", path="file"),
    ] = None,
    jobs: Annotated[int | None, Option("Videos at a time. Default: one per core.", "N", least=1)] = None,
    out: Annotated[str | Path | None, Option("Put validation.parquet there too.", "FOLDER", path="folder")] = None,
    progress: bool = False,
    on_fault: Callable[[str], object] | None = None,
    **which: Unpack[SourceKeywords],
) -> ValidationReport:  # fmt: skip
    """Check a finished destination from its bytes and, with `source`, against the videos that it was made from.

    Give the keywords that chose the sources of the run (`include`, `limit`, ...) here too; with those that leave some sources out, only
    the outputs of the others are checked.

    Args:
        destination: What `transcode` or `burst` wrote. A URL is copied to TMPDIR first, and nothing is written behind it.
        source: The folder, file or table that the run took. Must be given by its name.
        progress: Show a progress bar on stderr.
        on_fault: Called with the text of each fault when it is found.

    Returns:
        ValidationReport, whose `faults` lists every fault.

    Raises:
        StoreError, ManifestError: `destination` is no destination of a run, or cannot be read.
        SettingsError: A value is not allowed.
        SourceError: `source` cannot be used.
        MissingError: A program or library is not installed.
        KeyboardInterrupt: The check was interrupted; the same call continues it.
    """
    from vidprep.transcode.check.results import VALIDATION_NAME
    from vidprep.transcode.check.validate import ValidateOptions, check_destination
    from vidprep.transcode.destination.run_file import made_by_run, settings_of
    from vidprep.transcode.run.plan import unit_of_problem
    from vidprep.transcode.run.progress import bar
    from vidprep.transcode.settings.keywords import build_options
    from vidprep.transcode.settings.parse import as_place, as_source
    from vidprep.transcode.sources.listing import find_sources
    from vidprep.transcode.sources.scratch import as_folder
    from vidprep.transcode.workers.local import default_jobs

    place, units, are_all = as_place(destination), None, True
    choice = build_options(SourceOptions, which)
    if source is None and which:
        keywords: dict[str, Any] = dict([*which.items()][:1])
        raise SettingsError(f"<{min(keywords)}> chooses sources; give them too", **keywords)
    options = ValidateOptions(sample, cross_check, vmaf, seek_check or 0, ffmpeg)
    with as_folder(place) as folder, bar(is_shown=progress) as shown:
        if isinstance(source, str | Path) and made_by_run(Path(source)) and not made_by_run(folder):
            raise StoreError(f"was not made by vidprep, and {source} was; did you swap SRC and DST?", path=str(place))
        if source is not None:
            found = find_sources(
                as_source(source),
                place,
                extension=settings_of(folder, str(place)).output.extension,
                **asdict(choice),
            )
            asked = (*found.units, *map(unit_of_problem, found.problems, found.problem_units))
            units, are_all = {unit.id: unit for unit in asked}, found.why_partial is None
        report = check_destination(
            folder, units, options, are_all=are_all, jobs=jobs or default_jobs(), on_start=shown.reset, on_unit=shown.update,
            on_fault=lambda text: on_fault(text.replace(str(folder), str(place))) if on_fault is not None else None,
        )  # fmt: skip
        report.faults = [text.replace(str(folder), str(place)) for text in report.faults]
        if out is not None and (folder / VALIDATION_NAME).exists():
            Path(out).mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / VALIDATION_NAME, out)
        return report


@typed()
def doctor(
    destination: str | Path | None = None,
    *,
    ffmpeg: Annotated[
        str | Path | None,
        Option("The ffmpeg to examine. Default: VIDPREP_FFMPEG, PATH, imageio-ffmpeg.", "PATH", path="file"),
    ] = None,
    on_finding: Callable[[Finding], object] | None = None,
) -> list[Finding]:  # fmt: skip
    """Try every codec, engine and library that a run needs on this machine.

    Args:
        destination: A folder or URL; it is tested whether runs can write there.
        on_finding: Called with each finding when it is made.

    Returns:
        One Finding per test. A run will work if `finding.ok` for every one with `finding.needed`.
    """
    from vidprep.transcode.check.doctor import examine, examine_destination
    from vidprep.transcode.settings.parse import as_place

    findings = []
    for finding in chain(examine(ffmpeg), examine_destination(as_place(destination)) if destination else ()):
        findings.append(finding)
        if on_finding is not None:
            on_finding(finding)
    return findings
