"""The real clips, where they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SHARED_MEDIA = Path(__file__).parent.parent.parent / "shared" / "media"
# They say nothing that smaller ones do not, but for longer: `make soak` reads them too.
SLOW_MEDIA = {
    "phone_4k60_rotated_90.mp4",
    "clock_320x240_300s.mp4",
    "editlist_starts_late_1080p.mp4",
    "traffic_1280x720_vfr.mp4",
    "concert_1080p50_h264_pcm.mov",
    "bunny_1080p_60fps_vp8.webm",
    "hdr10_720x1280_av1.mp4",
    "phone_hlg_1080p_hevc10_rotated_editlist.mp4",
}


def real_clips() -> list[Any]:
    """One parameter per real clip; one skipped parameter where there are none."""
    found = sorted(p.name for p in SHARED_MEDIA.glob("*.*") if p.suffix not in (".csv", ".md"))
    if not found:
        return [pytest.param("absent", marks=[pytest.mark.media, pytest.mark.skip(f"no real clips at {SHARED_MEDIA}")])]
    return [
        pytest.param(name, marks=[pytest.mark.media, *([pytest.mark.slow] if name in SLOW_MEDIA else [])])
        for name in found
    ]
