"""Libraries and NVIDIA GPUs that can decode a video."""

from __future__ import annotations

import os

import av.logging

from vidprep.transcode.audit._video import local_file
from vidprep.transcode.audit.dataset import VideoFile
from vidprep.transcode.check.other_readers import LOADERS, list_installed

# NVIDIA, Video Codec SDK 13.0, NVDEC Application Note, table of decoder capabilities: chroma 4:2:0 unless noted.
ALL, NEWER = "every one since Pascal", "L4, L40S, A10 and newer, but not A100 and H100"
NVDEC: dict[tuple[str, str], str] = {
    ("h264", "yuv420p"): ALL,
    ("h264", "yuvj420p"): ALL,
    ("hevc", "yuv420p"): ALL,
    ("hevc", "yuv420p10le"): ALL,
    ("hevc", "yuv420p12le"): ALL,
    ("vp8", "yuv420p"): ALL,
    ("vp9", "yuv420p"): ALL,
    ("vp9", "yuv420p10le"): ALL,
    ("mpeg2video", "yuv420p"): ALL,
    ("mpeg4", "yuv420p"): ALL,
    ("vc1", "yuv420p"): ALL,
    ("av1", "yuv420p"): NEWER,
    ("av1", "yuv420p10le"): NEWER,
}


def hardware_notes(codec: str, pixel_format: str) -> list[str]:
    """Return which NVIDIA GPUs cannot decode a form; nothing if all can."""
    who = NVDEC.get((codec, pixel_format))
    if who == ALL:
        return []
    if who is None:
        return [f"no NVIDIA decoder is known here for {codec} in {pixel_format}"]
    return [f"NVDEC decodes {codec} on {who}"]


def try_loaders(video: VideoFile) -> dict[str, str]:
    """Return why installed libraries cannot read the first frame of a video, by library; "" for those that can."""
    reasons = dict[str, str]()
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")  # quiet; what it cannot read is in the result
    with local_file(video) as path, av.logging.Capture(local=False):
        for name in list_installed():
            try:
                reasons[name] = "" if next(iter(LOADERS[name](path).iterate())).size else "it gives an empty picture"
            except StopIteration:
                reasons[name] = "it gives no frame"
            except Exception as error:  # noqa: BLE001 (whatever a library of others raises is its answer)
                reasons[name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:200]
    return reasons
