"""Colours as ITU-T H.273 numbers them, and what libswscale makes of the numbers."""

from __future__ import annotations

from av.video.frame import VideoFrame

from vidprep.formats.model import Colour

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
# All that H.273 gives a meaning; what is reserved says as little as what is not tagged. RGB, 0, is no matrix of YCbCr.
PRIMARIES, TRANSFERS, MATRICES = {BT709, *range(4, 13), 22}, {BT709, *range(4, 19)}, {BT709, *range(4, 18)}
LOGARITHMIC = {9, 10}  # transfers that libswscale refuses to see, though it would leave them as they are
HDR_TRANSFERS = {PQ: ("smpte2084", "PQ"), HLG: ("arib-std-b67", "HLG")}


def is_rgb(pixel_format: str) -> bool:
    return pixel_format.startswith(("rgb", "bgr", "gbr", "argb", "abgr", "0rgb", "0bgr", "x2rgb", "pal8", "bayer"))


def is_hdr(frame: VideoFrame) -> bool:
    return int(frame.color_trc) in HDR_TRANSFERS


def tags_of(frame: VideoFrame) -> Colour:
    primaries, transfer = int(frame.color_primaries), int(frame.color_trc)
    return Colour(int(frame.colorspace), primaries, transfer, int(frame.color_range) == FULL)


def is_refused(tagged: Colour) -> bool:
    """Whether libswscale takes no frame that is tagged so."""
    return (
        tagged.primaries not in PRIMARIES | {UNSPECIFIED}
        or tagged.transfer not in TRANSFERS - LOGARITHMIC | {UNSPECIFIED}
        or tagged.matrix not in MATRICES | {RGB, UNSPECIFIED}
    )
