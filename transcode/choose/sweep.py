"""`sweep`: encode a sample of the sources with many settings and measure the results; figure 2 of NVVL for the user's own
videos.

Sources are decoded, scaled and retimed once, into lossless H.264. Every cell is an ordinary run over these, so it is
verified, isolated and resumed like any run. Measurements are written to sweep.parquet (a row for each cell and video)
and sweep.json (the summary), which `vidprep report` draws.
"""

from __future__ import annotations

import io
import json
import random
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vidprep.formats import open_store
from vidprep.formats.errors import DestinationError, MissingError, SettingsError, StoreError, for_json, printable
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.manifest.table import manifest_rows
from vidprep.formats.model import SourceState
from vidprep.formats.option import Option
from vidprep.formats.profiles import CODECS, OTHER_NAMES
from vidprep.formats.storage.local import replacing
from vidprep.formats.stores.base import StoredVideo
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.check.other_readers import LOADERS
from vidprep.transcode.choose.sweep_tables import SUMMARY_NAME, SWEEP_FORMAT, curves_of, scale_to_limited
from vidprep.transcode.run.target import excerpt, run_trial
from vidprep.transcode.settings.options import QualityGate, Retime, Scale
from vidprep.transcode.settings.output import FrameOutput, VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit, choose
from vidprep.transcode.unit.job import Job, JobResult
from vidprep.transcode.unit.target_search import why_unscored
from vidprep.transcode.workers.pool import Pool

READS = 40


def read_times(
    root: Path, ids: Sequence[str], length: int, stride: int, loader: str | None = None
) -> tuple[float | None, float | None]:
    """Return the median milliseconds to read a random frame, and a random sequence, of open files in the page cache, with
    one thread.

    A video too short for a sequence is read from start to end.

    Args:
        root: The store.
        ids: Videos to read.
        length: Frames of a sequence.
        stride: Distance between them.
        loader: One of LOADERS, for encoded videos; None reads through `open_store`.
    """
    if not ids:
        return None, None
    readers, rng = _readers(root, ids, loader), random.Random(0)
    for read, _ in readers.values():
        read([0])
    medians = []
    for span in (1, (length - 1) * stride + 1):
        taken = []
        for _ in range(READS):
            read, count = readers[rng.choice(ids)]
            start = rng.randrange(max(1, count - span + 1))
            numbers = list(range(start, min(start + span, count), stride))
            began = time.perf_counter()
            read(numbers)
            taken.append((time.perf_counter() - began) * 1e3)
        medians.append(statistics.median(taken))
    return medians[0], medians[1]


def _readers(
    root: Path, ids: Sequence[str], loader: str | None
) -> dict[str, tuple[Callable[[list[int]], object], int]]:
    """Return, for each video, a function that reads frames by number, and the number of frames."""
    if loader is None:
        store = open_store(root)
        return {id_: (store[id_].frames, len(store[id_])) for id_ in ids}
    files = {row.id: (root / row.file_name, row.num_frames or 0) for row in manifest_rows(root)}
    return {id_: (LOADERS[loader](files[id_][0]).several, files[id_][1]) for id_ in ids}


TABLE_NAME = "sweep.parquet"
LADDER_DB = (27.0, 32.0, 37.0, 42.0)
STILL_CODECS = ("jpeg", "png")
STILLS_EACH = 8
FILES = ("prepared", "cells", TABLE_NAME, SUMMARY_NAME, "report.html", "report.md", "report.json")
CODEC = Option("Codecs to compare.", choices=(*CODECS, *STILL_CODECS), other_names=OTHER_NAMES)
LOSSLESS = EncoderOptions(crf=0, preset="ultrafast")


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Options of `sweep`.

    Attributes:
        values: CRFs or qualities per codec; default: four values that cover common use
        gops: Keyframe intervals
        presets: Presets per codec
        seconds: Length of their excerpts
        sequence_length: Frames of the random sequences whose reading is timed
        stride: Distance between them
        retime: Frame rate of the excerpts
        scale: Size of the excerpts
        gate: Which scores are taken
    """

    codecs: tuple[str, ...] = (*CODECS, *STILL_CODECS)
    values: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    gops: tuple[int, ...] = (16,)
    presets: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    videos: int = 12
    seconds: float = 10.0
    sequence_length: int = 8
    stride: int = 1
    retime: Retime = field(default_factory=Retime)
    scale: Scale = field(default_factory=Scale)
    gate: QualityGate = field(default_factory=QualityGate)

    def __post_init__(self) -> None:
        for codec in (*self.codecs, *self.values, *self.presets):
            CODEC.check("codec", codec)

    def cells(self) -> list[Cell]:
        """Return all cells. Raises SettingsError for values that a codec does not support."""
        cells = []
        for codec in dict.fromkeys(self.codecs):
            if codec == "png":
                continue
            kinds: list[tuple[int | None, str | None]] = [(None, None)]
            if codec != "jpeg":
                kinds = [(gop, preset) for gop in self.gops for preset in self.presets.get(codec, (None,))]
            for gop, preset in kinds:
                usual = Cell(codec, gop, preset, 90 if codec == "jpeg" else None)
                for value in self.values.get(codec) or ladder(usual.settings()):
                    cells.append(
                        Cell(codec, gop, usual.settings().video.encoder.resolved.preset if gop else None, value)
                    )
                    cells[-1].settings()
        return list(dict.fromkeys(cells))


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting.

    Attributes:
        value: CRF or JPEG quality; None for the codec's default
    """

    codec: str
    gop: int | None
    preset: str | None
    value: int | None

    @property
    def curve(self) -> str:
        return "jpeg" if self.codec == "jpeg" else f"{self.codec} gop {self.gop} preset {self.preset}"

    @property
    def name(self) -> str:
        return f"{self.curve} {'quality' if self.codec == 'jpeg' else 'crf'} {self.value}".replace(" ", "_")

    def settings(self) -> RunSettings:
        if self.codec == "jpeg":
            assert self.value is not None
            return RunSettings(FrameOutput(quality=self.value))
        assert self.gop is not None
        crf = None if self.value is None else float(self.value)
        return RunSettings(VideoOutput(EncoderOptions(codec=self.codec, gop=self.gop, preset=self.preset, crf=crf)))


def ladder(settings: RunSettings) -> tuple[int, ...]:
    """Return four quality settings, coarsest first."""
    scale = settings.output.quality_scale
    return tuple(dict.fromkeys(scale.values[scale.guess(db)] for db in LADDER_DB))


def measure(
    units: Sequence[Unit],
    out: Path,
    options: SweepOptions,
    workers: Pool[Job, JobResult],
    *,
    at_db: float,
    anchor: str | None,
    created: str,
    on_start: Callable[[int], object] = lambda _count: None,
    on_row: Callable[[], object] = lambda: None,
    say: Callable[[str], object] = lambda _text: None,
) -> dict[str, Any]:
    """Measure every cell, write the table and the summary into `out`, and return the summary. What is there is kept.

    Raises SettingsError when no source of the sample can be read, MissingError, StoppedError.
    """
    cells = options.cells()
    anchor = _anchor(cells, anchor)
    if "png" in options.codecs:
        _check_pillow()
    sample = choose(units, options.videos)
    on_start(len(sample) * (1 + len(cells)))
    made = prepare(sample, out / "prepared", options, workers, on_row=on_row)
    prepared = outputs_as_sources(made, out / "prepared")
    left_out = [(row.id, row.message) for row in made if not row.ok]
    for id_, why in left_out:
        say(f"left out: {id_}: {why}")
    if not prepared:
        raise SettingsError(f"none of the {len(sample)} sampled sources can be read")
    frames = open_store(out / "prepared")
    png = {id_: _estimate_png(frames[id_]) for id_ in prepared} if "png" in options.codecs else {}
    rows: list[dict[str, Any]] = []
    timed_rows: list[dict[str, Any]] = []
    failed, not_scored = list[ManifestRow](), dict[str, str]()
    for cell in cells:
        root, settings = out / "cells" / cell.name, replace(cell.settings(), gate=options.gate)
        made = run_trial(settings, list(prepared.values()), root, workers, on_row=lambda _row: on_row())
        failed += [row for row in made if not row.ok]
        _say_of_trial(made, cell, not_scored, say)
        rows += [_measure(cell, row) for row in made if row.ok]
        timed_rows.append(_time_reading(cell, root, [row.id for row in made if row.ok], options))
    if not rows:
        why = "".join(f"; the first: {row.id}: {row.message}" for row in failed[:1])
        raise SettingsError(f"no setting could be tried on any video{why}")
    _write_table(out / TABLE_NAME, rows)
    summary = {
        "format": SWEEP_FORMAT,
        "created": created,
        "settings": asdict(options),
        "sampled_from": len(units),
        "videos": [{"id": id_, "png": png.get(id_)} for id_ in prepared],
        "left_out": [{"id": id_, "why": why} for id_, why in left_out],
        "not_scored": [{"id": id_, "why": lacks} for id_, lacks in not_scored.items()],
    }
    summary |= curves_of(rows, timed_rows, png, at_db=at_db, anchor=anchor)
    text = json.dumps(for_json(summary), indent=1, default=str)
    with replacing(out / SUMMARY_NAME) as file:
        file.write(text.encode())
    written: dict[str, Any] = json.loads(text)
    return written


def _anchor(cells: Sequence[Cell], anchor: str | None) -> str:
    """Return the curve with which others are compared. Raises SettingsError if there is none, or none of that name."""
    curves = list(dict.fromkeys(cell.curve for cell in cells))
    if not curves:
        raise SettingsError("<codec> alone makes no curve; add another", codec="png")
    named = [name for name in curves if (anchor or "h264") in (name, name.split()[0])]
    if anchor is not None and not named:
        raise SettingsError(f"<anchor>: not one of {', '.join(curves)}", anchor=anchor)
    return (named or curves)[0]


def _say_of_trial(
    made: Sequence[ManifestRow], cell: Cell, not_scored: dict[str, str], say: Callable[[str], object]
) -> None:
    """Say which videos failed, and once for each which were not scored."""
    for row in made:
        if not row.ok:
            say(f"left out of {cell.name}: {row.id}: {row.message}")
        elif (lacks := why_unscored(row)) and row.id not in not_scored:
            not_scored[row.id] = lacks
            say(f"not scored: {row.id}: {lacks}")


def check_out(out: Path, own: Collection[str]) -> None:
    """Raise DestinationError if a folder contains files that are not from trials.

    Args:
        out: The folder.
        own: Names of trial files, up to a "_".
    """
    names = sorted(each.name for each in out.iterdir()) if out.is_dir() else []
    others = [name for name in names if name[0] != "." and name.split("_")[0] not in own]
    if others:
        raise DestinationError(
            f"holds {printable(others[0])}, which is not of these trials; give a new folder", path=out
        )


def prepare(
    sample: Sequence[Unit],
    root: Path,
    options: SweepOptions,
    workers: Pool[Job, JobResult],
    *,
    on_row: Callable[[], object] = lambda: None,
) -> list[ManifestRow]:
    """Make lossless copies of the first seconds of the sources, scaled and retimed."""
    settings = RunSettings(VideoOutput(LOSSLESS), retime=options.retime, scale=options.scale)
    cuts = [excerpt(unit, options.seconds) for unit in sample]
    return run_trial(settings, cuts, root, workers, on_row=lambda _row: on_row())


def outputs_as_sources(rows: Sequence[ManifestRow], root: Path) -> dict[str, Unit]:
    """Return the outputs of a trial as sources of the next one, by id."""
    units = {}
    for row in rows:
        if row.ok:
            path = root / row.file_name
            units[row.id] = Unit(row.id, str(path), *SourceState.build(path.stat()))
    return units


def _measure(cell: Cell, row: ManifestRow) -> dict[str, Any]:
    if row.psnr_y_db is None or row.psnr_yuv_db is None or row.psnr_y_p1_db is None or not row.num_frames:
        raise StoreError(f"{row.id}: its row in cell {cell.name} has no scores; remove the folder and sweep again")
    luma, planes, low = row.psnr_y_db, row.psnr_yuv_db, row.psnr_y_p1_db
    if cell.codec == "jpeg":
        luma, planes = scale_to_limited(luma, planes)
        low, _ = scale_to_limited(low, low)
    has_xpsnr = cell.codec != "jpeg"  # of full-range samples it is about 0.7 dB less, and no factor corrects it
    return asdict(cell) | {
        "curve": cell.curve,
        "cell": cell.name,
        "id": row.id,
        "num_frames": row.num_frames,
        "width": row.width,
        "height": row.height,
        "size_bytes": row.size_bytes,
        "psnr_y_db": luma,
        "psnr_yuv_db": planes,
        "psnr_y_p1_db": low,
        "ssim": row.ssim,
        "vmaf": row.vmaf,
        "xpsnr_db": row.xpsnr_db if has_xpsnr else None,
        "encode_seconds": row.encode_seconds,
        "cpu_seconds": row.cpu_seconds,
    }


def _time_reading(cell: Cell, root: Path, ids: list[str], options: SweepOptions) -> dict[str, Any]:
    frame, sequence = read_times(root, ids, options.sequence_length, options.stride)
    return {"cell": cell.name, "ms_per_frame": frame, "ms_per_sequence": sequence}


def _estimate_png(video: StoredVideo) -> dict[str, float]:
    """Return the estimated bytes of all frames of a video as PNG, from a few of them, and the median milliseconds to
    decode one by Pillow.
    """
    from PIL import Image

    spread = sorted({(2 * n + 1) * len(video) // (2 * STILLS_EACH) for n in range(STILLS_EACH)})
    sizes, taken = [], []
    for frame in video.frames(spread):
        file = io.BytesIO()
        Image.fromarray(frame).save(file, "PNG")
        sizes.append(file.tell())
        file.seek(0)
        began = time.perf_counter()
        Image.open(file).load()
        taken.append((time.perf_counter() - began) * 1e3)
    size = round(statistics.mean(sizes) * len(video))
    return {
        "size_bytes": size,
        "ms_per_frame": statistics.median(taken),
        "num_frames": len(video),
        "measured": len(sizes),
    }


def _check_pillow() -> None:
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise MissingError("png needs Pillow: pip install 'vidprep[report]', or leave it out of --codec") from error


def _write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    with replacing(path) as file:
        pq.write_table(pa.Table.from_pylist(rows), file, compression="zstd")
