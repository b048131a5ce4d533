"""Damage is said, and whole files are clean: cut, holed and flipped files held against what the ffmpeg program says of them.

A damaged file must be `damaged` when ffmpeg decodes another number of frames from it than from the whole file, or prints a warning or
an error that it does not print of the whole. What is neither is a flip that no decoder can notice. `python -m tests.transcode.test_damage
FOLDER` prints the tables over all clips.
"""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import imageio_ffmpeg

from vidprep.formats.errors import VidprepError
from vidprep.formats.video import Source

FFMPEG = imageio_ffmpeg.get_ffmpeg_exe()
SEED = 17
X264 = "-c:v libx264 -preset ultrafast -bf 2 -b_strategy 0 -g 12 -pix_fmt yuv420p"
PICTURE = "testsrc2=size=160x128:rate=25:duration=2"
VFR = "select=not(eq(mod(n\\,5)\\,3))"

# name: codec of the pictures, codec of the sound ("" for none).
SYNTHETIC: dict[str, tuple[str, str]] = {
    "h264.mp4": (X264, "-c:a aac"), "fragments.mp4": (X264 + " -movflags frag_keyframe+empty_moov", "-c:a aac"),
    "front.mp4": (X264 + " -movflags faststart", "-c:a aac"), "h264.mov": (X264, "-c:a pcm_s16le"),
    "h264.mkv": (X264, "-c:a aac"), "h264.avi": ("-c:v libx264 -preset ultrafast -bf 0 -pix_fmt yuv420p", "-c:a libmp3lame"),
    "h264.flv": (X264, "-c:a aac"), "h264.ts": (X264, "-c:a aac"), "h264.m2ts": (X264, "-c:a ac3"),
    "h264.nut": (X264, "-c:a aac"), "h264.3gp": (X264, "-c:a aac"), "bare.h264": (X264, ""),
    "hevc.mp4": ("-c:v libx265 -preset ultrafast -x265-params log-level=none -g 12", "-c:a aac"),
    "hevc.mkv": ("-c:v libx265 -preset ultrafast -x265-params log-level=none -g 12", "-c:a aac"),
    "hevc.ts": ("-c:v libx265 -preset ultrafast -x265-params log-level=none -g 12", "-c:a aac"),
    "bare.hevc": ("-c:v libx265 -preset ultrafast -x265-params log-level=none -g 12", ""),
    "mpeg2.ts": ("-c:v mpeg2video -bf 2 -b:v 800k", "-c:a mp2"), "mpeg2.mpg": ("-c:v mpeg2video -bf 2 -b:v 800k", "-c:a mp2"),
    "mpeg1.mpg": ("-c:v mpeg1video -bf 2 -b:v 800k", "-c:a mp2"), "mpeg2.vob": ("-c:v mpeg2video -b:v 800k", "-c:a ac3"),
    "mpeg2.mkv": ("-c:v mpeg2video -bf 2 -b:v 800k", "-c:a ac3"), "mpeg2.mxf": ("-c:v mpeg2video -b:v 800k", "-c:a pcm_s16le"),
    "mpeg2.wtv": ("-c:v mpeg2video -b:v 800k", "-c:a mp2"), "bare.m2v": ("-c:v mpeg2video -b:v 800k -f mpeg2video", ""),
    "mpeg4.avi": ("-c:v mpeg4 -b:v 800k", "-c:a libmp3lame"), "mpeg4.mp4": ("-c:v mpeg4 -bf 2 -b:v 800k", "-c:a aac"),
    "mpeg4.mov": ("-c:v mpeg4 -b:v 800k", "-c:a aac"), "mpeg4.3gp": ("-c:v mpeg4 -b:v 800k", "-c:a aac"),
    "mpeg4.nut": ("-c:v mpeg4 -b:v 800k", "-c:a libmp3lame"), "bare.m4v": ("-c:v mpeg4 -b:v 800k", ""),
    "h263.3gp": ("-c:v h263 -s 176x144 -b:v 800k", "-c:a aac"),
    "vp8.webm": ("-c:v libvpx -deadline realtime -b:v 800k", "-c:a libvorbis"), "vp8.ivf": ("-c:v libvpx -deadline realtime -b:v 800k", ""),
    "vp9.webm": ("-c:v libvpx-vp9 -deadline realtime -b:v 800k", "-c:a libopus"),
    "vp9.mp4": ("-c:v libvpx-vp9 -deadline realtime -b:v 800k", "-c:a aac"), "vp9.ivf": ("-c:v libvpx-vp9 -deadline realtime -b:v 800k", ""),
    "vp9.mkv": ("-c:v libvpx-vp9 -deadline realtime -b:v 800k", "-c:a flac"),
    "av1.mp4": ("-c:v libsvtav1 -preset 12", "-c:a aac"), "av1.webm": ("-c:v libsvtav1 -preset 12", "-c:a libopus"),
    "av1.ivf": ("-c:v libsvtav1 -preset 12", ""), "av1.obu": ("-c:v libsvtav1 -preset 12", ""),
    "theora.ogv": ("-c:v libtheora -q:v 7", "-c:a libvorbis"), "vp8.ogv": ("-c:v libvpx -deadline realtime -f ogg", "-c:a libopus"),
    "wmv2.wmv": ("-c:v wmv2 -b:v 800k", "-c:a wmav2"), "wmv1.asf": ("-c:v wmv1 -b:v 800k", "-c:a wmav2"),
    "msmpeg4.avi": ("-c:v msmpeg4 -b:v 800k", "-c:a libmp3lame"), "rv20.rm": ("-c:v rv20 -s 176x144 -b:v 600k", "-c:a ac3"),
    "rv10.rm": ("-c:v rv10 -s 176x144 -b:v 600k", "-c:a ac3"), "flv1.flv": ("-c:v flv -b:v 800k", "-c:a libmp3lame"),
    "mjpeg.avi": ("-c:v mjpeg -q:v 4 -pix_fmt yuvj420p", "-c:a pcm_s16le"), "mjpeg.mov": ("-c:v mjpeg -q:v 4 -pix_fmt yuvj420p", "-c:a pcm_s16le"),
    "bare.mjpeg": ("-c:v mjpeg -q:v 4 -pix_fmt yuvj420p", ""), "prores.mov": ("-c:v prores_ks", "-c:a pcm_s16le"),
    "ffv1.mkv": ("-c:v ffv1 -level 3", "-c:a flac"), "ffv1.avi": ("-c:v ffv1", ""), "huffyuv.avi": ("-c:v huffyuv -t 1", ""), "raw.nut": ("-c:v rawvideo -t 1", "-c:a pcm_s16le"),
    "moving.gif": ("-t 1", ""), "moving.apng": ("-t 1 -plays 0", ""), "raw.y4m": ("-t 1 -pix_fmt yuv420p", ""),
    "pal.dv": ("-c:v dvvideo -s 720x576 -pix_fmt yuv420p -t 1", ""), "pal.gxf": ("-c:v mpeg2video -s 720x576 -b:v 2M -t 1", ""),
}  # fmt: skip
QUICK = (
    "h264.mp4", "fragments.mp4", "h264.mkv", "h264.avi", "h264.flv", "h264.ts", "hevc.ts", "mpeg2.mpg", "vp9.webm",
    "wmv2.wmv", "rv20.rm", "theora.ogv", "moving.gif", "mpeg2.mxf", "h264.nut",
)  # fmt: skip
# Where a stream is copied to without being coded again.
COPIES = ("mkv", "mp4", "mov", "ts", "nut", "avi")


def ffmpeg(*args: object) -> bool:
    command = [FFMPEG, "-nostdin", "-v", "error", "-y", *map(str, args)]
    return subprocess.run(command, capture_output=True, check=False, timeout=120).returncode == 0


def synthesise(folder: Path, name: str, variant: str = "") -> Path | None:
    """A whole file of two seconds; None where this ffmpeg cannot make it. variant: "silent" or "vfr"."""
    pictures, sound = SYNTHETIC[name]
    path = folder / f"{variant}_{name}"
    if variant == "silent":
        sound = ""
    more = ["-vf", VFR, "-fps_mode", "vfr"] if variant == "vfr" else []
    if name.endswith(".m2ts"):
        more += ["-mpegts_m2ts_mode", "1"]
    tone = ["-f", "lavfi", "-i", "sine=sample_rate=48000:duration=2", "-ac", "2"] if sound else []
    if name.endswith("3gp") and sound:
        more += ["-strict", "-2"]
    made = ffmpeg("-f", "lavfi", "-i", PICTURE, *tone, *pictures.split(), *sound.split(), *more, path)
    return path if made and path.stat().st_size else None


def copy(source: Path, target: Path, *, start: float | None = None) -> Path | None:
    """The streams of a file in another container, from the keyframe before `start` on."""
    seek = [] if start is None else ["-ss", start]
    made = ffmpeg(*seek, "-i", source, "-map", "0:v:0", "-map", "0:a:0?", "-c", "copy", target)
    return target if made and target.stat().st_size > 1000 else None


# ------------------------------------------------------------------------------------------------ the witness


@dataclass(frozen=True)
class Told:
    """What ffmpeg says: its frames, as MD5, and its warnings and errors without what changes from run to run."""

    frames: tuple[str, ...]
    lines: frozenset[str]


def told(path: Path) -> Told:
    command = [FFMPEG, "-nostdin", "-v", "warning", "-threads", "1", "-i", str(path), "-map", "0:v:0", "-f", "null", "-"]
    command += ["-map", "0:v:0", "-fps_mode", "passthrough", "-f", "framemd5", "-"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    frames = [line.split(b",")[-1].strip().decode() for line in done.stdout.splitlines() if not line.startswith(b"#")]
    return Told(tuple(frames), frozenset(without_numbers(done.stderr.decode(errors="replace"))))


def without_numbers(text: str) -> Iterator[str]:
    for line in text.splitlines():
        # The muxers' own complaints are about rounded times.
        if "Last message repeated" in line or "to muxer in stream" in line:
            continue
        yield re.sub(r"-?\d+", "N", re.sub(r"0x[0-9a-f]+", "N", line)).strip()


def damage(path: Path) -> list[str]:
    """What a conversion would warn of."""
    try:
        with Source(path, max_pixels=36_000_000) as source:
            for _ in source.decode(source.packets()):
                pass
            return source.damage(read_to_end=True)
    except VidprepError as error:
        return [f"failed: {error}"]


# ------------------------------------------------------------------------------------------------ damage


def mutants(data: bytes, rng: random.Random) -> Iterator[tuple[str, bytes]]:
    """Cut, holed and flipped, each with a name; the first bytes, which hold headers, are spared by holes and flips."""
    size = len(data)
    head = min(size // 4, 8192)
    for percent in (30, 50, 75, 90, 97, 99):
        cut = size * percent // 100 + rng.randrange(max(1, size // 200))
        yield f"cut{percent}", data[:cut]
    for length in (512, 4096, 65536):
        if length < size // 4:
            at = rng.randrange(head, size - length)
            yield f"zero{length}", data[:at] + bytes(length) + data[at + length :]
            at = rng.randrange(head, size - length)
            yield f"removed{length}", data[:at] + data[at + length :]
    for count in (1, 8, 40):
        flipped = bytearray(data)
        for _ in range(count):
            flipped[rng.randrange(head, size)] ^= 1 << rng.randrange(8)
        yield f"flip{count}", bytes(flipped)


def unsaid(path: Path, whole: Told) -> str | None:
    """Why a file should be damaged that is said to be clean; None where all is well."""
    mutant = told(path)
    new = sorted(mutant.lines - whole.lines)
    if len(mutant.frames) == len(whole.frames) and not new:
        return None
    if damage(path):
        return None
    return f"{len(mutant.frames)} of {len(whole.frames)} frames, clean; ffmpeg says {new[:3]}"
