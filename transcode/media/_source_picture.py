"""Properties of a source's pictures, read from a decoded frame: size, orientation, alpha, colours; and colours of the
output.

Colours are code points of ITU-T H.273. Many writers of 32-bit RGB leave the fourth byte at zero: such alpha would make
all frames black, and is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING

from av.video.format import VideoFormat
from av.video.frame import VideoFrame

from vidprep.formats.errors import PictureError
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
from vidprep.formats.video.midway import properties_of
from vidprep.formats.video.picture_facts import hdr_metadata_of, round_crop, turn_of
from vidprep.formats.video.pyav import is_one_of_views, plane_lines
from vidprep.formats.video.rgb import HD_LINES
from vidprep.formats.video.source import Source
from vidprep.transcode.settings.options import Limits
from vidprep.transcode.settings.run import RunSettings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


INVISIBLE = 2  # of 255: makes white as dark as black; a lossy encoder may write it for 0
PACKED_ALPHA = {"rgba": 3, "bgra": 3, "argb": 0, "abgr": 0}  # position of alpha in four bytes


def holds_alpha(pixel_format: str) -> bool:
    """Return whether a pixel format has alpha."""
    layout = VideoFormat(pixel_format)
    return layout.has_palette or any(component.is_alpha for component in layout.components)


def alpha_of(frame: VideoFrame) -> npt.NDArray[np.uint8]:
    """Return the alpha of a frame as 8 bits, (H, W)."""
    step, at = (4, PACKED_ALPHA[frame.format.name]) if frame.format.name in PACKED_ALPHA else (2, 1)
    plane = (frame if step == 4 else frame.reformat(format="ya8")).planes[0]
    return plane_lines(plane)[:, at : step * frame.width : step]


def is_invisible(frame: VideoFrame) -> bool:
    """Return whether alpha would make a frame completely black."""
    return bool((alpha_of(frame) <= INVISIBLE).all())


def is_never_visible(source: Source, limits: Limits, on_progress: Callable[[], None] = lambda: None) -> bool:
    """Return whether every frame of a source would be black by its alpha, whichever part of it is wanted.

    Opens the file a second time, and decodes it up to the first frame that would not. Raises ReadError.

    Args:
        source: The open source; it is not read from.
        limits: Limits of the run.
        on_progress: Called for each decoded frame.
    """
    with source.again() as again:
        for frame in islice(again.decode(again.packets()), limits.max_frames):
            on_progress()
            if not holds_alpha(frame.format.name) or not is_invisible(frame):
                return False
    return True


# Code points of ITU-T H.273 and the names that the scale filter has for them.
RGB, BT709, UNSPECIFIED, FCC, BT470BG, SMPTE170M, SMPTE240M, BT2020 = 0, 1, 2, 4, 5, 6, 7, 9
MATRIX_NAMES = {
    BT709: "bt709",
    FCC: "fcc",
    BT470BG: "bt601",
    SMPTE170M: "bt601",
    SMPTE240M: "smpte240m",
    BT2020: "bt2020",
}
CONVERTER_NAMES = {
    BT709: "bt709",
    FCC: "fcc",
    BT470BG: "bt470bg",
    SMPTE170M: "smpte170m",
    SMPTE240M: "smpte240m",
    BT2020: "bt2020nc",
}
PQ, HLG = 16, 18
LIMITED, FULL = 1, 2  # ranges, as libavutil numbers them
# Codes that H.273 defines; reserved codes count as untagged. 0, RGB, is not a matrix of YCbCr.
PRIMARIES, TRANSFERS, MATRICES = {BT709, *range(4, 13), 22}, {BT709, *range(4, 19)}, {BT709, *range(4, 18)}
LOGARITHMIC = {9, 10}  # transfers that libswscale rejects although it would not convert them
HDR_TRANSFERS = {PQ: ("smpte2084", "PQ"), HLG: ("arib-std-b67", "HLG")}


def is_rgb(pixel_format: str) -> bool:
    return pixel_format.startswith(("rgb", "bgr", "gbr", "argb", "abgr", "0rgb", "0bgr", "x2rgb", "pal8", "bayer"))


def is_hdr(frame: VideoFrame) -> bool:
    return int(frame.color_trc) in HDR_TRANSFERS


def tags_of(frame: VideoFrame) -> Colour:
    primaries, transfer = int(frame.color_primaries), int(frame.color_trc)
    return Colour(int(frame.colorspace), primaries, transfer, int(frame.color_range) == FULL)


def is_refused(tagged: Colour) -> bool:
    """Return whether libswscale rejects frames with these tags."""
    return (
        tagged.primaries not in PRIMARIES | {UNSPECIFIED}
        or tagged.transfer not in TRANSFERS - LOGARITHMIC | {UNSPECIFIED}
        or tagged.matrix not in MATRICES | {RGB, UNSPECIFIED}
    )


@dataclass(frozen=True, slots=True)
class SourcePicture:
    """Properties of a source's first frame, from which the picture is planned.

    Attributes:
        sample_aspect_ratio: Shape of a pixel
        orientation: How to turn it upright
        rotation_degrees: The same as counter-clockwise degrees
        tagged: Colour tags
        is_tagged_limited: Whether it is tagged as limited range; a frame may have no such tag
        light: HDR metadata
        warnings: Remarks for the row
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
        """Size after cropping, before turning."""
        crop = self.cropping
        return FrameSize(self.stored.width - crop.left - crop.right, self.stored.height - crop.top - crop.bottom)

    @property
    def is_rgb(self) -> bool:
        return is_rgb(self.pixel_format)

    @property
    def has_reserved_matrix(self) -> bool:
        return self.tagged.matrix not in MATRICES | {RGB, UNSPECIFIED}


def describe(frame: VideoFrame, info: VideoInfo, *, ignores_alpha: bool = False) -> SourcePicture:
    """Return the properties of a decoded frame. Its container contributes cropping, and the pixel shape as long as no
    frame has another.
    """
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
    rounded = round_crop(crop, frame)
    if (rounded.left, rounded.top) != (crop.left, crop.top) and rounded != NO_CROPPING:
        warnings.append(
            Remark(
                "cropping_rounded",
                f"the container crops {crop.left} columns on the left and {crop.top} lines at the top, {rounded.left} and "
                f"{rounded.top} were: neighbouring pixels share one sample of colour",
            )
        )
    light, doubts = hdr_metadata_of(frame) if is_hdr(frame) else (NO_HDR_METADATA, [])
    warnings += doubts
    return SourcePicture(
        stored=stored,
        cropping=crop,
        pixel_format=frame.format.name,
        sample_aspect_ratio=properties_of(frame).shape or info.sample_aspect_ratio,
        orientation=turn.orientation,
        rotation_degrees=turn.degrees,
        tagged=tags_of(frame),
        codec=info.codec,
        is_tagged_limited=int(frame.color_range) == LIMITED,
        has_alpha=holds_alpha(frame.format.name) and not ignores_alpha,
        light=light,
        warnings=tuple(warnings),
    )


STILL_IMAGE_CODECS = {"mjpeg", "jpegls", "png", "apng"}


def input_colour(source: SourcePicture, warnings: list[Remark]) -> Colour:
    """Return the colours of a source. Missing tags are guessed, with a remark."""
    lines = source.stored.height
    guess = BT709 if lines >= HD_LINES else SMPTE170M
    tagged = source.tagged
    matrix, full = tagged.matrix, tagged.full_range
    is_grey = source.pixel_format.startswith(("gray", "mono", "ya"))
    if source.is_rgb:
        matrix, full = guess, True
    elif matrix not in MATRIX_NAMES:
        if matrix in MATRICES and not is_grey:
            raise PictureError(f"its colour matrix (H.273 code {matrix}) cannot be converted")
        matrix = guess
    if not source.is_tagged_limited and (source.pixel_format.startswith("yuvj") or source.codec in STILL_IMAGE_CODECS):
        full = True
    family = {BT709: BT709, BT2020: BT2020, SMPTE240M: SMPTE240M, BT470BG: BT470BG}.get(matrix, SMPTE170M)
    primaries, transfer = tagged.primaries, tagged.transfer
    if source.is_rgb or primaries not in PRIMARIES:
        primaries = family
    if source.is_rgb or transfer not in TRANSFERS:
        transfer = {BT2020: 14, SMPTE240M: 7, BT709: 1}.get(family, 6)
    if not source.is_rgb:
        warnings += _guesses(tagged, guess, lines, is_grey=is_grey)
    return Colour(matrix, primaries, transfer, full)


def _guesses(tagged: Colour, guess: int, lines: int, *, is_grey: bool) -> list[Remark]:
    """Return a remark about guessed colours, or none."""
    codes = {
        "matrix": (tagged.matrix, MATRICES),
        "primaries": (tagged.primaries, PRIMARIES),
        "transfer": (tagged.transfer, TRANSFERS),
    }
    reserved = [f"{name} {code}" for name, (code, known) in codes.items() if code not in known | {RGB, UNSPECIFIED}]
    what = f"colours are tagged with reserved codes ({', '.join(reserved)})" if reserved else "colour matrix not tagged"
    if not is_grey and tagged.matrix not in MATRICES:
        taken = "BT.709" if guess == BT709 else "BT.601"
        code = "reserved_colours" if reserved else "untagged_colours"
        return [Remark(code, f"{what}; taken for {taken} by its {lines} lines")]
    return [Remark("reserved_colours", f"{what}; taken for those of its matrix")] if reserved else []


def output_colour(colour: Colour, settings: RunSettings, warnings: list[Remark]) -> tuple[Colour, bool]:
    """Return the colours of the output, and whether HDR has to be tone-mapped.

    Videos keep the source's matrix in limited range; JPEGs are BT.601 in full range.
    """
    tone_map = False
    if colour.transfer in HDR_TRANSFERS:
        name = HDR_TRANSFERS[colour.transfer][1]
        tone_map = not settings.keeps_hdr
        warnings.append(
            Remark("tone_mapped", f"{name} tone-mapped to BT.709 (--hdr keep leaves it as it is)")
            if tone_map
            else Remark("hdr_kept", f"{name} kept")
        )
    out = Colour(BT709, BT709, BT709) if tone_map else replace(colour, full_range=False)
    if settings.output.is_full_range:
        out = replace(out, matrix=BT470BG, full_range=True)
    return out, tone_map


def tags_for_scaling(colour: Colour, *, is_rgb: bool) -> str:
    transfer = UNSPECIFIED if colour.transfer in LOGARITHMIC else colour.transfer
    matrix = RGB if is_rgb else colour.matrix
    return f"color_primaries={colour.primaries}:color_trc={transfer}:colorspace={matrix}"


def alike(one: Colour, other: Colour) -> bool:
    """Return whether colours mean the same: matrices with one name are equal."""
    return one.full_range == other.full_range and MATRIX_NAMES[one.matrix] == MATRIX_NAMES[other.matrix]
