"""`tune`: recommend settings for these sources and this way of reading, at a given PSNR or VMAF.

For every codec and a few keyframe intervals, it searches the coarsest CRF that reaches the target, on lossless excerpts,
and measures bytes, scores, milliseconds per sequence and CPU time. Among the Pareto-optimal choices of size and time it
recommends the smallest product; if the speed of the storage is given, the shortest time.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from vidprep.formats.errors import SettingsError, VidprepError
from vidprep.formats.manifest.row import ManifestRow
from vidprep.formats.video.options import EncoderOptions
from vidprep.formats.video.source import Source
from vidprep.transcode.choose.sweep import LOSSLESS, SweepOptions, outputs_as_sources, prepare, read_times
from vidprep.transcode.choose.sweep_tables import MAX_DB
from vidprep.transcode.run.target import MISSES_ALLOWED, PROBE_SECONDS, excerpt, run_trial, search_shared
from vidprep.transcode.settings.options import Limits, Target
from vidprep.transcode.settings.output import FrameOutput, VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit, choose
from vidprep.transcode.unit.job import Job, JobResult
from vidprep.transcode.unit.target_search import score_of_target, why_unscored
from vidprep.transcode.workers.child import Child
from vidprep.transcode.workers.pool import Pool

MAX_GOP = 250
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Reading:
    """Access pattern of the network.

    Attributes:
        stride: Distance between them
        storage: Speed of the storage in bytes per second; None ignores it
        loader: Reader of encoded videos
    """

    sequence_length: int
    stride: int
    storage: float | None = None
    loader: str | None = None

    @property
    def span(self) -> int:
        """Number of frames from the first frame of a sequence to its last, both included."""
        return (self.sequence_length - 1) * self.stride + 1

    def gops(self) -> tuple[int, ...]:
        """Keyframe intervals to try: half of a sequence, one sequence, and two."""
        return tuple(sorted({min(MAX_GOP, max(1, round(self.span * part))) for part in (0.5, 1, 2)}))


@dataclass(frozen=True, slots=True)
class Choice:
    """Measurements of one setting.

    Attributes:
        gop: Keyframe interval; None for JPEGs
        value: CRF or quality
        psnr_y_p1_db: Lowest 1st percentile of PSNR-Y among the videos
        psnr_y_db: Mean of the videos' PSNR-Y, each at most MAX_DB
        total_bytes: Estimated size of the whole dataset
        decode_ms: Decoding time of a sequence
        storage_ms: Time to read its bytes at the given speed of the storage; 0 if none was given
        encode_hours: Estimated time to encode the whole dataset on one core
        vmaf_p1: Lowest 1st percentile of VMAF; None without that score
        vmaf: Mean of the videos' VMAF; None without that score
        xpsnr_db: Mean of the videos' XPSNR, each at most MAX_DB; None without that score, and for JPEGs
    """

    codec: str
    gop: int | None
    value: int
    psnr_y_p1_db: float
    psnr_y_db: float
    bytes_per_frame: float
    total_bytes: float
    decode_ms: float
    storage_ms: float
    encode_hours: float
    vmaf_p1: float | None = None
    vmaf: float | None = None
    xpsnr_db: float | None = None

    @property
    def ms_per_sequence(self) -> float:
        return self.decode_ms + self.storage_ms

    def beats(self, other: Choice) -> bool:
        mine, theirs = (self.total_bytes, self.ms_per_sequence), (other.total_bytes, other.ms_per_sequence)
        return mine != theirs and mine[0] <= theirs[0] and mine[1] <= theirs[1]


@dataclass(frozen=True, slots=True)
class Tuned:
    """Measurements and recommendation of `tune`.

    Attributes:
        choices: All choices that reached the target, smallest first
        best: The recommended one
        reason: Why, in one sentence
        sampled: Number of videos that were measured
        num_videos: Number of videos
        left_out: A message for each codec and source that was not measured
        not_scored: A message for each source that did not get all scores; means are those of the others
        target: The target
    """

    choices: tuple[Choice, ...]
    best: Choice
    reason: str
    sampled: int
    num_videos: int
    left_out: tuple[str, ...]
    not_scored: tuple[str, ...]
    target: Target

    @property
    def pareto(self) -> tuple[Choice, ...]:
        return tuple(one for one in self.choices if not any(other.beats(one) for other in self.choices))


def recommend(
    units: Sequence[Unit],
    work: Path,
    options: SweepOptions,
    reading: Reading,
    target: Target,
    workers: Pool[Job, JobResult],
    *,
    say: Callable[[str], object],
) -> Tuned:
    """Measure and choose.

    Args:
        units: The sources.
        work: Folder of the trials; existing ones are reused.
        options: Excerpts, codecs and scores.
        reading: How the network reads.
        target: Quality to reach.
        workers: The pool.
        say: Receives progress messages.

    Raises:
        SettingsError: No source can be read, or no codec reaches the target.
        StoppedError: A trial was stopped.
    """
    sample = choose(units, options.videos)
    made = prepare(sample, work / "prepared", options, workers)
    ready = tuple(excerpt(unit, PROBE_SECONDS) for unit in outputs_as_sources(made, work / "prepared").values())
    left_out = [f"{row.id}: {row.message}" for row in made if not row.ok]
    if not ready:
        raise SettingsError(f"none of the {len(sample)} sampled sources can be read: {'; '.join(left_out[:3])}")
    again = run_trial(RunSettings(VideoOutput(LOSSLESS)), ready, work / "lossless", workers)
    seconds_each = _total_seconds(sample, options) / len(sample)
    frame_rate = _frames(again) / sum(row.duration_seconds or 0.0 for row in again)
    whole = _DatasetSize(
        frames=seconds_each * len(units) * frame_rate, decode_cpu=max(0.0, _cpu(made) - _cpu(again)) / _frames(again)
    )
    choices, not_scored = [], dict[str, str]()
    for codec in options.codecs:
        for gop in (None,) if codec == "jpeg" else reading.gops():
            name = codec if gop is None else f"{codec} gop {gop}"
            say(f"trying {name}")
            output = FrameOutput() if gop is None else VideoOutput(EncoderOptions(codec=codec, gop=gop))
            settings = RunSettings(output, gate=options.gate)
            root = work / name.replace(" ", "_")
            try:
                aimed = replace(settings, target=target)
                value = search_shared(aimed, ready, root, workers=workers, say=lambda _text: None).value
                rows = run_trial(settings.replace_quality(value), ready, root / f"{value}", workers)
                not_scored |= {row.id: f"{row.id}: {lacks}" for row in rows if (lacks := why_unscored(row))}
                choices.append(_choice(codec, gop, value, rows, root / f"{value}", reading, whole, target))
            except SettingsError as error:
                left_out.append(f"{name}: {error.on_command_line}")
    if not choices:
        raise SettingsError(f"nothing reaches <{min(target.option)}>: {'; '.join(left_out)}", **target.option)
    choices.sort(key=lambda choice: choice.total_bytes)
    best, reason = _recommend(choices, reading)
    return Tuned(
        tuple(choices), best, reason, len(ready), len(units), tuple(left_out), tuple(not_scored.values()), target
    )


@dataclass(frozen=True, slots=True)
class _DatasetSize:
    """Estimates for the whole dataset.

    Attributes:
        decode_cpu: CPU seconds to decode and scale a source frame, beyond a lossless copy
    """

    frames: float
    decode_cpu: float


def _choice(
    codec: str,
    gop: int | None,
    value: int,
    rows: list[ManifestRow],
    root: Path,
    reading: Reading,
    whole: _DatasetSize,
    target: Target,
) -> Choice:
    """Return the measurements of one setting. Raises SettingsError if too few videos reach the target, or if they cannot
    be read.
    """
    good = [row for row in rows if row.ok]
    _check_reached(good, target, f"{'quality' if gop is None else 'CRF'} {value}")
    decode_ms = _decode_ms(root, [row.id for row in good], reading, reading.loader if gop else None)
    size = sum(row.size_bytes or 0 for row in good) / _frames(good)
    needed = reading.sequence_length if gop is None else reading.span - 1 + gop
    return Choice(
        codec=codec,
        gop=gop,
        value=value,
        psnr_y_p1_db=min(row.psnr_y_p1_db or 0.0 for row in good),
        psnr_y_db=statistics.mean(min(row.psnr_y_db or 0.0, MAX_DB) for row in good),
        bytes_per_frame=size,
        total_bytes=size * whole.frames,
        decode_ms=decode_ms,
        storage_ms=needed * size / reading.storage * 1e3 if reading.storage else 0.0,
        encode_hours=(_cpu(good) / _frames(good) + whole.decode_cpu) * whole.frames / 3600,
        vmaf_p1=min((row.vmaf_p1 for row in good if row.vmaf_p1 is not None), default=None),
        vmaf=_mean(row.vmaf for row in good),
        # That of JPEGs, full-range samples, is about 0.7 dB less, and no factor corrects it.
        xpsnr_db=None if gop is None else _mean(row.xpsnr_db and min(row.xpsnr_db, MAX_DB) for row in good),
    )


def _check_reached(rows: Iterable[ManifestRow], target: Target, at: str) -> None:
    """Raise SettingsError if too few videos reach the target."""
    scores = [score for row in rows if (score := score_of_target(row, target)) is not None]
    reached = sum(score >= target.floor for score in scores)
    if not scores or reached < len(scores) * (1 - MISSES_ALLOWED):
        raise SettingsError(f"only {reached} of {len(scores)} videos reach {target.flag} {target.floor:g} at {at}")


def _mean(scores: Iterable[float | None]) -> float | None:
    """Return the mean of scores; None if there are none."""
    known = [score for score in scores if score is not None]
    return statistics.mean(known) if known else None


def _recommend(choices: Sequence[Choice], reading: Reading) -> tuple[Choice, str]:
    smallest = min(choices, key=lambda choice: (choice.total_bytes, choice.ms_per_sequence))
    quickest = min(choices, key=lambda choice: (choice.ms_per_sequence, choice.total_bytes))
    if reading.storage:
        best = quickest
        reason = f"the least time for a sequence, storage included: {best.decode_ms:.1f} ms decoding, {best.storage_ms:.1f} ms reading"
    else:
        best = min(choices, key=lambda choice: (choice.total_bytes * choice.ms_per_sequence, choice.total_bytes))
        reason = "the smallest product of size and time"
    if best != smallest:
        reason += (
            f"; {best.total_bytes / smallest.total_bytes:.1f} times the size of the smallest ({_describe(smallest)})"
        )
        reason += f" at {best.ms_per_sequence / smallest.ms_per_sequence:.2f} of its time"
    if best != quickest:
        reason += f"; {best.ms_per_sequence / quickest.ms_per_sequence:.1f} times the time of the quickest ({_describe(quickest)})"
        reason += f" at {best.total_bytes / quickest.total_bytes:.2f} of its size"
    return best, reason


def _describe(choice: Choice) -> str:
    return choice.codec if choice.gop is None else f"{choice.codec} GOP {choice.gop}"


def _frames(rows: Sequence[ManifestRow]) -> int:
    return sum(row.num_frames or 0 for row in rows if row.ok)


def _cpu(rows: Sequence[ManifestRow]) -> float:
    return sum(row.cpu_seconds or 0.0 for row in rows if row.ok)


def _decode_ms(root: Path, ids: list[str], reading: Reading, loader: str | None) -> float:
    """Measure reading in a child process, since other readers load their own libraries."""
    with closing(Child(threading.Event())) as child:
        ms = child.call_or(str, _time, (root, ids, reading, loader), lambda _work: TIMEOUT_SECONDS)
    if isinstance(ms, str):
        raise SettingsError(f"{loader or 'vidprep'} cannot read it: {ms}")
    return ms


def _time(what: tuple[Path, list[str], Reading, str | None]) -> float | str:
    root, ids, reading, loader = what
    try:
        return read_times(root, ids, reading.sequence_length, reading.stride, loader)[1] or 0.0
    except Exception as error:  # noqa: BLE001 (whatever a library of others raises is its answer)
        return f"{type(error).__name__}: {error}"


def _total_seconds(sample: Sequence[Unit], options: SweepOptions) -> float:
    """Return the total duration of the sampled sources by their headers; without a header, the part that was read."""
    with closing(Child(threading.Event())) as child:
        return sum(_seconds(child, unit) or options.seconds for unit in sample)


def _seconds(child: Child, unit: Unit) -> float | None:
    whole = child.call_or(lambda _error: None, _header_seconds, unit.path, lambda _work: TIMEOUT_SECONDS)
    if whole is None:
        return None
    end = whole if unit.cut.end_seconds is None else unit.cut.end_seconds
    return None if end is None else end - (unit.cut.start_seconds or 0.0)


def _header_seconds(path: str) -> float | None:
    try:
        with Source(path, max_pixels=Limits().max_pixels) as source:
            return source.info.duration_seconds
    except (VidprepError, OSError):
        return None
