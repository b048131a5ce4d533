"""What a decoded frame shows of itself: every decision about the picture is taken from that."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from av.video.frame import VideoFrame

from vidprep.formats.manifest.remarks import Remark
from vidprep.formats.model import (
    NO_CROPPING,
    NO_HDR_METADATA,
    Colour,
    Cropping,
    FrameSize,
    HdrMetadata,
    Orientation,
    VideoInfo,
)
from vidprep.formats.video.hdr_metadata import hdr_metadata_of
from vidprep.formats.video.midway import told_of
from vidprep.formats.video.orientation import turn_of
from vidprep.formats.video.pyav import is_one_of_views
from vidprep.transcode.media.alpha import holds_alpha
from vidprep.transcode.media.h273 import LIMITED, MATRICES, RGB, UNSPECIFIED, is_hdr, is_rgb, tags_of


@dataclass(frozen=True, slots=True)
class SourcePicture:
    """What the first frame shows of itself: what every decision about the picture is taken from.

    is_tagged_limited: its range; a frame may as well say nothing of it. has_alpha: whether it holds alpha that means something.
    warnings: for the row.
    """

    stored: FrameSize
    cropping: Cropping
    pixel_format: str
    sample_aspect_ratio: Fraction
    orientation: Orientation
    rotation_degrees: int
    tagged: Colour
    codec: str
    is_tagged_limited: bool = False
    has_alpha: bool = False
    light: HdrMetadata = NO_HDR_METADATA
    warnings: tuple[Remark, ...] = ()

    @property
    def size(self) -> FrameSize:
        """Of what is to be shown of it, before it is turned."""
        crop = self.cropping
        return FrameSize(self.stored.width - crop.left - crop.right, self.stored.height - crop.top - crop.bottom)

    @property
    def is_rgb(self) -> bool:
        return is_rgb(self.pixel_format)

    @property
    def has_reserved_matrix(self) -> bool:
        return self.tagged.matrix not in MATRICES | {RGB, UNSPECIFIED}


def describe(frame: VideoFrame, info: VideoInfo, *, ignores_alpha: bool = False) -> SourcePicture:
    """The facts of a decoded frame; of its container only what it crops, and the shape of a pixel as long as no frame says another."""
    turn = turn_of(frame)
    warnings = [turn.warning] if turn.warning else []
    if is_one_of_views(frame):
        warnings.append(
            Remark(
                "several_views", "holds several views of the scene (stereo or spatial video); the base view was taken"
            )
        )
    stored, crop = FrameSize(frame.width, frame.height), info.cropping
    if crop.left + crop.right >= stored.width or crop.top + crop.bottom >= stored.height:
        warnings.append(Remark("cropping_ignored", f"the container crops all of {stored}; not followed"))
        crop = NO_CROPPING
    light, doubts = hdr_metadata_of(frame) if is_hdr(frame) else (NO_HDR_METADATA, [])
    warnings += doubts
    return SourcePicture(
        stored=stored,
        cropping=crop,
        pixel_format=frame.format.name,
        sample_aspect_ratio=told_of(frame).shape or info.sample_aspect_ratio,
        orientation=turn.orientation,
        rotation_degrees=turn.degrees,
        tagged=tags_of(frame),
        codec=info.codec,
        is_tagged_limited=int(frame.color_range) == LIMITED,
        has_alpha=holds_alpha(frame.format.name) and not ignores_alpha,
        light=light,
        warnings=tuple(warnings),
    )
