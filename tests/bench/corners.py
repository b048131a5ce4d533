"""Counts, times, sizes, colours and audio of outputs against ffmpeg's own reading of their sources: a row for each clip. Never a test.

    python -m tests.bench.corners [--engine av|ffmpeg] [--container mp4|mkv] [--seconds 3 | --whole] [CLIP or FOLDER ...]

Without arguments: the real clips of ../shared/media, and those that the tests synthesise. ffmpeg reads both sides.

frames   of the output, and of the source from its first frame to the end of the cut
size     as it is shown: upright, cropped, of square pixels; ours is even
colour   the largest difference of the mean of one of 8 patches of the first, middle or last frame, in levels; ffmpeg's decoder and
         exact arithmetic (tests/bench/shown.py). High dynamic range is compared as it is kept, as no two tone maps are alike
time ms  by how much a frame is away from its time in the source, at worst, where the first frames are at 0
audio ms by how much the audio is late beside the pictures against `aresample=async` with a threshold of 1 ms, in the worst
         half second of those in which the two are alike
Ends with 1 where a count differs, a time is off by more than 1 ms and a tick, a size by more than one pixel, a colour by more than
1.5 levels, or audio by more than 1 ms. Below the table: each warning, how many clips have it, and why it should stay.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import av
import imageio_ffmpeg
import numpy as np
import numpy.typing as npt

from tests.bench.shown import colours, shown
from tests.real_media import SHARED_MEDIA
from tests.recipes import CHART_IN, INTERLACED_CLIPS, PLAIN, Media, chart
from tests.transcode.media.test_cropping import clip as cropped
from tests.witness import Ffmpeg
from vidprep.formats.manifest.table import ManifestRow
from vidprep.formats.model import Cropping, Cut
from vidprep.formats.video.options import EncoderOptions
from vidprep.formats.video.source import Source
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit
from vidprep.transcode.unit.job import WholeJob
from vidprep.transcode.unit.life import run_job

RATE = 48_000
WINDOW, REACH = RATE // 2, RATE // 20
ALIKE, AS_GOOD = 0.7, 0.98
MAX_OFF = Fraction(1, 1000)
MAX_LEVELS = 1.5
STILL_IMAGES = ("mjpeg", "jpegls", "png", "apng")
OWN_CLOCK = ("-copyts",)  # else each stream of MPEG-TS is moved to 0 by itself
# Where the difference is meant: what ffmpeg keeps as it is, and why it is not kept here.
EXPLAINED = {
    "swapped.mkv": "timestamps are sorted onto frames, which come in the order that they are shown in",
    "alpha.webm": "a test pattern in 4:2:0: the edges of its alpha fall between samples of chroma, which are interpolated first",
}
# Each warning that an ordinary file may have, by how it begins, and what it is good for.
DESERVED = {
    "larger than": "of this table: it encodes nearly without loss",
    "the cut asks": "of this table: it asks for more than short clips have; not with --whole",
    "colour matrix not tagged": "decided: a guess that may be wrong",
    "no frame for": "perhaps lost: frames that come at a constant rate stop for a while, as in clips of a varying rate",
    "N interlaced frames": "decided: half of the lines are made anew",
    "odd size": "lost: a line or a column",
    "alpha composited": "lost: what was behind the picture is not known",
    "damaged: N decoding errors .mpegts": "joined byte by byte, which breaks off what the last packet of a part holds",
    "N timestamps ran backwards": "decided: AVI, WMV and a file made so number frames in the order of their packets",
    "N frames had no timestamp": "decided: a bare stream has none",
    "N frames shared a timestamp": "decided: made so",
    "time jumped back": "decided: made so, of a file three times",
    "the audio has gaps": "lost: timestamps leave them",
    "the audio's N channels": "lost: what was around the listener",
    "holds N video streams": "decided: one of them",
    "PQ kept|HLG kept": "decided: without tone mapping it is dark on other screens",
}
SYNTHESISED = (*PLAIN, *INTERLACED_CLIPS, "doubled.mkv", "swapped.mkv", "jumps_back.ts", "below_zero.mp4")
PIXEL_FORMATS = (
    "yuv410p",
    "yuv411p",
    "yuv440p",
    "yuvj422p",
    "nv12",
    "yuyv422",
    "uyvy422",
    "p010le",
    "yuv420p9le",
    "yuv422p14le",
    "yuv444p16le",
    "gray10le",
    "monob",
    "ya8",
    "pal8",
    "rgb24",
    "bgr0",
    "argb",
    "rgb565le",
    "bgr8",
    "gbrp10le",
    "rgb48le",
    "rgba64le",
    "x2rgb10le",
    "vuya",
    "ayuv64le",
    "xv30le",
    "yuva422p10le",
)
CROPPED = ("clap", "turned", "matroska", "sps")

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Compared:
    """ours, theirs: numbers of frames. None where there is nothing to compare."""

    ours: int
    theirs: int
    off_seconds: float
    allowed_seconds: float
    size: tuple[int, int]
    due_size: tuple[float, float]
    levels: float
    sound_seconds: float | None
    warnings: list[str]

    @property
    def faults(self) -> list[str]:
        pixels = max(abs(one - other) for one, other in zip(self.size, self.due_size, strict=True))
        wrong = {
            "frames": self.ours != self.theirs,
            "time": self.off_seconds > self.allowed_seconds,
            "size": pixels > 1,
            "colour": self.levels > MAX_LEVELS,
            "audio": abs(self.sound_seconds or 0) > MAX_OFF,
        }
        return [name for name, is_wrong in wrong.items() if is_wrong]


def clips(named: list[str], folder: Path, cli: Ffmpeg) -> Iterator[Path]:
    if not named:
        media = Media(folder, cli)
        yield from (media[name] for name in SYNTHESISED)
        for name in PIXEL_FORMATS:
            path = folder / f"{name}.nut"
            cli.run(*CHART_IN, "-c:v", "rawvideo", "-pix_fmt", name, path, stdin=chart())
            yield path
        yield from (cropped(kind, media, folder, Cropping(top=8, bottom=4, left=20, right=6)) for kind in CROPPED)
        cover = (
            "-f",
            "lavfi",
            "-i",
            "color=red:s=64x64:d=0.04",
            "-map",
            0,
            "-map",
            1,
            "-c:v:0",
            "copy",
            "-c:v:1",
            "png",
        )
        cli.run("-i", media["cfr.mp4"], *cover, "-disposition:v:1", "attached_pic", folder / "cover.mp4")
        yield folder / "cover.mp4"
        named = [str(SHARED_MEDIA)]
    for path in map(Path, named):
        found = sorted(path.iterdir()) if path.is_dir() else [path]
        yield from (each for each in found if each.is_file() and each.suffix not in (".csv", ".md"))


def audio(path: Path, stream: str, seconds: float | None, cli: Ffmpeg) -> Samples:
    """Mono, from the first frame of the stream on."""
    first_frame = cli.frames(path, stream=stream, reading=OWN_CLOCK, writing=("-frames:v", 1))[0].time
    filters = f"asetpts=PTS+({1 - first_frame})/TB,aresample={RATE}:async=1:min_hard_comp=0.001:first_pts=0"
    if seconds is not None:
        filters += f",atrim=duration={1 + seconds}"
    told = cli.run(*OWN_CLOCK, "-i", path, "-map", "0:a:0", "-af", filters, "-ac", 1, "-f", "f32le", "-", check=False)
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


def compared(clip: Path, asked: RunSettings, seconds: float | None, folder: Path, cli: Ffmpeg) -> Compared | str:
    stat = clip.stat()
    if asked.hdr is None and shown(cli, clip).is_hdr:
        asked = replace(asked, output=VideoOutput(replace(asked.video.encoder, pixel_format="yuv420p10le")))
    made = folder / f"made.{asked.output.extension}"
    unit = Unit(clip.name, str(clip), stat.st_size, stat.st_mtime_ns, Cut(None, seconds))
    row = run_job(WholeJob(unit, asked, made.name, str(made), ffmpeg=cli.exe))
    if not isinstance(row, ManifestRow) or not row.ok:
        return f"failed: {getattr(row, 'message', row)}"
    with Source(clip, max_pixels=1 << 30) as source:
        info = source.info
        decoder = ("-c:v", info.decoder) if info.has_alpha_layer else ()
        stream, tick = f"0:{source.info.stream_index}", source.info.time_base
    due, found = cli.frames(clip, stream=stream, check=False), cli.frames(made)
    if seconds is not None:
        due = [frame for frame in due if frame.time - due[0].time < Fraction(str(seconds))]
    off = max((abs(a.time - b.time + due[0].time) for a, b in zip(found, due, strict=False)), default=Fraction(0))
    about, ours = shown(cli, clip, stream, decoder), shown(cli, made)
    levels = 0.0
    if len(found) == len(due):
        numbers = sorted({0, len(due) // 2, len(due) - 1})
        levels = np.abs(
            colours(
                cli,
                clip,
                about,
                numbers,
                stream=stream,
                reading=decoder,
                still=info.codec in STILL_IMAGES,
                deinterlace=bool(row.source_is_interlaced),
                trim=ours.stored if about.size == about.stored else None,
            )
            - colours(cli, made, ours, numbers)
        ).max()
    late = None
    with av.open(str(made)) as opened:
        has_sound = bool(opened.streams.audio)
    if has_sound:
        late = lag(*(audio(path, one, seconds, cli) for path, one in ((made, "0:v:0"), (clip, stream))))
    return Compared(
        len(found),
        len(due),
        float(off),
        float(MAX_OFF + min(tick, MAX_OFF)),
        ours.stored,
        about.size,
        levels,
        late,
        row.warnings,
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("clips", nargs="*")
    parser.add_argument("--engine", default="av")
    parser.add_argument("--container", default="mp4")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--whole", action="store_const", dest="seconds", const=None)
    given = parser.parse_args()
    cli = Ffmpeg(imageio_ffmpeg.get_ffmpeg_exe())
    asked = RunSettings(
        VideoOutput(
            EncoderOptions(container=given.container, preset="ultrafast", crf=1),
            audio="aac" if given.engine == "av" else "drop",
            engine=given.engine,
        )
    )
    num_clips = num_differing = 0
    warned: Counter[str] = Counter()
    print(f"{'clip':44}{'frames':>9}{'size':>10}{'colour':>7}{'time ms':>9}{'audio ms':>9}  what differs")
    with tempfile.TemporaryDirectory() as folder:
        for clip in clips(given.clips, Path(folder), cli):
            one = compared(clip, asked, given.seconds, Path(folder), cli)
            num_clips += 1
            faults = ["failed"] if isinstance(one, str) else one.faults
            num_differing += bool(faults) and clip.name not in EXPLAINED
            if isinstance(one, str):
                print(f"{clip.name[:43]:44}{one}", flush=True)
                continue
            warned.update({re.sub(r"\d[\d.]*", "N", text) for text in one.warnings})
            heard = "-" if one.sound_seconds is None else f"{1000 * one.sound_seconds:.2f}"
            count = f"{one.ours}" if one.ours == one.theirs else f"{one.ours}/{one.theirs}"
            size = "x".join(str(side) for side in one.size)
            why = f"{', '.join(faults)}: {EXPLAINED.get(clip.name, '*')}" if faults else ""
            print(
                f"{clip.name[:43]:44}{count:>9}{size:>10}{one.levels:>7.2f}{1000 * one.off_seconds:>9.2f}{heard:>9}  {why}",
                flush=True,
            )
    print(f"{num_clips} clips, {num_differing} differ unexplained\n\nwarnings, and of how many clips")
    for text, count in warned.most_common():
        why = next((why for begin, why in DESERVED.items() if re.match(begin, text)), "*")
        print(f"{count:4}  {text}\n      {why}")
    return int(num_differing > 0)


if __name__ == "__main__":
    sys.exit(main())
