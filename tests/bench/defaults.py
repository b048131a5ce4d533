"""`make bench`: what the default settings gain or lose against each encoder's own defaults. Never a test.

    python tests/bench/defaults.py [CODEC…]      needs libvmaf: Python 3.12 or newer

BD-rates (Bjøntegaard, VCEG-M33, 2001) at the same preset and keyframe interval, GOP 5 and 16, on at least 12 real clips of different
kinds (BENCH_SRC=folder names others), 224 lines, 32 frames: by PSNR of all planes weighted 6:1:1, SSIM in dB, and VMAF; CPU time as a
ratio. Then the same against libx264 medium with its own defaults. Negative is better: -10 is a tenth fewer bytes at equal quality.
"""

from __future__ import annotations

import math
import resource
import statistics
import sys
import warnings
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import islice
from pathlib import Path

import av
import numpy as np
from av.video.frame import VideoFrame
from bench import clips
from history import keep

from vidprep.formats.model import Colour, FrameSize, OutputFormat
from vidprep.formats.profiles import CODECS
from vidprep.formats.video.options import EncoderOptions
from vidprep.transcode.choose.sweep_tables import bd_rate
from vidprep.transcode.media.metrics import FrameScorer, psnr_db
from vidprep.transcode.settings.options import QualityGate

FRAMES, LINES, FIRST, CLIPS = 32, 224, 10, 13
CRFS = {
    "h264": (18, 22, 26, 30, 34),
    "hevc": (18, 22, 26, 30, 34),
    "vp9": (20, 28, 36, 44, 52),
    "av1": (20, 28, 36, 44, 52),
}
LEFT_OUT = ("pattern", "clock", "editlist", "logo", "red_ball", "one_frame")  # drawn, or nearly still
SCORES = ("PSNR 6:1:1", "SSIM", "VMAF")
Point = tuple[float, float, float, float]  # bytes, and the scores


def natural_clips() -> Iterator[list[VideoFrame]]:
    for path in sorted(clips().iterdir()):
        if path.is_file() and not any(word in path.name for word in LEFT_OUT) and (frames := frames_of(path)):
            yield frames


def frames_of(path: Path) -> list[VideoFrame]:
    """Frames of an 8-bit clip that is long enough; [] of another."""
    try:
        with av.open(str(path)) as container:
            (stream, *_) = container.streams.video
            if stream.codec_context.pix_fmt not in ("yuv420p", "yuvj420p"):
                return []
            lines = min(LINES, stream.height) // 2 * 2
            width = round(stream.width * lines / stream.height / 2) * 2
            found = [
                frame.reformat(width, lines, "yuv420p", interpolation="BICUBIC")
                for frame in islice(container.decode(stream), FIRST, FIRST + FRAMES)
            ]
    except (OSError, ValueError, av.error.FFmpegError):
        return []
    return found if len(found) == FRAMES else []


def own_options(options: EncoderOptions) -> dict[str, str]:
    """The encoder's own defaults with these keyframes."""
    plain = EncoderOptions(codec=options.codec, gop=options.gop, crf=options.crf, tune="visual").library_options()
    return {name: value.replace("tune=0", "tune=1") for name, value in plain.items()}  # 1 is SVT-AV1's default


def point(frames: Sequence[VideoFrame], options: EncoderOptions, library: dict[str, str]) -> tuple[Point, float]:
    """Bytes and scores of an encode, and its CPU seconds."""
    rate, size = Fraction(25), FrameSize(frames[0].width, frames[0].height)
    encoder = av.CodecContext.create(options.profile.name, "w")
    encoder.width, encoder.height, encoder.pix_fmt = *size, "yuv420p"
    encoder.time_base, encoder.framerate, encoder.thread_count, encoder.options = 1 / rate, rate, 1, library
    began, packets = cpu(), []
    for number, frame in enumerate(frames):
        frame.pts, frame.time_base, frame.pict_type = number, 1 / rate, 0
        packets += encoder.encode(frame)
    packets += encoder.encode(None)
    seconds = cpu() - began
    decoder = av.CodecContext.create(CODECS[options.codec].check_decoder, "r")
    copies = [av.Packet(bytes(packet)) for packet in packets]
    for copy, packet in zip(copies, packets, strict=True):
        copy.pts = packet.pts
    made = sorted((frame for copy in (*copies, None) for frame in decoder.decode(copy)), key=lambda frame: frame.pts)
    output = OutputFormat(size, "yuv420p", Colour(1, 1, 1), 1 / rate, rate, rate)
    scorer, planes = FrameScorer(output, QualityGate(score=("vmaf",))), []
    ssim = []
    for reference, frame in zip(frames, made, strict=True):
        planes.append([mean_square(reference, frame, plane) for plane in range(3)])
        ssim.append(scorer.score(reference, frame).ssim)
    vmaf = scorer.finish()
    assert vmaf is not None
    luma, *chroma = (psnr_db(error, 255) for error in np.mean(planes, 0))
    scores = (6 * luma + sum(chroma)) / 8, -10 * math.log10(1 - statistics.mean(ssim)), statistics.mean(vmaf.frames)
    return (sum(packet.size for packet in packets), *scores), seconds


def mean_square(one: VideoFrame, other: VideoFrame, plane: int) -> float:
    samples = []
    for frame in (one, other):
        found = frame.planes[plane]
        lines = np.frombuffer(found, np.uint8).reshape(found.height, found.line_size)
        samples.append(lines[:, : found.width].astype(np.int32))
    return float(np.square(samples[0] - samples[1]).mean())


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def curve(frames: Sequence[VideoFrame], codec: str, gop: int, *, own: bool) -> tuple[list[Point], float]:
    made = []
    for crf in CRFS[codec]:
        options = EncoderOptions(codec=codec, gop=gop, crf=float(crf))
        made.append(point(frames, options, own_options(options) if own else options.library_options()))
    return [each for each, _ in made], sum(seconds for _, seconds in made)


def show(label: str, anchors: Sequence[tuple[list[Point], float]], tests: Sequence[tuple[list[Point], float]]) -> None:
    rates = []
    for score in range(1, len(SCORES) + 1):
        deltas = [
            bd_rate([(each[0], each[score]) for each in anchor], [(each[0], each[score]) for each in test])
            for (anchor, _), (test, _) in zip(anchors, tests, strict=True)
        ]
        rates.append(100 * statistics.mean(delta for delta in deltas if delta is not None))
    seconds = sum(each for _, each in tests) / sum(each for _, each in anchors)
    print(f"{label:40}" + "".join(f"{rate:12.1f}" for rate in rates) + f"{seconds:8.2f}", flush=True)
    for name, rate in zip(SCORES, rates, strict=True):
        keep(f"defaults {label}: BD-rate {name} %", rate)


def main(codecs: Sequence[str]) -> None:
    warnings.simplefilter("ignore")  # a fit where a score hardly changes
    found = list(natural_clips())
    prepared = [found[number * len(found) // min(CLIPS, len(found))] for number in range(min(CLIPS, len(found)))]
    print(
        f"{len(prepared)} clips, {FRAMES} frames\n{'':40}" + "".join(f"{name:>12}" for name in SCORES) + f"{'CPU x':>8}"
    )
    for gop in (5, 16):
        medium: list[tuple[list[Point], float]] = []
        for codec in codecs:
            # By turns, clip by clip: the speed of a machine changes within minutes.
            turns = [[curve(frames, codec, gop, own=own) for own in (True, False)] for frames in prepared]
            own, ours = zip(*turns, strict=True)
            show(f"{codec} GOP {gop} against its own defaults", own, ours)
            if codec != "h264":
                medium = medium or [curve(frames, "h264", gop, own=True) for frames in prepared]
                show(f"{codec} GOP {gop} against libx264 medium", medium, ours)


if __name__ == "__main__":
    main(sys.argv[1:] or list(CODECS))
