"""List of the formats of other tools that `pack` writes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PackTarget:
    """One of the formats.

    Attributes:
        writer: `module:function` in `vidprep.transcode.export`, imported when it is chosen. It gets a FrameStore, the empty folder to
            write, and a FrameOutput that says how frames become JPEGs
        needs_videos: Whether it is made of encoded videos alone
    """

    writer: str
    needs_videos: bool = False


TARGETS = {
    "frames": PackTarget("folders:write_frames"),
    "hf": PackTarget("folders:write_hf", needs_videos=True),
    "lerobot": PackTarget("to_lerobot:write_lerobot", needs_videos=True),
    "torchcodec": PackTarget("folders:write_torchcodec", needs_videos=True),
    "dali": PackTarget("folders:write_dali", needs_videos=True),
    "mmaction": PackTarget("folders:write_mmaction"),
}
