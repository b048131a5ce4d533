"""`sweep`, `tune` and `bench` for Python."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from vidprep.formats.errors import MissingError, SettingsError
from vidprep.transcode.settings.keywords import PictureKeywords, SourceKeywords, built
from vidprep.transcode.settings.options import Retime, Scale
from vidprep.transcode.settings.run_options import SourceOptions
from vidprep.transcode.settings.typed import typed
from vidprep.transcode.workers.unguarded import end_if_worker_starts

if TYPE_CHECKING:
    from vidprep.transcode.choose.tune import Tuned
    from vidprep.transcode.sources.unit import Unit


class SampleKeywords(SourceKeywords, PictureKeywords):
    """Which sources, and what becomes of their pictures."""


@typed
def sweep(
    source: str | Path, out: str | Path, *, codec: Sequence[str] = ("h264", "hevc", "vp9", "av1", "jpeg", "png"),
    crf: Mapping[str, Sequence[int]] | None = None, quality: Sequence[int] = (), gop: Sequence[int] = (16,),
    preset: Mapping[str, Sequence[str]] | None = None, anchor: str = "h264", at_psnr: float = 36.0, sample: int = 12,
    seconds: float = 10.0, sequence_length: int = 8, stride: int = 1, jobs: int | None = None, progress: bool = False,
    on_message: Callable[[str], object] = lambda _text: None, **keywords: Unpack[SampleKeywords],
) -> dict[str, Any]:  # fmt: skip
    """Measure a sample of the sources in many settings; returns what `out`/sweep.json says. The same call again goes on.

    crf, preset: by codec. at_psnr: dB of PSNR-Y at which sizes are compared. sample: so many of the sources, of each the first so
    many seconds. sequence_length, stride: of the random sequences whose reading is timed. Raises SettingsError, MissingError;
    StoppedError when it was interrupted or had no room.
    """
    end_if_worker_starts()
    from datetime import datetime

    from vidprep.transcode.choose.sweep import SweepOptions, measure
    from vidprep.transcode.run.progress import bar
    from vidprep.transcode.workers.child import make, stops_the_run
    from vidprep.transcode.workers.local import Workers, default_jobs

    if keywords.get("hdr") == "keep":
        raise SettingsError("<hdr>: sweeps compare 8 bits; leave it out", hdr="keep")
    values = {name: tuple(each) for name, each in (crf or {}).items()}
    values |= {"jpeg": tuple(quality)} if quality else {}
    options = SweepOptions(
        codecs=tuple(codec), values=values, gops=tuple(gop),
        presets={name: tuple(each) for name, each in (preset or {}).items()}, videos=sample, seconds=seconds,
        sequence_length=sequence_length, stride=stride, retime=built(Retime, keywords), scale=built(Scale, keywords),
    )  # fmt: skip
    units = _units(Path(source), Path(out), keywords)
    with Workers(jobs or default_jobs(), make, stops_the_run) as workers, bar(is_shown=progress) as shown:
        return measure(
            units, Path(out), options, workers, at_db=at_psnr, anchor=anchor, created=f"{datetime.now():%Y-%m-%d %H:%M}",
            on_start=shown.reset, on_row=shown.update, say=on_message,
        )  # fmt: skip


@typed
def tune(
    source: str | Path, *, target_psnr: float = 38.0, sequence_length: int = 8, stride: int = 1, storage: float | None = None,
    loader: str | None = None, codec: Sequence[str] = ("h264", "hevc", "vp9", "av1", "jpeg"), sample: int = 6, seconds: float = 5.0,
    work: str | Path | None = None, jobs: int | None = None, on_message: Callable[[str], object] = lambda _text: None,
    **keywords: Unpack[SampleKeywords],
) -> Tuned:  # fmt: skip
    """Measure on a sample of the sources what to make of them for how the network reads, and recommend one.

    target_psnr: dB, the 1st percentile of PSNR-Y that every video must reach. storage: MB/s that it gives one reader. loader: what
    will read encoded videos, torchcodec or decord; None for vidprep's own. work: a folder that keeps trials; a stopped call goes
    on there. Raises SettingsError, MissingError; StoppedError when it was interrupted or had no room.
    """
    end_if_worker_starts()
    from vidprep.transcode.choose.sweep import SweepOptions
    from vidprep.transcode.choose.tune import Reading, recommend
    from vidprep.transcode.workers.child import make, stops_the_run
    from vidprep.transcode.workers.local import Workers, default_jobs

    if keywords.get("hdr") == "keep":
        raise SettingsError("<hdr>: 8 bits are tried; leave it out", hdr="keep")
    options = SweepOptions(
        codecs=tuple(codec),
        videos=sample,
        seconds=seconds,
        scale=built(Scale, keywords),
        retime=built(Retime, keywords),
    )
    if "png" in options.codecs:
        raise SettingsError("<codec>: give codecs and jpeg", codec="png")
    if loader and importlib.util.find_spec(loader) is None:
        raise MissingError(f"--loader {loader}: not installed: pip install {loader}")
    reading = Reading(sequence_length, stride, storage * 1e6 if storage else None, loader)
    with tempfile.TemporaryDirectory(prefix="vidprep-tune-") as temporary:
        folder = Path(work or temporary)
        units = _units(Path(source), folder, keywords)
        with Workers(jobs or default_jobs(), make, stops_the_run) as workers:
            return recommend(units, folder, options, reading, target_psnr, workers, say=on_message)


def _units(source: Path, out: Path, keywords: Mapping[str, Any]) -> tuple[Unit, ...]:
    from vidprep.transcode.sources.listing import find_sources

    return find_sources(source, out, **asdict(built(SourceOptions, keywords))).units


@typed
def bench(
    stores: str | Path | Sequence[str | Path], *, loader: Sequence[str] = (), pattern: Sequence[str] = ("consecutive", "single"),
    frames: int = 8, stride: int = 4, workers: Sequence[int] = (1,), cache: str = "warm", seconds: float = 2.0, sample: int = 16,
    seed: int = 0, step_ms: float | None = None, batch_size: int = 8, advise: bool = False,
    on_row: Callable[[str, dict[str, Any]], object] = lambda _kind, _row: None,
    on_note: Callable[[str], object] = lambda _text: None, on_step: Callable[[str], object] = lambda _text: None,
) -> dict[str, Any]:  # fmt: skip
    """Time loaders on stores, side by side; those whose pixels are wrong are named and not timed.

    Returns notes, and rows under `cell`, `training` and `advice`. loader: names, empty for all that are installed. pattern: how
    frames are asked for. frames: of a sequence. cache: warm, cold, or both. seconds: of each cell, at least. step_ms: simulate
    training with a step of this time. advise: search for the number of workers and the batch size. on_row: called with the kind
    of each row and the row; on_note: with what was left out; on_step: with what is being done. Raises SettingsError, MissingError,
    StoreError.
    """
    end_if_worker_starts()
    from datetime import datetime

    from vidprep.transcode.choose.bench.bench import BenchOptions, add_speed_ups, survey
    from vidprep.transcode.choose.bench.results import machine, results

    caches = ("warm", "cold") if cache == "both" else (cache,)
    options = BenchOptions(
        tuple(loader), tuple(pattern), frames, stride, tuple(workers), caches, seconds, sample, seed
    )  # fmt: skip
    given = [stores] if isinstance(stores, str | Path) else stores
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
