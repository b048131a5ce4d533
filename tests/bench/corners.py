"""Counts, times and sound of outputs against ffmpeg's own reading of their sources: a row for each clip. Never a test.

    python -m tests.bench.corners [--engine av|ffmpeg] [--container mp4|mkv] [--seconds 3] [CLIP or FOLDER ...]

Without arguments: the real clips of ../shared/media, and those that the tests synthesise. ffmpeg reads both sides.

frames   of the output, and of the source from its first frame to the end of the cut
time ms  by how much a frame is away from its time in the source, at worst, where the first frames are at 0
sound ms by how much the sound is late beside the pictures against `aresample=async` with a threshold of 1 ms, in the worst
         half second of those in which the two are alike
Ends with 1 where a count differs, a time is off by more than 1 ms and a tick, or sound by more than 1 ms.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import imageio_ffmpeg
import numpy as np
import numpy.typing as npt

from tests.conftest import INTERLACED_CLIPS, PLAIN, SHARED_MEDIA, Ffmpeg, Media
from vidprep.formats.manifest import ManifestRow
from vidprep.formats.profiles import EncoderOptions
from vidprep.formats.video import Source
from vidprep.transcode.job import run_job
from vidprep.transcode.settings import RunSettings, Scale
from vidprep.transcode.sources import Unit
from vidprep.transcode.task import Job

RATE = 48_000
WINDOW, REACH = RATE // 2, RATE // 20
ALIKE, AS_GOOD = 0.7, 0.98
MAX_OFF = Fraction(1, 1000)
OWN_CLOCK = ("-copyts",)  # else each stream of MPEG-TS is moved to 0 by itself
# Where the difference is meant: what ffmpeg keeps as it is, and why it is not kept here.
EXPLAINED = {"swapped.mkv": "timestamps are sorted onto frames, which come in the order that they are shown in"}
SYNTHESISED = (*PLAIN, *INTERLACED_CLIPS, "doubled.mkv", "swapped.mkv", "jumps_back.ts", "below_zero.mp4")

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Compared:
    """ours, theirs: numbers of frames. None where there is nothing to compare."""

    ours: int
    theirs: int
    off_seconds: float
    allowed_seconds: float
    sound_seconds: float | None
    remarks: str

    @property
    def agrees(self) -> bool:
        in_time = self.off_seconds <= self.allowed_seconds
        return self.ours == self.theirs and in_time and abs(self.sound_seconds or 0) <= MAX_OFF


def clips(named: list[str], folder: Path, cli: Ffmpeg) -> Iterator[Path]:
    if not named:
        media = Media(folder, cli)
        yield from (media[name] for name in SYNTHESISED)
        named = [str(SHARED_MEDIA)]
    for path in map(Path, named):
        found = sorted(path.iterdir()) if path.is_dir() else [path]
        yield from (each for each in found if each.is_file() and each.suffix not in (".csv", ".md"))


def sound(path: Path, stream: str, seconds: float, cli: Ffmpeg) -> Samples:
    """Mono, from the first frame of the stream on."""
    first_frame = cli.frames(path, stream=stream, reading=OWN_CLOCK, writing=("-frames:v", 1))[0].time
    filters = f"asetpts=PTS+({1 - first_frame})/TB,aresample={RATE}:async=1:min_hard_comp=0.001:first_pts=0"
    told = cli.run(
        *OWN_CLOCK, "-i", path, "-map", "0:a:0", "-af", f"{filters},atrim=duration={1 + seconds}", "-ac", 1, "-f", "f32le", "-",
        check=False,
    )  # fmt: skip
    return np.frombuffer(told, np.float32)[RATE:]


def lag(ours: Samples, theirs: Samples) -> float | None:
    """Seconds that ours is late in the window where it is latest; None where nothing is heard, or nothing alike."""
    lags = []
    for at in range(REACH, min(len(ours), len(theirs)) - WINDOW - REACH, WINDOW):
        due, made = theirs[at : at + WINDOW], ours[at - REACH : at + WINDOW + REACH]
        if due.std() < 1e-3:
            continue
        energy = np.convolve(made.astype(float) ** 2, np.ones(WINDOW), "valid") * (due.astype(float) ** 2).sum()
        likeness = np.correlate(made, due, "valid") / np.sqrt(np.maximum(energy, 1e-9))
        if likeness.max() > ALIKE:  # of peaks of a steady tone the one next to 0
            peaks = np.flatnonzero(likeness >= AS_GOOD * likeness.max()) - REACH
            lags.append(min(peaks, key=abs) / RATE)
    return max(lags, key=abs) if lags else None


def compared(clip: Path, asked: RunSettings, seconds: float, folder: Path, cli: Ffmpeg) -> Compared | str:
    stat = clip.stat()
    made = folder / f"made.{asked.encoder.container_name}"
    unit = Unit(clip.name, str(clip), stat.st_size, stat.st_mtime_ns, None, seconds)
    row = run_job(Job(unit, asked, made.name, str(made), ffmpeg=cli.exe))
    if not isinstance(row, ManifestRow) or not row.ok:
        return f"failed: {getattr(row, 'message', row)}"
    with Source(clip, max_pixels=1 << 30) as source:
        stream, tick = f"0:{source.info.stream_index}", source.info.time_base
    due, found = cli.frames(clip, stream=stream, check=False), cli.frames(made)
    due = [frame for frame in due if frame.time - due[0].time < Fraction(str(seconds))]
    off = max((abs(a.time - b.time + due[0].time) for a, b in zip(found, due, strict=False)), default=Fraction(0))
    late = None
    with av.open(str(made)) as opened:
        has_sound = bool(opened.streams.audio)
    if has_sound:
        late = lag(*(sound(path, one, seconds, cli) for path, one in ((made, "0:v:0"), (clip, stream))))
    remarks = "; ".join(text for text in row.warnings if not text.startswith(("larger than", "the cut asks")))
    return Compared(len(found), len(due), float(off), float(MAX_OFF + min(tick, MAX_OFF)), late, remarks)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("clips", nargs="*")
    parser.add_argument("--engine", default="av")
    parser.add_argument("--container", default="mp4")
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    cli = Ffmpeg(imageio_ffmpeg.get_ffmpeg_exe())
    asked = RunSettings(
        engine=given.engine,
        encoder=EncoderOptions(container=given.container, preset="ultrafast"),
        scale=Scale(short_side=64),
        audio="aac" if given.engine == "av" else "drop",
    )
    num_clips = num_differing = 0
    print(f"{'clip':44}{'frames':>13}{'time ms':>9}{'sound ms':>9}  remarks")
    with tempfile.TemporaryDirectory() as folder:
        for clip in clips(given.clips, Path(folder), cli):
            one = compared(clip, asked, given.seconds, Path(folder), cli)
            num_clips += 1
            is_meant = clip.name in EXPLAINED
            num_differing += not is_meant and (isinstance(one, str) or not one.agrees)
            if isinstance(one, str):
                print(f"{clip.name[:43]:44}{one}", flush=True)
                continue
            heard = "-" if one.sound_seconds is None else f"{1000 * one.sound_seconds:.2f}"
            counts, off = f"{one.ours}/{one.theirs}", f"{1000 * one.off_seconds:.2f}"
            mark = " " if one.agrees else "+" if is_meant else "*"
            remarks = EXPLAINED.get(clip.name, one.remarks)
            print(f"{clip.name[:43]:44}{counts:>13}{off:>9}{heard:>9} {mark}{remarks[:90]}", flush=True)
    print(f"{num_clips} clips, {num_differing} differ")
    return int(num_differing > 0)


if __name__ == "__main__":
    sys.exit(main())
