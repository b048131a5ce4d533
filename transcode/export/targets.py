"""List of the formats of other tools that `pack` writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vidprep.formats.errors import SettingsError
from vidprep.transcode.settings.options import Sampling, Scale
from vidprep.transcode.settings.output import FrameOutput

if TYPE_CHECKING:
    from vidprep.formats.training.rows import RowsGap


@dataclass(frozen=True, slots=True)
class PackTarget:
    """One of the formats.

    Attributes:
        writer: `module:function` in `vidprep.transcode.export`, imported when it is chosen. It gets a FrameStore, the empty folder to
            write, and PackOptions
        needs_videos: Whether it is made of encoded videos alone
    """

    writer: str
    needs_videos: bool = False


@dataclass(frozen=True, slots=True)
class PackOptions:
    """Options of what is written for other tools.

    Attributes:
        jpeg: Quality and subsampling of frames that the store has no JPEG of
        scale: Size of pictures: as they are, or by `multiple_of`
        sampling: Which frames; None for all
        rows_gap: What happens to a frame without a row near it
        captions_as: Form of the dialogues that captions become; None for none
        by_bucket: Whether clips lie in a folder for each bucket
        separator: What separates the fields of a list: "space", "comma" or "tab"
        suffix: Suffix of a list
    """

    jpeg: FrameOutput
    scale: Scale
    sampling: Sampling | None
    rows_gap: RowsGap = "error"
    captions_as: str | None = None
    by_bucket: bool = False
    separator: str = "space"
    suffix: str = ".txt"

    def __post_init__(self) -> None:
        if self.scale.short_side is not None or self.scale.size is not None:
            raise SettingsError("pictures are scaled by `multiple_of` alone")


TARGETS = {
    "frames": PackTarget("folders:write_frames"),
    "hf": PackTarget("folders:write_hf", needs_videos=True),
    "lerobot": PackTarget("to_lerobot:write_lerobot", needs_videos=True),
    "clips": PackTarget("folders:write_clips", needs_videos=True),
    "list": PackTarget("folders:write_list"),
    "torchcodec": PackTarget("folders:write_torchcodec", needs_videos=True),
    "dali": PackTarget("folders:write_dali", needs_videos=True),
    "mmaction": PackTarget("folders:write_mmaction"),
}
