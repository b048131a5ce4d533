"""Scan one video, or one cut of it: decode it once, place its frames in shots, cut these into clips, and measure them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vidprep.formats.errors import VidprepError
from vidprep.formats.model import SourceState
from vidprep.formats.processes import count_progress
from vidprep.transcode.clips import _network, _shots
from vidprep.transcode.clips._duplicates import hashes_text
from vidprep.transcode.clips._measure import Frame, Measurer
from vidprep.transcode.clips._shots import Placed
from vidprep.transcode.clips._sound import loudness_of
from vidprep.transcode.clips.windows import Cutter, Windows
from vidprep.transcode.media.frames import SourceFacts, source_frames
from vidprep.transcode.media.stream import open_source, timing_of
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit

Row = dict[str, Any]
DAMAGE = "damage"
NO_PICTURE = np.empty((3, 0, 0), np.int16)


@dataclass(frozen=True, slots=True)
class ScanTask:
    """Request to scan one unit.

    Attributes:
        unit: The unit; a local one
        settings: How it is read, and the rate of the output
        windows: How shots are cut
        detector: What finds shots, "pixels" or "transnetv2"; None if the unit is one shot
        keeps_transitions: Whether the frames of a transition belong to the shot before it
        with_hashes: Whether frames are hashed
    """

    unit: Unit
    settings: RunSettings
    windows: Windows
    detector: str | None
    keeps_transitions: bool = False
    with_hashes: bool = False


@dataclass(slots=True)
class Scanned:
    """Result of scanning one unit.

    Attributes:
        id: Id of the unit
        state: State of its source
        rows: Its clips
        rest: Numbers of source frames in no clip, by reason
        stage: Stage, class and message of what failed, or of damage to a source that has clips; None if there is neither
    """

    id: str
    state: SourceState
    rows: list[Row] = field(default_factory=list)
    rest: dict[str, int] = field(default_factory=dict)
    stage: str | None = None
    error: str | None = None
    message: str | None = None


def scan_unit(task: ScanTask) -> Scanned:
    """Scan a unit. Never raises: a failure is in the result."""
    done = Scanned(task.unit.id, task.unit.state)
    try:
        _scan(task, done)
    except Exception as error:  # noqa: BLE001 (a video that fails is a row, and the scan goes on)
        done.rows.clear()
        done.stage = error.stage if isinstance(error, VidprepError) else "scan"
        done.error = type(error).__name__
        done.message = error.message if isinstance(error, VidprepError) else str(error) or done.error
    return done


def _scan(task: ScanTask, done: Scanned) -> None:
    unit = task.unit
    with open_source(unit.path, task.settings, unit.cut) as source:
        count_progress()
        facts, timing = SourceFacts(), timing_of(source, task.settings, unit.cut)
        base = source.info.time_base
        frames = source_frames(
            source, facts, timing.window, max_frames=task.settings.limits.max_frames, on_progress=count_progress
        )
        cutter = Cutter(task.windows, timing.clock, base)
        size = _network.SIZE if task.detector == "transnetv2" else None
        measured = Measurer(base, with_hashes=task.with_hashes, picture_size=size).measure(frames)
        clips = sorted(cutter.cut(_placed(measured, task)), key=lambda clip: (clip.first, clip.end))
        times = [[(facts.origin_pts + tick) * base for tick in (clip.start_tick, clip.end_tick)] for clip in clips]
        sound = (
            loudness_of(unit.path, times[0][0], max(end for _, end in times)) if clips and source.has_sound else None
        )
        for clip, time in zip(clips, times, strict=True):
            hashes = ((float((tick - clip.start_tick) * base), each) for tick, each in clip.hashes)
            row = {"start_frame": clip.first, "end_frame": clip.end, "shot": clip.shot, "confidence": clip.confidence}
            heard = {} if sound is None else sound.facts(*time)
            done.rows.append(row | clip.facts(base) | heard | {"hashes": hashes_text(hashes)})
        done.rest = dict(cutter.rest)
        if damage := source.damage(read_to_end=facts.read_to_end):
            done.stage, done.error, done.message = DAMAGE, "DamagedError", "; ".join(damage)


def _one_shot(frames: Iterator[Frame]) -> Iterator[Placed[Frame]]:
    yield from (Placed(frame, 0) for frame in frames)


def _placed(frames: Iterator[Frame], task: ScanTask) -> Iterator[Placed[Frame]]:
    detectors: dict[str | None, Callable[[Iterator[Frame]], Iterator[Placed[Frame]]]]
    detectors = {"pixels": _shots.place, "transnetv2": _network.place, None: _one_shot}
    before = 0
    for each in detectors[task.detector](frames):
        each.item.small, each.item.picture = NO_PICTURE, None
        if each.shot is not None:
            before = each.shot
        elif task.keeps_transitions:
            each = Placed(each.item, before, each.confidence)
        yield each
