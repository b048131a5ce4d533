"""What mutants are made of: small clips in a dozen containers, and the real ones where they are."""

from __future__ import annotations

from pathlib import Path

from tests.real_media import SHARED_MEDIA
from tests.recipes import H264, Media, moving, recipe

SMALL = moving("64x48", frames=16)
recipe("small.mp4", *SMALL, *H264, "-movflags", "+faststart")
recipe("small_sound.mp4", *SMALL, "-f", "lavfi", "-i", "sine=d=0.5", *H264, "-c:a", "aac")
recipe("small_fragments.mp4", *SMALL, *H264, "-movflags", "+frag_keyframe+empty_moov")
recipe("small.mov", *SMALL, "-c:v", "mpeg4", "-g", 6)
recipe("small_vfr.mp4", *SMALL, "-vf", "settb=1/600,setpts='N*20+mod(N*7,5)'", "-fps_mode", "passthrough", *H264)
recipe(
    "small_hevc.mp4",
    *SMALL,
    "-c:v",
    "libx265",
    "-preset",
    "ultrafast",
    "-tag:v",
    "hvc1",
    "-x265-params",
    "keyint=8:pools=none:frame-threads=1:log-level=error",
)
recipe("small.mkv", *SMALL, *H264)
recipe("small_sound.mkv", *SMALL, "-f", "lavfi", "-i", "sine=d=0.5", *H264, "-c:a", "libopus")
recipe("small.webm", *SMALL, "-c:v", "libvpx", "-cpu-used", 5, "-deadline", "good", "-g", 8)
recipe("small_vp9.webm", *SMALL, "-c:v", "libvpx-vp9", "-deadline", "realtime", "-cpu-used", 8, "-g", 8)
recipe("small_av1.mkv", *SMALL, "-c:v", "libsvtav1", "-preset", 12, "-g", 8)
recipe("small.avi", *SMALL, "-c:v", "mpeg4", "-g", 6)
recipe("small_jpeg.avi", *SMALL, "-c:v", "mjpeg", "-pix_fmt", "yuvj422p")
recipe("small.ogv", *SMALL, "-c:v", "libtheora", "-q:v", 5, "-g", 8)
recipe("small.ts", *SMALL, *H264)
recipe("small_mpeg2.ts", *SMALL, "-c:v", "mpeg2video", "-bf", 2, "-g", 8)
recipe("small.mpg", *moving("64x48", "25", 16), "-c:v", "mpeg2video", "-bf", 2)
recipe("small.flv", *SMALL, "-c:v", "flv1", "-g", 8)
recipe("small.wmv", *SMALL, "-c:v", "wmv2", "-g", 8)
recipe("small.gif", *moving("64x48", "20", 12))
SYNTHESISED = (
    "small.mp4",
    "small_sound.mp4",
    "small_fragments.mp4",
    "small.mov",
    "small_vfr.mp4",
    "small_hevc.mp4",
    "turned_90.mp4",
    "edit_list.mp4",
    "small.mkv",
    "small_sound.mkv",
    "small.webm",
    "small_vp9.webm",
    "small_av1.mkv",
    "small.avi",
    "small_jpeg.avi",
    "small.ogv",
    "small.ts",
    "small_mpeg2.ts",
    "small.mpg",
    "small.flv",
    "small.wmv",
    "small.gif",
    "one.mp4",
)
LARGEST_REAL_BYTES = 1_200_000  # larger ones say nothing more, for longer


def synthesised(media: Media) -> dict[str, bytes]:
    return {name: media[name].read_bytes() for name in SYNTHESISED}


def real() -> dict[str, bytes]:
    """None where the real clips are absent."""
    files = (path for path in sorted(SHARED_MEDIA.glob("*.*")) if path.suffix not in (".csv", ".md"))
    return {path.name: path.read_bytes() for path in files if path.stat().st_size <= LARGEST_REAL_BYTES}


def write(folder: Path, name: str, data: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(data)
    return path
