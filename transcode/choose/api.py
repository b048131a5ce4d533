"""`sweep`, `tune` and `bench` for Python."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from vidprep.formats.errors import MissingError, SettingsError
from vidprep.formats.option import Option, options_of
from vidprep.formats.profiles import CODECS
from vidprep.transcode.choose.bench.patterns import PATTERNS
from vidprep.transcode.settings.keyword_types import SampleKeywords
from vidprep.transcode.settings.keywords import SAMPLE, build_options, build_scale
from vidprep.transcode.settings.options import Retime
from vidprep.transcode.settings.parse import parse_by_codec, parse_names, parse_numbers
from vidprep.transcode.settings.run import HDR
from vidprep.transcode.settings.run_options import SourceOptions
from vidprep.transcode.settings.typed import typed

if TYPE_CHECKING:
    from vidprep.transcode.choose.tune import Tuned
    from vidprep.transcode.sources.unit import Unit

BATCH_SIZE = 8
_SAMPLE_OPTIONS = tuple(chain.from_iterable(map(options_of, SAMPLE)))


def _ignore(*_: object) -> None:
    """What is called where nobody wants to be told."""


def _crfs_of_codecs(written: Sequence[str]) -> dict[str, tuple[int, ...]]:
    return {codec: parse_numbers(values) for codec, values in parse_by_codec(written).items()}


def _presets_of_codecs(written: Sequence[str]) -> dict[str, tuple[str, ...]]:
    return {codec: parse_names(values) for codec, values in parse_by_codec(written).items()}


@typed(*_SAMPLE_OPTIONS)
def sweep(
    source: str | Path,
    out: str | Path,
    *,
    hdr: Annotated[str | None, Option("PQ and HLG are tone-mapped to SDR.", choices=HDR)] = None,
    codec: Annotated[Sequence[str], Option("Codecs to compare.", "LIST", parse=parse_names)] = (*CODECS, "jpeg", "png"),
    crf: Annotated[
        Mapping[str, Sequence[int]] | None,
        Option(
            "CRFs to try for a codec; BD-rates need four. Default: four that span about 32 to 44 dB.", "CODEC=LIST", repeated=True,
            parse=_crfs_of_codecs,
        ),
    ] = None,
    quality: Annotated[
        Sequence[int], Option("JPEG qualities to try. Default: four.", "LIST", parse=parse_numbers)
    ] = (),
    gop: Annotated[
        Sequence[int], Option("Keyframe intervals to try, in frames.", "LIST", parse=parse_numbers)
    ] = (16,),
    preset: Annotated[
        Mapping[str, Sequence[str]] | None,
        Option(
            "Presets to try for a codec. Default: the one that transcode takes.", "CODEC=LIST", repeated=True,
            parse=_presets_of_codecs,
        ),
    ] = None,
    anchor: Annotated[str, Option("The codec that the others are compared with first.", "CODEC")] = "h264",
    at_psnr: Annotated[float, Option("Compare sizes at this PSNR-Y.", "DB", above=0, most=100, unit="dB")] = 36.0,
    sample: Annotated[int, Option("How many of the sources to measure.", "N", least=1)] = 12,
    seconds: Annotated[float, Option("How much of each source to take, from its start.", "SECONDS", least=0.1)] = 10.0,
    sequence_length: Annotated[int, Option("Frames per sequence when reading is timed.", "N", least=1)] = BATCH_SIZE,
    stride: Annotated[int, Option("Distance between the frames of a sequence.", "N", least=1)] = 1,
    jobs: Annotated[int | None, Option("Videos at a time. Default: one per core.", "N", least=1)] = None,
    progress: bool = False,
    on_message: Callable[[str], object] | None = None,
    **keywords: Unpack[SampleKeywords],
) -> dict[str, Any]:  # fmt: skip
    """Encode a sample of the sources in many settings and compare size, quality and reading speed.

    Repeat the call to continue a sweep that was stopped.

    Args:
        source: The folder, file or table of videos.
        out: A folder for the trials and for sweep.json.
        progress: Show a progress bar on stderr.
        on_message: Called with each line that the command would print.

    Returns:
        The content of sweep.json.

    Raises:
        SettingsError: A value is not allowed.
        SourceError: `source` cannot be used.
        DestinationError: `out` holds files that are not of a sweep.
        MissingError: A library is not installed.
        StoppedError: The sweep was interrupted, or the disk is full.
    """
    from datetime import datetime

    from vidprep.transcode.choose.sweep import FILES, SweepOptions, check_out, measure
    from vidprep.transcode.run.progress import bar
    from vidprep.transcode.workers.child import make, stops_the_run
    from vidprep.transcode.workers.local import LocalPool, default_jobs

    if hdr == "keep":
        raise SettingsError("<hdr>: sweeps compare 8 bits; leave it out", hdr="keep")
    values = {name: tuple(each) for name, each in (crf or {}).items()}
    values |= {"jpeg": tuple(quality)} if quality else {}
    options = SweepOptions(
        codecs=tuple(codec), values=values, gops=tuple(gop),
        presets={name: tuple(each) for name, each in (preset or {}).items()}, videos=sample, seconds=seconds,
        sequence_length=sequence_length, stride=stride, retime=build_options(Retime, keywords), scale=build_scale(keywords),
    )  # fmt: skip
    check_out(Path(out), FILES)
    units = _units(Path(source), Path(out), keywords)
    with LocalPool(jobs or default_jobs(), make, stops_the_run) as workers, bar(is_shown=progress) as shown:
        return measure(
            units, Path(out), options, workers, at_db=at_psnr, anchor=anchor, created=f"{datetime.now():%Y-%m-%d %H:%M}",
            on_start=shown.reset, on_row=shown.update, say=on_message or _ignore,
        )  # fmt: skip


@typed(*_SAMPLE_OPTIONS)
def tune(
    source: str | Path,
    *,
    hdr: Annotated[str | None, Option("PQ and HLG are tone-mapped to SDR.", choices=HDR)] = None,
    target_psnr: Annotated[float, Option("The quality to reach, as in transcode.", "DB", least=10, most=80, unit="dB")] = 38.0,
    sequence_length: Annotated[int, Option("Frames per sequence.", "N", least=1)] = BATCH_SIZE,
    stride: Annotated[int, Option("Distance between the frames of a sequence.", "N", least=1)] = 1,
    storage: Annotated[float | None, Option("How fast the storage serves one reader.", "MB/S", above=0)] = None,
    loader: Annotated[
        str | None,
        Option(
            "The library that training will read videos with. Default: vidprep's own reader.", choices=("torchcodec", "decord")
        ),
    ] = None,
    codec: Annotated[Sequence[str], Option("Codecs to try.", "LIST", parse=parse_names)] = (*CODECS, "jpeg"),
    sample: Annotated[int, Option("How many of the sources to measure.", "N", least=1)] = 6,
    seconds: Annotated[float, Option("How much of each source to take, from its start.", "SECONDS", least=0.1)] = 5.0,
    work: Annotated[
        str | Path | None, Option("Keep the trials here, so that a stopped command can go on.", "FOLDER", path="any")
    ] = None,
    jobs: Annotated[int | None, Option("Videos at a time. Default: one per core.", "N", least=1)] = None,
    on_message: Callable[[str], object] | None = None,
    **keywords: Unpack[SampleKeywords],
) -> Tuned:  # fmt: skip
    """Measure on a sample of the sources which format, codec, CRF and keyframe interval suit a network's way of reading.

    Args:
        source: The folder, file or table of videos.
        on_message: Called with each line that the command would print.

    Returns:
        Tuned, with the options to use and what was measured.

    Raises:
        SettingsError: A value is not allowed.
        SourceError: `source` cannot be used.
        DestinationError: `work` holds files that are not of such a search.
        MissingError: A library is not installed.
        StoppedError: The search was interrupted, or the disk is full.
    """
    from vidprep.transcode.choose.sweep import SweepOptions, check_out
    from vidprep.transcode.choose.tune import Reading, recommend
    from vidprep.transcode.workers.child import make, stops_the_run
    from vidprep.transcode.workers.local import LocalPool, default_jobs

    if hdr == "keep":
        raise SettingsError("<hdr>: 8 bits are tried; leave it out", hdr="keep")
    options = SweepOptions(
        codecs=tuple(codec),
        videos=sample,
        seconds=seconds,
        scale=build_scale(keywords),
        retime=build_options(Retime, keywords),
    )
    if "png" in options.codecs:
        raise SettingsError("<codec>: give codecs and jpeg", codec="png")
    if loader and importlib.util.find_spec(loader) is None:
        raise MissingError(f"--loader {loader}: not installed: pip install {loader}")
    reading = Reading(sequence_length, stride, storage * 1e6 if storage else None, loader)
    with tempfile.TemporaryDirectory(prefix="vidprep-tune-") as temporary:
        folder = Path(work or temporary)
        check_out(folder, ("prepared", "lossless", *CODECS, "jpeg"))
        units = _units(Path(source), folder, keywords)
        with LocalPool(jobs or default_jobs(), make, stops_the_run) as workers:
            return recommend(units, folder, options, reading, target_psnr, workers, say=on_message or _ignore)


def _units(source: Path, out: Path, keywords: Mapping[str, Any]) -> tuple[Unit, ...]:
    from vidprep.transcode.sources.listing import find_sources

    return find_sources(source, out, **asdict(build_options(SourceOptions, keywords))).units


@typed()
def bench(
    stores: str | Path | Sequence[str | Path],
    *,
    loader: Annotated[
        Sequence[str], Option("Time only this loader; may be repeated. Default: all that are installed.", "NAME")
    ] = (),
    pattern: Annotated[
        Sequence[str], Option("How frames are asked for; may be repeated.", choices=PATTERNS)
    ] = ("consecutive", "single"),
    frames: Annotated[int, Option("Frames per sequence.", "N", least=1)] = BATCH_SIZE,
    stride: Annotated[int, Option("Distance between frames in the pattern strided.", "N", least=1)] = 4,
    workers: Annotated[
        Sequence[int], Option("Worker processes that read at once; may be repeated.", "N", least=1)
    ] = (1,),
    cache: Annotated[str, Option("State of the page cache.", choices=("warm", "cold", "both"))] = "warm",
    seconds: Annotated[float, Option("Time each cell for at least this long.", "SECONDS", least=0.01)] = 2.0,
    sample: Annotated[int, Option("How many videos to read.", "N", least=1)] = 16,
    seed: Annotated[int, Option("Seed of the sample and of the requested frames.", "N")] = 0,
    step_ms: Annotated[float | None, Option("Simulate training with a step of this time.", "MS", least=0)] = None,
    batch_size: Annotated[int, Option("Batch size of the simulated training.", "N", least=1)] = BATCH_SIZE,
    advise: Annotated[bool, Option("Search for the number of workers and the batch size.")] = False,
    on_row: Callable[[str, dict[str, Any]], object] | None = None,
    on_note: Callable[[str], object] | None = None,
    on_step: Callable[[str], object] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Time video loaders on stores, side by side. A loader that returns wrong pixels is named and not timed.

    Args:
        stores: One path or several: destinations of runs, exports, or folders of raw videos.
        on_row: Called with the kind of each row ("cell", "training" or "advice") and the row.
        on_note: Called with each line about what was left out.
        on_step: Called with what is being timed.

    Returns:
        A dict with `machine`, `notes`, and the rows under `cell`, `training` and `advice`.

    Raises:
        SettingsError: A value is not allowed.
        StoreError: A path is no store.
        MissingError: A loader that was named is not installed.
    """
    from datetime import datetime

    from vidprep.transcode.choose.bench.bench import BenchOptions, add_speed_ups, survey
    from vidprep.transcode.choose.bench.results import machine, results

    if batch_size != BATCH_SIZE and step_ms is None and not advise:
        raise SettingsError("<batch_size> needs <step_ms>", batch_size=batch_size, step_ms=50)
    caches = ("warm", "cold") if cache == "both" else (cache,)
    options = BenchOptions(
        tuple(loader), tuple(pattern), frames, stride, tuple(workers), caches, seconds, sample, seed
    )  # fmt: skip
    given = [stores] if isinstance(stores, str | Path) else stores
    on_row, on_note, on_step = on_row or _ignore, on_note or _ignore, on_step or _ignore
    on_step("opening")
    found = survey([Path(path) for path in given], options)
    for note in found.notes:
        on_note(note)
    collected: dict[str, Any] = {
        "format": "vidprep bench 1", "created": f"{datetime.now():%Y-%m-%d %H:%M}", "machine": machine(), "notes": list(found.notes),
        "stores": [str(place.path) for place in found.places], "cell": [], "training": [], "advice": [],
    }  # fmt: skip
    for kind, row in results(found.places, options, step_ms, batch_size, advise, on_step):
        collected[kind].append(row)
        add_speed_ups(collected["cell"])
        on_row(kind, row)
    return collected
