"""Audit a dataset that vidprep did not make: recognise it, read every video to its end, and say what contradicts what it declares.

Nothing is written to the dataset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vidprep.formats.errors import StoreError, count_of
from vidprep.formats.storage.local import replacing
from vidprep.transcode.audit._decoders import hardware_notes, try_loaders
from vidprep.transcode.audit._recognise import recognise
from vidprep.transcode.audit._robot_cameras import Cameras
from vidprep.transcode.audit._rules import findings_of
from vidprep.transcode.audit._video import VideoFacts, read_video
from vidprep.transcode.audit.dataset import ERROR, WARNING, Clip, Dataset, Finding, VideoFile
from vidprep.transcode.audit.robot import one_line_each
from vidprep.transcode.check.trainers import Header, difference
from vidprep.transcode.sources.unit import choose
from vidprep.transcode.workers.child import FRAMES_PER_SECOND, MIN_SECONDS, SECONDS_PER_SECOND, Child
from vidprep.transcode.workers.local import LocalPool
from vidprep.transcode.workers.pool import stop_on_signals

FINDINGS_NAME = "findings.parquet"
FORMS_SHOWN = 10
MOVED_SHARE = 0.1  # of the range of a value in its episode: less is a robot at rest
SCHEMA = pa.schema(
    [
        ("level", pa.string()),
        ("kind", pa.string()),
        ("path", pa.string()),
        ("part", pa.string()),
        ("seconds", pa.float64()),
        ("text", pa.string()),
    ]
)


class Form(NamedTuple):
    """Properties that videos have in common."""

    codec: str
    pixel_format: str
    width: int
    height: int


@dataclass(slots=True)
class FormFacts:
    """Facts of the videos of one form.

    Attributes:
        num_videos: How many there are
        rates: Smallest and largest frame rate
        gops: How often so many frames are from a keyframe to the next
        loaders: Why other libraries cannot read one of them, by library; "" if they can
        hardware: What hardware decoders do not decode it
    """

    num_videos: int = 0
    num_frames: int = 0
    rates: tuple[float, float] = (0.0, 0.0)
    gops: Counter[int] = field(default_factory=Counter)
    loaders: dict[str, str] = field(default_factory=dict)
    hardware: list[str] = field(default_factory=list)

    def add(self, facts: VideoFacts) -> None:
        """Add a video."""
        self.num_videos += 1
        self.num_frames += len(facts.times)
        if rate := _rate(facts):
            self.rates = (min(self.rates[0] or rate, rate), max(self.rates[1], rate))
        self.gops.update(np.diff(np.flatnonzero(facts.keyframes), append=len(facts.keyframes)).tolist())

    @property
    def gops_shown(self) -> str:
        """Distance of keyframes, for people."""
        usual, largest = max(self.gops, key=lambda size: (self.gops[size], size), default=0), max(self.gops, default=0)
        return f"{usual}" if usual == largest else f"{usual}, at most {largest},"


@dataclass(slots=True)
class AuditReport:
    """Result of `validate` for a dataset that vidprep did not make.

    Attributes:
        dataset: What was recognised
        about: Its size
        checked: Number of videos that were read
        findings: Errors and warnings
        forms: Facts of its videos, by form
        trainer: What a trainer drops, repeats or crops: a line for each video
    """

    dataset: str
    about: str
    checked: int = 0
    findings: list[Finding] = field(default_factory=list)
    forms: dict[Form, FormFacts] = field(default_factory=dict)
    trainer: list[str] = field(default_factory=list)

    @property
    def faults(self) -> list[str]:
        """A line for each error."""
        return [finding.line for finding in self.findings if finding.level == ERROR]

    @property
    def num_warnings(self) -> int:
        """Number of warnings."""
        return sum(finding.level == WARNING for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "format": "vidprep audit 1",
            "dataset": self.dataset,
            "about": self.about,
            "num_videos": self.checked,
            "forms": [{**form._asdict(), **_plain(facts)} for form, facts in self.forms.items()],
            "findings": [finding._asdict() for finding in self.findings],
            "trainer": self.trainer,
        }


def _plain(facts: FormFacts) -> dict[str, Any]:
    return {name: getattr(facts, name) for name in FormFacts.__slots__} | {
        "gops": {str(size): count for size, count in facts.gops.items()}
    }


def audit_dataset(
    place: Path,
    *,
    sample: int | None,
    trainer: str | None,
    jobs: int,
    on_finding: Callable[[Finding], object],
    on_start: Callable[[int], None],
    on_video: Callable[[], object],
) -> AuditReport:
    """Recognise a dataset and read its videos.

    Args:
        place: A folder, or a table.
        sample: Read so many videos, the same ones each time; None for all.
        trainer: Also tell what this one of `READERS` drops, repeats or crops.
        jobs: Number of processes.
        on_finding: Called with each finding when it is found.
        on_start: Called with the number of videos.
        on_video: Called after each video.

    Raises:
        KeyboardInterrupt: A signal stopped it.
        StoreError: It is no dataset that is known.
    """
    dataset = recognise(place)
    report = AuditReport(dataset.kind, dataset.about)

    def tell(finding: Finding) -> None:
        report.findings.append(finding)
        on_finding(finding)

    for finding in one_line_each(dataset.findings):
        tell(finding)
    cameras = None if dataset.robot is None else Cameras(dataset.robot, dataset.motion)
    videos = dataset.videos if sample is None else _some(dataset.videos, sample)
    on_start(len(videos))
    firsts = dict[Form, VideoFile]()
    with (
        LocalPool(max(1, min(jobs, len(videos))), _read_in) as workers,
        stop_on_signals(workers, grace_seconds=0) as stop,
    ):
        for video, facts in workers.results(videos):
            if facts is None:
                continue
            for finding in one_line_each(list(findings_of(video, facts, partial(_moves, dataset)))):
                tell(finding)
            if cameras is not None and facts.error is None:
                cameras.see(video, facts)
            report.checked += 1
            if facts.error is None:
                form = Form(facts.codec, facts.pixel_format, *facts.size)
                report.forms.setdefault(form, FormFacts()).add(facts)
                if trainer is not None and (says := _difference(trainer, facts)):
                    report.trainer.append(f"{video.name}: {says}")
                firsts[form] = min(firsts.get(form, video), video, key=lambda each: each.name)
            on_video()
    if stop.signal is not None:
        raise KeyboardInterrupt
    for finding in () if cameras is None else one_line_each(list(cameras.findings())):
        tell(finding)
    _try_decoders(report.forms, firsts, jobs)
    return report


class _Sized(NamedTuple):
    """A video for `choose`."""

    id: str
    size_bytes: int


def _some(videos: Sequence[VideoFile], count: int) -> list[VideoFile]:
    """Return a sample of videos."""
    sized = [
        _Sized(video.name, video.member[1] if video.member else video.path.stat().st_size if video.path.exists() else 0)
        for video in videos
    ]
    names = {each.id for each in choose(sized, count)}
    return [video for video in videos if video.name in names]


def _read_in(child: Child, video: VideoFile) -> VideoFacts:
    """Read a video in a child process. If the process crashes or takes too long, the video cannot be read."""

    def allowed(frames: int) -> float:
        return MIN_SECONDS + SECONDS_PER_SECOND * max(0, frames) / FRAMES_PER_SECOND

    return child.call_or(lambda error: VideoFacts(error=f"reading it failed: {error}"), read_video, video, allowed)


def _try_decoders(forms: dict[Form, FormFacts], firsts: Mapping[Form, VideoFile], jobs: int) -> None:
    """Let other libraries read the first video of each form."""
    with LocalPool(max(1, min(jobs, len(firsts))), _try_in_child) as workers:
        tried = {video.name: loaders for video, loaders in workers.results(firsts.values())}
    for form, facts in forms.items():
        facts.loaders = tried[firsts[form].name] or {}
        facts.hardware = hardware_notes(form.codec, form.pixel_format)


def _try_in_child(child: Child, video: VideoFile) -> dict[str, str]:
    return child.call_or(
        lambda error: {"other libraries": str(error)}, try_loaders, video, lambda _frames: float(MIN_SECONDS)
    )


def _difference(trainer: str, facts: VideoFacts) -> str:
    rate, seconds = facts.frame_rate or Fraction(1), Fraction(facts.duration_seconds or 0)
    return difference(trainer, Header(len(facts.times), rate, seconds), facts.size)


def _rate(facts: VideoFacts) -> float:
    times = np.sort(facts.times[~np.isnan(facts.times)])
    return float((len(times) - 1) / (times[-1] - times[0])) if len(times) > 1 and times[-1] > times[0] else 0.0


def _moves(dataset: Dataset, clip: Clip, begin: float, end: float) -> bool | None:
    """Return whether states or actions of an episode move between two times; None if that is not known."""
    if dataset.robot is None or clip.episode is None or clip.times is None:
        return None
    try:
        states = dataset.robot.states_of(clip.episode)
    except (StoreError, FileNotFoundError):
        return None
    times = clip.start + clip.times
    inside = states[(times >= begin) & (times <= end)] if len(states) == len(times) else states[:0]
    if not states.shape[1] or not len(inside):
        return None
    whole = np.ptp(states, axis=0)
    return bool(np.any((np.ptp(inside, axis=0) > MOVED_SHARE * whole) & (whole > 0)))


def write_findings(findings: Sequence[Finding], path: Path) -> None:
    """Write findings as a Parquet file. Raises OSError."""
    rows: list[Mapping[str, Any]] = [finding._asdict() for finding in findings]
    with replacing(path) as file:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), file)


def summary_lines(report: AuditReport) -> list[str]:
    """Return lines about the videos: their form, and who cannot decode them."""
    lines = [f"{report.dataset}: {report.about}"]
    for form, facts in sorted(report.forms.items(), key=lambda each: (-each[1].num_videos, each[0]))[:FORMS_SHOWN]:
        lines.append(
            f"{count_of(facts.num_videos, 'video')} of {form.codec} {form.pixel_format} {form.width}x{form.height}, "
            f"{count_of(facts.num_frames, 'frame')}, {facts.gops_shown} frames per keyframe"
        )
        unread = [f"{name} ({why})" for name, why in facts.loaders.items() if why]
        lines += [f"  cannot be read by {', '.join(unread)}"] if unread else []
        lines += [f"  {note}" for note in facts.hardware]
    if len(report.forms) > FORMS_SHOWN:
        lines.append(f"{len(report.forms) - FORMS_SHOWN} more forms of videos; --json and --out name them")
    return lines
