"""`python tests/bench/engines.py [FOLDER] [WORD…]`: whether both engines hand the same pictures to the encoder. Never a test.

For every clip of the folder whose name holds one of the words, and every way below: the first frames that the in-process engine
makes and those that the ffmpeg command makes, before any encoder, compared byte by byte. One line each: clip, way, frames,
lowest PSNR of a frame over all its samples, largest difference. What is below 60 dB is marked; it ends with 1 then.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import imageio_ffmpeg
import numpy as np

from vidprep.formats.errors import VidprepError
from vidprep.formats.model import Cut, FrameSize
from vidprep.formats.video.options import EncoderOptions
from vidprep.formats.video.pyav import plane_lines
from vidprep.formats.video.source import Source, file_url
from vidprep.transcode.media.ffmpeg import _reading, filter_chain, why_not_ffmpeg
from vidprep.transcode.media.frames import SourceFacts
from vidprep.transcode.media.stream import FrameStream, timing_of
from vidprep.transcode.settings.options import Retime, Scale
from vidprep.transcode.settings.output import VideoOutput
from vidprep.transcode.settings.run import RunSettings
from vidprep.transcode.sources.unit import Unit

SECONDS, MIN_DB = 0.35, 60.0
WAYS = {
    "as it is": RunSettings(),
    "--fps 12": RunSettings(retime=Retime(Fraction(12))),
    "--short-side 96": RunSettings(scale=Scale(short_side=96)),
    "--size 128x96 --fit pad": RunSettings(scale=Scale(size=FrameSize(128, 96), fit="pad")),
    "--size 64x48 --fit crop": RunSettings(scale=Scale(size=FrameSize(64, 48), fit="crop")),
    "--size 64x48 --fit stretch": RunSettings(scale=Scale(size=FrameSize(64, 48), fit="stretch")),
    "--pixel-format yuv420p10le": RunSettings(
        VideoOutput(EncoderOptions(pixel_format="yuv420p10le")), scale=Scale(short_side=96)
    ),
}


def compared(clip: Path, settings: RunSettings) -> str:
    stat = clip.stat()
    unit = Unit("x", str(clip), stat.st_size, stat.st_mtime_ns, cut=Cut(None, SECONDS))
    with Source(clip, max_pixels=settings.limits.max_pixels) as source:
        stream = FrameStream(source, settings, timing_of(source, settings, unit.cut))
        picture_filter, output, facts = stream.picture_filter, stream.output, stream.facts
        kind = np.dtype("<u2" if "10" in output.pixel_format else "u1")
        ours = []
        for item in stream:
            frame = picture_filter.apply(item.frame)
            lines = [plane_lines(p)[:, : p.width * kind.itemsize] for p in frame.planes]
            ours.append(np.concatenate([np.ascontiguousarray(line).view(kind).ravel() for line in lines]))
        chain = filter_chain(stream)
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-nostdin"]
        for name, value in _reading(source.info, settings).items():
            command += [f"-{name}"] if value is None else [f"-{name}", str(value)]
        command += ["-t", "3", "-i", file_url(clip), "-map", f"0:{source.info.stream_index}", "-vf", chain]
    command += ["-fps_mode", "passthrough", "-pix_fmt", output.pixel_format, "-f", "rawvideo", "-"]
    ran = subprocess.run(command, capture_output=True, check=False)
    if ran.returncode:
        return f"  !! ffmpeg: {ran.stderr.decode(errors='replace').strip().splitlines()[-1]}"
    theirs = np.frombuffer(ran.stdout, kind).reshape(-1, ours[0].size)
    if len(theirs) != len(ours):
        return f"  !! {len(ours)} and {len(theirs)} frames{_why(facts, picture_filter)}"
    apart = [np.abs(one.astype(np.int32) - other) for one, other in zip(ours, theirs, strict=True)]
    worst = max(float(np.mean(each.astype(np.float64) ** 2)) for each in apart)
    peak = 1023 if kind.itemsize == 2 else 255
    db = 10 * math.log10(peak**2 / worst) if worst else math.inf
    mark = "  " if db > MIN_DB else "!!"
    return f"  {mark} {len(ours)} frames, {db:.1f} dB, {max(int(each.max()) for each in apart)} levels{'' if db > MIN_DB else _why(facts, picture_filter)}"


def _why(facts: SourceFacts, picture_filter: object) -> str:
    reason = why_not_ffmpeg(facts, picture_filter)  # type: ignore[arg-type]
    return f" ({reason})" if reason else ""


def main(folder: Path, words: list[str]) -> int:
    os.environ.setdefault("SVT_LOG", "1")
    unlike = 0
    for clip in sorted(folder.glob("*.*")):
        if clip.suffix in (".csv", ".md") or (words and not any(word in clip.name for word in words)):
            continue
        print(clip.name, flush=True)
        for way, settings in WAYS.items():
            try:
                told = compared(clip, settings)
            except VidprepError as error:
                told = f"     refused by both: {error.message}"
            unlike += "!!" in told
            print(f"  {way:28}{told}", flush=True)
    print(f"{unlike} unlike")
    return 1 if unlike else 0


if __name__ == "__main__":
    given = sys.argv[1:]
    sys.exit(main(Path(given[0] if given else "../shared/media"), given[1:]))
